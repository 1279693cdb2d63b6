# SPDX-License-Identifier: Apache-2.0
"""The calls of a loop over one batch: of the module, and of the criterion on the module's outputs.

Guarantee  `recorded` has each row's own gradient of the sum of the losses that were taken: module and
           criterion have seen each row alone. `loss` computes the same losses again, for any rows of the
           batch: the reference engine uses it if a call could not run in isolation.
Unit       One row of the loader's batch. Several calls over the same rows add up, before clipping.
Edge cases A batch without rows: the module runs on one synthetic row, so that outputs have their shapes,
           and no row of it is handed out. The loss is 0.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError, NotPrivateError, UnsupportedUseError
from sfumato.training.adapters.handed_out import HandedOut, Output
from sfumato.training.adapters.nesting import Withheld, is_constant, refuse_unsplit
from sfumato.training.adapters.runner import Autocast, Runner
from sfumato.training.data import rows as rows_of
from sfumato.training.data import tree
from sfumato.training.data.tree import changed
from sfumato.training.engine.book_keeping import BookKeepingPass
from sfumato.training.engine.losses import checked
from sfumato.training.engine.tape.operation import Memory
from sfumato.training.engine.tape.tape import NotPassedError, Tape, Tracked
from sfumato.training.integrity.release_barrier import fill_caches
from sfumato.training.isolation.isolated_rows import Isolated
from sfumato.training.privacy.gradient_pass import GradientPass

__all__ = ["BatchCalls", "LossCall"]

_KEEP: Final = 256 << 20  # bytes of per-unit gradients that a batch may keep rather than compute twice
Function = Callable[..., Any]


class _Call:
    """A call with its arguments: tensors of rows, outputs of earlier calls, and constants."""

    def __init__(self, given: tuple[tuple[Any, ...], dict[str, Any]], autocast: Autocast) -> None:
        self.given, self.autocast = given, autocast
        self._versions = [tensor._version for tensor in self.tensors]

    def refuse_changed(self) -> None:
        """Raise if rows were changed after the call: the gradient would be that of others."""
        if self._versions != [tensor._version for tensor in self.tensors]:
            raise InvalidParameterError(
                "a tensor that the module or the criterion was called with was changed in place before "
                "optimizer.step(). Change a copy of it."
            )

    @property
    def tensors(self) -> list[Tensor]:
        """The rows that came from outside."""
        return list(tree.tensors(self.given))

    def run(self, function: Function, tensor: Function, output: Callable[[Output], Tensor]) -> Any:
        """Call a function with other tensors, and with values for outputs."""

        def change(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return tensor(leaf)
            return output(leaf) if isinstance(leaf, Output) else leaf

        args, kwargs = changed(self.given, change)
        with self.autocast.again():
            return function(*args, **kwargs)


class LossCall(_Call):
    """A call of the criterion. `taken`: the loop requested its gradient."""

    taken = False
    losses: Tensor | None = None  # [rows], with their graph, if recorded


class BatchCalls:
    """All calls over one batch of the loader, in order."""

    def __init__(self, rows: int, runner: Runner, forward: Function, criterion: Function) -> None:
        self.rows = rows
        self.closed = False  # whether its gradient was computed
        self._runner, self._forward, self._criterion = runner, forward, criterion
        self._memory = Memory(_KEEP)
        self._calls: list[_Call] = []
        self._tapes: list[Tape] = []
        self._handed = HandedOut()
        self._modules = 0

    # --- what the loop calls -----------------------------------------------------------------------------

    def call_module(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the module on the rows, and hand out copies of its outputs."""
        call = _Call(self._known((args, kwargs), "the module"), Autocast(self._runner.device))
        if not self.rows:
            outputs = changed(_on_any(call, self._forward), _without_rows)
        elif (outputs := self._isolated(lambda one: self._rows_of(call, one), call)) is None:
            outputs = changed(self._seen(call), _plain)
        self._calls.append(call)
        self._modules += 1
        return self._given(outputs)

    def call_criterion(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, LossCall]:
        """Return the mean loss of the rows, to look at, and the call that it came from."""
        call = LossCall(self._known((args, kwargs), "the criterion"), Autocast(self._runner.device))
        if not _outputs(call.given):
            raise InvalidParameterError(
                "the criterion was called without an output of the module for this batch. Call it with "
                "what the module returned, as it is: criterion(module(x), y)."
            )
        shown = torch.zeros((), device=self._runner.device)
        if self.rows:
            call.losses = self._isolated(lambda one: self._losses_of(call, one), call)
            shown = self._mean(call) if call.losses is None else call.losses.detach().mean()
        self._calls.append(call)
        return shown, call

    # --- what becomes of it ------------------------------------------------------------------------------

    @property
    def taken(self) -> bool:
        """Whether the loop requested any gradient."""
        return any(isinstance(call, LossCall) and call.taken for call in self._calls)

    def autocast(self) -> torch.autocast:
        """Return the context in which the first call was made: sums are to be rounded as its values were."""
        return self._calls[0].autocast.again()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What `loss` takes beside the model: the rows of all calls that count."""
        return tuple(tensor.detach() for call in self._needed() for tensor in call.tensors)

    def recorded(self) -> GradientPass | None:
        """Return the gradients of all rows; None if they must be computed again, from `tensors`."""
        for call in self._needed():
            call.refuse_changed()
        taken = [call for call in self._needed() if isinstance(call, LossCall)]
        losses = [call.losses for call in taken if call.losses is not None]
        if len(losses) < len(taken) or not self._runner.isolates:
            return None
        first, *others = self._tapes
        for tape in others:
            first.take_over(tape)
        try:
            first.backward(torch.stack(losses).sum(0))
        except NotPassedError:
            self._runner.may_release = False
            return None
        except UnsupportedUseError:
            self._runner.isolates = False
            return None
        except torch.OutOfMemoryError:  # in pieces they may fit
            return None
        return BookKeepingPass(first, self._runner.parameters)

    def close(self) -> None:
        """Let go of everything: the batch is done."""
        self.closed = True
        self._calls, self._tapes, self._handed = [], [], HandedOut()

    def loss(self, model: nn.Module, *batch: Any) -> Tensor:
        """Return the sum of the losses that were taken, for each of other rows: [rows]. Each row is alone."""
        return torch.cat([self._again(model, self._needed(), row) for row in _each(batch)])

    def _again(self, model: Function, calls: Sequence[_Call], row: Sequence[Tensor]) -> Tensor:
        """Make calls again with another row; return the sum of their losses."""
        left = iter(row)
        outputs: list[list[Tensor]] = []
        losses: list[Tensor] = []

        def following(tensor: Tensor) -> Tensor:
            return next(left)

        def among_outputs(output: Output) -> Tensor:
            return outputs[output.call][output.place]

        for call in calls:
            if isinstance(call, LossCall):
                losses.append(checked(call.run(self._criterion, following, among_outputs), 1))
            else:
                outputs.append(list(tree.tensors(call.run(model, following, among_outputs))))
        return sum(losses[1:], start=losses[0])

    def _needed(self) -> list[_Call]:
        """Return the calls of the module, and those of the criterion whose gradient was requested."""
        return [call for call in self._calls if not isinstance(call, LossCall) or call.taken]

    # --- one call ----------------------------------------------------------------------------------------

    def _isolated(self, work: Callable[[Isolated], Any], call: _Call) -> Any:
        """Do work on isolated rows; return None if that is not possible."""
        if not self._runner.isolates:
            return None
        function = self._criterion if isinstance(call, LossCall) else self._forward
        try:
            found, tape = self._runner.isolated(
                self.rows, self._memory, work, lambda: _on_any(call, function)
            )
        except NotPrivateError:
            raise
        except UnsupportedUseError:
            return None
        self._tapes.append(tape)
        return found

    def _rows_of(self, call: _Call, isolated: Isolated) -> Any:
        found = call.run(self._forward, isolated.split, _on_rows(isolated))
        return changed(found, lambda leaf: _joined(leaf, isolated))

    def _losses_of(self, call: _Call, isolated: Isolated) -> Tensor:
        losses = call.run(self._criterion, isolated.split, _on_rows(isolated))
        return isolated.join(checked(losses, 1)[0])

    def _seen(self, call: _Call) -> Any:
        """Return the outputs of the whole batch, to look at."""

        def run() -> Any:
            return call.run(self._forward, Tensor.detach, lambda output: output.shown.detach())

        return self._instead(run, call, self._forward)

    def _mean(self, call: LossCall) -> Tensor:
        """Return the mean loss by calls for each row, to look at."""
        calls = [*(each for each in self._calls if not isinstance(each, LossCall)), call]
        tensors = [tensor for each in calls for tensor in each.tensors]

        def run() -> Tensor:
            return torch.cat([self._again(self._forward, calls, row) for row in _each(tensors)]).mean()

        return self._instead(run, call, self._criterion)

    def _instead(self, run: Callable[[], Any], call: _Call, function: Function) -> Any:
        """Run what cannot run in isolation; if that works, nothing is isolated from here on.

        A warning comes with the step, from the engine that takes over.
        """
        found = self._runner.plainly(
            run, settle=lambda: _on_any(call, function), zeros=lambda: _on_zeros(call, function)
        )
        self._runner.isolates = False
        return found

    # --- outputs -----------------------------------------------------------------------------------------

    def _given(self, outputs: Any) -> Any:
        """Return copies of outputs, and remember what each is a copy of."""
        places = itertools.count()

        def give(leaf: Any) -> Any:
            if not isinstance(leaf, Output):
                return leaf
            leaf.call, leaf.place = self._modules - 1, next(places)
            return self._handed.give(leaf)

        return changed(outputs, give)

    def _known(self, given: Any, what: str) -> Any:
        """Return arguments with each output in the place of the copy that was handed out."""
        known = changed(
            given, lambda leaf: (self._handed.find(leaf) or leaf) if isinstance(leaf, Tensor) else leaf
        )
        refuse_unsplit(known, rows=self.rows, what=what)
        return known


def _on_rows(isolated: Isolated) -> Callable[[Output], Tensor]:
    """Return what gives the rows of an output, each alone."""
    return lambda output: isolated.on_batch(lambda: output.rows)


def _joined(leaf: Any, isolated: Isolated) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf if is_constant(leaf) else Withheld(type(leaf).__name__)
    row = leaf.clone() if isinstance(leaf, Tracked) else leaf  # the copy of a parameter is noted
    rows = isolated.join(row)
    return Output(rows.squeeze(1) if row.dim() and row.shape[0] == 1 else rows, rows)


def _plain(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return Output(leaf)
    # Outside of the isolation a number may have been computed from rows.
    return leaf if leaf is None else Withheld(type(leaf).__name__)


def _without_rows(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf if is_constant(leaf) else Withheld(type(leaf).__name__)
    none = leaf[:0] if leaf.dim() and leaf.shape[0] == 1 else leaf.new_empty((0, *leaf.shape))
    return Output(none)


def _blank(call: _Call) -> list[Tensor]:
    """Return zeros in the shape of one row of each tensor and each output that a call is given."""
    found: list[Tensor] = []

    def zeros(leaf: Any) -> None:
        if isinstance(leaf, Output):
            found.append(leaf.zeros())
        elif isinstance(leaf, Tensor):
            found.append(leaf.new_zeros((1, *leaf.shape[1:])))

    changed(call.given, zeros)
    return found


def _on_zeros(call: _Call, function: Function) -> Any:
    """Call a function on one row of zeros."""
    return _on_made_up(call, function, _blank(call))


def _on_made_up(call: _Call, function: Function, row: Sequence[Tensor]) -> Any:
    left = iter(row)

    def following(leaf: Any) -> Tensor:
        return next(left)

    with torch.no_grad():
        return call.run(function, following, following)


def _on_any(call: _Call, function: Function) -> Any:
    """Call a function on the first synthetic rows that it accepts: some refuse zeros."""
    found: list[Any] = []
    fill_caches(lambda row: found.append(_on_made_up(call, function, row)), rows_of.made_up(_blank(call)))
    return found[0]


def _outputs(given: Any) -> list[Output]:
    found: list[Output] = []
    changed(given, lambda leaf: found.append(leaf) if isinstance(leaf, Output) else None)
    return found


def _each(batch: Sequence[Any]) -> Iterator[Sequence[Tensor]]:
    """Yield each row of a batch as a batch of its own."""
    count = rows_of.count(batch)
    yield from [batch] if count == 1 else (rows_of.take(batch, slice(i, i + 1)) for i in range(count))
