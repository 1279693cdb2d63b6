# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, norm

from sfumato.accounting.events import gaussian_scale
from sfumato.accounting.gaussian import stddev_for
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.estimators import ada_ssp
from sfumato.estimators.ada_ssp import AdaSSP, NoisySums, Sums
from sfumato.statistics.columns.columns import STEPS
from sfumato.testing import seeded

ALPHA = 1e-6
UNIT = (-1.0, 1.0)
DEFAULTS = {"epsilon": 1.0, "delta": 1e-6, "clip_norm": 1.0, "target_bounds": UNIT, "random_state": 0}
RELATIONS = [Relation.ADD_REMOVE, Relation.REPLACE_ONE]
any_float = st.one_of(st.floats(), st.floats(-1, 1), st.sampled_from([-1.0, 1.0]))
rows = st.lists(st.tuples(any_float, any_float, any_float), min_size=1, max_size=6)


def made(**changes) -> AdaSSP:
    return AdaSSP(**(DEFAULTS | changes))


def sums_of(table, intercept: bool = True, clip_norm: float = 1.0) -> Sums:
    known = np.array(table, dtype=np.float64).reshape(-1, 3)
    return Sums.of(known[:, :2], known[:, 2], clip_norm=clip_norm, bounds=UNIT, intercept=intercept)


def moves(before: Sums, after: Sums) -> tuple[float, float, float]:
    return (
        abs(before.least_eigenvalue() - after.least_eigenvalue()),
        float(np.linalg.norm(before.matrix - after.matrix)),
        float(np.linalg.norm(before.vector - after.vector)),
    )


@settings(max_examples=200)
@given(rows, st.tuples(any_float, any_float, any_float), st.booleans(), st.floats(1e-3, 1e3))
def test_one_row_moves_each_sum_by_at_most_its_sensitivity(table, other, intercept, clip_norm):
    whole = sums_of([*table, other], intercept, clip_norm)
    for relation, less in (
        (Relation.ADD_REMOVE, sums_of(table, intercept, clip_norm)),
        (Relation.REPLACE_ONE, sums_of([*table, table[0]], intercept, clip_norm)),
    ):
        limits = whole.sensitivities(relation)
        assert all(moved <= limit for moved, limit in zip(moves(whole, less), limits, strict=True))


def test_the_sensitivities_are_nearly_reached():
    """A unit row more reaches all three; one that is replaced by a row at a right angle, or its mirror."""
    many = [(1.0, 0.0, 1.0), (0.0, 1.0, 1.0)] * 10
    more = moves(sums_of([*many, (1.0, 0.0, 1.0)], False), sums_of(many, False))
    assert more[1] > 0.99 * STEPS and more[2] > 0.99 * STEPS
    turned = moves(sums_of([*many, (1.0, 0.0, 1.0)], False), sums_of([*many, (0.0, 1.0, 1.0)], False))
    assert turned[1] > 0.99 * math.sqrt(2) * STEPS
    flipped = moves(sums_of([*many, (1.0, 0.0, 1.0)], False), sums_of([*many, (1.0, 0.0, -1.0)], False))
    assert flipped[2] > 1.99 * STEPS


def test_sums_do_not_depend_on_the_order_of_the_rows():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(9000, 3))
    forth, back = sums_of(table), sums_of(table[::-1])
    assert (forth.matrix == back.matrix).all() and (forth.vector == back.vector).all()
    assert np.abs(forth.matrix / STEPS - obvious_matrix(table)).max() < 0.05


def obvious_matrix(table: np.ndarray) -> np.ndarray:
    x = table[:, :2] * np.minimum(1, 1 / np.linalg.norm(table[:, :2], axis=1))[:, None]
    z = np.column_stack([x, np.ones(len(x))])
    return z.T @ z


