# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import pytest

OURS = "from sfumato.accounting.upstream import DpEvent, dp_event as ours\n"
THEIRS = "import dp_accounting\nfrom dp_accounting import dp_event as theirs\n"
SAME = """
import pickle, sys
assert ours is theirs is sys.modules["dp_accounting.dp_event"] is dp_accounting.dp_event
assert DpEvent is dp_accounting.DpEvent and ours.GaussianDpEvent is dp_accounting.GaussianDpEvent
event = ours.GaussianDpEvent(1.5)
assert pickle.loads(pickle.dumps(event)) == event
assert dp_accounting.rdp.RdpAccountant().compose(event).get_epsilon(1e-5) > 0
"""


@pytest.mark.parametrize("order", [OURS + THEIRS, THEIRS + OURS], ids=["ours first", "theirs first"])
def test_the_events_are_those_of_dp_accounting_whoever_is_imported_first(order):
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", order + SAME], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_the_rest_of_dp_accounting_stays_unloaded():
    script = (
        OURS + "import sys\nassert 'dp_accounting' not in sys.modules and 'scipy.signal' not in sys.modules"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
