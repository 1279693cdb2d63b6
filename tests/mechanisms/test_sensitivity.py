# SPDX-License-Identifier: Apache-2.0
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import binomtest, cauchy, kstest, laplace

from sfumato.accounting.events import ApproximateDpEvent, PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import sensitivity
from sfumato.mechanisms.sensitivity import (
    ProposeTestRelease,
    SmoothMedian,
    distance_to_sensitive,
    global_sensitivity,
    local_sensitivity,
    median,
    smooth_sensitivity,
)
from sfumato.testing import seeded

ALPHA = 1e-6
BOUNDS = (0.0, 10.0)
LEVELS = [0.0, 1.0, 4.0, 10.0]  # a domain small enough to try every data set
values = st.lists(st.one_of(st.floats(-2, 12), st.just(math.nan)), min_size=1, max_size=9)


def neighbors(data: tuple[float, ...]):
    for i, level in itertools.product(range(len(data)), LEVELS):
        yield (*data[:i], level, *data[i + 1 :])


def plain_median(data) -> float:
    return sorted(data)[math.ceil(len(data) / 2) - 1]


def plain_local(data) -> float:
    return max(abs(plain_median(data) - plain_median(other)) for other in neighbors(data))


def plain_at_distance(data, k: int) -> float:
    """Every data set within k replacements, one by one."""
    reach = {data}
    for _ in range(k):
        reach |= {other for one in reach for other in neighbors(one)}
    return max(plain_local(one) for one in reach)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_local_sensitivity_agrees_with_trying_every_data_set(size):
    for data in itertools.combinations_with_replacement(LEVELS, size):
        for k in range(size + 1):
            assert local_sensitivity(data, bounds=BOUNDS, distance=k) == plain_at_distance(data, k)


@pytest.mark.parametrize("beta", [0.05, 0.5, 3.0])
def test_smooth_sensitivity_agrees_with_its_definition(beta):
    for data in itertools.combinations_with_replacement(LEVELS, 3):
        plain = max(math.exp(-beta * k) * plain_at_distance(data, k) for k in range(4))
        assert smooth_sensitivity(data, bounds=BOUNDS, beta=beta) == pytest.approx(plain, rel=1e-14)


@pytest.mark.parametrize("proposal", [0.5, 1.0, 3.0, 9.9, 10.0])
def test_the_distance_to_a_sensitive_data_set_agrees_with_trying_every_one(proposal):
    for data in itertools.combinations_with_replacement(LEVELS, 3):
        plain = next((k for k in range(4) if plain_at_distance(data, k) > proposal), 4)
        assert distance_to_sensitive(data, bounds=BOUNDS, proposed_sensitivity=proposal) == plain


@given(values, st.integers(0, 8), st.floats(-2, 12), st.floats(0.01, 2))
@settings(max_examples=150)
def test_neighbors_have_nearly_the_same_smooth_sensitivity(data, index, other, beta):
    neighbor = list(data)
    neighbor[index % len(data)] = other
    here, there = (smooth_sensitivity(d, bounds=BOUNDS, beta=beta) for d in (data, neighbor))
    assert abs(math.log(here / there)) <= beta * (1 + 1e-9)
    for smooth, one in ((here, data), (there, neighbor)):
        assert smooth >= local_sensitivity(one, bounds=BOUNDS)
    assert abs(median(data, bounds=BOUNDS) - median(neighbor, bounds=BOUNDS)) <= min(here, there) + 1e-12


@given(values, st.integers(0, 8), st.floats(-2, 12), st.floats(0.01, 12))
@settings(max_examples=150)
def test_neighbors_have_distances_at_most_one_apart(data, index, other, proposal):
    neighbor = list(data)
    neighbor[index % len(data)] = other
    here, there = (
        distance_to_sensitive(d, bounds=BOUNDS, proposed_sensitivity=proposal) for d in (data, neighbor)
    )
    assert abs(here - there) <= 1


