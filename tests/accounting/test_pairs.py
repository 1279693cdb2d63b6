# SPDX-License-Identifier: Apache-2.0
"""Each pair against the mechanism it stands for, whose densities are written out here a second time."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event as dp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax

from sfumato.accounting import events
from sfumato.accounting.dominating import dominating
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.pairs import (
    Atoms,
    BoundedRange,
    FixedSize,
    Gaussian,
    Laplace,
    PoissonAdd,
    PoissonRemove,
    PoissonReplace,
)
from sfumato.errors import UnsupportedEventError

ADD_REMOVE, REPLACE_ONE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
ZERO_OUT, REPLACE_LABEL = Relation.ZERO_OUT, Relation.REPLACE_LABEL
RATIOS = (0.02, 0.5, 0.97, 1.0, 1.01, 1.6, 3.0, 40.0)

BINARY = Atoms(np.array([0.8, 0.2]), np.array([0.2, 0.8]), lattice=math.log(4))
WITH_INFINITE_LOSSES = Atoms(np.array([0.01, 0.6, 0.39, 0.0]), np.array([0.0, 0.39, 0.6, 0.01]))
PAIRS = [
    Gaussian(1.3),
    Gaussian(1e-6),
    Gaussian(30.0),
    Laplace(0.9),
    Laplace(1e-7),
    BoundedRange(1.1),
    BoundedRange(1e-6),
    BINARY,
    WITH_INFINITE_LOSSES,
    PoissonRemove(Gaussian(2.0), 0.03),
    PoissonAdd(Gaussian(2.0), 0.03),
    PoissonRemove(Laplace(2.0), 0.4),
    PoissonAdd(Laplace(2.0), 0.4),
    PoissonRemove(WITH_INFINITE_LOSSES, 0.2),
    PoissonAdd(WITH_INFINITE_LOSSES, 0.2),
    PoissonRemove(BoundedRange(1.0), 0.2),
    PoissonReplace(1.5, 0.1),
    PoissonReplace(40.0, 1e-3),
    FixedSize(Gaussian(1.0), 0.1),
    FixedSize(Laplace(1.0), 0.1),
    FixedSize(BINARY, 0.5),
]


def divergence(pair, x):
    """The hockey-stick divergence sup_S P[S] - x Q[S] that a pair claims."""
    (_, p), (_, q) = pair.masses(np.array([math.log(x)]))
    return p - x * q


def hockey_stick(p, q, x):
    return np.maximum(np.asarray(p) - x * np.asarray(q), 0.0).sum()


# --- what every pair must satisfy ------------------------------------------------------------------------


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.lists(st.floats(-6, 6), min_size=1, max_size=12, unique=True), st.floats(1e-7, 2))
def test_both_masses_sum_to_one_and_each_cell_holds_losses_between_its_edges(pair, edges, scale):
    edges = np.unique(np.array(edges) * scale)
    p, q = pair.masses(edges)
    assert len(p) == len(q) == len(edges) + 1
    assert (p >= 0).all() and (q >= 0).all()
    assert p.sum() == pytest.approx(1, abs=1e-13) and q.sum() == pytest.approx(1, abs=1e-13)
    low, high = np.append(-np.inf, edges), np.append(edges, np.inf)
    rounding = 1e-15  # of a mass, both of which are differences of numbers up to 1
    with np.errstate(invalid="ignore"):
        assert (np.where(q > rounding, p - np.exp(low) * q, 0) >= -1e-14 * (1 + np.exp(low))).all()
        assert (np.where(p > rounding, q - np.exp(-high) * p, 0) >= -1e-14 * (1 + np.exp(-high))).all()


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if "0.39" not in str(pair)], ids=str)
@pytest.mark.parametrize("probability", [1e-3, 1e-12, 1e-40])
def test_edges_increase_and_miss_at_most_the_probability_of_p(pair, probability):
    edges = pair.edges(500, probability)
    assert (np.diff(edges) > 0).all() and len(edges) >= 2
    nudge = 1e-7 * (edges[-1] - edges[0])  # the ends themselves may carry atoms, which are not missed
    p, _ = pair.masses(np.array([edges[0] - nudge, edges[-1] + nudge]))
    assert p[0] <= probability * (1 + 1e-9)
    assert p[-1] <= probability * (1 + 1e-9)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_the_largest_loss_is_the_end_of_the_support(pair):
    if pair.largest == math.inf:
        with_losses_above = pair.edges(11, 1e-6)[-2]
        assert pair.masses(np.array([with_losses_above]))[0][-1] > 0
        return
    # atoms at the end may fall to either side of it by rounding
    assert pair.masses(np.array([pair.largest * (1 + 1e-9)]))[0][-1] == 0
    assert pair.masses(np.array([pair.largest * (1 - 1e-3)]))[0][-1] > 0


LATTICES = [
    (dp.DiscreteLaplaceDpEvent(0.3, 1), ADD_REMOVE),
    (dp.DiscreteLaplaceDpEvent(0.3, 4), ADD_REMOVE),
    (dp.DiscreteLaplaceDpEvent(0.3, 3), REPLACE_ONE),
    (dp.RandomizedResponseDpEvent(0.4, 2), REPLACE_ONE),
    (dp.RandomizedResponseDpEvent(0.4, 7), REPLACE_LABEL),
    (events.PureDpEvent(0.7), ADD_REMOVE),
    (events.ApproximateDpEvent(0.7, 1e-3), ADD_REMOVE),
    (events.SparseVectorDpEvent(0.1, 0.2, 0.3), ADD_REMOVE),
]


@pytest.mark.parametrize(("event", "relation"), LATTICES, ids=str)
def test_finite_losses_are_whole_multiples_of_the_lattice(event, relation):
    pair, _ = dominating(event, relation)
    losses = pair.losses[np.isfinite(pair.losses)] / pair.lattice
    assert np.abs(losses - np.round(losses)).max() < 1e-9
    assert math.gcd(*(abs(round(k)) for k in losses)) == 1  # and the spacing is the widest one


# --- oracle: the densities of the mechanisms, integrated -------------------------------------------------

NOISE, RATE = 0.8, 0.15
POINTS = (np.arange(400_000) + 0.5) * 1e-4 - 20.0  # midpoints: wide enough for noise 0.8


def normal(mean):
    return np.exp(-0.5 * ((POINTS - mean) / NOISE) ** 2) / (NOISE * math.sqrt(2 * math.pi)) * 1e-4


def laplace(mean):
    return np.exp(-np.abs(POINTS - mean) / NOISE) / (2 * NOISE) * 1e-4


def mixed(rate, first, second):
    return (1 - rate) * first + rate * second


def two_sided_geometric(parameter, mean):
    return math.tanh(parameter / 2) * np.exp(-parameter * np.abs(np.arange(-300, 301) - mean))


def discrete_gaussian(stddev, mean):
    weights = np.exp(-0.5 * (np.arange(-300, 301) / stddev) ** 2)
    return np.exp(-0.5 * ((np.arange(-300, 301) - mean) / stddev) ** 2) / weights.sum()


def randomized_response(noise, buckets, answer):
    return noise / buckets + (1 - noise) * (np.arange(buckets) == answer)


GAUSSIAN, LAPLACE = dp.GaussianDpEvent(NOISE), dp.LaplaceDpEvent(NOISE)
# event, relation, outputs on the data set with the unit, outputs on the neighbor
MECHANISMS = [
    (GAUSSIAN, ADD_REMOVE, normal(1), normal(0)),
    (GAUSSIAN, ZERO_OUT, normal(1), normal(0)),
    (GAUSSIAN, REPLACE_ONE, normal(1), normal(-1)),
    (GAUSSIAN, REPLACE_LABEL, normal(1), normal(-1)),
    (LAPLACE, ADD_REMOVE, laplace(1), laplace(0)),
    (LAPLACE, REPLACE_ONE, laplace(1), laplace(-1)),
    (dp.PoissonSampledDpEvent(RATE, GAUSSIAN), ADD_REMOVE, mixed(RATE, normal(0), normal(1)), normal(0)),
    (
        dp.PoissonSampledDpEvent(RATE, GAUSSIAN),
        REPLACE_ONE,
        mixed(RATE, normal(0), normal(1)),
        mixed(RATE, normal(0), normal(-1)),
    ),
    (dp.PoissonSampledDpEvent(RATE, LAPLACE), ZERO_OUT, mixed(RATE, laplace(0), laplace(1)), laplace(0)),
    (
        dp.PoissonSampledDpEvent(0.5, dp.PoissonSampledDpEvent(0.3, GAUSSIAN)),
        ADD_REMOVE,
        mixed(0.15, normal(0), normal(1)),
        normal(0),
    ),
    (
        dp.PoissonSampledDpEvent(RATE, dp.SelfComposedDpEvent(dp.GaussianDpEvent(2 * NOISE), 4)),
        ADD_REMOVE,
        mixed(RATE, normal(0), normal(1)),
        normal(0),
    ),
    (
        dp.DiscreteLaplaceDpEvent(0.4, 3),
        ADD_REMOVE,
        two_sided_geometric(0.4, 3),
        two_sided_geometric(0.4, 0),
    ),
    (
        dp.DiscreteLaplaceDpEvent(0.4, 3),
        REPLACE_ONE,
        two_sided_geometric(0.4, 3),
        two_sided_geometric(0.4, -3),
    ),
    (
        events.DiscreteGaussianDpEvent(2.5, 2.0),
        ADD_REMOVE,
        discrete_gaussian(2.5, 2),
        discrete_gaussian(2.5, 0),
    ),
    (
        events.DiscreteGaussianDpEvent(2.5, 2.0),
        REPLACE_ONE,
        discrete_gaussian(2.5, 2),
        discrete_gaussian(2.5, -2),
    ),
    (
        dp.RandomizedResponseDpEvent(0.4, 2),
        REPLACE_ONE,
        randomized_response(0.4, 2, 0),
        randomized_response(0.4, 2, 1),
    ),
    (
        dp.RandomizedResponseDpEvent(0.3, 9),
        REPLACE_LABEL,
        randomized_response(0.3, 9, 0),
        randomized_response(0.3, 9, 5),
    ),
]


@pytest.mark.parametrize(("event", "relation", "first", "second"), MECHANISMS, ids=str)
@pytest.mark.parametrize("x", RATIOS)
def test_the_profile_is_that_of_the_mechanism_in_both_directions(event, relation, first, second, x):
    removed, added = dominating(event, relation)
    assert divergence(removed, x) == pytest.approx(hockey_stick(first, second, x), abs=2e-8)
    assert divergence(added, x) == pytest.approx(hockey_stick(second, first, x), abs=2e-8)
    assert removed.attained and added.attained


def test_the_directions_of_a_sampled_gaussian_differ_so_that_neither_may_be_dropped():
    removed, added = dominating(dp.PoissonSampledDpEvent(RATE, GAUSSIAN), ADD_REMOVE)
    assert divergence(removed, 1.5) > divergence(added, 1.5) + 0.01
    assert divergence(added, 0.6) > divergence(removed, 0.6) + 0.005


@pytest.mark.parametrize("delta", [0.0, 1e-3])
@pytest.mark.parametrize("x", RATIOS)
def test_the_two_point_pair_has_the_largest_divergence_that_epsilon_and_delta_allow(delta, x):
    epsilon = 0.9
    event = events.ApproximateDpEvent(epsilon, delta) if delta else events.PureDpEvent(epsilon)
    pair, _ = dominating(event, ADD_REMOVE)
    # Any pair's profile is convex, at least max(0, 1 - x), and here at most delta at e^epsilon; by symmetry
    # it is at most 1 - e^-epsilon (1 - delta) at e^-epsilon. The line between the two is the best of all.
    e = math.exp(epsilon)
    most = delta if x >= e else 1 - x + x * delta if x <= 1 / e else (1 - delta) * (e - x) / (1 + e) + delta
    assert divergence(pair, x) == pytest.approx(most, abs=1e-14)


# --- bounded range ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 4.0])
def test_bounded_range_is_the_best_of_all_two_point_losses(epsilon):
    t = np.linspace(0, epsilon, 20_001)  # losses t and t - epsilon; P and Q must both sum to 1
    upper = (np.exp(epsilon - t) - 1) / (np.exp(epsilon - t) - np.exp(-t))
    for x in np.exp(np.linspace(-1.1 * epsilon, 1.1 * epsilon, 23)):
        each = np.maximum(upper * (1 - x * np.exp(-t)), 0)
        each = each + np.maximum((1 - upper) * (1 - x * np.exp(epsilon - t)), 0)
        assert divergence(BoundedRange(epsilon), x) == pytest.approx(each.max(), abs=1e-8)


def exponential_mechanisms(epsilon, count):
    """Pairs of output distributions of exponential mechanisms, scores moving by at most 1 either way."""
    generator = np.random.default_rng(5)
    for k in range(count):
        size = int(generator.integers(2, 7))
        scores = generator.uniform(-8, 8, size) / epsilon
        moved = scores + (generator.uniform(-1, 1, size) if k % 2 else generator.choice([-1.0, 1.0], size))
        yield softmax(epsilon / 2 * scores), softmax(epsilon / 2 * moved)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_exponential_mechanisms_are_dominated_closely(epsilon):
    pair, _ = dominating(events.ExponentialDpEvent(epsilon), REPLACE_ONE)
    assert not pair.attained
    for x in np.exp(np.linspace(-0.8 * epsilon, 0.8 * epsilon, 9)):
        worst = max(hockey_stick(p, q, x) for p, q in exponential_mechanisms(epsilon, 600))
        assert worst <= divergence(pair, x) + 1e-12
        assert worst > 0.6 * (divergence(pair, x) - max(0, 1 - x))  # the search comes close: it has power


# --- sampling under replacement --------------------------------------------------------------------------


@pytest.mark.parametrize("x", RATIOS)
@pytest.mark.parametrize("inner", [GAUSSIAN, LAPLACE, events.PureDpEvent(1.2)], ids=str)
def test_fixed_size_sampling_amplifies_as_the_theorem_says(inner, x):
    pair, same = dominating(dp.SampledWithoutReplacementDpEvent(20, 3, inner), REPLACE_ONE)
    whole, _ = dominating(inner, REPLACE_ONE)

    def amplified(x):  # Balle, Barthe, Gaboardi 2018, Theorem 9, for x >= 1
        return 3 / 20 * divergence(whole, 1 + (x - 1) * 20 / 3)

    expected = amplified(x) if x >= 1 else 1 - x + x * amplified(1 / x)
    assert pair is same and not pair.attained
    assert divergence(pair, x) == pytest.approx(expected, abs=1e-14)


def sampled_outputs(answer_of_sample):
    """Output distributions of a mechanism on 2 of 4 units, each unit's value being -1, 0 or 1."""
    found = {}
    for values in itertools.product((-1, 0, 1), repeat=4):
        samples = [answer_of_sample(sum(pair)) for pair in itertools.combinations(values, 2)]
        found[values] = np.mean(samples, axis=0)
    return found


