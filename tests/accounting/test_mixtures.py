# SPDX-License-Identifier: Apache-2.0
"""Truncated Poisson sampling and clipping by estimated norms, against the mechanisms they stand for."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event as dp
from dp_accounting.pld import PLDAccountant
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import binom, chi2, kstest, norm, skellam

from sfumato.accounting import events, pld, price, rdp
from sfumato.accounting.dominating import dominating
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.mixtures import Mixture, projection_knots, truncation_chance
from sfumato.accounting.pairs import Gaussian, PoissonAdd, PoissonRemove, PoissonReplace
from sfumato.errors import UnsupportedEventError
from sfumato.ledger import filters
from sfumato.ledger.budget import Budget

ADD_REMOVE, REPLACE_ONE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
ZERO_OUT, REPLACE_LABEL = Relation.ZERO_OUT, Relation.REPLACE_LABEL
RATIOS = (0.02, 0.5, 0.97, 1.0, 1.01, 1.6, 3.0, 40.0)
DELTA = 1e-5
ALPHA = 1e-6

Projected = events.JohnsonLindenstraussDpEvent
Truncated = events.TruncatedPoissonSampledDpEvent

MIXTURES = [
    Mixture((Gaussian(0.5), Gaussian(2.0)), (0.75, 0.25)),
    Mixture((Gaussian(0.5), Gaussian(2.0)), (0.75, 0.2), disjoint=0.05),
    Mixture((PoissonRemove(Gaussian(1.0), 0.1), PoissonRemove(Gaussian(2.0), 0.1)), (0.9, 0.1)),
    PoissonRemove(Mixture((Gaussian(0.5), Gaussian(2.0)), (0.75, 0.2), disjoint=0.05), 0.3),
    PoissonAdd(Mixture((Gaussian(0.5), Gaussian(2.0)), (0.75, 0.2), disjoint=0.05), 0.3),
]


def divergence(pair, x):
    """The hockey-stick divergence sup_S P[S] - x Q[S] that a pair claims."""
    (_, p), (_, q) = pair.masses(np.array([math.log(x)]))
    return p - x * q


def epsilon(event, relation, delta=DELTA):
    return pld.upper_epsilon(event, delta=delta, relation=relation)


# --- mixtures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", MIXTURES, ids=range(5))
@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.lists(st.floats(-6, 6), min_size=1, max_size=12, unique=True))
def test_both_masses_sum_to_one_and_each_cell_holds_losses_between_its_edges(pair, edges):
    edges = np.unique(np.array(edges))
    p, q = pair.masses(edges)
    assert (p >= 0).all() and (q >= 0).all()
    assert p.sum() == pytest.approx(1, abs=1e-13) and q.sum() == pytest.approx(1, abs=1e-13)
    low, high = np.append(-np.inf, edges), np.append(edges, np.inf)
    assert (p - np.exp(low) * q >= -1e-14 * (1 + np.exp(low))).all()
    assert (q - np.exp(-high) * p >= -1e-14 * (1 + np.exp(-high))).all()


@pytest.mark.parametrize("x", RATIOS)
def test_a_mixture_diverges_as_its_parts_do_on_average(x):
    parts, weights = (Gaussian(0.5), Gaussian(2.0)), (0.75, 0.2)
    mean = sum(w * divergence(pair, x) for pair, w in zip(parts, weights, strict=True))
    disjoint = 0.05  # of which the attacker sees all
    assert divergence(Mixture(parts, weights, disjoint), x) == pytest.approx(mean + disjoint, abs=1e-12)


def test_edges_cover_all_pairs_but_improbable_ones():
    pair = Mixture((Gaussian(1.0), Gaussian(3.0), Gaussian(50.0)), (0.9, 0.1, 1e-15))
    edges = pair.edges(500, 1e-12)
    p, _ = pair.masses(edges)
    assert (np.diff(edges) > 0).all()
    assert max(p[0], p[-1]) < 1e-11
    assert edges[-1] < 60  # the last pair has losses around 1250
    assert pair.edges(500, 1e-22)[-1] > 1250
    assert pair.largest == math.inf


# --- truncated Poisson sampling --------------------------------------------------------------------------


def output(units, rate, most, x, law=norm.pdf):
    """The density on the grid x of a truncated Poisson sum with noise of a law: all samples, all subsets."""
    density = np.zeros(len(x))
    for coins in itertools.product([0, 1], repeat=len(units)):
        taken = [u for u, coin in zip(units, coins, strict=True) if coin]
        chance = math.prod(rate if coin else 1 - rate for coin in coins)
        kept = list(itertools.combinations(taken, most)) if len(taken) > most else [tuple(taken)]
        for subset in kept:
            density += chance / len(kept) * law(x, sum(subset))
    return density


REALS = np.linspace(-12, 12, 1601)


def neighbors(others, mu, relation):
    for unit in (mu, -mu):
        if relation is ADD_REMOVE:
            yield [*others, unit], list(others)
        elif relation is ZERO_OUT:
            yield [*others, unit], [*others, 0.0]
        else:
            yield [*others, unit], [*others, -unit]


def worst_excess(pairs, mu, rate, most, public_size, relation, *, law=norm.pdf, x=REALS):
    """Search small data sets for one whose outputs diverge by more than the pairs claim."""
    found = -math.inf
    for size in range(public_size):
        for others in itertools.combinations_with_replacement([-mu, 0.0, mu], size):
            for first, second in neighbors(others, mu, relation):
                p, q = output(first, rate, most, x, law), output(second, rate, most, x, law)
                for ratio in (0.6, 1.0, 1.5, 3.0, 30.0):
                    step = x[1] - x[0]
                    there = np.maximum(p - ratio * q, 0).sum() * step - divergence(pairs[0], ratio)
                    back = np.maximum(q - ratio * p, 0).sum() * step - divergence(pairs[1], ratio)
                    found = max(found, there, back)
    return found


@pytest.mark.parametrize("relation", [ADD_REMOVE, ZERO_OUT, REPLACE_ONE], ids=lambda r: r.value)
@pytest.mark.parametrize(("rate", "most"), [(0.5, 1), (0.7, 2), (1.0, 2)])
def test_every_small_data_set_up_to_the_public_size_is_dominated(relation, rate, most):
    mu, size = 1.2, 4
    pairs = dominating(Truncated(rate, most, size, dp.GaussianDpEvent(1 / mu)), relation)
    assert worst_excess(pairs, mu, rate, most, size, relation) <= 1e-9
    if rate < 1:  # what Poisson sampling would claim is too little: the search has power
        poisson = dominating(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(1 / mu)), relation)
        assert worst_excess(poisson, mu, rate, most, size, relation) > 1e-5


def skellam_of(variance, most=200):
    table = skellam.pmf(np.arange(-most, most + 1), variance / 2, variance / 2)
    return lambda x, moved: table[x - int(moved) + most]


@pytest.mark.parametrize(("rate", "most"), [(0.5, 1), (0.7, 2), (1.0, 2)])
def test_integer_noise_on_truncated_samples_is_dominated_for_add_remove_neighbors(rate, most):
    size, contribution, variance = 4, 3, 6.0
    noise = events.SkellamDpEvent(variance, float(contribution))
    search = {"law": skellam_of(variance), "x": np.arange(-60, 61)}
    pairs = dominating(Truncated(rate, most, size, noise), ADD_REMOVE)
    assert worst_excess(pairs, contribution, rate, most, size, ADD_REMOVE, **search) <= 1e-9
    if rate < 1:  # what Poisson sampling would claim is too little: the search has power
        poisson = dominating(dp.PoissonSampledDpEvent(rate, noise), ADD_REMOVE)
        assert worst_excess(poisson, contribution, rate, most, size, ADD_REMOVE, **search) > 1e-5


def test_integer_noise_on_truncated_samples_costs_what_its_gaussian_does():
    noises = [events.SkellamDpEvent(1e4, 50.0), events.SummedDiscreteGaussianDpEvent(20.0, 50.0, 25)]
    wanted = price(Truncated(0.3, 40, 100, dp.GaussianDpEvent(2.0)), delta=DELTA, relation=ADD_REMOVE)
    for noise in noises:
        found = price(Truncated(0.3, 40, 100, noise), delta=DELTA, relation=ADD_REMOVE)
        assert wanted.epsilon <= found.epsilon <= 1.001 * wanted.epsilon and "integer noise" in found.theorem
        for relation in (ZERO_OUT, REPLACE_ONE):
            with pytest.raises(UnsupportedEventError):
                price(Truncated(0.3, 40, 100, noise), delta=DELTA, relation=relation)
    small = events.SkellamDpEvent(1.0, 50.0)  # too little noise for any claim
    remove, add = dominating(Truncated(0.3, 40, 100, small), ADD_REMOVE)
    assert min(divergence(remove, 1e9), divergence(add, 0.1)) > 0.29


def test_the_chance_of_a_full_batch_is_that_of_the_other_units():
    assert truncation_chance(0.5, 3, 3) == 0  # two others do not fill a batch of three
    assert truncation_chance(0.5, 2, 3) == pytest.approx(0.25)
    assert truncation_chance(1.0, 2, 3) == 1
    assert truncation_chance(1e-3, 5000, 10_000) > 0  # too small for a float64 is not zero
    brute = sum(math.comb(20, k) * 0.3**k * 0.7 ** (20 - k) for k in range(9, 21))
    assert truncation_chance(0.3, 9, 21) == pytest.approx(brute)


def test_a_bound_that_is_never_reached_costs_nothing():
    for relation in Relation:
        step = Truncated(0.1, 100, 100, dp.GaussianDpEvent(1.0))
        plain = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0))
        assert dominating(step, relation) == dominating(plain, relation)
        orders = np.array([2.0, 8.0])
        assert np.array_equal(
            rdp.curve(step, relation, orders).values, rdp.curve(plain, relation, orders).values
        )


# public size, rate, batch size, noise, steps; and how near the peer we must be.
PEER = [
    (10_000, 0.01, 160, 1.0, 500, 1e-3),
    (10_000, 0.01, 140, 1.0, 500, 6e-3),
    (400, 0.1, 70, 2.0, 100, 2e-3),
]


@pytest.mark.parametrize(("size", "rate", "most", "noise", "steps", "near"), PEER)
@pytest.mark.parametrize("relation", [ADD_REMOVE, ZERO_OUT, REPLACE_ONE], ids=lambda r: r.value)
def test_rare_truncation_costs_what_dp_accounting_says(size, rate, most, noise, steps, near, relation):
    peer = PLDAccountant(relation.to_dp_accounting(), value_discretization_interval=1e-3)
    peer.compose(dp.TruncatedSubsampledGaussianDpEvent(size, rate, most, noise), steps)
    ours = dp.SelfComposedDpEvent(Truncated(rate, most, size, dp.GaussianDpEvent(noise)), steps)
    assert epsilon(ours, relation) == pytest.approx(peer.get_epsilon(DELTA), rel=near)


def test_the_peers_own_mixture_put_into_our_pairs_gives_the_peers_epsilon():
    size, rate, most, noise, steps = 1000, 0.1, 100, 1.0, 20  # half of the batches are cut
    chance = binom.sf(most - 1, size - 1, rate)
    cut_rate = binom.sf(most, size, rate) * most / chance / size
    pair = Mixture(
        (PoissonReplace(1 / noise, rate), PoissonReplace(2 / noise, cut_rate)), (1 - chance, chance)
    )
    upper = pld._Direction([pld.Part(pair, steps)], DELTA).bounds(certify=False)[1]
    peer = PLDAccountant(REPLACE_ONE.to_dp_accounting(), value_discretization_interval=1e-3)
    peer.compose(dp.TruncatedSubsampledGaussianDpEvent(size, rate, most, noise), steps)
    assert upper == pytest.approx(peer.get_epsilon(DELTA), rel=1e-3)
    ours = dp.SelfComposedDpEvent(Truncated(rate, most, size, dp.GaussianDpEvent(noise)), steps)
    assert upper < epsilon(ours, REPLACE_ONE) < 1.1 * upper  # ours also holds for smaller data sets


@settings(deadline=None, max_examples=20, derandomize=True)
@given(
    st.sampled_from(list(Relation)), st.floats(0.5, 3), st.floats(0.02, 0.3), st.integers(50, 400), st.data()
)
def test_a_larger_batch_size_or_a_smaller_public_size_never_costs_more(relation, noise, rate, size, data):
    most = data.draw(st.integers(1, size))
    base = epsilon(Truncated(rate, most, size, dp.GaussianDpEvent(noise)), relation)
    roomier = epsilon(Truncated(rate, most + 5, size, dp.GaussianDpEvent(noise)), relation)
    smaller = epsilon(Truncated(rate, most, size // 2, dp.GaussianDpEvent(noise)), relation)
    noisier = epsilon(Truncated(rate, most, size, dp.GaussianDpEvent(noise * 1.2)), relation)
    poisson = epsilon(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), relation)
    assert max(roomier, smaller, noisier) <= base * (1 + 1e-3) + 1e-9
    assert poisson <= base * (1 + 1e-3) + 1e-9


@pytest.mark.parametrize("relation", [ADD_REMOVE, ZERO_OUT, REPLACE_ONE], ids=lambda r: r.value)
@pytest.mark.parametrize("most", [120, 150, 260])
def test_the_renyi_price_of_truncation_is_never_below_the_tight_one(relation, most):
    step = Truncated(0.01, most, 10_000, dp.GaussianDpEvent(1.0))
    for steps in (1, 200):
        run = dp.SelfComposedDpEvent(step, steps)
        tight = pld.interval(run, delta=DELTA, relation=relation)[1]
        assert rdp.epsilon(run, delta=DELTA, relation=relation) >= tight * (1 - 1e-4)
        assert price(run, delta=DELTA, relation=relation).epsilon <= tight
    plain = rdp.curve(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), relation)
    cut = rdp.curve(step, relation)
    assert (cut.values >= plain.values * (1 - 1e-8)).all()
    assert cut.delta == (pytest.approx(truncation_chance(0.01, most, 10_000)) if most == 260 else 0)


@pytest.mark.parametrize("inside", [dp.LaplaceDpEvent(1.0), Projected(1.0, 50), events.PureDpEvent(1.0)])
def test_only_gaussian_sums_may_be_truncated(inside):
    step = Truncated(0.1, 10, 50, inside)
    for relation in Relation:
        with pytest.raises(UnsupportedEventError):
            price(step, delta=DELTA, relation=relation)


# --- clipping by an estimated norm -----------------------------------------------------------------------


SCORES = np.linspace(-8, 9, 20_001)


def exact(profile, projections):
    """E[profile(s)] for s = sqrt(r / chi2(r)), as a sum over a fine grid of quantiles."""
    s = np.sqrt(projections / chi2.ppf(ndtr(-SCORES[::40]), projections))
    coarse = np.array([profile(value) for value in s])
    values = np.interp(SCORES, SCORES[::40], coarse)
    return float(values @ norm.pdf(SCORES) * (SCORES[1] - SCORES[0]))


def test_the_factor_has_the_stated_distribution_for_any_gradient():
    rng = np.random.default_rng(0)
    for gradient in (np.array([1.0, 0, 0, 0]), np.array([3.0, -1, 2, 0.5])):
        estimate = np.sqrt(np.mean((rng.normal(size=(20_000, 12, 4)) @ gradient) ** 2, axis=1))
        factor = np.linalg.norm(gradient) / estimate
        assert kstest(12 / factor**2, chi2(12).cdf).pvalue > ALPHA
        assert kstest(12 / factor**2, chi2(13).cdf).pvalue < ALPHA


@pytest.mark.parametrize("mu", [0.05, 1.0, 4.0])
@pytest.mark.parametrize("projections", [4, 20, 400])
@pytest.mark.parametrize("x", [0.5, 1.0, 1.6, 40.0])
def test_a_projected_step_is_dominated_closely(mu, projections, x):
    step, near = Projected(1 / mu, projections), 1.15 if projections == 4 else 1.04
    for relation in (ADD_REMOVE, ZERO_OUT):
        truth = exact(lambda s: divergence(Gaussian(s * mu), x), projections)
        claim = divergence(dominating(step, relation)[0], x)
        assert truth * (1 - 1e-5) - 1e-12 <= claim <= truth * near + 1e-9
        sampled = dp.PoissonSampledDpEvent(0.1, step)
        for pair, kind in zip(dominating(sampled, relation), (PoissonRemove, PoissonAdd), strict=True):
            truth = exact(lambda s, kind=kind: divergence(kind(Gaussian(s * mu), 0.1), x), projections)
            assert truth * (1 - 1e-5) - 1e-12 <= divergence(pair, x) <= truth * near + 1e-9


@pytest.mark.parametrize("mu", [0.05, 1.0, 4.0])
@pytest.mark.parametrize("rate", [0.02, 0.5, 1.0])
def test_the_larger_of_two_factors_is_dominated_however_they_depend(mu, rate):
    projections, rng = 20, np.random.default_rng(1)
    same, first, second = np.sqrt(projections / rng.chisquare(projections, size=(3, 300)))
    step = Projected(1 / mu, projections)
    pair, _ = dominating(dp.PoissonSampledDpEvent(rate, step), REPLACE_ONE)
    for larger in (same, np.maximum(first, second)):
        for x in (1.0, 1.5, 8.0):
            kind = (lambda m: PoissonReplace(m, rate)) if rate < 1 else (lambda m: Gaussian(2 * m))
            seen = np.array([divergence(kind(s * mu), x) for s in larger])
            slack = 5 * seen.std() / math.sqrt(len(seen))  # a sample mean of 300
            assert seen.mean() - slack <= divergence(pair, x) + 1e-12


@pytest.mark.parametrize("rate", [0.01, 0.4, 1.0])
@pytest.mark.parametrize("log_x", [-3.0, -0.1, 0.0, 0.2, 2.0, 9.0])
def test_divergences_are_convex_in_the_scale_that_the_knots_preserve(rate, log_x):
    t = np.linspace(0.5005, 0.9995, 400)
    shifts = norm.ppf(t)  # half of the distance between two opposite contributions
    kind = (lambda m: PoissonReplace(m, rate)) if rate < 1 else (lambda m: Gaussian(2 * m))
    values = np.array([divergence(kind(m), math.exp(log_x)) for m in shifts])
    assert (np.diff(values, 2) >= -1e-12).all()
    if log_x == 9.0 and rate == 0.01:  # in the shift itself they are not: the scale matters
        values = np.array([divergence(kind(m), math.exp(log_x)) for m in np.linspace(0.1, 12, 400)])
        assert (np.diff(values, 2) < -1e-9).any()


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3000), st.floats(1e-6, 1e4), st.floats(0, 1e3), st.sampled_from([1, 2]))
@example(175, 42.5, 0.0, 1)  # where differences of t underflow
def test_knots_are_a_distribution_above_the_true_one(projections, distance, other, units):
    knots = projection_knots(projections, distance, other, units=units)
    values, weights = np.array(knots.values), np.array(knots.weights)
    assert (np.diff(values) > 0).all() and (weights >= 0).all()
    assert weights.sum() + knots.tail == pytest.approx(1, abs=1e-12)
    assert knots.tail <= 1.0001e-20
    # Mean of t, up to each knot: at least that of the larger of `units` factors, where that is known.
    if units == 1:
        kept = float(weights @ ndtr(np.hypot(values * distance, other) / 2))
        truth = exact(lambda s: ndtr(math.hypot(s * distance, other) / 2), projections)
        assert kept >= truth - 1e-6


@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE_ONE], ids=lambda r: r.value)
@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_more_projections_cost_less_and_in_the_end_what_exact_norms_cost(relation, rate):
    noise = 1.0 if rate < 1 else 20.0
    limit = dp.SelfComposedDpEvent(events.poisson_sampled(dp.GaussianDpEvent(noise), sampling_rate=rate), 200)
    found = [
        epsilon(
            dp.SelfComposedDpEvent(events.poisson_sampled(Projected(noise, r), sampling_rate=rate), 200),
            relation,
        )
        for r in (12, 40, 300, 10**6)
    ]
    assert found == sorted(found, reverse=True)
    least = pld.interval(limit, delta=DELTA, relation=relation)[0]
    assert least < found[-1] < 1.005 * epsilon(limit, relation)
    assert found[0] > 1.1 * epsilon(limit, relation)


@pytest.mark.parametrize("relation", list(Relation), ids=lambda r: r.value)
def test_a_noisy_count_of_the_same_sample_is_another_coordinate(relation):
    both = dp.ComposedDpEvent([Projected(1.0, 10**7), dp.GaussianDpEvent(2.0)])
    one = dp.GaussianDpEvent(1 / math.hypot(1.0, 0.5))
    for make in (lambda e: e, lambda e: dp.PoissonSampledDpEvent(0.05, e)):
        assert epsilon(make(both), relation) == pytest.approx(epsilon(make(one), relation), rel=5e-3)
    few = dp.ComposedDpEvent([Projected(1.0, 30), dp.GaussianDpEvent(2.0)])
    alone = dp.PoissonSampledDpEvent(0.05, Projected(1.0, 30))
    assert epsilon(dp.PoissonSampledDpEvent(0.05, few), relation) > epsilon(alone, relation)


@pytest.mark.parametrize(
    "inside",
    [
        dp.SelfComposedDpEvent(Projected(1.0, 30), 2),
        dp.ComposedDpEvent([Projected(1.0, 30), Projected(2.0, 30)]),
        dp.ComposedDpEvent([Projected(1.0, 30), dp.LaplaceDpEvent(1.0)]),
    ],
    ids=range(3),
)
def test_one_sample_has_one_projected_sum_and_gaussians_beside_it(inside):
    for accountant in (pld.interval, rdp.epsilon):
        with pytest.raises(UnsupportedEventError, match="Gaussian events only"):
            accountant(dp.PoissonSampledDpEvent(0.1, inside), delta=DELTA, relation=ADD_REMOVE)


def test_fixed_size_samples_of_projected_sums_are_amplified_under_replacement():
    step = dp.SampledWithoutReplacementDpEvent(1000, 50, Projected(1.0, 100))
    for relation in (REPLACE_ONE, REPLACE_LABEL):
        assert epsilon(step, relation) < epsilon(Projected(1.0, 100), relation)
    with pytest.raises(UnsupportedEventError):
        price(step, delta=DELTA, relation=ADD_REMOVE)


@pytest.mark.parametrize("relation", [ADD_REMOVE, ZERO_OUT, REPLACE_ONE], ids=lambda r: r.value)
@pytest.mark.parametrize("projections", [30, 1000])
def test_the_renyi_price_sets_the_rarest_projections_aside(relation, projections):
    for rate, noise in ((0.01, 1.0), (1.0, 10.0)):
        step = events.poisson_sampled(Projected(noise, projections), sampling_rate=rate)
        curve = rdp.curve(step, relation)
        plain = rdp.curve(events.poisson_sampled(dp.GaussianDpEvent(noise), sampling_rate=rate), relation)
        assert 0 < curve.delta <= rdp.SET_ASIDE
        assert (curve.values >= plain.values).all() and np.isfinite(curve.values[:100]).all()
        run = dp.SelfComposedDpEvent(step, 100)
        assert rdp.epsilon(run, delta=DELTA, relation=relation) >= epsilon(run, relation) * (1 - 1e-4)


def test_the_filter_of_a_ledger_admits_both_and_counts_their_deltas():
    budget = Budget(epsilon=3.0, delta=1e-5)
    rule = filters.Filter(budget=budget, order=filters.choose_order(budget))
    many = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, Projected(2.0, 1000)), 500)
    cut = dp.SelfComposedDpEvent(Truncated(0.01, 260, 10_000, dp.GaussianDpEvent(2.0)), 500)
    for event in (many, cut):
        cost = filters.cost(events.to_json(event), ADD_REMOVE, rule)
        assert 0 < cost.delta <= 500 * rdp.SET_ASIDE and cost.epsilon == math.inf
        assert rule.admits(cost)


def test_few_projections_promise_little_and_nothing_false():
    run = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, Projected(1.0, 1)), 100)
    assert price(run, delta=DELTA).epsilon > 100
