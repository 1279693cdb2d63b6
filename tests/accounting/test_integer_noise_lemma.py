# SPDX-License-Identifier: Apache-2.0
"""Attacks on each step of the lemma about integer noise, by exact profiles."""

import itertools
import math

import attrs
import mpmath
import numpy as np
import pytest
from scipy.special import log_ndtr, logsumexp, ndtri_exp

from sfumato.accounting import integer_noise, rdp
from sfumato.accounting.dominating import dominating
from sfumato.accounting.events import DiscreteGaussianDpEvent, SkellamDpEvent, SummedDiscreteGaussianDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.pairs import Pair
from sfumato.accounting.price import price
from sfumato.accounting.upstream import dp_event as dp
from tests.accounting.test_integer_noise import Floats, skellam, summed

ROUNDING = 1e-9
LEAST = -60.0  # logarithm; smaller divergences are cut off with the tails

NOISES = [
    *((SkellamDpEvent(v, 1.0), skellam(v)) for v in (1.25, 1.6, 3.0, 20.0, 300.0, 1e4)),
    *(
        (SummedDiscreteGaussianDpEvent(b, 1.0, n), summed(b, n))
        for b, n in ((0.87, 1), (0.65, 4), (0.8, 2), (0.8, 30), (1.2, 5), (5.0, 3))
    ),
]
named = pytest.mark.parametrize("event, masses", NOISES, ids=[str(event) for event, _ in NOISES])


def spread_of(c: float) -> float:
    """Return the shift of the lemma."""
    return math.sqrt(-math.log(2 * math.exp(-c / 2) - 1))


