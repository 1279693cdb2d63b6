# SPDX-License-Identifier: Apache-2.0
"""The processes in which teachers learn and vote."""

import numbers
from typing import Any

import joblib

from sfumato.errors import InvalidParameterError

__all__ = ["check_workers", "parallel_of"]


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


def parallel_of(workers: int, **settings: Any) -> Any:
    """Return what runs tasks in so many processes.

    Args:
        workers: The number of processes; -1 is one for each processor.
        **settings: Further settings of `joblib.Parallel`.

    Returns:
        The object of joblib.

    Raises:
        InvalidParameterError: If the number is 0 or not whole.
    """
    check_workers(workers)
    return joblib.Parallel(n_jobs=int(workers), **settings)
