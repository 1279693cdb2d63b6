# SPDX-License-Identifier: Apache-2.0
"""Book-keeping: norms and clipped sums from one forward and one backward pass, without per-example gradients.

Guarantee  The norms are those of each unit's own gradient, and the sums weigh each unit by its weight alone,
           exactly as a loop over units would give them (up to rounding), or the pass is refused.
How        The backward pass computes the gradients of the operations' outputs only. Inputs and output
           gradients of each operation (`tape`) give the norms; the same tensors give the weighted sums
           (Bu et al. 2023, arXiv:2210.00038).
Ties       A parameter used several times has the sum of its uses as gradient; its norm has their inner
           products too. Where uses cancel, these leave a rounding error; so the norm is raised by more than
           that, relative to the uses: too large a norm clips too much, too small a one breaks the bound.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from sfumato.errors import InvalidParameterError, UnsupportedUseError
from sfumato.training import rules, swapping
from sfumato.training.losses import Loss, checked
from sfumato.training.rows import Grouping, count, repeat_to, tensors
from sfumato.training.tape import Layout, LayoutChangedError, Memory, NotPassedError, Op, Tape, Tracked

__all__ = ["BookKeeping", "BookKeepingPass"]

_ = rules  # importing it registers them
_KEEP: Final = 256 << 20  # bytes of per-unit gradients that a pass may keep rather than compute twice
_RAISED: Final = {torch.float32: 2.0**-16, torch.float64: 2.0**-40}  # of the squared norms of tied uses
_MOST_LAYOUTS: Final = 256  # one for each shape of a row


class BookKeepingPass:
    """The gradients of one batch, as the operations that made them."""

    def __init__(self, tape: Tape, parameters: Mapping[str, Tensor]) -> None:
        self._grouping = tape.grouping
        self._parameters = parameters
        self._uses: dict[str, list[tuple[Op, str]]] = {name: [] for name in parameters}
        for op in tape.ops:
            for slot, name in op.names.items():
                self._uses[name].append((op, slot))

    def squared_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        """Return the squared norm of each unit's gradient in each group of parameters: [groups, units]."""
        norms = [self._group_norm(group) for group in groups]
        return norms[0][None] if len(norms) == 1 else torch.stack(norms)

    def _group_norm(self, group: Sequence[str]) -> Tensor:
        norms = [self._squared_norm(self._uses[name]) for name in group if self._uses[name]]
        if not norms:
            first = next(iter(self._parameters.values()))
            return torch.zeros(self._grouping.units, device=first.device)
        return norms[0] if len(norms) == 1 else torch.stack(norms).sum(0)

    def _squared_norm(self, uses: Sequence[tuple[Op, str]]) -> Tensor:
        norms = [op.squared_norm(slot) for op, slot in uses]
        total = sum(norms[1:], start=norms[0])
        if len(uses) == 1:
            return total
        total = total * (1 + _RAISED[total.dtype])
        for i, (op, slot) in enumerate(uses):
            for other, other_slot in uses[:i]:
                total = total + 2 * op.inner(slot, other, other_slot)
        return total.clamp(min=0)

    def weighted_sums(
        self, groups: Sequence[Sequence[str]], weights: Tensor, *, last: bool = False
    ) -> dict[str, Tensor]:
        """Return for each parameter the sum of all units' gradients times their weights [groups, units]."""
        return {
            name: self._weighted_sum(name, group_weights, self._uses.pop(name) if last else self._uses[name])
            for group, group_weights in zip(groups, weights, strict=True)
            for name in group
        }

    def _weighted_sum(self, name: str, weights: Tensor, uses: Sequence[tuple[Op, str]]) -> Tensor:
        return self._added(name, [op.weighted_sum(slot, weights) for op, slot in uses])

    def per_unit(self, name: str) -> Tensor:
        """Return each unit's gradient of one parameter: [units, *shape]."""
        return self._added(name, [op.gradient(slot) for op, slot in self._uses[name]], self._grouping.units)

    def _added(self, name: str, parts: Sequence[Tensor], *leading: int) -> Tensor:
        if not parts:  # a parameter that no loss depends on
            parameter = self._parameters[name]
            return parameter.new_zeros((*leading, *parameter.shape))
        return sum(parts[1:], start=parts[0])


