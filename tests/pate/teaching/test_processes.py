# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.pate.teaching.processes import check_workers, parallel_of


@pytest.mark.parametrize("workers", [0, True, 1.5, "2", None])
def test_what_is_no_number_of_processes_is_refused(workers):
    for check in (check_workers, parallel_of):
        with pytest.raises(InvalidParameterError, match="workers must be"):
            check(workers)


@pytest.mark.parametrize("workers", [1, 2, -1])
def test_tasks_run_in_so_many_processes(workers):
    assert parallel_of(workers).n_jobs == workers
