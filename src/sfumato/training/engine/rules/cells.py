# SPDX-License-Identifier: Apache-2.0
"""nn.RNNCell, nn.GRUCell and nn.LSTMCell: one step of a recurrence, as two linear maps and elementwise gates.

Guarantee  The output is torch's.
Source     The formulas of torch's documentation.
Not here   Whole sequences (`recurrent`), which are faster.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sfumato.training.engine.rules.linear import linear, single
from sfumato.training.engine.tape.tape import NoRuleError, Tape, Tracked, rule

__all__: list[str] = []


def _maps(tape: Tape, x: Tensor, h: Tensor, weights: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor]:
    """Return what the input and the state add to the gates: [rows, ..., gates * hidden] each."""
    ih, hh, b_ih, b_hh = weights
    if not isinstance(ih, Tracked) or not isinstance(hh, Tracked):
        raise NoRuleError
    return linear(tape, single(x), ih, b_ih), linear(tape, single(h), hh, b_hh)


@rule(torch.lstm_cell)
def _lstm_cell(
    tape: Tape, input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
) -> tuple[Tensor, Tensor]:
    h, c = (tape.rows(state) for state in hx)
    of_x, of_h = _maps(tape, tape.rows(input), h, (w_ih, w_hh, b_ih, b_hh))
    i, f, g, o = (of_x + of_h).chunk(4, -1)
    cell = f.sigmoid() * c.reshape(f.shape) + i.sigmoid() * g.tanh()
    return (o.sigmoid() * cell.tanh()).reshape(h.shape), cell.reshape(c.shape)


@rule(torch.gru_cell)
def _gru_cell(
    tape: Tape, input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
) -> Tensor:
    h = tape.rows(hx)
    of_x, of_h = _maps(tape, tape.rows(input), h, (w_ih, w_hh, b_ih, b_hh))
    (r, z, n), (r_h, z_h, n_h) = of_x.chunk(3, -1), of_h.chunk(3, -1)
    update = (z + z_h).sigmoid()
    new = (n + (r + r_h).sigmoid() * n_h).tanh()
    return (new + update * (h.reshape(new.shape) - new)).reshape(h.shape)


def _simple_cell(activate: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def handler(
        tape: Tape, input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
    ) -> Tensor:
        h = tape.rows(hx)
        of_x, of_h = _maps(tape, tape.rows(input), h, (w_ih, w_hh, b_ih, b_hh))
        return activate(of_x + of_h).reshape(h.shape)

    return handler


rule(torch.rnn_tanh_cell)(_simple_cell(torch.tanh))
rule(torch.rnn_relu_cell)(_simple_cell(torch.relu))
