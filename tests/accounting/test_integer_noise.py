# SPDX-License-Identifier: Apache-2.0
"""Integer noise is dominated by a Gaussian: exact distributions, divergences and the published bounds."""

import math
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import i0e, i1e, ive, log_ndtr, logsumexp, ndtr, ndtri_exp

from sfumato.accounting import events, integer_noise, rdp, renyi
from sfumato.accounting.calibrate import calibrate
from sfumato.accounting.events import DpEvent, SkellamDpEvent, SummedDiscreteGaussianDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import Accountant, price
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError, UnsupportedEventError
from sfumato.ledger import Budget, filters

Floats = NDArray[np.float64]

SKELLAM = [1.3, 2.0, 4.0, 10.0, 100.0, 1e3, 1e4]
SUMS = [(0.9, 1), (1.0, 1), (3.0, 1), (0.8, 3), (1.0, 5), (0.7, 40), (1.0, 40), (4.0, 40)]
ROUNDING = 1e-11


def skellam(variance: float) -> Floats:
    """Return logarithms of the masses of -n, ..., n, as far as float64 holds them."""
    with np.errstate(divide="ignore"):
        half = np.log(ive(np.arange(40 * math.sqrt(variance) + 80), variance))
    half = half[np.isfinite(half) & (half > -600)]
    return np.concatenate([half[:0:-1], half])


def summed(stddev: float, summands: int) -> Floats:
    """Return the same for a sum of discrete Gaussians, by exact convolution of what is above e^-600."""
    x = np.arange(-math.ceil(34 * stddev), math.ceil(34 * stddev) + 1)
    one = -0.5 * (x / stddev) ** 2
    one -= logsumexp(one)
    total = one
    for _ in range(summands - 1):
        # Tilting is not needed: the sum is taken in logarithms, one shift of the second noise at a time.
        rows = np.full(len(total) + len(one) - 1, -np.inf)
        for i, log_mass in enumerate(one):
            rows[i : i + len(total)] = np.logaddexp(rows[i : i + len(total)], total + log_mass)
        middle = len(rows) // 2
        seen = int(np.searchsorted(rows[: middle + 1], -600.0))
        total = rows[seen : len(rows) - seen]
    return total


def steps(log_masses: Floats, stddev: float) -> Floats:
    """Return the differences of g = Phi^-1(F) up to the center, without the ends, where F is cut off."""
    middle = len(log_masses) // 2
    start = max(10, middle - math.ceil(20 * stddev))
    return np.diff(ndtri_exp(np.logaddexp.accumulate(log_masses)[start : middle + 1]))


def divergence(log_masses: Floats, moved: int, order: float) -> float:
    """Return the Renyi divergence of the noise moved by `moved` from the noise."""
    p, q = log_masses[:-moved], log_masses[moved:]
    return float(logsumexp(order * p + (1 - order) * q)) / (order - 1)


def sampled(event: DpEvent, rounds: int = 10) -> DpEvent:
    return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, event), rounds)


def unit_shift(event: DpEvent) -> float:
    return integer_noise.shift(event)


@pytest.mark.parametrize("variance", SKELLAM)
def test_the_quantiles_of_skellam_noise_are_as_steep_as_the_shift_says_at_most(variance: float):
    found = steps(skellam(variance), math.sqrt(variance)).max()
    claimed = unit_shift(SkellamDpEvent(variance, 1.0))
    assert found <= claimed * (1 + ROUNDING)
    assert found > 1 / math.sqrt(variance)  # a Gaussian of the same variance would claim too little
    assert variance < 4 or claimed <= found * (1 + 0.5 / variance)  # and the claim is not far above


@pytest.mark.parametrize("stddev, summands", SUMS)
def test_the_quantiles_of_summed_discrete_gaussians_are_as_steep_as_the_shift_says_at_most(
    stddev: float, summands: int
):
    spread = stddev * math.sqrt(summands)
    found = steps(summed(stddev, summands), spread).max()
    claimed = unit_shift(SummedDiscreteGaussianDpEvent(stddev, 1.0, summands))
    assert found <= claimed * (1 + ROUNDING)


