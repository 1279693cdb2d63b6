# SPDX-License-Identifier: Apache-2.0
"""The criterion of a private loop: one number for each row, computed while the row is alone.

Guarantee  In training, the user's criterion sees the module's outputs and the targets of one row at a time.
           So no loss can mix rows or depend on how many there are. `backward` on what it returns requests the
           gradient of each row's own loss; the gradient is computed at the step, and is clipped there.
Edge cases The returned value is the mean over the rows. It is exact, so it is private: do not publish it.
           Sums of such losses add up for each row before clipping. A criterion in evaluation mode or without
           gradients returns the mean over any rows.
Failure    A loss that is multiplied or divided before `backward` is refused: outside of the criterion a
           factor could depend on the batch.
"""

from typing import Any

import torch
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError
from sfumato.training.adapters.calls import BatchCalls, LossCall
from sfumato.training.adapters.nesting import refuse_unsplit, row_count
from sfumato.training.adapters.optimizer_hooks import PrivateSteps
from sfumato.training.data import tree
from sfumato.training.engine.losses import checked
from sfumato.training.isolation.isolated_rows import Isolated

__all__ = ["PrivateCriterion"]


class _Loss(torch.autograd.Function):
    """A number to look at, whose backward pass notes that the gradient of its rows is wanted."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, value: Tensor, batch: BatchCalls, call: LossCall) -> Tensor:  # type: ignore[override]
        ctx.batch, ctx.call = batch, call
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        if ctx.batch.closed:
            raise InvalidParameterError(
                "a backward pass came too late: the batch it belongs to was already added up. Call "
                "loss.backward() before optimizer.step() and before the loader's next batch."
            )
        if float(grad) != 1.0:
            raise InvalidParameterError(
                "the loss was multiplied or divided before backward(). Outside of the criterion a factor "
                "could depend on the batch: put weights into the criterion. With batches_per_step nothing "
                "needs to be divided, and bfloat16 needs no GradScaler."
            )
        if ctx.call.taken:
            raise InvalidParameterError(
                "backward() was called twice for one loss, so its gradient would count twice. Call the "
                "criterion twice if that is meant."
            )
        ctx.call.taken = True
        return None, None, None, None


class PrivateCriterion:
    """The criterion that `make_private` returns; call it with outputs of the module and targets."""

    def __init__(self, module: nn.Module, criterion: Any, steps: PrivateSteps) -> None:
        self._module, self._criterion, self._steps = module, criterion, steps

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the mean loss of the rows, on which `backward` may be called in training."""
        if not (self._module.training and torch.is_grad_enabled()):
            return self._evaluated((args, kwargs))
        anchor = torch.zeros((), requires_grad=True)
        loss = _Loss.apply(anchor, *self._steps.call_criterion(args, kwargs))
        assert isinstance(loss, Tensor)
        return loss

    def _evaluated(self, given: Any) -> Tensor:
        rows = row_count(given)
        refuse_unsplit(given, rows=rows, what="the criterion")
        if not rows:
            return torch.zeros(())
        with torch.no_grad():
            try:
                return self._at_once(given, rows)
            except Exception:  # what cannot be done for all rows at once is done for one after the other
                return torch.stack([self._of_row(given, i) for i in range(rows)]).mean()

    def _of_row(self, given: Any, i: int) -> Tensor:
        args, kwargs = tree.mapped(given, lambda tensor: tensor[i : i + 1])
        return checked(self._criterion(*args, **kwargs), 1)[0]

    def _at_once(self, given: Any, rows: int) -> Tensor:
        with Isolated(rows) as isolated:
            args, kwargs = tree.mapped(given, isolated.split)
            losses = isolated.join(checked(self._criterion(*args, **kwargs), 1)[0])
        return losses.mean()
