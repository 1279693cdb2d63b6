# SPDX-License-Identifier: Apache-2.0
"""Losses: one number for each row of the batch, never their average.

An average over a batch mixes examples and divides by the private size of the batch, so it is refused.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError

__all__ = ["Loss", "checked", "cross_entropy", "weighted"]

Loss = Callable[..., Tensor]  # (model, *batch) -> [rows]


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each row, the default loss of a classifier.

    Args:
        model: A classifier, which returns one output for each class.
        x: The inputs, one row an example.
        y: The labels, as whole numbers.

    Returns:
        One loss for each row.

    >>> import torch
    >>> cross_entropy(nn.Identity(), torch.zeros(3, 2), torch.tensor([0, 1, 0])).shape
    torch.Size([3])
    """
    return F.cross_entropy(model(x), y, reduction="none")


def checked(losses: Any, rows: int) -> Tensor:
    """Return the losses if there is one for each row; raise otherwise."""
    if not isinstance(losses, Tensor) or not losses.is_floating_point():
        raise InvalidParameterError(
            "the loss must return a tensor with one number for each row, but it returned a "
            f"{type(losses).__name__}."
        )
    if losses.dim() == 0:
        raise InvalidParameterError(
            "the loss is one number for the whole batch. Return one for each row instead: with torch's "
            "losses, pass reduction='none'. Clipping needs each example's own gradient."
        )
    if losses.dim() != 1 or losses.shape[0] != rows:
        raise InvalidParameterError(
            "the loss must have one axis, with one number for each row of the batch, but it has "
            f"{losses.dim()} axes or another number of entries. Average over all axes but the first, and "
            "keep the batch on that one."
        )
    return losses


def weighted(loss: Loss) -> Loss:
    """Return the loss of a batch whose first part is a weight for each row (None: all are 1)."""

    def of_rows(model: nn.Module, weights: Tensor | None, *batch: Any) -> Tensor:
        losses = loss(model, *batch)
        if weights is None:
            return losses
        return checked(losses, weights.shape[0]) * weights.to(losses.dtype)

    return of_rows