def neighbors(outputs):
    for values, changed in itertools.product(outputs, repeat=2):
        if sum(a != b for a, b in zip(values, changed, strict=True)) == 1:
            yield outputs[values], outputs[changed]


@pytest.mark.parametrize(
    ("inner", "answer_of_sample"),
    [
        (dp.DiscreteLaplaceDpEvent(0.7, 1), lambda total: two_sided_geometric(0.7, total)),
        (dp.RandomizedResponseDpEvent(0.3, 3), lambda total: randomized_response(0.3, 3, total % 3)),
    ],
    ids=["noise on a sum", "randomized response"],
)
def test_every_small_sampling_experiment_is_dominated(inner, answer_of_sample):
    pair, _ = dominating(dp.SampledWithoutReplacementDpEvent(4, 2, inner), REPLACE_ONE)
    less_sampling, _ = dominating(dp.SampledWithoutReplacementDpEvent(100, 45, inner), REPLACE_ONE)
    outputs = list(neighbors(sampled_outputs(answer_of_sample)))
    for x in (0.3, 0.8, 1.0, 1.2, 2.0):
        worst = max(hockey_stick(p, q, x) for p, q in outputs)
        assert worst <= divergence(pair, x) + 1e-12
        assert worst > divergence(less_sampling, x) or x in (0.3, 2.0)  # a rate of 0.45 would be caught


