# SPDX-License-Identifier: Apache-2.0
"""The processes that torch.distributed connects, for teachers; one process where it is not in use.

Failure    An error of one rank is raised on all. Ranks that were given different rows are refused: a unit
           could be in a teacher of each.
"""

import numbers
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidParameterError

__all__ = ["add_up", "check_workers", "connected", "first_decides", "rank", "require_alike", "size"]

Answer = TypeVar("Answer")


def connected() -> Any:
    """Return `training.distributed` if this process is one of several, else None. Torch is not imported."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not (dist.is_available() and dist.is_initialized()):
        return None
    from sfumato.training import distributed

    return distributed


def rank() -> int:
    """Return the number of this process; 0 if it is alone."""
    several = connected()
    return 0 if several is None else several.rank()


def size() -> int:
    """Return how many processes there are."""
    several = connected()
    return 1 if several is None else several.size()


def require_alike(compute: Callable[[], object], *, what: str) -> None:
    """Raise on every rank unless `compute` returns the same on all of them; alone, only compute."""
    several = connected()
    if several is None:
        compute()
    elif not several.alike(compute):
        raise InvalidParameterError(f"the ranks have different {what}. Give every rank the same.")


def add_up(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the sum over all ranks, the same on each."""
    several = connected()
    if several is None:
        return counts
    import torch

    place = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    total = torch.from_numpy(counts).to(place)
    several.add_up_([total])
    return total.cpu().numpy()


def first_decides(decide: Callable[[], Answer]) -> Answer:
    """Return on every rank what `decide` returns on rank 0; if it raises there, every rank raises."""
    several = connected()
    return decide() if several is None else several.first_decides(decide)


def check_workers(workers: int) -> None:
    """Raise if there cannot be so many processes.

    Args:
        workers: The number of processes.

    Raises:
        InvalidParameterError: If it is no whole number, or 0.
    """
    if not isinstance(workers, numbers.Integral) or isinstance(workers, bool) or workers == 0:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError(
            f"workers must be a number of processes, or -1 for one on each processor, but {workers!r} was "
            "given."
        )
