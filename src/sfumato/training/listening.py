from __future__ import annotations

# SPDX-License-Identifier: Apache-2.0
"""Per-example gradients from a training loop that is not ours: hooks that listen while it runs.

Guarantee  Whatever backward passes a loop makes through the module's passes over one batch, a `Piece` has
           each row's own gradient of each trainable parameter, as long as the loss is a mean (or a sum) of
           losses of single rows. Passes over the same rows are added before clipping: together they are one
           contribution of each unit.
Module     Not wrapped: for the length of one forward pass its parameters are `Tracked`, and put back at its
           end. Nothing is recorded in evaluation mode, without grad, or for a batch without rows.
Refused    A pass over other rows than those of the batch at hand; inputs or outputs that do not keep one
           row an example; a backward pass that comes after its batch was added up.
Again      A row whose gradient is not finite is left out by a second pass over the other rows, in which the
           gradients of the module's outputs stand for the loss: the parameters' are linear in them.
Copies     A copy of the module is an ordinary module: its hooks hear nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError, UnsupportedModelError, UnsupportedUseError
from sfumato.training import fixing, swapping
from sfumato.training import rows as rows_of
from sfumato.training.book_keeping import BookKeeping, BookKeepingPass
from sfumato.training.clipping import GradientPass
from sfumato.training.op import Memory, Op
from sfumato.training.rows import Grouping
from sfumato.training.tape import Tape, Tracked

Batching = Layout = LayoutChangedError = object
from sfumato.training.tree import refilled
from sfumato.training.tree import tensors as tensors_in

__all__ = ["Call", "Listener", "Piece", "tensors_in"]

_KEEP = 256 << 20  # bytes of per-unit gradients that a piece may keep rather than compute twice


@dataclass
class _Heard:
    """An operation, and the gradient of its output as far as backward passes have brought it."""

    op: Op
    batching: Batching
    versions: list[int]
    grad: Tensor | None = None
    closed: bool = False

    def add(self, grad: Tensor) -> None:
        """Take the gradient of one backward pass."""
        if self.closed:
            raise InvalidParameterError(
                "a backward pass came too late: the batch it belongs to was already added up. Call "
                "loss.backward() before optimizer.step() and before the loader's next batch."
            )
        self.grad = grad.detach() if self.grad is None else self.grad + grad.detach()


class _ListeningTape(Tape):
    """A tape whose gradients come from a backward pass that somebody else starts."""

    def __init__(self, grouping: Grouping, layout: Layout) -> None:
        super().__init__(grouping, layout, Memory(_KEEP))
        self._listed: list[_Heard] = []

    def batching(self, name: str, x: Tensor) -> Batching:
        """Return where the rows are; the user's forward pass cannot be run again with another layout."""
        try:
            return super().batching(name, x)
        except LayoutChangedError:
            raise UnsupportedUseError(
                "the module uses its parameters in another order from one forward pass to the next, so its "
                "uses cannot be matched with examples. Use PrivateGradients(..., engine='functional')."
            ) from None

    def note(self, op: Op, output: Tensor, batching: Batching, *, at_once: bool = False) -> Tensor:
        """Note an operation, and listen for the gradient of its output."""
        if not output.requires_grad:  # the stand-ins need no gradient: it would be computed, and thrown away
            output = output.detach().requires_grad_()
        if output.is_leaf or output._is_view():  # in-place operations that follow must not touch either
            output = torch.ops.aten._unsafe_view(output, output.shape)
        heard = _Heard(op, batching, [t._version for t in op.saved()])
        output.register_hook(heard.add)
        self._listed.append(heard)
        return output

    @property
    def heard_any(self) -> bool:
        """Whether any gradient has come."""
        return any(heard.grad is not None for heard in self._listed)

    def close(self) -> None:
        """Hand the operations what was heard; those whose output moved no loss are left out."""
        rows = self.grouping.rows
        for heard in self._listed:
            heard.closed = True
            if heard.grad is None:
                continue
            if heard.versions != [t._version for t in heard.op.saved()]:
                raise UnsupportedUseError(
                    f"the input of the operation that uses {sorted(heard.op.names.values())} was changed in "
                    "place before optimizer.step(), so its gradient cannot be computed. Change a copy."
                )
            heard.op.receive(heard.grad, lambda g, where=heard.batching: where.rows_first(g, rows))
            self.ops.append(heard.op)
        self._listed = []