@pytest.mark.parametrize(("rate", "mu"), [(0.2, 1.0), (0.6, 2.0)])
def test_opposite_gradients_of_full_norm_are_the_worst_replacement(rate, mu):
    pair = PoissonReplace(mu, rate)
    axis = (np.arange(600) + 0.5) / 40 - 7.5
    across, up = np.meshgrid(axis, axis)

    def output(x, y):
        centre = np.exp(-0.5 * (across**2 + up**2))
        moved = np.exp(-0.5 * ((across - mu * x) ** 2 + (up - mu * y) ** 2))
        return mixed(rate, centre, moved) / (2 * math.pi * 40**2)

    first = {norm: output(norm, 0) for norm in (0.0, 0.6, 1.0)}
    angles = [math.pi * k / 4 for k in range(5)]
    second = {
        (norm, a): output(norm * math.cos(a), norm * math.sin(a)) for norm in (0.6, 1.0) for a in angles
    }
    for x in (0.7, 1.0, 1.3, 2.5):
        found = {k: hockey_stick(first[k[0]], second[k[1]], x) for k in itertools.product(first, second)}
        worst = max(found, key=found.__getitem__)
        assert worst == (1.0, (1.0, math.pi))
        assert found[worst] == pytest.approx(divergence(pair, x), abs=2e-5)


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "relation", "words"),
    [
        (dp.RandomizedResponseDpEvent(0.5, 2), ADD_REMOVE, "use replace-one"),
        (dp.SampledWithoutReplacementDpEvent(10, 2, GAUSSIAN), ADD_REMOVE, "use replace-one"),
        (dp.SampledWithoutReplacementDpEvent(10, 2, events.PureDpEvent(1.0)), REPLACE_LABEL, "replace-one"),
        (dp.PoissonSampledDpEvent(0.1, LAPLACE), REPLACE_ONE, "use add-remove"),
        (events.DiscreteGaussianDpEvent(3.0, 1.0, 2), ADD_REMOVE, "priced by RDP"),
        (events.DiscreteGaussianDpEvent(3e4, 1.0), ADD_REMOVE, "priced by RDP"),
        (dp.DiscreteLaplaceDpEvent(0.1, 2_000_000), ADD_REMOVE, "coarser grid"),
        (dp.ZCDpEvent(0.1, 0.0), ADD_REMOVE, "Use the RDP accountant"),
        (dp.PoissonSampledDpEvent(0.1, events.SkellamDpEvent(9.0, 1.0)), REPLACE_ONE, "use add-remove"),
        (
            events.TruncatedPoissonSampledDpEvent(0.1, 9, 90, events.SkellamDpEvent(9.0, 1.0)),
            REPLACE_ONE,
            "use Poisson sampling",
        ),
        (dp.PoissonSampledDpEvent(0.1, dp.ComposedDpEvent([LAPLACE, GAUSSIAN])), ADD_REMOVE, "on its own"),
    ],
    ids=str,
)
def test_an_event_without_a_known_pair_is_refused_with_advice(event, relation, words):
    with pytest.raises(UnsupportedEventError, match=words):
        dominating(event, relation)