def moved(log_masses: Floats, by: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return log masses of the noise moved by a vector, and of the noise, at the same outcomes."""
    center, reach = len(log_masses) // 2, max(abs(x) for x in by)
    k = np.arange(-center + reach, center - reach + 1)
    if len(by) > 1:
        k = k[log_masses[center + k] > 2 * LEAST]
    p, q = np.zeros(1), np.zeros(1)
    for x in by:
        p = np.add.outer(p, log_masses[center + k - x]).ravel()
        q = np.add.outer(q, log_masses[center + k]).ravel()
    return p, q


def log_profile(p: Floats, q: Floats, epsilon: float) -> float:
    """Return log sup_S P(S) - e^epsilon Q(S), for a negative epsilon less the 1 - e^epsilon of no test."""
    if epsilon < 0:
        return epsilon + log_profile(q, p, -epsilon)  # the same sum of positive terms, with both exchanged
    above = p - q > epsilon
    if not above.any():
        return -math.inf
    return float(logsumexp(p[above] + np.log(-np.expm1(epsilon - p[above] + q[above]))))


def log_gaussian_profile(mu: float, epsilon: float) -> float:
    """Return the same for N(mu, 1) against N(0, 1), either way round."""
    x = abs(epsilon)
    upper, lower = log_ndtr(mu / 2 - x / mu), x + log_ndtr(-mu / 2 - x / mu)
    return float(min(epsilon, 0.0) + upper + np.log(-np.expm1(lower - upper)))


def log_pair_profile(pair: Pair, epsilon: float) -> float:
    (_, p), (_, q) = pair.masses(np.array([epsilon]))
    return math.log(max(p - math.exp(epsilon) * q, 1e-300))


@pytest.mark.parametrize("c", [1e-3, 0.05, 0.4, 1.0, 1.38])
def test_quantiles_of_any_log_concave_noise_of_bounded_bend_are_as_steep_as_the_shift_at_most(c: float):
    """Step 2, for noise of random bends, of which nothing but the two conditions is kept. Not symmetric."""
    generator, steepest = np.random.default_rng(0), 0.0
    size = math.ceil(60 / math.sqrt(c))
    for sharp in (0.02, 0.3, 1.0, 3.0) * 10:
        bends = -c * generator.uniform(size=2 * size) ** sharp
        slopes = np.cumsum(bends)
        log_masses = np.cumsum(
            np.concatenate([[0.0], slopes - np.quantile(slopes, generator.uniform(0.3, 0.7))])
        )
        for side in (log_masses, log_masses[::-1]):
            known = side[: int(np.argmax(side)) + 1]
            quantiles = ndtri_exp(np.logaddexp.accumulate(known) - logsumexp(side))
            # Without the tail that is cut off steps are too large: they start where it no longer counts.
            steepest = max(steepest, float(np.diff(quantiles[known > known[0] + 30]).max()))
    assert 0.8 * math.sqrt(c) < steepest <= spread_of(c) * (1 + ROUNDING)


@named
def test_no_test_tells_moved_integer_noise_better_than_the_gaussian(
    event: SkellamDpEvent | SummedDiscreteGaussianDpEvent, masses: Floats
):
    """Step 3: whole profiles, at negative epsilons too, both directions, all outcomes and no thresholds."""
    compared = 0
    for x in (1, -1, 2, 3, -5, 10):
        if 2 * abs(x) >= len(masses) // 3:
            continue
        mu = abs(x) * integer_noise.shift(event)
        p, q = moved(masses, (x,))
        for epsilon in np.linspace(-1, 1, 31) * mu * (mu / 2 + 6):
            bound = log_gaussian_profile(mu, epsilon)
            if bound > LEAST:
                compared += 1
                assert log_profile(p, q, epsilon) <= bound + ROUNDING
                assert log_profile(q, p, epsilon) <= bound + ROUNDING
    assert compared > 100


@pytest.mark.parametrize("vector", [(1, -1), (2, 3), (0, -4), (5, 1), (1, 1, 1), (0, 2, -1)])
def test_a_vector_is_told_no_better_than_a_gaussian_moved_by_its_norm(vector: tuple[int, ...]):
    """Step 4: coordinates moved by different whole numbers."""
    for variance in (1.3, 2.0, 6.0) if len(vector) == 3 else (1.3, 2.0, 25.0):
        p, q = moved(skellam(variance), vector)
        mu = integer_noise.shift(SkellamDpEvent(variance, math.hypot(*vector)))
        for epsilon in np.linspace(-1, 1, 9) * mu * (mu / 2 + 3):
            if log_gaussian_profile(mu, epsilon) > LEAST / 2:
                assert log_profile(p, q, epsilon) <= log_gaussian_profile(mu, epsilon) + ROUNDING


@pytest.mark.parametrize("rate", [0.003, 0.1, 0.6, 0.95])
def test_poisson_samples_are_dominated_by_the_pairs_that_are_priced(rate: float):
    """Step 5, by the pairs of `dominating`: the unit is in the first data set, and in the second."""
    compared = 0
    for (event, masses), x in itertools.product(NOISES, (1, -2, 4)):
        if 2 * abs(x) >= len(masses) // 3:
            continue
        priced = attrs.evolve(event, sensitivity=float(abs(x)))
        remove, add = dominating(dp.PoissonSampledDpEvent(rate, priced), Relation.ADD_REMOVE)
        p, q = moved(masses, (x,))
        mixed = np.logaddexp(math.log1p(-rate) + q, math.log(rate) + p)
        for pair, first, second in ((remove, mixed, q), (add, q, mixed)):
            losses = pair.edges(60, 1e-5)
            for epsilon in losses[losses > 0][::4]:
                bound = log_pair_profile(pair, epsilon)
                if bound > math.log(1e-8):  # smaller ones are differences of masses that are rounded
                    compared += 1
                    assert log_profile(first, second, epsilon) <= bound + 1e-7
    assert compared > 200


def test_sampled_divergences_of_integer_noise_beside_a_discrete_gaussian_are_below_the_bound():
    skellam_event, discrete = SkellamDpEvent(6.0, 2.0), DiscreteGaussianDpEvent(2.0, 1.0)
    p, q = np.zeros(1), np.zeros(1)
    for masses, x in ((skellam(6.0), 2), (summed(2.0, 1), 1)):
        one_p, one_q = moved(masses[(masses > -150)], (x,))
        p, q = np.add.outer(p, one_p).ravel(), np.add.outer(q, one_q).ravel()
    mixed = np.logaddexp(math.log(0.8) + q, math.log(0.2) + p)
    event = dp.PoissonSampledDpEvent(0.2, dp.ComposedDpEvent([skellam_event, discrete]))
    orders = np.array([1.3, 2.0, 3.7, 6.0])
    for order, bound in zip(orders, rdp.curve(event, Relation.ADD_REMOVE, orders).values, strict=True):
        for first, second in ((mixed, q), (q, mixed)):
            assert logsumexp(order * first + (1 - order) * second) / (order - 1) <= bound


@named
def test_integer_noise_bends_no_more_than_its_shift_was_computed_from(
    event: SkellamDpEvent | SummedDiscreteGaussianDpEvent, masses: Floats
):
    """Steps 6 and 7: the noise is log-concave, and its bends are above -c, at every outcome."""
    c = -2 * math.log((1 + math.exp(-(integer_noise.shift(event) ** 2))) / 2)
    inner = masses[8:-8] if isinstance(event, SummedDiscreteGaussianDpEvent) else masses
    bends = np.diff(inner, 2)
    assert np.all(bends <= 1e-9) and np.all(bends >= -c - 1e-9)


def test_the_shift_of_skellam_noise_is_not_below_the_exact_one():
    """Step 6, to 40 digits."""
    with mpmath.workdps(40):
        for v in np.geomspace(1.21, 3e3, 60):
            ratio = mpmath.besseli(1, float(v)) / mpmath.besseli(0, float(v))
            most = max(1 - ratio**2, 1 / mpmath.sqrt(mpmath.mpf(float(v)) ** 2 + 0.75))
            exact = mpmath.sqrt(-mpmath.log(2 * mpmath.sqrt(1 - most) - 1))
            assert exact <= integer_noise.shift(SkellamDpEvent(float(v), 1.0)) <= exact * (1 + 1e-6)


def test_rounding_never_makes_the_shift_smaller_next_to_the_least_noise():
    least = 1 / math.sqrt(2 * math.log(2))  # of one discrete Gaussian
    with mpmath.workdps(60):
        for k in range(1, 53):
            stddev = least * (1 + 2.0**-k)
            inner = 2 * mpmath.exp(-1 / mpmath.mpf(stddev) ** 2 / 2) - 1
            exact = mpmath.sqrt(-mpmath.log(inner)) if inner > 0 else mpmath.inf
            assert integer_noise.shift(SummedDiscreteGaussianDpEvent(stddev, 1.0, 1)) >= exact


@pytest.mark.parametrize("summands", [1, 2, 10])
def test_extreme_noise_has_a_shift_that_is_not_too_small(summands: int):
    for stddev in (1e-300, 1e-9, 1e160, 1e300):
        found = integer_noise.shift(SummedDiscreteGaussianDpEvent(stddev, 1.0, summands))
        assert found == math.inf if stddev < 1 else found >= 1 / stddev / math.sqrt(summands)
    assert integer_noise.shift(SkellamDpEvent(1e307, 1.0)) >= 1e307**-0.5


def test_a_price_of_integer_noise_names_the_lemma_beside_the_theorem():
    for event in (SkellamDpEvent(100.0, 5.0), dp.PoissonSampledDpEvent(0.1, SkellamDpEvent(100.0, 5.0))):
        found = price(event, delta=1e-5)
        assert found.theorem == f"{found.accountant.theorem}; {integer_noise.LEMMA}"
    assert integer_noise.LEMMA not in price(dp.GaussianDpEvent(1.0), delta=1e-5).theorem