def test_local_is_at_most_smooth_is_at_most_global():
    data = [2.0, 3.0, 5.0, 5.5, 9.0]
    local = local_sensitivity(data, bounds=BOUNDS)
    smooth = smooth_sensitivity(data, bounds=BOUNDS, beta=0.3)
    assert local < smooth < global_sensitivity(bounds=BOUNDS) == 10.0


def test_values_are_clamped_and_nan_counts_as_the_lower_bound():
    assert median([-5.0, math.nan, math.inf], bounds=BOUNDS) == 0.0
    assert median([math.inf, math.inf, 1.0], bounds=BOUNDS) == 10.0


# --- smooth sensitivity ------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_the_cauchy_constants_give_epsilon_by_direct_calculation(epsilon):
    # The worst neighbors: the median moves by S, and S by e^beta. Ratio of densities over a wide grid.
    alpha = beta = epsilon / 2
    z = np.concatenate([np.linspace(-50, 50, 200_001), np.logspace(2, 12, 1000), -np.logspace(2, 12, 1000)])
    for shift, stretch in itertools.product((-1.0, 0.0, 1.0), (math.exp(-beta), 1.0, math.exp(beta))):
        # output o = z / alpha with S = 1, against a neighbor centered at `shift` with S = `stretch`;
        # the median moves by at most the smaller of the two smooth bounds
        moved = shift * min(1.0, stretch)
        here = cauchy.logpdf(z)
        there = cauchy.logpdf((z - alpha * moved) / stretch) - math.log(stretch)
        assert np.abs(here - there).max() <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-3), (1.0, 0.05)])
def test_the_laplace_constants_give_epsilon_and_delta_by_direct_calculation(epsilon, delta):
    beta = SmoothMedian(epsilon=epsilon, delta=delta, bounds=BOUNDS).beta
    o = np.linspace(-80, 80, 800_001)  # in units of the noise of the first data set
    for shift, stretch in itertools.product((-1.0, 1.0), (math.exp(-beta), math.exp(beta))):
        here = laplace.pdf(o)
        there = laplace.pdf((o - epsilon / 2 * shift * min(1.0, stretch)) / stretch) / stretch
        excess = trapezoid(np.maximum(here - math.exp(epsilon) * there, 0), o)
        assert excess <= delta


def test_an_epsilon_for_which_the_laplace_argument_fails_is_refused():
    with pytest.raises(InvalidParameterError, match="too large"):
        SmoothMedian(epsilon=60.0, delta=0.5, bounds=BOUNDS)


@pytest.mark.parametrize(
    ("draw", "law", "off"), [("_cauchy", cauchy, cauchy(0, 1.1)), ("_laplace", laplace, laplace(0, 1.1))]
)
def test_the_noise_has_the_stated_law(draw, law, off):
    generator = seeded(1)
    drawn = [getattr(sensitivity, draw)(generator) for _ in range(25_000)]
    assert kstest(drawn, law.cdf).pvalue > ALPHA
    assert kstest(drawn, off.cdf).pvalue < ALPHA  # 10% off is caught: the test has power


@pytest.mark.parametrize("delta", [0.0, 0.01])
def test_a_private_median_has_noise_in_proportion_to_the_smooth_sensitivity(delta):
    bounds, data = (-1e6, 1e6), [*np.linspace(-1.0, 1.0, 101)]
    mechanism = SmoothMedian(epsilon=2.0, delta=delta, bounds=bounds)
    generator = seeded(2)
    drawn = np.array([mechanism.release(data, generator=generator) for _ in range(1000)])
    size = smooth_sensitivity(data, bounds=bounds, beta=mechanism.beta) / 1.0  # epsilon / 2 = 1
    law = cauchy if delta == 0 else laplace
    assert kstest(drawn, law(0, size).cdf).pvalue > ALPHA
    assert kstest(drawn, law(0, size * 1.6).cdf).pvalue < ALPHA


