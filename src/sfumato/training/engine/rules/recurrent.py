# SPDX-License-Identifier: Apache-2.0
"""nn.RNN, nn.GRU and nn.LSTM: linear maps over all steps, around a recurrence.

Guarantee  The output is torch's. The gates' gradients of all steps (`recurrences`) belong to two linear maps,
           of the inputs and of the previous outputs, so norms and sums are those of `LinearOp`. The gradient
           of the gates is computed at an anchor: a tensor without memory that stands for what the linear maps
           add to the gates.
Edge cases Under autocast the recurrence runs in the type of the weights; the output has autocast's type.
Failure    Packed sequences are refused: they keep the examples in an order that this rule does not know.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from sfumato.errors import UnsupportedUseError
from sfumato.training.engine.rules.linear import LinearOp
from sfumato.training.engine.rules.recurrences import GRU, LSTM, Recurrence, ReluRNN, TanhRNN, Weights
from sfumato.training.engine.tape.operation import autocast
from sfumato.training.engine.tape.tape import NoRuleError, Tape, Tracked, name_of, plain, rule
from sfumato.training.isolation.vmap_substitutes import rows_first, steps_first

__all__ = ["Parameters"]


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one layer in one direction, as torch lists them."""

    ih: Tensor
    hh: Tensor
    b_ih: Tensor | None = None
    b_hh: Tensor | None = None
    hr: Tensor | None = None

    def values(self) -> Weights:
        """Return their values, outside of any graph."""
        each = (self.ih, self.hh, self.b_ih, self.b_hh, self.hr)
        return Weights(*(None if p is None else plain(p).detach() for p in each))  # type: ignore[arg-type]

    @staticmethod
    def each(flat: Sequence[Tensor], *, count: int, biases: bool) -> Iterator["Parameters"]:
        """Yield `count` of them from torch's flat list."""
        size = len(flat) // count
        projected = size > (4 if biases else 2)
        for start in range(0, len(flat), size):
            own = list(flat[start : start + size])
            hr = own.pop() if projected else None
            yield Parameters(*own, hr=hr)


class _Attached(torch.autograd.Function):
    """Gives a recurrence that has been run its place in the graph.

    Its outputs are views of states that the backward pass reads, so torch refuses to change them in place.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        run: Recurrence,
        weight: Tensor,
        x: Tensor,
        h0: Tensor,
        c0: Tensor | None,
        *anchors: Tensor | None,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.run, ctx.weight = run, weight
        cell = () if run.last_cell is None else (run.last_cell,)
        # Others than those that ctx.run holds: a node that held its own outputs would never be freed.
        return tuple(output.view_as(output) for output in (run.outputs, run.last, *cell))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outputs: Tensor | None, last: Tensor | None, *cell: Tensor | None) -> Any:  # type: ignore[override]
        with torch.autocast(ctx.weight.device.type, enabled=False):
            found = ctx.run.backward(outputs, last, cell[0] if cell else None)
            x = found.of_x @ ctx.weight if ctx.needs_input_grad[2] else None
        each = (None, None, x, found.h0, found.c0, found.of_x, found.of_h, found.projected)
        return tuple(g if needed else None for g, needed in zip(each, ctx.needs_input_grad, strict=True))


@dataclass(frozen=True, slots=True)
class _Layer:
    """One kind of recurrence on a tape, over [T, N, ...]: the rows of the batch, one after another, on N."""

    tape: Tape
    kind: type[Recurrence]

    def run(
        self, x: Tensor, parameters: Parameters, h0: Tensor, c0: Tensor | None, reverse: bool
    ) -> tuple[Tensor, ...]:
        """Run over [T, N, in] and note the linear maps. Return outputs, last output and last cell state."""
        values = parameters.values()
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            done = self.kind(x, values, h0, c0, reverse)
        maps = (
            (x.detach(), parameters.ih, parameters.b_ih, values.ih.shape[0]),
            (done.previous, parameters.hh, parameters.b_hh, values.hh.shape[0]),
            (done.unprojected, parameters.hr, None, done.outputs.shape[-1]),
        )
        anchors = [self._anchor(*each) for each in maps]
        return _Attached.apply(done, values.ih, x, h0, c0, *anchors)  # type: ignore[return-value]

    def _anchor(
        self, x: Tensor | None, weight: Tensor | None, bias: Tensor | None, size: int
    ) -> Tensor | None:
        names = {"weight": name_of(weight), "bias": name_of(bias)}
        if x is None or not any(names.values()):
            return None
        shape = (*x.shape[:-1], size)
        anchor = torch.empty_strided(
            shape, (0,) * len(shape), dtype=x.dtype, device=x.device
        ).requires_grad_()
        op = LinearOp(x.transpose(0, 1), names, self.tape)
        return self.tape.note(op, anchor, rows_first=lambda grad: grad.transpose(0, 1))


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of torch's recurrent functions, after the input."""

    states: tuple[Tensor, ...]  # h0, or h0 and c0: [layers * directions, N, size]
    flat: Sequence[Tensor]
    biases: bool
    layers: int
    dropout: float
    train: bool
    bidirectional: bool

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1


