# SPDX-License-Identifier: Apache-2.0
"""Losses: one number for each row of the batch, never their average.

An average over a batch mixes examples and divides by the private size of the batch, so it is refused.

Guarantee  The losses of this module do not fail because of a label. A label that is no class has loss 0 and
           gradient 0, so that its row contributes nothing, and no error shows that it is there.
Not here   Losses of your own. A row on which one fails contributes nothing (`passes`).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError

__all__ = ["Loss", "checked", "class_losses", "cross_entropy", "is_criterion", "refuse_criterion", "weighted"]

Loss = Callable[..., Tensor]  # (model, *batch) -> [rows]

_IGNORED = -100  # torch's own number for a label without a loss


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each row, the default loss of a classifier.

    Args:
        model: A classifier, which returns one output for each class.
        x: The inputs, one row an example.
        y: The labels, as whole numbers. A label that is no class contributes nothing.

    Returns:
        One loss for each row: 0 where the label is no class.

    >>> cross_entropy(nn.Identity(), torch.zeros(3, 2), torch.tensor([0, 1, 7]))
    tensor([0.6931, 0.6931, 0.0000])
    """
    return class_losses(model(x), y)


def class_losses(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each label, and 0 for one that is no class.

    Args:
        scores: The scores of the classes, [rows, classes, ...].
        labels: Whole numbers, [rows, ...]; or probabilities of the classes, of the shape of the scores.

    Returns:
        The losses, of the shape of the labels.
    """
    if labels.is_floating_point():
        return F.cross_entropy(scores, labels, reduction="none")
    whole = labels.long()
    nearest = whole.clamp(0, scores.shape[min(1, scores.dim() - 1)] - 1)
    return F.cross_entropy(scores, torch.where(nearest == whole, whole, _IGNORED), reduction="none")


def is_criterion(value: object) -> bool:
    """Return whether it is a criterion of torch, of outputs and targets.

    >>> is_criterion(torch.nn.MSELoss()), is_criterion(torch.nn.Linear(1, 1))
    (True, False)
    """
    return isinstance(value, torch.nn.modules.loss._Loss)  # pyright: ignore[reportPrivateUsage] - no public base


def refuse_criterion(loss: object) -> None:
    """Raise for a criterion of torch where `loss(model, *rows)` is needed.

    >>> refuse_criterion(torch.nn.MSELoss())
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: loss is MSELoss, which takes outputs and targets. A loss takes ...
    """
    if is_criterion(loss):
        name = type(loss).__name__
        raise InvalidParameterError(
            f"loss is {name}, which takes outputs and targets. A loss takes the model and its rows: "
            f"loss=lambda model, x, y: {name}(reduction='none')(model(x), y). Without a loss, classifiers "
            "get cross-entropy."
        )


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
