# SPDX-License-Identifier: Apache-2.0
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, kstest, laplace

from sfumato.accounting.events import leaves
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.estimators.noisy_stats import NoisyStats, Sums
from sfumato.statistics.columns.columns import STEPS
from sfumato.testing import seeded

ALPHA = 1e-6
UNIT = (-1.0, 1.0)
RELATIONS = [Relation.ADD_REMOVE, Relation.REPLACE_ONE]
one_step = st.one_of(st.sampled_from([-STEPS, 0, STEPS]), st.integers(-STEPS, STEPS))
steps = st.lists(st.tuples(one_step, one_step), min_size=1, max_size=6)


def sums_of(table) -> Sums:
    return Sums.of(np.array(table, dtype=np.float64).reshape(-1, 2))


def centered(table, i: int, j: int) -> Fraction:
    """The obvious version: subtract the means, multiply, add."""
    means = [Fraction(sum(row[c] for row in table), len(table)) for c in (0, 1)]
    return sum((row[i] - means[i]) * (row[j] - means[j]) for row in table) / STEPS


@given(steps)
def test_the_sums_are_those_around_the_means_rounded_down(table):
    sums = sums_of(table)
    assert sums.variance == math.floor(centered(table, 0, 0))
    assert sums.covariance == math.floor(centered(table, 0, 1))


@settings(max_examples=300)
@given(steps, st.tuples(one_step, one_step))
def test_a_replaced_row_moves_the_sums_by_at_most_their_sensitivity(table, other):
    before, after = sums_of(table), sums_of([*table[:-1], other])
    bound = before.sensitivity(Relation.REPLACE_ONE)
    assert abs(before.variance - after.variance) <= bound
    assert abs(before.covariance - after.covariance) <= bound


@settings(max_examples=300)
@given(steps)
def test_an_added_row_moves_the_sums_by_at_most_their_sensitivity(table):
    before, after = sums_of(table), sums_of(table[:-1])
    bound = before.sensitivity(Relation.ADD_REMOVE)
    assert abs(before.variance - after.variance) <= bound
    assert abs(before.covariance - after.covariance) <= bound


def test_the_sensitivity_is_reached_and_so_not_larger_than_needed():
    many = [(-STEPS, -STEPS)] * 5
    before, after = sums_of([*many, (-STEPS, STEPS)]), sums_of([*many, (STEPS, STEPS)])
    assert before.sensitivity(Relation.REPLACE_ONE) == math.ceil(4 * STEPS * 5 / 6)
    assert after.covariance - before.covariance == math.floor(4 * STEPS * 5 / 6)
    assert after.variance - before.variance == math.floor(4 * STEPS * 5 / 6)


@given(steps, st.tuples(one_step, one_step), st.floats(-1e300, 1e300))
def test_the_sum_of_residuals_moves_by_at_most_one_or_two(table, other, slope):
    whole, less, changed = sums_of([*table, other]), sums_of(table), sums_of([*table[:-1], other])
    assert abs(whole.residual(slope) - less.residual(slope)) <= STEPS
    assert abs(changed.residual(slope) - less.residual(slope)) <= 2 * STEPS


def made(**changes) -> NoisyStats:
    return NoisyStats(
        **({"epsilon": 1.0, "feature_bounds": UNIT, "target_bounds": UNIT, "random_state": 0} | changes)
    )


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_slope_has_the_noise_of_its_third_of_epsilon(relation):
    """With targets in the middle the covariance is 0, and n times the slope is its noise."""
    n, generator = 4000, seeded(1)
    sums = sums_of([(-STEPS, 0), (STEPS, 0)] * (n // 2))
    estimator = made(epsilon=1.0)
    slopes = [estimator._line(sums, relation, generator)[0] for _ in range(4000)]
    noise = np.array(slopes) * n
    assert kstest(noise, laplace(scale=12.0).cdf).pvalue > ALPHA
    assert kstest(noise, laplace(scale=9.0).cdf).pvalue < ALPHA  # expected: sqrt(4000) * 0.053, p = 4e-10


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_value_in_the_middle_has_the_noise_that_is_left(relation):
    """A replaced row moves twice as far as an added one, which has half of the epsilon: 6 for both."""
    scale, n, generator = 6.0, 100_000, seeded(2)
    sums = Sums(count=n, x=0, y=0, xx=n * STEPS**2, xy=0)  # a slope so near 0 that |slope| does not count
    middles = [made(epsilon=1.0)._line(sums, relation, generator)[1] for _ in range(2000)]
    noise = np.array(middles) * n
    assert kstest(noise, laplace(scale=scale).cdf).pvalue > ALPHA
    assert kstest(noise, laplace(scale=scale / 2).cdf).pvalue < ALPHA  # a forgotten factor of 2


@pytest.mark.parametrize("relation", RELATIONS)
def test_with_a_huge_epsilon_it_is_least_squares_of_the_clipped_data(relation):
    rng = np.random.default_rng(0)
    x, y = rng.normal(50, 20, 500), rng.normal(0, 300, 500)
    fitted = made(epsilon=1e9, relation=relation, feature_bounds=(0, 80), target_bounds=(-500, 400)).fit(x, y)
    slope, intercept = np.polyfit(np.clip(x, 0, 80), np.clip(y, -500, 400), 1)
    np.testing.assert_allclose([*fitted.coef_, fitted.intercept_], [slope, intercept], rtol=1e-4)
    np.testing.assert_allclose(fitted.predict(x), slope * x + intercept, rtol=1e-3, atol=1e-3)


def test_epsilon_is_split_in_thirds_and_the_last_is_halved_where_the_number_of_rows_is_private():
    public = leaves(made(relation="replace-one", epsilon=3.0).event())
    assert [(round(part.noise_multiplier, 9), times) for part, times in public.items()] == [(2.0, 3)]
    private = leaves(made(relation="add-remove", epsilon=3.0).event())
    assert sorted((round(part.noise_multiplier, 9), times) for part, times in private.items()) == [
        (1.0, 2),
        (2.0, 2),
    ]


def test_a_constant_feature_fails_half_of_the_time_and_is_never_an_error():
    fits = [made(random_state=seed).fit(np.full(50, 0.3), np.linspace(-1, 1, 50)) for seed in range(200)]
    failed = sum(fit.failed_ for fit in fits)
    assert binomtest(failed, 200, 0.5).pvalue > ALPHA
    assert binomtest(failed, 200, 0.95).pvalue < ALPHA


def failing(**changes) -> NoisyStats:
    fits = (made(random_state=seed, **changes).fit(np.zeros(9), np.zeros(9)) for seed in range(100))
    return next(fit for fit in fits if fit.failed_)


def test_after_a_failure_prediction_says_so_and_the_guarantee_stands():
    fitted = failing()
    assert fitted.guarantee_.epsilon <= 1 and np.isnan(fitted.intercept_)
    with pytest.raises(QueryFailedError, match="failed_"):
        fitted.predict([0.0])


def test_with_a_fallback_a_failure_predicts_it():
    fitted = failing(fallback=7.5)
    assert fitted.predict([0.0, 1.0]).tolist() == [7.5, 7.5] and fitted.failed_
    with pytest.raises(InvalidParameterError, match="fallback"):
        made(fallback=math.nan).fit([0.0], [0.0])