@pytest.mark.parametrize("bend", [1e-3, 0.1, 0.7, 1.3])
def test_normal_cells_as_wide_as_the_shift_bend_at_least_as_much_as_the_noise(bend: float):
    """Step 1 of the proof, at cells in the center and in the tails."""
    width = math.sqrt(-math.log(2 * math.exp(-bend / 2) - 1))
    left = np.linspace(-30, 5, 2000)
    upper, lower = log_ndtr(left + width), log_ndtr(left)
    cells = {0.0: upper + np.log(-np.expm1(lower - upper))}
    for moved in (-width, width):
        upper, lower = log_ndtr(left + moved + width), log_ndtr(left + moved)
        cells[moved] = upper + np.log(-np.expm1(lower - upper))
    assert np.all(2 * cells[0.0] - cells[-width] - cells[width] >= bend * (1 - 1e-6) - 1e-9)


def test_noise_of_two_or_more_costs_hardly_more_than_a_gaussian():
    sums = SummedDiscreteGaussianDpEvent(2.0, 10.0, 100)
    assert integer_noise.shift(sums) == pytest.approx(0.5, rel=4e-4)
    assert integer_noise.shift(SkellamDpEvent(400.0, 10.0)) == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("variance", [0.05, 0.5, 1.0, 3.0, 30.0, 999.0, 1e5])
def test_the_curvature_of_skellam_noise_is_largest_at_zero_or_below_the_bound(variance: float):
    """The two bounds of the proof, against Bessel functions."""
    k = np.arange(1.0, 200.0)
    around = [ive(k + offset, variance) for offset in (-1, 0, 1)]
    known = around[2] > 1e-120  # squares are to be floats
    curvature = 1 - around[0][known] * around[2][known] / around[1][known] ** 2
    assert np.all(curvature <= 1 / np.sqrt(variance**2 + k[known] ** 2 - 0.25) + 1e-12)
    if variance >= 3:
        at_zero = 1 - (i1e(variance) / i0e(variance)) ** 2
        assert at_zero <= 1 / variance + 0.25 / variance**2


def test_the_bound_for_large_variances_continues_the_computed_one():
    below, above = (unit_shift(SkellamDpEvent(v, 1e3)) for v in (1e6 - 1e-3, 1e6))
    assert below == pytest.approx(above, rel=1e-6)


@pytest.mark.parametrize("order", [1.1, 2.0, 3.0, 8.0, 32.0])
@pytest.mark.parametrize("moved", [1, 2, 7])
def test_exact_divergences_in_one_dimension_are_below_the_bound(order: float, moved: int):
    for variance in (4.0, 30.0, 400.0):
        bound = renyi.gaussian(np.array([order]), integer_noise.shift(SkellamDpEvent(variance, moved)))[0]
        exact = divergence(skellam(variance), moved, order)
        assert exact <= bound
        assert variance < 400 or order * moved > 20 or bound <= 1.01 * exact
    for stddev, summands in ((1.0, 10), (3.0, 4)):
        event = SummedDiscreteGaussianDpEvent(stddev, moved, summands)
        bound = renyi.gaussian(np.array([order]), integer_noise.shift(event))[0]
        assert divergence(summed(stddev, summands), moved, order) <= bound