class _Output(torch.autograd.Function):
    """Nothing but a place in the graph, at which the gradient is heard."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, hear: Callable[[Tensor], None]) -> Tensor:  # type: ignore[override]
        ctx.hear = hear
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.hear(grad)
        return grad, None


@dataclass
class Call:
    """One forward pass of the module: what went in, and the gradients of the tensors that came out."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tape: _ListeningTape
    grads: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    outputs: Sequence[Tensor] = ()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that went in."""
        return tuple(t.detach() for t in tensors_in((self.args, self.kwargs)))

    @property
    def was_heard(self) -> bool:
        """Whether a backward pass came through."""
        if self.tape.heard_any and not self.grads:
            raise UnsupportedModelError(
                "an output of the module was changed in place before loss.backward(), so that its gradient "
                "was not seen. Change a copy of it."
            )
        return bool(self.grads)

    def listen(self, output: Any) -> Any:
        """Return the output, so changed that the gradients of its tensors are heard when they come."""
        self.outputs = [tensor.detach() for tensor in tensors_in(output)]
        places = {id(t): place for place, t in enumerate(tensors_in(output)) if t.requires_grad}
        if len(places) == 1:
            (place,) = places.values()
            list(tensors_in(output))[place].register_hook(partial(self._hear, place))
            return output
        # Outputs may depend on one another: each must be told what came through it alone.
        apart = {
            id(t): _Output.apply(t, partial(self._hear, places[id(t)]))
            for t in tensors_in(output)
            if id(t) in places
        }
        return refilled(output, (apart.get(id(t), t) for t in tensors_in(output)))

    def _hear(self, place: int, grad: Tensor) -> None:
        earlier = self.grads.get(place)
        self.grads[place] = grad.detach() if earlier is None else earlier + grad.detach()

    def run(self, model: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run the model again on other rows; return the output's tensors that had gradients."""
        args, kwargs = refilled((self.args, self.kwargs), iter(inputs))
        outputs = list(tensors_in(model(*args, **kwargs)))
        return [outputs[place] for place in self.grads]


class Piece:
    """All passes over one batch that the loader handed over."""

    def __init__(self, calls: Sequence[Call], rows: int, scale: float) -> None:
        self.calls = [call for call in calls if call.was_heard]
        self.rows = rows
        self._scale = scale  # of the loss: a mean over the rows of a batch is 1 / rows times their sum

    def recorded(self, parameters: Mapping[str, Tensor]) -> GradientPass:
        """Return the gradients of each row, as the loop's own passes gave them."""
        for call in self.calls:
            call.tape.close()
        first = self.calls[0].tape
        first.ops = [op for call in self.calls for op in call.tape.ops]
        return _Scaled(BookKeepingPass(first, parameters), self._scale)

    @property
    def batch(self) -> tuple[Any, ...]:
        """What `loss` takes beside the model: inputs and output gradients of every call."""
        return tuple(
            (call.inputs, tuple(self._output_grad(g) for g in call.grads.values())) for call in self.calls
        )

    def _output_grad(self, grad: Tensor) -> Tensor:
        if not grad.dim() or grad.shape[0] != self.rows:
            raise UnsupportedModelError(
                "the loss was computed from an output of the module that does not keep one row an example "
                "on its first axis. Let the module return its predictions, and compute the loss outside of "
                "it."
            )
        return grad * self._scale

    def loss(self, model: nn.Module, *batch: Any) -> Tensor:
        """Return for each row a number whose gradient is that of the row's loss in the user's loop."""
        total: Tensor | None = None
        for call, (inputs, grads) in zip(self.calls, batch, strict=True):
            for output, grad in zip(call.run(model, inputs), grads, strict=True):
                part = (
                    (output * grad.to(output.dtype)).flatten(1).sum(1) if output.dim() > 1 else output * grad
                )
                total = part if total is None else total + part
        assert total is not None  # a call without gradients is left out
        return total


class _Scaled:
    """The gradients of a pass, multiplied by a number."""

    def __init__(self, run: GradientPass, scale: float) -> None:
        self._run = run
        self._scale = scale

    def squared_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        """Return the squared norm of each unit's gradient in each group (see `GradientPass`)."""
        return self._run.squared_norms(groups) * self._scale**2

    def weighted_sums(
        self, groups: Sequence[Sequence[str]], weights: Tensor, *, last: bool = False
    ) -> dict[str, Tensor]:
        """Return the weighted sum of all units' gradients (see `GradientPass`)."""
        return self._run.weighted_sums(groups, weights * self._scale, last=last)

    def per_unit(self, name: str) -> Tensor:
        """Return each unit's gradient of one parameter (see `GradientPass`)."""
        return self._run.per_unit(name) * self._scale


