# SPDX-License-Identifier: Apache-2.0
"""Projections by inner products are those by passes, and solve what columns alone do not."""

import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.labels.projection import column_factors
from sfumato.labels.projection.column_generation import ColumnGeneration
from sfumato.labels.projection.gradient_products import LabelGradients
from sfumato.labels.projection.hull import Problem

ROWS, CLASSES = 12, 4


def network(*, sure=1.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    with torch.no_grad():
        model[-1].weight.mul_(sure)
    return model


def rows(seed=1):
    return torch.randn(ROWS, 20, generator=torch.Generator().manual_seed(seed))


def target(model, size, *, seed=2):
    draws = torch.Generator().manual_seed(seed)
    return {n: (torch.randn(p.shape, generator=draws) * size).to(p) for n, p in model.named_parameters()}


def both(model, x, wanted, *, clip_norm=None, **settings):
    """Return the projection by inner products, and the one by passes, to a small gap."""
    solver = ColumnGeneration(**{"tolerance": 1e-6, "most_accelerated": 3000} | settings)
    return tuple(
        solver.solve(LabelGradients(model, x, classes=CLASSES, clip_norm=clip_norm, most_bytes=most), wanted)
        for most in (2**20, 0)
    )


def flat(found):
    return torch.cat([part.flatten() for part in found.gradient.values()]).double()


def require_hull(found):
    assert float(found.weights.min()) >= 0
    assert float(found.weights.double().sum()) == pytest.approx(1, abs=1e-5)


SKEWED = torch.logspace(-3, 3, ROWS).unsqueeze(1)
INPUTS = {
    "plain": rows(),
    "skewed": rows() * SKEWED,
    "equal rows": rows()[:1].expand(ROWS, -1).clone(),
    "zero rows": torch.zeros(ROWS, 20),
    "one row": rows()[:1],
}


@pytest.mark.parametrize("clip_norm", [None, 0.5], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("size", [1e-4, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize("inputs", INPUTS)
def test_the_nearest_point_is_the_one_that_passes_find(inputs, size, clip_norm):
    model = network().double()
    x, wanted = INPUTS[inputs].double(), target(model, size)
    found, slow = both(model, x, wanted, clip_norm=clip_norm)
    require_hull(found)
    away = (flat(found) - flat(slow)).norm()
    assert away <= found.distance_bound + slow.distance_bound + 1e-9 * size
    # A hundredth of the default tolerance: squared lengths of skewed columns differ by a factor of 10^12.
    assert found.relative_gap <= max(slow.relative_gap, 1e-5)


@pytest.mark.parametrize("sure", [1.0, 30.0])
def test_the_bound_holds_for_what_is_returned_in_float32(sure):
    model, x = network(sure=sure), rows()
    for size in (1e-3, 0.1, 10.0):
        found, _ = both(model, x, target(model, size))
        exact, _ = both(model.double(), x.double(), target(model, size))
        model.float()
        require_hull(found)
        assert (flat(found) - flat(exact)).norm() <= found.distance_bound + exact.distance_bound + 1e-5 * size


@pytest.mark.parametrize("iterations", [1, 2, 40])
@pytest.mark.parametrize("size", [1e-3, 0.1, 1.0])
def test_the_gap_is_the_one_that_passes_measure_for_the_weights(size, iterations):
    model = network(sure=3.0).double()
    x, wanted = rows().double(), target(model, size)
    settings = {"columns_per_iteration": 4, "most_iterations": iterations, "most_accelerated": 0}
    found, _ = both(model, x, wanted, **settings)
    problem = Problem(LabelGradients(model, x, classes=CLASSES), wanted, False, 1e-6)
    state = problem.at(problem.blocks(found.weights))
    assert found.gap == pytest.approx(problem.gap(state), rel=1e-6, abs=1e-12 * problem.square)
    assert found.relative_gap == pytest.approx(problem.relative_gap(state), rel=1e-6, abs=1e-9)


def test_a_small_target_takes_one_system_of_equations():
    for model, tolerance in ((network().double(), 1e-6), (network(), 1e-3)):
        x = rows().to(model[0].weight)
        found, slow = both(model, x, target(model, 1e-3), tolerance=tolerance, most_accelerated=0)
        assert found.reached and found.iterations == 2
        assert int((found.weights > 0).sum()) == ROWS * CLASSES  # all columns have weight
        assert slow.iterations > 2


@pytest.mark.parametrize("most", [1, column_factors._HELD])
def test_where_columns_run_out_accelerated_gradients_go_on(monkeypatch, most):
    monkeypatch.setattr(column_factors, "_HELD", most)
    model, few = network(sure=3.0), {"columns_per_iteration": 4, "most_columns": 8, "tolerance": 1e-3}
    wanted = {name: part * 0.3 for name, part in target(model, 1.0).items()}
    alone, _ = both(model, rows(), wanted, most_accelerated=0, **few)
    found, slow = both(model, rows(), wanted, **few)
    assert not alone.reached and found.reached and found.iterations > alone.iterations
    assert found.distance_bound < alone.distance_bound
    assert (flat(found) - flat(slow)).norm() <= found.distance_bound + slow.distance_bound
    require_hull(found)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rows_whose_gradients_are_not_finite_are_refused(value):
    model, x = network(), rows()
    x[3, 5] = value
    with pytest.raises(InvalidParameterError, match="NaN or an infinity"):
        ColumnGeneration().solve(
            LabelGradients(model, x, classes=CLASSES, most_bytes=2**20), target(model, 0.1)
        )


def test_a_target_of_zero_is_its_own_projection():
    model = network()
    found, _ = both(model, rows(), target(model, 0.0))
    assert found.reached and float(flat(found).norm()) <= 1e-6


def test_one_class_has_columns_of_zero_alone():
    model = nn.Linear(20, 1)
    products = LabelGradients(model, rows(), classes=1, most_bytes=2**20)
    found = ColumnGeneration().solve(products, target(model, 0.1))
    assert found.reached and not flat(found).any()


def test_a_coarse_type_is_projected_to_a_proven_gap():
    model, x = network().bfloat16(), rows().bfloat16()
    for size in (1e-3, 0.1, 10.0):
        products = LabelGradients(model, x, classes=CLASSES, most_bytes=2**20)
        found = ColumnGeneration().solve(products, target(model, size))
        assert found.reached
        assert {part.dtype for part in found.gradient.values()} == {torch.bfloat16}