@pytest.mark.parametrize("moved", [(1, 1), (3, 4), (0, 5), (1, 7)])
def test_a_vector_costs_what_its_norm_says(moved: tuple[int, int]):
    """Hockey-stick divergences of two coordinates, against those of the Gaussian of the same norm."""
    log_masses = skellam(36.0)
    centers = len(log_masses) // 2
    x = np.arange(-min(90, centers - 8), min(90, centers - 8) + 1)
    p = np.exp(np.add.outer(*(log_masses[centers + x - m] for m in moved)))
    q = np.exp(np.add.outer(log_masses[centers + x], log_masses[centers + x]))
    mu = integer_noise.shift(SkellamDpEvent(36.0, math.hypot(*moved)))
    for epsilon in np.linspace(0, 4, 30):
        exact = np.maximum(p - math.exp(epsilon) * q, 0).sum()
        gaussian = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
        assert exact <= gaussian + 1e-15


@pytest.mark.parametrize("variance, norm", [(2500.0, 50.0), (1e4, 100.0), (1e6, 500.0)])
def test_the_bound_is_below_the_published_one_for_skellam_noise(variance: float, norm: float):
    """Agarwal, Kairouz and Liu 2021: for whole orders, and the smallest L1 norm of integer vectors."""
    orders = np.arange(2.0, 64.0)
    rest = np.minimum(((2 * orders - 1) * norm**2 + 6 * norm) / (4 * variance**2), 3 * norm / (2 * variance))
    published = orders * norm**2 / (2 * variance) + rest
    assert np.all(
        renyi.gaussian(orders, integer_noise.shift(SkellamDpEvent(variance, norm))) <= published * (1 + 1e-4)
    )


@pytest.mark.parametrize("stddev, summands, dimension", [(1.0, 10, 1000), (1.5, 100, 10**6), (4.0, 100, 1)])
def test_the_bound_is_near_or_below_the_published_one_for_sums(stddev: float, summands: int, dimension: int):
    """Kairouz, Liu and Steinke 2021, at a contribution of one standard deviation of the sum."""
    norm = stddev * math.sqrt(summands)
    k = np.arange(1, summands)
    tau = 10 * np.exp(-2 * (math.pi * stddev) ** 2 * k / (k + 1)).sum()
    published = min(math.sqrt(1 + tau * dimension / 2), 1 + tau * math.sqrt(dimension))
    claimed = integer_noise.shift(SummedDiscreteGaussianDpEvent(stddev, norm, summands))
    assert claimed <= published * (1 + 0.3 / norm**2)


def test_too_little_noise_gives_no_protection():
    assert integer_noise.shift(SkellamDpEvent(1.0, 1.0)) == math.inf
    assert integer_noise.shift(SkellamDpEvent(1e-9, 1.0)) == math.inf
    assert integer_noise.shift(SummedDiscreteGaussianDpEvent(0.1, 1.0, 10**12)) == math.inf


def test_more_noise_never_moves_further():
    variances = [unit_shift(SkellamDpEvent(v, 1.0)) for v in np.geomspace(0.5, 1e12, 400)]
    stddevs = [unit_shift(SummedDiscreteGaussianDpEvent(b, 1.0, 50)) for b in np.geomspace(0.3, 1e9, 400)]
    for shifts in (variances, stddevs):
        assert all(later <= earlier for earlier, later in pairwise(shifts))


def test_many_summands_are_counted_in_a_moment():
    few, many = (SummedDiscreteGaussianDpEvent(3.0, 100.0, n) for n in (1000, 10**9))
    assert integer_noise.shift(few) == pytest.approx(100 / 3 / math.sqrt(1000), rel=1e-4)
    assert integer_noise.shift(many) == pytest.approx(100 / 3 / math.sqrt(10**9), rel=1e-4)


def test_shifts_of_several_noises_add_up_as_squares_and_other_parts_have_none():
    parts: dict[DpEvent, int] = {dp.GaussianDpEvent(2.0): 3, SkellamDpEvent(1e8, 2e3): 4}
    assert integer_noise.joint_shift(parts) == pytest.approx(math.sqrt(3 / 4 + 4 * 0.04), rel=1e-6)
    assert integer_noise.joint_shift({dp.LaplaceDpEvent(1.0): 1}) is None
    assert integer_noise.joint_shift({}) is None
    with pytest.raises(TypeError, match="not integer noise"):
        integer_noise.shift(dp.LaplaceDpEvent(1.0))