class Listener:
    """Hooks on a module that record its training passes, batch by batch."""

    def __init__(self, module: nn.Module, *, averaged: bool) -> None:
        self._module = module
        self._averaged = averaged
        self._places = swapping.find(module)
        self._layouts: dict[Any, Layout] = {}
        self._swap = ExitStack()  # holds the way back to the module's own parameters
        self._call: Call | None = None
        self._calls: list[Call] = []
        self._rows: int | None = None  # of the batch at hand; None where there is none
        self.touched = False  # whether a training pass was made since `open`
        self._paused = False
        module.register_forward_pre_hook(self._before, with_kwargs=True)
        module.register_forward_hook(self._after, always_call=True)

    def __deepcopy__(self, memo: Any) -> Listener:
        deaf = Listener.__new__(Listener)
        deaf.__setstate__({})
        return deaf

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._paused, self._call, self._swap = True, None, ExitStack()

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """What is trained."""
        return self._places.parameters

    def open(self, rows: int) -> None:
        """Begin a batch of so many rows: passes are over these rows from here on."""
        self._swap.close()  # a pass that was interrupted left its stand-ins
        self._rows, self._calls, self.touched = rows, [], False

    def close(self) -> Piece | None:
        """End the batch, and return what was heard of it; None if nothing was."""
        rows, calls = self._rows, self._calls
        self._rows, self._calls = None, []
        if not rows:
            return None
        piece = Piece(calls, rows, rows if self._averaged else 1.0)
        return piece if piece.calls else None

    def again(self, piece: Piece, which: Tensor) -> GradientPass:
        """Return the gradients of some rows of a piece by another pass over these alone."""
        return self.quietly(
            lambda: BookKeeping(self._module, piece.loss).run(rows_of.take(piece.batch, which))
        )

    def quietly(self, work: Callable[[], Any]) -> Any:
        """Run something with the module that is not part of the user's loop."""
        self._paused = True
        try:
            return work()
        finally:
            self._paused = False

    # --- hooks -------------------------------------------------------------------------------------------

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._paused or not (module.training and torch.is_grad_enabled()):
            return
        self._swap.close()
        fixing.refuse_mixing(module)  # what mixes rows depends on the mode, which may have changed
        rows = self._check_rows(tensors_in((args, kwargs)))
        self.touched = True
        if not rows:
            return
        tape = _ListeningTape(Grouping(units=rows), self._layout(args, kwargs))
        self._call = Call(args, kwargs, tape)
        self._put(tape)

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        self._swap.close()
        call, self._call = self._call, None
        if call is None or output is None:
            return None
        self._calls.append(call)
        return call.listen(output)

    def _put(self, tape: Tape) -> None:
        tracked: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            tracked[name] = stand_in = Tracked.of(parameter.detach(), name)
            stand_in.tape = tape
        self._swap.enter_context(self._places.swapped(tracked))

    def _check_rows(self, tensors: Iterator[Tensor]) -> int:
        if self._rows is None:
            raise InvalidParameterError(
                "the module was called for training without a batch of the private loader at hand. Take "
                "batches from the data_loader that make_private returned, one optimizer.step() for each, "
                "and call the module for anything else after module.eval() or under torch.no_grad()."
            )
        sizes = {t.shape[0] if t.dim() else None for t in tensors}
        if sizes != {self._rows}:
            raise InvalidParameterError(
                "every tensor that the module is called with must have one row for each example of the "
                "loader's batch, on its first axis. Reshape inside of the module, repeat what all examples "
                "share, and run other rows after module.eval() or under torch.no_grad()."
            )
        return self._rows

    def _layout(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layout:
        """Return where operations keep their rows: measured once for each kind of input."""
        constants = refilled((args, kwargs), iter(lambda: None, 0))  # type: ignore[arg-type]
        tensors = tuple(tensors_in((args, kwargs)))
        key = (repr(constants), tuple((t.shape[1:], t.dtype) for t in tensors))
        if key not in self._layouts:
            two, three = (self.quietly(partial(self._seen, args, kwargs, n)) for n in Layout.SIZES)
            self._layouts[key] = Layout(two, three)
        return self._layouts[key]

    def _seen(self, args: tuple[Any, ...], kwargs: dict[str, Any], rows: int) -> list[tuple[str, torch.Size]]:
        tape = Tape(Grouping(units=rows))
        repeated = rows_of.repeat_to([t.detach() for t in tensors_in((args, kwargs))], rows)
        args, kwargs = refilled((args, kwargs), iter(repeated))
        devices = sorted({p.device for p in self.parameters.values() if p.is_cuda}, key=str)
        try:
            with torch.random.fork_rng(devices):
                self._put(tape)
                self._module(*args, **kwargs)
        except UnsupportedUseError as error:
            raise UnsupportedUseError(
                f"{error} make_private records the module's own passes and has no such engine: for this "
                "model write the loop with PrivateGradients, or use the trainer."
            ) from error
        finally:
            self._swap.close()
        return tape.seen
