# SPDX-License-Identifier: Apache-2.0
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import gamma, kstest, norm

from sfumato.accounting import price
from sfumato.accounting.events import compose
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.estimators.minimum import LEAST_REGULARIZATION
from sfumato.estimators.objective_perturbation import (
    GaussianObjectivePerturbation,
    PureObjectivePerturbation,
    regularization_for,
)
from sfumato.testing import seeded

ALPHA = 1e-6
RELATIONS = [Relation.ADD_REMOVE, Relation.REPLACE_ONE]
PURE = PureObjectivePerturbation(epsilon=1.0, row_norm=1.0, regularization=0.5, relation=Relation.REPLACE_ONE)


def gradient(w, rows, signs, *, regularization):
    """The slope of the objective without its linear term."""
    return regularization * w - sum(
        (s * x * expit(-s * (x @ w)) for x, s in zip(rows, signs, strict=True)), np.zeros(len(w))
    )


def log_density(w, rows, signs, mechanism, *, scale=None):
    """The log density of the exact minimum, up to a constant: b's, and the determinant of the Hessian."""
    scores = np.outer(w, rows) * signs  # [W, rows], in one dimension
    b = (expit(-scores) * signs * rows).sum(1) - mechanism.regularization * w
    bend = (expit(scores) * expit(-scores) * rows**2).sum(1) + mechanism.regularization
    return -np.abs(b) / (scale or mechanism.scale) + np.log(bend)


def worst_loss(mechanism, one, two, **options):
    w = np.linspace(-60, 60, 24_001)
    return float(
        np.abs(log_density(w, *one, mechanism, **options) - log_density(w, *two, mechanism, **options)).max()
    )


def neighbors(relation, seed):
    random = np.random.default_rng(seed)
    rows, signs = random.uniform(-1, 1, 5), random.choice([-1.0, 1.0], 5)
    if relation is Relation.ADD_REMOVE:
        return (rows, signs), (rows[1:], signs[1:])
    return (rows, signs), (np.append(rows[1:], 1.0), np.append(signs[1:], random.choice([-1.0, 1.0])))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("regularization", [0.2, 0.5, 5.0])
def test_no_output_is_likelier_under_a_neighbor_than_epsilon_allows(relation, regularization):
    mechanism = replace(PURE, relation=relation, regularization=regularization)
    losses = [worst_loss(mechanism, *neighbors(relation, seed)) for seed in range(30)]
    empty = (np.zeros(0), np.zeros(0)), (np.ones(1), np.ones(1))
    losses.append(worst_loss(mechanism, *empty) if relation is Relation.ADD_REMOVE else 0.0)
    assert max(losses) <= 0.99 * mechanism.epsilon + 1e-9  # a hundredth is for the solver


@given(
    st.lists(st.tuples(st.floats(-1, 1), st.sampled_from([-1.0, 1.0])), min_size=1, max_size=8),
    st.tuples(st.floats(-1, 1), st.sampled_from([-1.0, 1.0])),
    st.floats(1e-4, 100.0),
    st.floats(0.05, 50.0),
)
@settings(max_examples=30, deadline=None)
def test_any_row_added_or_replaced_costs_at_most_epsilon(table, other, regularization, epsilon):
    rows, signs = np.array(table).T
    replaced = np.append(rows[1:], other[0]), np.append(signs[1:], other[1])
    for relation, two in zip(RELATIONS, ((rows[1:], signs[1:]), replaced), strict=True):
        made = replace(PURE, epsilon=epsilon, regularization=regularization, relation=relation)
        assert worst_loss(made, (rows, signs), two) <= 0.99 * epsilon * (1 + 1e-9)


def test_dropping_the_determinant_or_most_of_the_noise_is_caught():
    mechanism = replace(PURE, relation=Relation.ADD_REMOVE, regularization=0.2)
    alone = (np.zeros(0), np.zeros(0)), (np.ones(1), np.ones(1))
    # Without its correction the noise would have the scale row_norm / epsilon.
    assert worst_loss(mechanism, *alone, scale=1.0 / mechanism.epsilon) > mechanism.epsilon
    assert worst_loss(mechanism, *alone, scale=mechanism.scale / 3) > mechanism.epsilon


def test_the_bound_on_determinants_holds_for_replaced_rows_without_the_square():
    random = np.random.default_rng(0)
    for _ in range(300):
        base = sum(np.outer(x, x) * random.uniform(0, 0.25) for x in random.normal(size=(3, 3)))
        base = base + 0.1 * np.eye(3)
        one, two = random.normal(size=(2, 3))
        one, two = one / np.linalg.norm(one), two / np.linalg.norm(two)
        with_one, with_two = (base + 0.25 * random.uniform() * np.outer(x, x) for x in (one, two))
        assert np.linalg.det(with_one) / np.linalg.det(with_two) <= 1 + 0.25 / 0.1


@pytest.mark.parametrize("relation", RELATIONS)
def test_neighbors_move_the_linear_term_by_no_more_than_the_noise_is_made_for(relation):
    """Replay: at one and the same output the two linear terms differ by at most a row's gradients."""
    random = np.random.default_rng(1)
    X, signs = random.normal(size=(50, 3)), random.choice([-1.0, 1.0], 50)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    other = X.copy()
    other[0] = -X[0]
    mechanism = replace(PURE, relation=relation)
    for seed in range(20):
        w = mechanism.release(X, signs, generator=seeded(seed))
        terms = {"regularization": mechanism.regularization}
        one = gradient(w, X, signs, **terms)
        two = (
            gradient(w, X[1:], signs[1:], **terms)
            if relation is Relation.ADD_REMOVE
            else gradient(w, other, signs, **terms)
        )
        assert np.linalg.norm(one - two) <= relation.diameter * mechanism.row_norm