# --- priced like a Gaussian ------------------------------------------------------------------------------

SKELLAM_EVENT = SkellamDpEvent(4e6, 2000.0)
SUM_EVENT = SummedDiscreteGaussianDpEvent(200.0, 2000.0, 100)
GAUSSIAN = dp.GaussianDpEvent(1.0)


@pytest.mark.parametrize("relation", list(Relation), ids=lambda r: r.value)
@pytest.mark.parametrize("event", [SKELLAM_EVENT, SUM_EVENT], ids=["skellam", "sum"])
def test_integer_noise_costs_what_the_same_gaussian_noise_costs(event: DpEvent, relation: Relation):
    for accountant in (None, *Accountant):
        try:
            expected = price(GAUSSIAN, delta=1e-5, relation=relation, accountant=accountant).epsilon
        except UnsupportedEventError:
            with pytest.raises(UnsupportedEventError):
                price(event, delta=1e-5, relation=relation, accountant=accountant)
            continue
        found = price(event, delta=1e-5, relation=relation, accountant=accountant)
        assert found.epsilon == pytest.approx(expected, rel=1e-5) and found.epsilon >= expected * (1 - 1e-9)
        assert found.lower == 0


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.ZERO_OUT])
def test_sampled_cohorts_cost_what_sampled_gaussian_noise_costs(relation: Relation):
    expected = price(sampled(GAUSSIAN), delta=1e-3, relation=relation)
    for event in (SKELLAM_EVENT, SUM_EVENT):
        found = price(sampled(event), delta=1e-3, relation=relation)
        assert found.accountant is Accountant.PLD
        assert found.epsilon == pytest.approx(expected.epsilon, rel=2e-3)


def test_a_sampled_replacement_is_priced_by_renyi_divergences_between_gaussian_and_no_sampling():
    for relation in (Relation.REPLACE_ONE, Relation.REPLACE_LABEL):
        found = price(sampled(SKELLAM_EVENT), delta=1e-3, relation=relation)
        assert found.accountant is Accountant.RDP
        tighter = price(sampled(GAUSSIAN), delta=1e-3, relation=relation).epsilon
        without = price(dp.SelfComposedDpEvent(GAUSSIAN, 10), delta=1e-3, relation=relation).epsilon
        assert tighter < found.epsilon < without


@pytest.mark.parametrize("order", [1.5, 2.0, 3.0, 8.0, 20.0])
@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_exact_sampled_divergences_are_below_the_bounds(order: float, rate: float):
    log_masses, moved = skellam(30.0), 4
    event = dp.PoissonSampledDpEvent(rate, SkellamDpEvent(30.0, moved))
    absent = log_masses[moved:-moved]
    with_unit = np.logaddexp(math.log1p(-rate) + absent, math.log(rate) + log_masses[: -2 * moved])
    opposite = np.logaddexp(math.log1p(-rate) + absent, math.log(rate) + log_masses[2 * moved :])

    def exact(p: Floats, q: Floats) -> float:
        return float(logsumexp(order * p + (1 - order) * q)) / (order - 1)

    bounds = {r: rdp.curve(event, r, np.array([order])).values[0] for r in Relation}
    both = max(exact(with_unit, absent), exact(absent, with_unit))
    assert both <= bounds[Relation.ADD_REMOVE]
    assert order > 3 or bounds[Relation.ADD_REMOVE] <= 1.1 * both  # beyond, losses in the tails are smaller
    assert exact(with_unit, opposite) <= bounds[Relation.REPLACE_ONE]