@pytest.mark.parametrize("relation", RELATIONS)
def test_noise_has_the_stated_size_and_is_smaller_off_the_diagonal(relation):
    sums, generator = sums_of([(0.0, 0.0, 0.0)]), seeded(0)
    estimator = made(relation=relation)
    drawn = [estimator._released(sums, generator) for _ in range(1200)]
    limits, (least, matrix, vector) = sums.sensitivities(relation), estimator._noise()
    base = sums.matrix
    diagonal = np.concatenate([np.diag(one.matrix - base) for one in drawn]) / limits[1]
    off = np.concatenate([(one.matrix - base)[[0, 0, 1], [1, 2, 2]] for one in drawn]) / limits[1]
    for noise, stddev in (
        (diagonal, matrix),
        (off, matrix / math.sqrt(2)),
        (np.concatenate([one.vector for one in drawn]) / limits[2], vector),
        (np.array([one.least for one in drawn]) / limits[0], least),
    ):
        assert kstest(noise, norm(scale=stddev).cdf).pvalue > ALPHA
        assert kstest(noise, norm(scale=stddev * 1.5).cdf).pvalue < ALPHA
    assert all((one.matrix == one.matrix.T).all() for one in drawn)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0])
def test_the_three_noises_compose_to_the_least_gaussian_for_the_budget(relation, epsilon):
    event = made(epsilon=epsilon, relation=relation).event()
    whole = gaussian_scale(event) / relation.diameter
    least = stddev_for(epsilon, 1e-6, 1.0)
    assert least <= whole <= least * (1 + 1e-9)
    third = stddev_for(epsilon / 3, 1e-6 / 3, 1.0)
    assert max(made(epsilon=epsilon)._noise()[1:]) < third  # a split by thirds needs more noise on both sums


def test_with_a_huge_epsilon_it_is_least_squares():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (3000, 3))
    y = x @ [1.0, -2.0, 0.5] + 3 + rng.normal(0, 0.1, 3000)
    fitted = made(epsilon=1e9, clip_norm=4.0, target_bounds=(-10, 20)).fit(x, y)
    expected = np.linalg.lstsq(np.column_stack([x, np.ones(3000)]), y, rcond=None)[0]
    np.testing.assert_allclose([*fitted.coef_, fitted.intercept_], expected, atol=1e-3)
    through = made(epsilon=1e9, clip_norm=4.0, target_bounds=(-10, 10), fit_intercept=False).fit(x, y - 3)
    np.testing.assert_allclose(through.coef_, np.linalg.lstsq(x, y - 3, rcond=None)[0], atol=1e-3)
    assert through.intercept_ == 0.0


def test_the_ridge_falls_to_zero_where_the_data_say_enough():
    noisy = NoisySums(
        least=100.0, matrix=np.eye(2) * 100, vector=np.ones(2), least_stddev=1.0, matrix_stddev=1.0
    )
    assert noisy.ridge() == 0.0
    poor = NoisySums(least=-5.0, matrix=np.eye(2), vector=np.ones(2), least_stddev=1.0, matrix_stddev=1.0)
    assert poor.ridge() == pytest.approx(ada_ssp._noise_norm(2))


@pytest.mark.parametrize("size", [1, 3, 40])
def test_noise_is_rarely_larger_than_the_ridge_allows_for(size):
    rng = np.random.default_rng(0)
    half = rng.normal(size=(400, size, size)) / math.sqrt(2)
    noise = half / math.sqrt(2) + half.transpose(0, 2, 1) / math.sqrt(2)
    noise[:, range(size), range(size)] = rng.normal(size=(400, size))
    larger = -np.linalg.eigvalsh(noise)[:, 0] > ada_ssp._noise_norm(size)
    assert larger.mean() <= ada_ssp._FAILURE


def test_a_matrix_that_noise_made_negative_is_still_solved():
    noisy = NoisySums(least=50.0, matrix=-np.eye(2), vector=np.ones(2), least_stddev=0.1, matrix_stddev=1.0)
    np.testing.assert_allclose(noisy.solution(), [1.0, 1.0])


def test_the_error_falls_with_epsilon():
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.5, 0.5, (4000, 3))
    y = x @ [1.0, -0.5, 0.25] + rng.normal(0, 0.05, 4000)
    errors = [
        np.mean([np.mean((made(epsilon=e, random_state=s).fit(x, y).predict(x) - y) ** 2) for s in range(5)])
        for e in (0.1, 1.0, 10.0)
    ]
    assert errors[0] > errors[1] > errors[2] and errors[2] < 0.003


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"clip_norm": None}, "clip_norm"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": math.nan}, "clip_norm"),
        ({"target_bounds": None}, "target_bounds"),
        ({"delta": 0.0}, "delta"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(wrong, name):
    with pytest.raises(InvalidParameterError, match=name):
        made(**wrong).fit([[0.0]], [0.0])