def test_a_whole_sample_is_no_sample():
    whole = dp.SampledWithoutReplacementDpEvent(10, 10, GAUSSIAN)
    assert dominating(whole, REPLACE_ONE) == dominating(GAUSSIAN, REPLACE_ONE)
    assert dominating(dp.PoissonSampledDpEvent(1.0, LAPLACE), REPLACE_ONE) == dominating(LAPLACE, REPLACE_ONE)


@pytest.mark.parametrize("stddev", [0.02, 0.5, 40.0, 20_000.0])
def test_atoms_of_discrete_gaussians_are_weighed_with_all_their_digits(stddev):
    pair, _ = dominating(events.DiscreteGaussianDpEvent(stddev, 1.0), ADD_REMOVE)
    finite = np.isfinite(pair.losses)
    assert not np.isnan(pair.losses).any()
    assert pair.p.sum() == pytest.approx(1, abs=1e-12)
    if finite.any():  # losses are (1 - 2x) / (2 stddev^2) at integers x: one lattice, no stray atom
        doubled = pair.losses[finite] * stddev**2 * 2
        assert np.abs(doubled - np.round(doubled)).max() < 1e-6 * stddev**2


def test_the_two_point_pair_of_pure_dp_is_symmetric_for_any_epsilon():
    for epsilon in (1e-9, 0.5, 30.0):
        pair, _ = dominating(events.PureDpEvent(epsilon), ADD_REMOVE)
        assert pair.p[0] == pytest.approx(expit(epsilon), rel=1e-15)
        np.testing.assert_array_equal(pair.p, pair.q[::-1])
