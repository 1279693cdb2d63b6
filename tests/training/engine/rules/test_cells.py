# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn


def squares(model, x):
    y = model(x).flatten(1)
    return y.square().sum(1) + y.sum(1)


class Cells(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell, self.head = cell, nn.Linear(5, 2)

    def forward(self, x):
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("frozen", [True, False])
def test_recurrent_cells_agree(agrees, cell, frozen):
    torch.manual_seed(0)
    model = Cells(cell(4, 5).requires_grad_(not frozen)).double()
    agrees(model, squares, torch.randn(4, 3, 4).double())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_simple_cells_agree_with_and_without_bias(agrees, bias, nonlinearity):
    torch.manual_seed(0)
    model = Cells(nn.RNNCell(4, 5, bias=bias, nonlinearity=nonlinearity)).double()
    agrees(model, squares, torch.randn(4, 3, 4).double())
