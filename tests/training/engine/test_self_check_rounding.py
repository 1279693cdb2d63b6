# SPDX-License-Identifier: Apache-2.0
"""Gradients that are zero but for rounding are no difference; those that are merely small are."""

import pytest
import torch
from torch import nn

from sfumato.errors import UnsupportedModelError
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.functional import FunctionalPass
from sfumato.training.engine.self_check import agree, self_check


class Attention(nn.Module):
    """Scores are compared within a query, so the bias of keys adds the same to all and changes nothing."""

    def __init__(self, dtype, seed):
        super().__init__()
        torch.manual_seed(seed)
        layers = [nn.ModuleList(nn.Linear(16, 16, dtype=dtype) for _ in range(3)) for _ in range(2)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for query, key, value in self.layers:
            x = x + (query(x) @ key(x).transpose(1, 2)).softmax(-1) @ value(x)
        return x


def squares(model, x):
    return model(x).square().flatten(1).sum(1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_is_let_through_although_a_gradient_is_only_rounding(dtype, seed):
    model = Attention(dtype, seed)
    x = torch.randn(3, 7, 16, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    assert self_check(BookKeeping(model, squares), model, squares, (x,))


class Two(nn.Module):
    """Two parameters, one with a gradient that is `small` times that of the other."""

    def __init__(self, small):
        super().__init__()
        self.large, self.little = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
        self.small = small

    def forward(self, x):
        return x @ self.large + self.small * (x @ self.little)


class Wrong:
    """An engine whose gradient of one parameter has the wrong sign."""

    def __init__(self, small):
        self.small = small

    def run(self, batch, *, per_unit=1):
        (x,) = batch
        return FunctionalPass({"large": x, "little": -self.small * x})


@pytest.mark.parametrize(("small", "refused"), [(1e-2, True), (1e-5, True), (1e-8, False)])
def test_a_wrong_gradient_is_refused_unless_it_cannot_be_told_from_rounding(small, refused):
    model, x = Two(small), torch.eye(4)[:3] + 1
    found = []
    try:
        self_check(Wrong(small), model, lambda m, x: m(x), (x,))
    except UnsupportedModelError as error:
        found.append(str(error))
    assert bool(found) == refused
    assert all("['little']" in text for text in found)


def test_without_a_whole_gradient_only_equal_parts_agree():
    tiny = torch.full((3,), 1e-12)
    assert not agree(-tiny, tiny, 0.0)
    assert agree(-tiny, tiny, 1.0)
    assert not agree(-tiny.double(), tiny.double(), 1e-3)
