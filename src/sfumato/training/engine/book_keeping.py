# SPDX-License-Identifier: Apache-2.0
"""Book-keeping: norms and clipped sums from one forward and one backward pass, without per-example gradients.

Guarantee  The norms are those of each unit's own gradient, and the sums weigh each unit by its weight alone,
           exactly as a loop over units would give them (up to rounding), or the pass is refused. That a
           gradient belongs to its row is not checked but follows from how the pass runs (`isolation`).
Source     The backward pass computes the gradients of the operations' outputs only. Inputs and output
           gradients of each operation (`tape`) give the norms; the same tensors give the weighted sums
           (Bu et al. 2023, arXiv:2210.00038).
Edge cases A parameter used several times has the sum of its uses as gradient; its norm has their inner
           products too. If uses cancel, these leave a rounding error, so the norm is raised by more than
           that, relative to the uses: a norm that is too large clips too much, one that is too small breaks
           the bound.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from sfumato.errors import SfumatoError, UnsupportedUseError
from sfumato.training.data.rows import Grouping, count, mapped
from sfumato.training.engine import parameter_values, rules
from sfumato.training.engine.functional import needs_autograd
from sfumato.training.engine.losses import Loss, checked
from sfumato.training.engine.rules.linear import LinearOp
from sfumato.training.engine.tape.operation import Memory, Op, without_autocast
from sfumato.training.engine.tape.tape import NotPassedError, Tape, Tracked
from sfumato.training.isolation.isolated_rows import Isolated, cannot_run

__all__ = ["BookKeeping", "BookKeepingPass"]

_ = rules  # importing it registers them
_KEEP: Final = 256 << 20  # bytes of per-unit gradients that a pass may keep rather than compute twice
_RAISED: Final = {torch.float32: 2.0**-16, torch.float64: 2.0**-40}  # of the squared norms of tied uses
_HALF_RAISED: Final = 2.0**-6  # the same for each other use, if kept gradients are rounded to 16 bits


class BookKeepingPass:
    """The gradients of one batch, as the operations that made them."""

    def __init__(self, tape: Tape, parameters: Mapping[str, Tensor]) -> None:
        self._grouping = tape.grouping
        self._parameters = parameters
        self._device = next(iter(parameters.values())).device
        self._uses: dict[str, list[tuple[Op, str]]] = {name: [] for name in parameters}
        for op in _merged(tape.ops):
            for slot, name in op.names.items():
                self._uses[name].append((op, slot))

    def squared_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        """Return the squared norm of each unit's gradient in each group of parameters: [groups, units]."""
        with without_autocast(self._device):
            norms = [self._group_norm(group) for group in groups]
        return norms[0][None] if len(norms) == 1 else torch.stack(norms)

    def _group_norm(self, group: Sequence[str]) -> Tensor:
        norms = [self._squared_norm(self._uses[name]) for name in group if self._uses[name]]
        if not norms:
            return torch.zeros(self._grouping.units, device=self._device)
        return norms[0] if len(norms) == 1 else torch.stack(norms).sum(0)

    def _squared_norm(self, uses: Sequence[tuple[Op, str]]) -> Tensor:
        norms = [op.squared_norm(slot) for op, slot in uses]
        total = sum(norms[1:], start=norms[0])
        if len(uses) == 1:
            return total
        half = _HALF_RAISED * (len(uses) - 1) if any(op.is_half for op, _ in uses) else 0.0
        total = total * (1 + max(_RAISED[total.dtype], half))
        for i, (op, slot) in enumerate(uses):
            for other, other_slot in uses[:i]:
                total = total + 2 * op.inner(slot, other, other_slot)
        return total.clamp(min=0)

    def weighted_sums(
        self, groups: Sequence[Sequence[str]], weights: Tensor, *, last: bool = False
    ) -> dict[str, Tensor]:
        """Return for each parameter the sum of all units' gradients times their weights [groups, units]."""
        with without_autocast(self._device):
            return {
                name: self._weighted_sum(
                    name, group_weights, self._uses.pop(name) if last else self._uses[name]
                )
                for group, group_weights in zip(groups, weights, strict=True)
                for name in group
            }

    def _weighted_sum(self, name: str, weights: Tensor, uses: Sequence[tuple[Op, str]]) -> Tensor:
        return self._added(name, [op.weighted_sum(slot, weights) for op, slot in uses])

    def per_unit(self, name: str) -> Tensor:
        """Return each unit's gradient of one parameter: [units, *shape]."""
        with without_autocast(self._device):
            found = [op.gradient(slot) for op, slot in self._uses[name]]
        return self._added(name, found, self._grouping.units)

    def factors(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Return inputs [units, in] and output gradients [units, out] of a linear map of single vectors.

        Their outer product is each unit's gradient, [out, in]. None if a gradient is not of this form.
        """
        match self._uses[name]:
            case [(op, "weight")] if type(op) is LinearOp and op.is_vector and not op.transposed:
                return op.x, op.grad
            case _:
                return None

    def _added(self, name: str, parts: Sequence[Tensor], *leading: int) -> Tensor:
        if not parts:  # a parameter that no loss depends on
            parameter = self._parameters[name]
            return parameter.new_zeros((*leading, *parameter.shape))
        return sum(parts[1:], start=parts[0])


def _merged(ops: Sequence[Op]) -> list[Op]:
    """Take linear maps that use the same parameters as one, or n steps of a cell would have n^2 products."""
    alike: dict[Any, list[LinearOp]] = {}
    found: list[Op] = []
    for op in ops:
        if type(op) is LinearOp:
            alike.setdefault((tuple(op.names.items()), op.transposed), []).append(op)
        else:
            found.append(op)
    return found + [uses[0] if len(uses) == 1 else LinearOp.merged(uses) for uses in alike.values()]


class BookKeeping:
    """The engine: records passes over a model."""

    def __init__(self, model: torch.nn.Module, loss: Loss, *, keep_bytes: int = _KEEP) -> None:
        self._model = model
        self._loss = loss
        self._keep_bytes = keep_bytes
        self._places = parameter_values.find(model)
        self._modules = list(model.modules())
        self._tracked = {name: Tracked.of(p, name) for name, p in self._places.parameters.items()}
        self._may_release = True
        self._own_tensors = False  # whether the model writes rows into tensors that it makes

    def run(self, batch: Sequence[Any], *, per_unit: int = 1) -> BookKeepingPass:
        """Record one forward and one backward pass over the rows of a batch."""
        rows = count(batch)
        grouping = Grouping(units=rows // per_unit, per_unit=per_unit)
        return BookKeepingPass(self._record(batch, grouping), self._places.parameters)

    def _record(self, batch: Sequence[Any], grouping: Grouping) -> Tape:
        isolated = Isolated(grouping.rows, own_tensors=self._own_tensors)
        tape = Tape(grouping, isolated, Memory(self._keep_bytes), may_release=self._may_release)
        try:
            tape.backward(self._forward(tape, isolated, batch))
            return tape
        except NotPassedError:
            self._may_release = False
            return self._record(batch, grouping)
        except (torch.OutOfMemoryError, MemoryError, SfumatoError):
            raise
        except Exception as error:  # whatever vmap, the model or the loss raise
            refused = tape.refused or cannot_run(error)
        # Outside the handler: the message of torch may quote a value, and must not be chained.
        if self._own_tensors:
            raise refused
        return self._record_with_own_tensors(batch, grouping)

    def _record_with_own_tensors(self, batch: Sequence[Any], grouping: Grouping) -> Tape:
        self._own_tensors = True
        try:
            return self._record(batch, grouping)
        except UnsupportedUseError:
            self._own_tensors = False
            raise

    def _forward(self, tape: Tape, isolated: Isolated, batch: Sequence[Any]) -> Tensor:
        """Return the loss of each row: [rows]."""
        if needs_autograd(self._modules):
            raise UnsupportedUseError(
                "a module is scripted, or has a hook on its gradients, which has to see each row alone."
            )
        self._put(tape)
        try:
            with torch.enable_grad(), self._places.swapped(self._tracked), isolated:
                row = mapped(batch, isolated.split)
                losses = isolated.join(checked(self._loss(self._model, *row), 1)[0])
            if tape.refused is not None:  # operators take a TypeError for "try the other way round"
                raise tape.refused
            return losses
        finally:
            for tracked in self._tracked.values():
                del tracked.tape  # it holds the activations of this batch

    def _put(self, tape: Tape) -> None:
        for name, tracked in self._tracked.items():
            if tracked.stale:
                self._tracked[name] = tracked = Tracked.of(tracked.parameter, name)
            tracked.tape = tape
