# SPDX-License-Identifier: Apache-2.0
"""The loss of one row, by the `compute_loss` of a trainer.

Guarantee  `compute_loss` sees one row at a time, of shape [1, ...]. So a mean over tokens is one over the
           row's own tokens, and no loss can mix rows or divide by the size of a batch.
Edge cases A row that could not be read has loss 0 and gradient 0. A row whose tokens are all ignored (-100)
           has no mean, so its gradient is not finite and is left out.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from sfumato._failures import ordinary
from sfumato.errors import InvalidParameterError

__all__ = ["RowLoss"]

ComputeLoss = Callable[[nn.Module, dict[str, Any]], Any]


class RowLoss:
    """`loss(model, readable, row)` for the engine, of one row.

    >>> import torch
    >>> loss = RowLoss(lambda model, row: model(row["x"]).sum())
    >>> loss(nn.Identity(), torch.ones(1), {"x": torch.tensor([[2.0, 3.0]])})
    tensor([5.])
    """

    def __init__(self, compute: ComputeLoss) -> None:
        self._compute = compute

    def __call__(self, model: nn.Module, readable: Tensor, row: Mapping[str, Any]) -> Tensor:
        """Return the loss as a tensor with one number.

        Args:
            model: The model.
            readable: 1 for a row that could be read, else 0.
            row: The inputs of the model, and the labels.

        Returns:
            The loss.

        Raises:
            InvalidParameterError: If the trainer's loss is not one number for one row.
        """
        loss = ordinary(lambda: self._compute(model, dict(row)))
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise InvalidParameterError(
                "the loss of one row must be a tensor with one number. Let the model, compute_loss or "
                "compute_loss_func return its mean over what belongs to the row."
            )
        return loss.reshape(1) * (readable if readable.dtype is loss.dtype else readable.to(loss.dtype))