def _stack(layer: _Layer, x: Tensor, call: _Call) -> tuple[Tensor, ...]:
    """Run all layers over [T, N, in]. Return the outputs and the last states, as torch does."""
    count = call.layers * call.directions
    parameters = list(Parameters.each(call.flat, count=count, biases=call.biases))
    states = [s.to(x.dtype).unbind(0) for s in call.states]
    lasts: list[tuple[Tensor, ...]] = []
    for level in range(call.layers):
        if level and call.train and call.dropout:
            x = F.dropout(x, call.dropout)
        outputs: list[Tensor] = []
        for direction in range(call.directions):
            i = level * call.directions + direction
            c0 = states[1][i] if len(states) > 1 else None
            y, *last = layer.run(x, parameters[i], states[0][i], c0, bool(direction))
            outputs.append(y)
            lasts.append(tuple(last))
        x = outputs[0] if call.directions == 1 else torch.cat(outputs, 2)
    return x, *(torch.stack(each) for each in zip(*lasts, strict=True))


def _call(hx: Any, params: Any, has_biases: Any, *options: Any) -> _Call:
    if not isinstance(has_biases, bool):  # the overload for packed sequences, which has one argument more
        raise UnsupportedUseError(
            "packed sequences keep the examples of a batch in an order of their own, so a recurrent layer "
            "cannot tell whose gradient is whose. Pad the sequences to one length, run the layer on the "
            "padded batch, and mask the padded steps or pick the last valid step of each example."
        )
    states = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
    for state in states:
        if isinstance(state, Tracked):
            raise NoRuleError
    return _Call(states, params, has_biases, *options)


def _recurrent(kind: type[Recurrence]) -> Any:
    def handler(tape: Tape, input: Tensor, hx: Any, *rest: Any) -> tuple[Tensor, ...]:
        *options, batch_first = rest
        call = _call(hx, *options)
        x = steps_first(tape.rows(input), batch_first=batch_first)
        states = tuple(steps_first(tape.rows(state)) for state in call.states)
        found = _stack(_Layer(tape, kind), x.to(call.flat[0].dtype), replace(call, states=states))
        outputs, *lasts = (autocast(y) for y in found)
        rows = tape.grouping.rows
        outputs = rows_first(outputs, rows, batch_first=batch_first)
        return outputs, *(rows_first(last, rows) for last in lasts)

    return handler


for _kind, _function in (
    (LSTM, torch.lstm),
    (GRU, torch.gru),
    (TanhRNN, torch.rnn_tanh),
    (ReluRNN, torch.rnn_relu),
):
    rule(_function)(_recurrent(_kind))


@rule(torch._cudnn_rnn_flatten_weight)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage] - nn.LSTM's own
def _flatten(tape: Tape, *arguments: Any) -> None:
    """Leave the weights where they are: cuDNN, which wants them side by side, is not used here."""
