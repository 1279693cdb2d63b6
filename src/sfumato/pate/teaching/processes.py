# SPDX-License-Identifier: Apache-2.0
"""The processes in which teachers learn and vote."""

import numbers
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import joblib

from sfumato.errors import InvalidParameterError

__all__ = ["check_workers", "done_in_processes"]


def check_workers(workers: int) -> None:
    """Raise unless a number of processes is a whole number other than 0.

    Args:
        workers: The number of processes; -1 is one for each processor.

    Raises:
        InvalidParameterError: If it is something else.
    """
    if not isinstance(workers, numbers.Integral) or isinstance(workers, bool) or workers == 0:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError(
            f"workers must be a number of processes, or -1 for one on each processor, but {workers!r} was "
            "given."
        )


def done_in_processes(tasks: Iterable[Any], *, workers: int, ordered: bool) -> Iterator[Any]:
    """Run tasks in so many processes, which are kept for the next tasks: teachers learn and vote in the same.

    Arrays are sent to processes, and never mapped to files: private rows are among them. A process that has
    grown much, as by an import of torch, is replaced by a new one.

    Args:
        tasks: What `joblib.delayed` made.
        workers: The number of processes; -1 is one for each processor.
        ordered: Whether results come in the order of the tasks.

    Yields:
        The result of each task.

    Raises:
        InvalidParameterError: If the number is 0 or not whole.
    """
    check_workers(workers)
    order = "generator" if ordered else "generator_unordered"
    with warnings.catch_warnings():
        # That a process was replaced tells about private rows, and as an error it would end the pool.
        warnings.filterwarnings("ignore", message="A worker stopped", category=UserWarning)
        yield from joblib.Parallel(n_jobs=int(workers), return_as=order, max_nbytes=None)(tasks)