class BookKeeping:
    """The engine: records passes over a model."""

    def __init__(self, model: torch.nn.Module, loss: Loss, *, keep_bytes: int = _KEEP) -> None:
        self._model = model
        self._loss = loss
        self._keep_bytes = keep_bytes
        self._places = swapping.find(model)
        self._tracked = {name: Tracked.of(p, name) for name, p in self._places.parameters.items()}
        self._layouts: dict[Any, Layout] = {}  # by the shapes of a row
        self._may_release = True

    def run(self, batch: Sequence[Any], *, per_unit: int = 1) -> BookKeepingPass:
        """Record one forward and one backward pass over the rows of a batch."""
        rows = count(batch)
        grouping = Grouping(units=rows // per_unit, per_unit=per_unit)
        try:
            tape = self._record(batch, grouping, self._layout(batch))
        except LayoutChangedError:
            tape = self._record_anew(batch, grouping)
        return BookKeepingPass(tape, self._places.parameters)

    def _layout(self, batch: Sequence[Any]) -> Layout:
        key = tuple(t.shape[1:] for t in tensors(batch))
        if key not in self._layouts:
            if len(self._layouts) == _MOST_LAYOUTS:
                self._layouts.clear()
            self._layouts[key] = self._measure(batch)
        return self._layouts[key]

    def _record_anew(self, batch: Sequence[Any], grouping: Grouping) -> Tape:
        """Record a pass that did not fit its layout: the model may have changed since that was measured."""
        self._layouts.clear()
        layout = self._layout(batch)
        try:
            return self._record(batch, grouping, layout)
        except LayoutChangedError as error:
            if layout.has_shared:
                raise _about_copies() from error
            raise UnsupportedUseError(
                "the model uses its parameters on other shapes or in another order for this batch than for "
                "its first rows alone, so its uses cannot be matched with examples. Use engine='functional'."
            ) from error

    def _record(self, batch: Sequence[Any], grouping: Grouping, layout: Layout) -> Tape:
        tape = Tape(grouping, layout, Memory(self._keep_bytes), may_release=self._may_release)
        try:
            losses = self._forward(tape, batch, grouping.rows)
        except torch.OutOfMemoryError:
            raise
        except (InvalidParameterError, RuntimeError, IndexError) as error:
            if layout.has_shared:
                raise _about_copies() from error
            raise
        try:
            tape.backward(losses)
        except NotPassedError:
            self._may_release = False
            return self._record(batch, grouping, layout)
        return tape

    def _measure(self, batch: Sequence[Any]) -> Layout:
        two, three = (self._seen(repeat_to(batch, rows), rows) for rows in Layout.SIZES)
        return Layout(two, three)

    def _seen(self, batch: Sequence[Any], rows: int) -> list[tuple[str, torch.Size]]:
        tape = Tape(Grouping(units=rows))
        with torch.random.fork_rng(_devices(self._places.parameters)):
            self._forward(tape, batch, rows)
        return tape.seen

    def _forward(self, tape: Tape, batch: Sequence[Any], rows: int) -> Tensor:
        for name, tracked in self._tracked.items():
            if tracked.stale:
                self._tracked[name] = tracked = Tracked.of(tracked.parameter, name)
            tracked.tape = tape
        try:
            with torch.enable_grad(), self._places.swapped(self._tracked):
                return checked(self._loss(self._model, *batch), rows)
        except (TypeError, LayoutChangedError) as error:
            if tape.refused is None or error is tape.refused:
                raise
            raise tape.refused from error
        finally:
            for tracked in self._tracked.values():
                del tracked.tape  # it holds the activations of this batch


def _about_copies() -> UnsupportedUseError:
    return UnsupportedUseError(
        "an operation applies parameters to something that all examples share, such as positions. Each "
        "example was given a copy of the result, on a first axis of its own, and the model could not go on "
        "with that. Leave out an unsqueeze or expand after it, or use engine='functional'."
    )


def _devices(parameters: Mapping[str, Tensor]) -> list[torch.device]:
    return sorted({p.device for p in parameters.values() if p.device.type == "cuda"}, key=str)
