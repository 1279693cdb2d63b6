# SPDX-License-Identifier: Apache-2.0
"""One process; `tests/pate/test_teachers.py` starts two."""

import subprocess
import sys

import numpy as np

from sfumato.pate.teaching import ranks


def test_a_process_that_is_alone_does_everything_itself():
    assert (ranks.rank(), ranks.size(), ranks.connected()) == (0, 1, None)
    counts = np.ones((2, 2))
    assert ranks.add_up(counts) is counts
    called = []
    ranks.require_alike(lambda: called.append(1), what="rows")
    assert called == [1]


def test_teachers_of_scikit_learn_need_no_torch():
    script = """
import sys

class Hide:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Hide)
import numpy as np
from sklearn.naive_bayes import GaussianNB
from sfumato.pate import Partition, train_teachers
x = np.arange(40.0).reshape(-1, 1)
with train_teachers(GaussianNB(), x, x[:, 0] > 20, partition=Partition.draw(2), classes=(False, True)) as e:
    print(e.counts(x).sum())
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) == 80
