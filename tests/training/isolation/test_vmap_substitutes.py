# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.training.isolation.isolated_rows import Isolated
from sfumato.training.isolation.vmap_substitutes import rows_first, steps_first


def squares(model, x):
    y = model(x).flatten(1)
    return y.square().sum(1) + y.sum(1)


class Recurrent(nn.Module):
    def __init__(self, layer, batch_first):
        super().__init__()
        self.layer, self.head = layer.requires_grad_(False), nn.Linear(5, 2)
        self.batch_first = batch_first

    def forward(self, x):
        y, last = self.layer(x if self.batch_first else x.transpose(0, 1))
        last = last[0] if isinstance(last, tuple) else last
        return self.head((y if self.batch_first else y.transpose(0, 1)).sum(1) + last[0])


@pytest.mark.parametrize("masks", ["none", "shared", "own", "causal"])
@pytest.mark.parametrize("heads", [(), (2,)])
def test_attention_of_rows_is_that_of_each_row(masks, heads):
    torch.manual_seed(0)
    q, k, v = (torch.randn(5, *heads, 4, 8, dtype=torch.float64) for _ in range(3))
    mask = {
        "none": None,
        "causal": None,
        "shared": torch.randn(4, 4).double(),
        "own": torch.randn(5, 4, 4).double(),
    }
    options = {"is_causal": masks == "causal"}
    with Isolated(5) as rows:
        given = [rows.split(t) for t in (q, k, v)]
        own = mask[masks]
        if masks == "own":
            own = rows.split(own)[:, None] if heads else rows.split(own)
        got = rows.join(F.scaled_dot_product_attention(*given, own, **options))[:, 0]
    for i in range(5):
        own = mask[masks][i] if masks == "own" else mask[masks]
        wanted = F.scaled_dot_product_attention(q[i], k[i], v[i], own, **options)
        assert torch.allclose(got[i], wanted, atol=1e-12)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
def test_frozen_recurrent_layers_agree(agrees, layer, batch_first):
    torch.manual_seed(0)
    model = Recurrent(layer(4, 5, 2, batch_first=batch_first), batch_first).double()
    agrees(model, squares, torch.randn(4, 3, 4).double())


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_cross_entropy_of_rows_is_that_of_each_row(reduction, smoothing):
    torch.manual_seed(0)
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 2])
    options = {"reduction": reduction, "label_smoothing": smoothing}
    with Isolated(5) as rows:
        got = rows.join(F.cross_entropy(rows.split(x), rows.split(y), **options)).flatten()
    wanted = [F.cross_entropy(x[i : i + 1], y[i : i + 1], **options).flatten() for i in range(5)]
    assert torch.allclose(got, torch.cat(wanted), atol=1e-12)


@pytest.mark.parametrize("batch_first", [True, False])
def test_rows_and_steps_are_exchanged_and_back(batch_first):
    x = torch.randn(5, 1, 3, 2) if batch_first else torch.randn(5, 3, 1, 2)  # [rows, ...] of one example each
    steps = steps_first(x, batch_first=batch_first)
    assert steps.shape == (3, 5, 2)
    assert torch.equal(rows_first(steps, 5, batch_first=batch_first), x)
