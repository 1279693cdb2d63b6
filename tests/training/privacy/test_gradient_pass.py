# SPDX-License-Identifier: Apache-2.0
"""Every engine keeps to the interface that clipping uses."""

import pytest
import torch
from torch import nn

from sfumato.testing import seeded
from sfumato.training import cross_entropy
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.functional import Functional
from sfumato.training.engine.projections import Projections

UNITS, GROUPS = 3, [["weight"], ["bias"]]


def engine_of(kind, model):
    if kind is Projections:
        return Projections(model, cross_entropy, projections=1000, generator=seeded(0))
    return kind(model, cross_entropy)


@pytest.mark.parametrize("kind", [BookKeeping, Functional, Projections])
def test_norms_and_sums_of_a_pass_are_those_of_its_gradients(kind):
    torch.manual_seed(0)
    model, x, y = nn.Linear(2, 3), torch.randn(2 * UNITS, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    run = engine_of(kind, model).run((x, y), per_unit=2)
    squared = run.squared_norms(GROUPS)
    assert squared.shape == (len(GROUPS), UNITS)
    weights = torch.rand(len(GROUPS), UNITS)
    each = Functional(model, cross_entropy).run((x, y), per_unit=2)
    for (name,), norms, weight in zip(GROUPS, squared, weights, strict=True):
        gradients = each.per_unit(name)
        assert gradients.shape == (UNITS, *model.get_parameter(name).shape)
        loose = 0.2 if kind is Projections else 1e-4  # projections estimate norms
        assert torch.allclose(norms, gradients.flatten(1).pow(2).sum(1), rtol=loose)
        wanted = torch.einsum("u,u...->...", weight, gradients)
        assert torch.allclose(run.weighted_sums(GROUPS, weights)[name], wanted, atol=1e-5)
