# SPDX-License-Identifier: Apache-2.0
"""Estimate how many rows fit in memory, so that a large batch is run in pieces from the start.

What a forward pass keeps for the backward pass is counted for two rows and for three; the difference is what
a row takes. Book-keeping keeps about as much again, the gradients of outputs. The estimate errs downwards. It
does not affect privacy, because pieces add up.
"""

import os
import warnings
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError
from sfumato.training.data.rows import count, repeat_to, tensors
from sfumato.training.engine.losses import Loss
from sfumato.training.engine.parameter_values import as_written
from sfumato.training.sharding.lent import Lent

__all__ = ["halved", "rows_that_fit"]

_SHARE: Final = 0.5  # of the free memory: other things need some, too
_UNKNOWN: Final = 4 << 30  # bytes that are assumed to be free if the system does not report it
_COPIES: Final = 3  # inputs, output gradients, and copies of one of them while it is worked on


def rows_that_fit(model: nn.Module, loss: Loss, batch: Sequence[Any], *, more: int = 0) -> int:
    """Return how many rows of a batch like this one can be run at once; one at least.

    `more` is what an engine keeps for each row besides, in bytes.
    """
    device = next(tensors(batch)).device
    two, three = (_kept_bytes(model, loss, repeat_to(batch, rows)) for rows in (2, 3))
    per_row = max(1, three - two, _row_bytes(batch)) * _COPIES + more
    return max(1, int(_SHARE * _free_bytes(device)) // per_row)


def _kept_bytes(model: nn.Module, loss: Loss, batch: Sequence[Any]) -> int:
    """Return the bytes of all tensors that a forward pass keeps, each storage counted once."""
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if isinstance(tensor, Lent):  # it has no memory
            return tensor
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # an output that its own node kept would never be freed

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with as_written(), torch.enable_grad(), hooks:
        losses = loss(model, *batch)  # held, or the memory of what it keeps would be used again
    del losses
    return sum(found.values())


def _row_bytes(batch: Sequence[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors(batch)) // count(batch)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # not every system reports it
        return _UNKNOWN


def halved(size: int, error: BaseException) -> int:
    """Return how many units to run at once after so many did not fit in memory, and warn.

    Args:
        size: How many units were run. It is private: what is told is a power of two below it.
        error: What was raised.

    Returns:
        The next lower power of two.

    Raises:
        InvalidParameterError: If it was one unit.
    """
    if size == 1:
        raise InvalidParameterError(
            "one unit's gradients alone do not fit in memory. Use a smaller model, a coarser data type, "
            "or freeze a part of it."
        ) from error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    fewer = 1 << ((size - 1).bit_length() - 1)
    warnings.warn(
        f"a piece did not fit in memory; going on with microbatch_size={fewer}. Pass it from the start to "
        "avoid the failed attempt.",
        stacklevel=8,
    )
    return fewer
