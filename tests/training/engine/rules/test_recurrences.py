# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.training.engine.rules.recurrences import GRU, LSTM, Clock, ReluRNN, TanhRNN, Weights

STEPS, ROWS, INPUTS, HIDDEN = 4, 3, 2, 5
LAYERS = {
    "tanh": (TanhRNN, lambda: nn.RNN(INPUTS, HIDDEN)),
    "relu": (ReluRNN, lambda: nn.RNN(INPUTS, HIDDEN, nonlinearity="relu")),
    "gru": (GRU, lambda: nn.GRU(INPUTS, HIDDEN)),
    "lstm": (LSTM, lambda: nn.LSTM(INPUTS, HIDDEN)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("reverse", [True, False])
def test_outputs_and_gradients_of_inputs_and_weights_are_those_of_torch(name, reverse):
    kind, make = LAYERS[name]
    torch.manual_seed(0)
    layer = make().double()
    x, h0, c0 = torch.randn(STEPS, ROWS, INPUTS), torch.randn(1, ROWS, HIDDEN), torch.randn(1, ROWS, HIDDEN)
    x, h0, c0 = x.double().requires_grad_(), h0.double(), c0.double()
    state = (h0, c0) if name == "lstm" else h0
    wanted, _ = layer(x.flip(0) if reverse else x, state)
    wanted = wanted.flip(0) if reverse else wanted
    values = [
        p.detach() for p in (layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0)
    ]
    found = kind(x.detach(), Weights(*values), h0[0], c0[0] if name == "lstm" else None, reverse)
    assert torch.allclose(found.outputs, wanted, atol=1e-12)
    given = torch.randn_like(wanted)
    of_x, of_input, of_state = torch.autograd.grad(
        (wanted * given).sum(), (x, layer.weight_ih_l0, layer.weight_hh_l0)
    )
    gradients = found.backward(given, None, None)
    assert torch.allclose(gradients.of_x @ layer.weight_ih_l0, of_x, atol=1e-10)
    assert torch.allclose(torch.einsum("tng,tni->gi", gradients.of_x, x), of_input, atol=1e-10)
    assert torch.allclose(torch.einsum("tng,tno->go", gradients.of_h, found.previous), of_state, atol=1e-10)


@pytest.mark.parametrize("reverse", [True, False])
def test_a_clock_starts_at_the_initial_state_and_ends_at_the_last(reverse):
    clock = Clock(3, reverse)
    states = clock.begin(torch.tensor([10.0]))
    before, after = clock.before(states), clock.after(states)
    for t in clock.forward():
        after[t] = before[t] + 1
    assert clock.last(states).item() == 13
    assert list(clock.forward()) == ([2, 1, 0] if reverse else [0, 1, 2])
