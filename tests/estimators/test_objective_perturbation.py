# SPDX-License-Identifier: Apache-2.0
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import gamma, kstest

from sfumato.accounting import price
from sfumato.accounting.events import compose
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.estimators.minimum import gradient
from sfumato.estimators.objective_perturbation import (
    GaussianObjectivePerturbation,
    PureObjectivePerturbation,
    regularization_for,
)
from sfumato.testing import seeded

ALPHA = 1e-6
RELATIONS = [Relation.ADD_REMOVE, Relation.REPLACE_ONE]
PURE = PureObjectivePerturbation(epsilon=1.0, row_norm=1.0, regularization=0.5, relation=Relation.REPLACE_ONE)


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
        terms = {"regularization": mechanism.regularization, "tilt": np.zeros(3)}
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


def test_too_small_a_regularization_is_raised_until_half_of_epsilon_is_left():
    raised = replace(PURE, epsilon=0.1, regularization=1e-9)
    assert raised.regularization == pytest.approx(0.25 / math.expm1(0.05))
    assert raised.scale == pytest.approx(2 / (0.99 * 0.1 - 0.05))
    assert replace(PURE, epsilon=0.1, regularization=100.0).regularization == 100.0
    assert regularization_for(epsilon=1.0, row_norm=2.0) == pytest.approx(1 / math.expm1(0.25))


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
