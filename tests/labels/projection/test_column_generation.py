# SPDX-License-Identifier: Apache-2.0
"""Column generation where the columns it may hold do not suffice. What all solvers promise: test_hull.py."""

import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.labels.projection.column_generation import ColumnGeneration
from sfumato.labels.projection.gradient_products import LabelGradients


@pytest.fixture
def products():
    torch.manual_seed(0)
    model = nn.Linear(12, 5)
    return LabelGradients(model, torch.randn(60, 12), classes=5)


@pytest.fixture
def inside(products):
    """Return a target in the middle of the hull, which many columns make."""
    weights = torch.rand(60, 5, generator=torch.Generator().manual_seed(1))
    return products.combine(weights / weights.sum())


FEW = {"columns_per_iteration": 4, "most_columns": 8}


def test_accelerated_gradients_go_on_where_columns_run_out(products, inside):
    alone = ColumnGeneration(**FEW, most_accelerated=0).solve(products, inside)
    found = ColumnGeneration(**FEW).solve(products, inside)
    assert not alone.reached and found.reached
    assert found.relative_distance < alone.relative_distance / 5
    assert found.iterations > alone.iterations
    away = sum(float((found.gradient[name] - inside[name]).square().sum()) for name in inside) ** 0.5
    assert away <= found.distance_bound + 1e-6  # the target is its own nearest point
    assert float(found.weights.min()) >= 0
    assert float(found.weights.sum()) == pytest.approx(1.0, abs=1e-5)


def test_the_better_of_the_two_is_returned(products, inside):
    alone = ColumnGeneration(**FEW, most_accelerated=0).solve(products, inside)
    found = ColumnGeneration(**FEW, most_accelerated=1).solve(products, inside)
    assert found.gap <= alone.gap


def test_nothing_goes_on_where_columns_suffice(products):
    far = {name: torch.randn(p.shape) * 100 for name, p in products.parameters.items()}
    alone, found = (ColumnGeneration(most_accelerated=most).solve(products, far) for most in (0, 200))
    assert alone.reached and found.iterations == alone.iterations


def test_a_negative_number_of_iterations_is_refused():
    with pytest.raises(InvalidParameterError, match="most_accelerated"):
        ColumnGeneration(most_accelerated=-1)