def test_a_gaussian_count_of_the_same_cohort_adds_to_integer_noise():
    both = dp.ComposedDpEvent([SKELLAM_EVENT, dp.GaussianDpEvent(3.0)])
    one = dp.GaussianDpEvent(1 / math.hypot(1, 1 / 3))
    for relation in (Relation.ADD_REMOVE, Relation.ZERO_OUT):
        found, expected = (price(sampled(e), delta=1e-3, relation=relation).epsilon for e in (both, one))
        assert found == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("relation", list(Relation), ids=lambda r: r.value)
def test_too_little_noise_costs_infinitely_much_however_it_is_priced(relation: Relation):
    event = SkellamDpEvent(0.5, 1.0)
    for whole in (event, sampled(event), dp.ComposedDpEvent([event, events.PureDpEvent(1.0)])):
        assert price(whole, delta=1e-3, relation=relation).epsilon == math.inf
        assert price(whole, delta=1e-3, relation=relation, accountant=Accountant.RDP).epsilon == math.inf


def test_the_noise_of_a_cohort_is_calibrated_to_a_budget():
    wanted = {"epsilon": 8.0, "delta": 1e-3}
    found = calibrate(lambda noise: sampled(SkellamDpEvent((noise * 2000.0) ** 2, 2000.0), 100), **wanted)
    exact = calibrate(lambda noise: sampled(dp.GaussianDpEvent(noise), 100), **wanted)
    assert found == pytest.approx(exact, rel=1e-3)


def test_a_ledger_counts_integer_noise_as_gaussian_noise():
    rule = filters.Filter(budget=Budget(epsilon=8, delta=1e-3), order=4.0)
    costs = [
        filters.cost(events.to_json(sampled(event)), Relation.ADD_REMOVE, rule)
        for event in (SKELLAM_EVENT, GAUSSIAN)
    ]
    assert costs[0].renyi == pytest.approx(costs[1].renyi, rel=1e-5)
    assert costs[0].gaussian == pytest.approx(costs[1].gaussian, rel=2e-3)
    with pytest.raises(UnsupportedEventError, match="Use more noise"):
        filters.cost(events.to_json(SkellamDpEvent(0.5, 1.0)), Relation.ADD_REMOVE, rule)


def test_a_ledger_counts_truncated_samples_of_integer_noise_as_those_of_gaussian_noise():
    rule = filters.Filter(budget=Budget(epsilon=8, delta=1e-3), order=4.0)
    cut, exact = (
        events.to_json(events.TruncatedPoissonSampledDpEvent(0.1, 20, 100, event))
        for event in (SKELLAM_EVENT, GAUSSIAN)
    )
    found, least = (filters.cost(event, Relation.ADD_REMOVE, rule) for event in (cut, exact))
    assert found.renyi >= least.renyi
    assert least.gaussian <= found.gaussian == pytest.approx(least.gaussian, rel=2e-3)
    for relation in (Relation.REPLACE_ONE, Relation.ZERO_OUT):
        with pytest.raises(UnsupportedEventError):
            filters.cost(cut, relation, rule)


@pytest.mark.parametrize(
    "event",
    [
        SkellamDpEvent(0.0, 1.0),
        SkellamDpEvent(math.nan, 1.0),
        SkellamDpEvent(1.0, -1.0),
        SummedDiscreteGaussianDpEvent(math.inf, 1.0, 2),
        SummedDiscreteGaussianDpEvent(1.0, 1.0, 0),
        SummedDiscreteGaussianDpEvent(1.0, 1.0, 2.5),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_wrong_parameters_are_refused(event: DpEvent):
    with pytest.raises(InvalidParameterError):
        price(event, delta=1e-5)


@pytest.mark.parametrize("size", [1e-150, 1e-3, 1e9, 1e150])
def test_extreme_noise_has_a_price_and_no_crash(size: float):
    for event in (SkellamDpEvent(size, 1.0), SummedDiscreteGaussianDpEvent(size, 1.0, 10)):
        for whole in (event, sampled(event)):
            epsilon = price(whole, delta=1e-3).epsilon
            assert epsilon == math.inf if size < 1 else epsilon < 0.1
