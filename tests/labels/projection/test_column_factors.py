# SPDX-License-Identifier: Apache-2.0
"""Columns from one pass are those of the matrix, and so are their inner products."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.labels.projection import column_factors
from sfumato.labels.projection.column_factors import ColumnFactors

CLASSES = 4


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, CLASSES, bias=False))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, CLASSES)
    )


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def made(build, clip_norm, rows=7):
    torch.manual_seed(0)
    model, x = build().double(), torch.randn(rows, 6).double() * 3
    named = dict(model.named_parameters())
    losses = -model(x).log_softmax(1)
    each = [torch.autograd.grad(loss, named.values(), retain_graph=True) for loss in losses.flatten()]
    matrix = torch.stack([torch.cat([g.flatten() for g in found]) for found in each])  # [columns, parameters]
    if clip_norm is not None:
        matrix = matrix * (clip_norm / matrix.norm(dim=1, keepdim=True).clamp(min=clip_norm))
    factors = ColumnFactors(model, cross_entropy, x, classes=CLASSES, parameters=named, clip_norm=clip_norm)
    return factors, matrix, named


def packed(vectors):
    return torch.cat([v.flatten() for v in vectors.values()])


@pytest.fixture(params=[False, True], ids=["in parts", "at once"])
def launch_bound(request, monkeypatch):
    """Compute as on a CPU, a few columns in each pass, and as on a GPU."""
    monkeypatch.setattr(column_factors, "launch_bound", lambda place: request.param)
    monkeypatch.setattr(column_factors, "_ON_CPU", 2 * CLASSES)
    return request.param


@pytest.mark.parametrize("clip_norm", [None, 1.0], ids=str)
@pytest.mark.parametrize("build", [deep, convolutional, Tied])
def test_columns_and_their_products_are_those_of_the_matrix(build, clip_norm, launch_bound):
    factors, matrix, named = made(build, clip_norm)
    places = torch.tensor([5, 0, 27, 5])
    assert torch.allclose(factors.inner(places), matrix[places] @ matrix.T)
    assert (factors._gram is not None) == launch_bound  # all pairs at once on a GPU alone
    weights = torch.randn(len(matrix)).double()
    assert torch.allclose(packed(factors.combine(weights)), weights @ matrix)
    along = {name: torch.randn_like(p) for name, p in named.items()}
    assert torch.allclose(factors.against(along), matrix @ packed(along))
    found = torch.cat([part.flatten(1) for part in factors.columns(places).values()], 1)
    assert torch.allclose(found, matrix[places])


def test_layers_on_single_vectors_are_kept_in_factors():
    factors, _, _ = made(deep, None)
    assert set(factors._outer) == {"0.weight", "2.weight"} and factors._dense.shape == (28, 5)
    tied, _, named = made(Tied, None)
    assert set(tied._outer) == {"head.weight"}  # the sum of two outer products is none
    assert len(named) == 4


def test_coarse_columns_are_multiplied_in_float64():
    model, x = nn.Linear(6, CLASSES).bfloat16(), torch.randn(3, 6).bfloat16()
    factors = ColumnFactors(
        model, cross_entropy, x, classes=CLASSES, parameters=dict(model.named_parameters())
    )
    every = torch.arange(3 * CLASSES)
    matrix = torch.cat([part.flatten(1) for part in factors.columns(every).values()], 1)
    assert matrix.dtype == torch.float64
    assert torch.allclose(factors.inner(every), matrix @ matrix.T, rtol=1e-12)