def test_the_minimum_with_the_same_noise_moves_by_at_most_twice_a_gradient_over_the_regularization():
    X, signs = np.tile([[0.0, -1.0]], (2000, 1)), np.ones(2000)
    one, two = X.copy(), X.copy()
    one[0], two[0] = [0.954, 0.3], [-0.954, 0.3]
    for mechanism in (PURE, gaussian(Relation.REPLACE_ONE)):
        moved = mechanism.release(one, signs, generator=seeded(2)) - mechanism.release(
            two, signs, generator=seeded(2)
        )
        bound = (2 * mechanism.row_norm + 2 * mechanism.tolerance) / mechanism.regularization
        assert 0.25 * bound < np.linalg.norm(moved) <= bound


def test_the_linear_term_has_the_stated_law():
    """With no rows the minimum is -b / regularization, so the law of b can be seen."""
    generator, nothing = seeded(5), np.zeros((0, 3))
    minima = np.stack([PURE.release(nothing, np.zeros(0), generator=generator) for _ in range(1500)])
    norms = PURE.regularization * np.linalg.norm(minima, axis=1)
    left = 0.99 * 1.0 - math.log(1 + 0.25 / 0.5)
    assert kstest(norms, gamma(3, scale=2 / left).cdf).pvalue > ALPHA
    assert kstest(norms, gamma(3, scale=2 / 0.99).cdf).pvalue < ALPHA  # the correction left out
    assert kstest(norms, gamma(3, scale=1 / left).cdf).pvalue < ALPHA  # the factor 2 left out


def test_the_gaussian_linear_term_has_the_stated_law():
    made, generator, nothing = gaussian(Relation.ADD_REMOVE), seeded(6), np.zeros((0, 5))
    minima = np.stack([made.release(nothing, np.zeros(0), generator=generator) for _ in range(600)])
    noise = made.regularization * minima.ravel()
    assert kstest(noise, norm(scale=made.noise_multiplier).cdf).pvalue > ALPHA
    assert kstest(noise, norm(scale=0.85 * made.noise_multiplier).cdf).pvalue < ALPHA


def test_too_small_a_regularization_is_raised_until_half_of_epsilon_is_left():
    raised = replace(PURE, epsilon=0.1, regularization=1e-9)
    assert raised.regularization == pytest.approx(0.25 / math.expm1(0.05))
    assert raised.scale == pytest.approx(2 / (0.99 * 0.1 - 0.05))
    assert replace(PURE, epsilon=0.1, regularization=100.0).regularization == 100.0
    assert regularization_for(epsilon=1.0, row_norm=2.0) == pytest.approx(1 / math.expm1(0.25))


@pytest.mark.parametrize("epsilon", [30.0, 1000.0, 1e5])
def test_at_a_large_epsilon_the_regularization_is_raised_to_what_the_solver_needs(epsilon):
    assert regularization_for(epsilon=epsilon, row_norm=3.0) >= 9 * LEAST_REGULARIZATION
    raised = replace(PURE, epsilon=epsilon, regularization=1e-12)
    assert raised.regularization == LEAST_REGULARIZATION
    with pytest.raises(InvalidParameterError, match="regularization"):
        replace(gaussian(Relation.ADD_REMOVE), regularization=1e-5)


@pytest.mark.parametrize("epsilon", [0.01, 30.0, 1000.0])
@pytest.mark.parametrize("scale", [1e-7, 1.0])
def test_no_rows_make_a_release_fail(epsilon, scale):
    """An error that depends on the rows would tell them apart, whatever the noise."""
    crowd = np.tile(np.array([[1.0, 1.0]]) / np.sqrt(2), (4000, 1))
    crowd[:9] = np.array([scale, -scale]) / np.sqrt(2)
    pure = replace(PURE, epsilon=epsilon, regularization=1e-12)
    for mechanism in (pure, replace(gaussian(Relation.REPLACE_ONE), regularization=LEAST_REGULARIZATION)):
        for signs in (np.ones(4000), np.where(np.arange(4000) % 2, 1.0, -1.0)):
            for rows in (crowd, scale * crowd, np.zeros((4000, 2))):
                assert np.isfinite(mechanism.release(rows, signs, generator=seeded(0))).all()


def gaussian(relation, **options):
    return GaussianObjectivePerturbation.calibrated(
        epsilon=1.0, delta=1e-5, row_norm=1.0, regularization=0.5, relation=relation, **options
    )


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("runs", [1, 3])
def test_all_runs_together_cost_what_was_asked_for(relation, runs):
    event = compose(*[gaussian(relation, runs=runs).event()] * runs)
    assert price(event, delta=1e-5, relation=relation).upper == pytest.approx(1.0, rel=1e-3)
    assert price(event, delta=1e-5, relation=relation).upper <= 1.0


def test_it_needs_less_noise_than_the_bound_of_kifer_smith_and_thakurta():
    ours = gaussian(Relation.ADD_REMOVE)
    # 2012, Theorem 2 (one row's gradient 1): variance (8 log(2 / delta) + 4 epsilon) / epsilon^2.
    assert ours.noise_multiplier < 0.7 * math.sqrt(8 * math.log(2e5) + 4)


@pytest.mark.parametrize("name", ["epsilon", "row_norm", "regularization"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_nonsense_is_refused(name, value):
    with pytest.raises(InvalidParameterError, match=name):
        replace(PURE, **{name: value})
