# SPDX-License-Identifier: Apache-2.0
"""Estimates fit what was measured; samples have the model's marginals; conditions hold in every row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.generative.tables.model.belief_propagation import ImpossibleError
from sfumato.generative.tables.model.graphical_model import (
    GraphicalModel,
    Measurement,
    estimate,
    estimated_total,
)
from tests.generative.tables.model.joint import joint_of, models

RNG = np.random.default_rng(3)
JOINT = RNG.dirichlet(np.full(24, 0.3)).reshape(2, 3, 4)  # skewed, with many small cells


def exact(columns, total=10_000.0, stddev=1.0):
    other = tuple(c for c in range(3) if c not in columns)
    return Measurement(columns=columns, values=total * JOINT.sum(axis=other), stddev=stddev)


def test_a_model_of_exact_marginals_has_these_marginals():
    measured = [exact((0, 1)), exact((1, 2)), exact((0, 2))]
    model = estimate((2, 3, 4), measured, iterations=3000)
    for each in measured:
        np.testing.assert_allclose(model.marginal(each.columns), each.values / 10_000, atol=2e-3)


def test_noisy_marginals_are_weighted_by_their_variance():
    near = Measurement(columns=(0,), values=np.array([100.0, 300.0]), stddev=1.0)
    far = Measurement(columns=(0,), values=np.array([300.0, 100.0]), stddev=100.0)
    assert estimate((2,), [near, far]).marginal((0,))[1] == pytest.approx(0.75, abs=1e-3)


def test_the_total_is_that_of_the_surest_measurement():
    sure = Measurement(columns=(0,), values=np.array([60.0, 40.0]), stddev=0.01)
    vague = Measurement(columns=(1,), values=np.array([500.0, 500.0]), stddev=100.0)
    assert estimated_total([sure, vague]) == pytest.approx(100.0, abs=0.01)


@pytest.mark.parametrize("values", [[-5.0, -3.0], [0.0, 0.0], [-1e9, 1.0]])
def test_counts_that_are_all_noise_make_a_distribution(values):
    model = estimate((2,), [Measurement(columns=(0,), values=np.array(values), stddev=2.0)])
    assert model.total >= 1 and model.marginal((0,)).sum() == pytest.approx(1.0)
    assert np.isfinite(model.marginal((0,))).all()


def test_a_later_estimate_starts_where_the_first_ended():
    measured = [exact((0, 1)), exact((1, 2))]
    first = estimate((2, 3, 4), measured, iterations=500)
    again = estimate((2, 3, 4), measured, start=first, iterations=1)
    np.testing.assert_allclose(again.marginal((0, 2)), first.marginal((0, 2)), atol=1e-3)


@given(models(scale=2.0), st.integers(0, 2**32))
def test_a_large_sample_has_the_marginals_of_the_joint_distribution(model, seed):
    sizes, potentials = model
    joint, _ = joint_of(sizes, potentials)
    made = GraphicalModel(sizes=sizes, total=1.0, potentials=potentials)
    codes = made.sample(4000, np.random.default_rng(seed))
    assert codes.shape == (4000, len(sizes))
    counted = np.bincount(np.ravel_multi_index(tuple(codes.T), sizes), minlength=joint.size) / 4000
    # A cell of 4000 rows has a standard deviation below 0.008; there are up to 729 cells.
    assert np.abs(counted - joint.ravel()).max() < 0.06


def test_columns_that_are_independent_given_another_are_so_in_samples():
    weights = np.log(np.array([[0.8, 0.2], [0.2, 0.8]]))
    model = GraphicalModel(sizes=(2, 2, 2), total=1.0, potentials={(0, 1): weights, (1, 2): weights})
    codes = model.sample(40_000, np.random.default_rng(0))
    for value in (0, 1):
        some = codes[codes[:, 1] == value]
        assert abs(np.corrcoef(some[:, 0], some[:, 2])[0, 1]) < 0.03


def test_counts_of_a_root_clique_are_the_expected_ones_rounded():
    model = GraphicalModel(sizes=(4,), total=1.0, potentials={(0,): np.log([0.1, 0.2, 0.3, 0.4])})
    for rows in (10, 17, 1):
        counts = np.bincount(model.sample(rows, np.random.default_rng(rows))[:, 0], minlength=4)
        assert (np.abs(counts - rows * np.array([0.1, 0.2, 0.3, 0.4])) < 1 + 1e-9).all()


def test_a_condition_holds_in_every_row_and_moves_other_columns():
    weights = np.log(np.array([[0.9, 0.1], [0.1, 0.9]]))
    model = GraphicalModel(sizes=(2, 2, 3), total=1.0, potentials={(0, 1): weights})
    codes = model.given({0: 1}).sample(1000, np.random.default_rng(0))
    assert (codes[:, 0] == 1).all() and abs(codes[:, 1].mean() - 0.9) < 0.01


def test_a_condition_of_probability_zero_is_an_error():
    model = GraphicalModel(sizes=(2,), total=1.0, potentials={(0,): np.array([0.0, -np.inf])})
    with pytest.raises(ImpossibleError):
        model.given({0: 1})
