# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gamma, kstest, norm

from sfumato.accounting import price
from sfumato.accounting.composition import basic_epsilon
from sfumato.accounting.events import compose
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.estimators.minimum import minimize
from sfumato.estimators.output_perturbation import OutputPerturbation
from sfumato.testing import seeded

ALPHA = 1e-6
PURE = OutputPerturbation(epsilon=1.0, row_norm=1.0, regularization=2.0, relation=Relation.REPLACE_ONE)


def table(seed: int, rows: int = 6):
    random = np.random.default_rng(seed)
    X = random.normal(size=(rows, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, random.choice([-1.0, 1.0], size=rows)


@given(st.integers(0, 10_000), st.floats(0.01, 100), st.sampled_from([0.0, 1e-5]))
@settings(max_examples=40, deadline=None)
def test_neighbors_move_a_release_with_the_same_noise_by_at_most_the_sensitivity(seed, regularization, delta):
    X, signs = table(seed)
    other_X, other_signs = table(seed + 1)
    for relation in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
        mechanism = replace(PURE, regularization=regularization, relation=relation, delta=delta)
        one = mechanism.release(X, signs, generator=seeded(seed))
        if relation is Relation.ADD_REMOVE:
            two = mechanism.release(X[1:], signs[1:], generator=seeded(seed))
        else:
            X2, signs2 = X.copy(), signs.copy()
            X2[0], signs2[0] = other_X[0], other_signs[0]
            two = mechanism.release(X2, signs2, generator=seeded(seed))
        assert np.linalg.norm(one - two) <= mechanism.sensitivity * (1 + 1e-9)


def far_apart():
    """Neighbors that need nearly all of 2 / regularization.

    A crowd holds w where two nearly opposite rows both have a slope of nearly 1.
    """
    crowd, labels = np.tile([[0.0, -1.0]], (20_000, 1)), np.ones(20_001)
    one, two = np.array([[0.954, 0.3]]), np.array([[-0.954, 0.3]])
    return (np.vstack([crowd, one]), labels), (np.vstack([crowd, two]), labels)


def test_a_replaced_row_moves_the_release_further_than_the_bound_without_its_factor_two():
    mechanism = replace(PURE, regularization=1.0)
    one, two = (mechanism.release(*data, generator=seeded(0)) for data in far_apart())
    moved = float(np.linalg.norm(one - two))
    assert moved <= mechanism.sensitivity
    assert moved > 1.3 * replace(mechanism, relation=Relation.ADD_REMOVE).sensitivity  # would be caught


def test_what_a_solver_leaves_is_part_of_the_sensitivity():
    assert PURE.sensitivity == pytest.approx((2 + 2 * PURE.tolerance) / 2.0, rel=1e-12)
    assert PURE.sensitivity > 1.0


def test_the_noise_has_the_stated_law():
    X, signs = table(0)
    best = minimize(X, signs, row_norm=1.0, regularization=2.0, tilt=np.zeros(3), tolerance=1e-10)
    generator = seeded(3)
    noise = np.stack([PURE.release(X, signs, generator=generator) - best for _ in range(1500)])
    norms = np.linalg.norm(noise, axis=1)
    assert kstest(norms, gamma(3, scale=1.0).cdf).pvalue > ALPHA  # 2 / (2 epsilon)
    assert kstest(norms, gamma(3, scale=0.5).cdf).pvalue < ALPHA  # the factor 2 dropped
    approximate = replace(PURE, delta=1e-5)
    noise = np.stack([approximate.release(X, signs, generator=generator) - best for _ in range(1000)])
    assert kstest(noise.ravel(), norm(scale=3.7306).cdf).pvalue > ALPHA


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
@pytest.mark.parametrize("runs", [1, 3])
def test_all_runs_together_cost_what_was_asked_for(relation, runs):
    pure = replace(PURE, relation=relation, runs=runs)
    event = compose(*[pure.event()] * runs)
    assert basic_epsilon(event, delta=0.0, relation=relation) == pytest.approx(1.0)
    event = compose(*[replace(pure, delta=1e-5).event()] * runs)
    assert price(event, delta=1e-5, relation=relation).upper == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("name", ["epsilon", "row_norm", "regularization"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_nonsense_is_refused(name, value):
    with pytest.raises(InvalidParameterError, match=name):
        replace(PURE, **{name: value})


def test_a_regularization_too_small_for_the_solver_is_refused_from_public_numbers():
    with pytest.raises(InvalidParameterError, match="regularization"):
        replace(PURE, row_norm=10.0, regularization=0.009)
    assert replace(PURE, row_norm=10.0, regularization=0.011).sensitivity > 0


@pytest.mark.parametrize("epsilon", [0.01, 30.0, 1000.0])
@pytest.mark.parametrize("regularization", [1e-4, 1e-2, 1.0])
def test_no_rows_make_a_release_fail(epsilon, regularization):
    """An error that depends on the rows would tell them apart, whatever the noise."""
    X, _ = table(0, rows=40)
    stiff = np.tile(np.array([[1.0, 1.0, 0.0]]) / np.sqrt(2), (4000, 1))
    stiff[:9] = np.array([1e-3, -1e-3, 0.0])
    hard = [
        (X, np.where(X[:, 0] > 0, 1.0, -1.0)),
        (1e-7 * X, np.where(X[:, 0] > 0, 1.0, -1.0)),
        (np.tile(X[:1], (1000, 1)), np.ones(1000)),
        (np.zeros((3, 3)), np.ones(3)),
        (stiff, np.where(np.arange(4000) % 2, 1.0, -1.0)),
    ]
    mechanism = replace(PURE, epsilon=epsilon, regularization=regularization)
    for rows, labels in hard:
        assert np.isfinite(mechanism.release(rows, labels, generator=seeded(0))).all()