@pytest.mark.parametrize("delta", [0.0, 0.01])
def test_a_private_median_lies_in_the_bounds_on_a_public_grid(delta):
    mechanism = SmoothMedian(epsilon=0.1, delta=delta, bounds=(0.0, 1.0))
    for _ in range(100):
        out = mechanism.release([0.1, 1 / 3, 0.9])
        assert 0 <= out <= 1 and out * 2**32 == round(out * 2**32)


def test_an_audit_of_the_private_median_stays_below_epsilon_and_catches_weak_noise(epsilon_lower_bound):
    here, there = [0.0, 4.0, 10.0], [0.0, 6.0, 10.0]
    trials = 5000

    def audit(epsilon: float) -> float:
        mechanism, generator = SmoothMedian(epsilon=epsilon, bounds=(-1e3, 1e3)), seeded(3)
        hits = sum(mechanism.release(there, generator=generator) > 5.0 for _ in range(trials))
        others = sum(mechanism.release(here, generator=generator) > 5.0 for _ in range(trials))
        return epsilon_lower_bound(hits, others, trials)

    assert audit(1.0) <= 1.0
    assert audit(16.0) > 1.0  # claimed as 1


# --- local sensitivity: propose, test, release -------------------------------------------------------------


PTR = ProposeTestRelease(proposed_sensitivity=1.0, test_epsilon=0.5, release_epsilon=0.5, delta=1e-3)


def test_noise_in_proportion_to_local_sensitivity_is_not_private(epsilon_lower_bound):
    """The reason for everything else in this module, shown by attack."""
    here, there = [1.0, 1.0, 1.0, 9.0], [1.0, 1.0, 9.0, 9.0]  # local sensitivity 0 and 8
    generator = np.random.default_rng(0)
    trials = 5000

    def noisy(data):
        size = local_sensitivity(data, bounds=BOUNDS) / 1.0  # "epsilon 1"
        return median(data, bounds=BOUNDS) + generator.laplace(0, max(size, 1e-12), trials)

    hits, others = (int((np.abs(noisy(data) - 1.0) < 1e-6).sum()) for data in (here, there))
    assert epsilon_lower_bound(hits, others, trials) > 5


def test_data_that_break_the_proposal_are_answered_with_probability_at_most_delta():
    noisy = ProposeTestRelease(proposed_sensitivity=1.0, test_epsilon=0.5, release_epsilon=0.5, delta=0.05)
    generator = seeded(4)
    answered = sum(noisy.release(0.0, distance=0, generator=generator) is not None for _ in range(10_000))
    assert binomtest(answered, 10_000, 0.05, alternative="greater").pvalue > ALPHA
    # discrete Laplace of scale 2 from t = 6 on: e^-3 / (1 + e^-0.5)
    assert binomtest(answered, 10_000, math.exp(-3) / (1 + math.exp(-0.5))).pvalue > ALPHA
    assert binomtest(answered, 10_000, 0.05).pvalue < ALPHA  # the exact chance is told from its bound


def test_data_far_from_any_that_break_it_are_answered_with_the_proposed_noise():
    generator = seeded(5)
    drawn = [PTR.release(3.0, distance=10_000, generator=generator) for _ in range(4000)]
    assert None not in drawn
    assert kstest(drawn, laplace(3.0, 2.0).cdf).pvalue > ALPHA
    assert kstest(drawn, laplace(3.0, 2.6).cdf).pvalue < ALPHA


def test_an_audit_of_propose_test_release_stays_below_the_claim_and_catches_a_weak_test(epsilon_lower_bound):
    # Neighbors at distances 1 and 0, far beyond the proposal apart: the answer itself tells them apart.
    trials = 5000

    def audit(mechanism) -> float:
        generator = seeded(6)
        tells = [
            sum(mechanism.release(1e6, distance=0, generator=generator) is not None for _ in range(trials)),
            0,  # the neighbor's answer is never near 1e6
        ]
        return epsilon_lower_bound(*tells, trials, delta=0.01)

    honest = ProposeTestRelease(proposed_sensitivity=1.0, test_epsilon=0.5, release_epsilon=0.5, delta=0.01)
    weak = ProposeTestRelease(proposed_sensitivity=1.0, test_epsilon=0.5, release_epsilon=0.5, delta=0.3)
    assert audit(honest) <= 1.0
    assert audit(weak) > 1.0  # claimed as delta 0.01


