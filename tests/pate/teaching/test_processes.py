# SPDX-License-Identifier: Apache-2.0
import os

import joblib
import numpy as np
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.pate.teaching.processes import check_workers, done_in_processes

_kept = []


def grown(number):
    """Keep 150 MB more after each task: joblib ends a process that has grown by 300 MB."""
    _kept.append(np.ones(19_000_000))
    return number, os.getpid()


@pytest.mark.parametrize("workers", [0, True, 1.5, "2", None])
def test_what_is_no_number_of_processes_is_refused(workers):
    with pytest.raises(InvalidParameterError, match="workers must be"):
        check_workers(workers)
    with pytest.raises(InvalidParameterError, match="workers must be"):
        list(done_in_processes([], workers=workers, ordered=True))


@pytest.mark.parametrize("workers", [1, 2])
def test_results_are_those_of_all_tasks_in_order(workers):
    tasks = [joblib.delayed(pow)(number, 2) for number in range(9)]
    assert list(done_in_processes(tasks, workers=workers, ordered=True)) == [n * n for n in range(9)]
    assert sorted(done_in_processes(tasks, workers=workers, ordered=False)) == [n * n for n in range(9)]


def test_tasks_that_follow_run_in_the_same_processes():
    tasks = [joblib.delayed(os.getpid)() for _ in range(8)]
    first = set(done_in_processes(tasks, workers=2, ordered=True))
    second = set(done_in_processes(tasks, workers=2, ordered=False))
    assert first & second and os.getpid() not in first | second


def test_a_process_that_has_grown_is_replaced_in_silence(recwarn):
    """Under pytest a warning is an error, which would end the thread that hands out tasks: it would hang."""
    results = list(done_in_processes((joblib.delayed(grown)(n) for n in range(12)), workers=2, ordered=True))
    assert [number for number, _ in results] == list(range(12))
    assert not [each for each in recwarn if "worker" in str(each.message)]