def test_events():
    assert PTR.event() == ApproximateDpEvent(1.0, 1e-3)
    assert SmoothMedian(epsilon=0.5, bounds=BOUNDS).event() == PureDpEvent(0.5)
    assert SmoothMedian(epsilon=0.5, delta=1e-6, bounds=BOUNDS).event() == ApproximateDpEvent(0.5, 1e-6)
    assert SmoothMedian(epsilon=0.5, bounds=BOUNDS).relation is PTR.relation is Relation.REPLACE_ONE


# --- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_parameters_that_make_no_sense_are_refused(wrong):
    plain = {"proposed_sensitivity": 1.0, "test_epsilon": 1.0, "release_epsilon": 1.0, "delta": 1e-6}
    for field in plain:
        with pytest.raises(InvalidParameterError, match=f"{field} must be"):
            ProposeTestRelease(**(plain | {field: wrong}))
    with pytest.raises(InvalidParameterError, match="epsilon must be"):
        SmoothMedian(epsilon=wrong, bounds=BOUNDS)
    with pytest.raises(InvalidParameterError, match="beta must be"):
        smooth_sensitivity([1.0], bounds=BOUNDS, beta=wrong)
    if wrong:
        with pytest.raises(InvalidParameterError, match="delta must be"):
            SmoothMedian(epsilon=1.0, delta=wrong, bounds=BOUNDS)


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (0.0, math.inf), (math.nan, 1.0), (-1e308, 1e308)])
def test_bounds_that_make_no_sense_are_refused(bounds):
    with pytest.raises(InvalidParameterError, match="bounds"):
        SmoothMedian(epsilon=1.0, bounds=bounds)


def test_the_relation_must_be_one():
    with pytest.raises(InvalidParameterError, match="relation"):
        ProposeTestRelease(
            proposed_sensitivity=1.0, test_epsilon=1.0, release_epsilon=1.0, delta=0.1, relation="replace-one"
        )


@pytest.mark.parametrize("data", [[], [[1.0]]])
def test_no_values_are_refused(data):
    with pytest.raises(InvalidParameterError, match="non-empty"):
        median(data, bounds=BOUNDS)


def test_extreme_parameters_are_refused_or_work():
    for wrong in (1e-200, 1e200):
        with pytest.raises(InvalidParameterError, match="epsilon must be"):
            SmoothMedian(epsilon=wrong, bounds=BOUNDS)
    with pytest.raises(InvalidParameterError, match="too large for delta"):
        SmoothMedian(epsilon=1e5, delta=1e-6, bounds=BOUNDS)
    with pytest.raises(InvalidParameterError, match="at least 1e-280 apart"):
        SmoothMedian(epsilon=1.0, bounds=(0.0, 5e-324))
    assert 0 < SmoothMedian(epsilon=1.0, delta=1e-320, bounds=BOUNDS).beta < 1e-3
    tiny = ProposeTestRelease(proposed_sensitivity=1.0, test_epsilon=1.0, release_epsilon=1.0, delta=1e-320)
    assert tiny.distance_needed == 737  # ln(10^320) = 736.8


@pytest.mark.parametrize("distance", [0, 10**6])
def test_a_value_that_cannot_be_released_is_refused_however_the_test_would_end(distance):
    for _ in range(20):
        with pytest.raises(InvalidParameterError, match="nothing was released"):
            PTR.release(math.nan, distance=distance)
    with pytest.raises(InvalidParameterError, match="the distance is not a whole number"):
        PTR.release(1.0, distance=1.5)
