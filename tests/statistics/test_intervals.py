# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from sfumato.errors import InvalidParameterError
from sfumato.statistics.intervals import (
    GaussianLaw,
    LaplaceLaw,
    accepted,
    around,
    half_width,
    whole_half_width,
)
from sfumato.statistics.release import Covers

LAWS = [LaplaceLaw(2.0), GaussianLaw(3.0)]
DRAWS = 400_000
ERROR = 5 * math.sqrt(0.25 / DRAWS)  # five standard errors of a share

# Nothing is weighed by less than 1e-100: weights are ratios of public steps and noisy sizes.
weight = st.floats(-2, 2).map(lambda x: x if abs(x) >= 1e-100 else 0.0)
weights = st.lists(weight, min_size=1, max_size=4)


def simulated(law, size: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    if isinstance(law, LaplaceLaw):
        return rng.laplace(scale=law.scale, size=(DRAWS, size))
    return rng.normal(scale=law.stddev, size=(DRAWS, size))


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize(
    "mix",
    [(1.0,), (0.5, 0.5), (0.9, 0.1), (0.3, -0.7), (0.5, 0.0, 0.5), (1.0, 1.0, 1.0), (0.2, 0.5, 0.3)],
    ids=str,
)
@pytest.mark.parametrize("stddev", [0.0, 0.3, 5.0])
def test_tails_are_those_of_simulated_noise(law, mix, stddev):
    drawn = np.abs(simulated(law, len(mix)) @ mix + np.random.default_rng(8).normal(size=DRAWS) * stddev)
    for distance in (0.5, 2.0, 6.0):
        assert law.tail(distance, weights=mix, stddev=stddev) == pytest.approx(
            (drawn > distance).mean(), abs=ERROR
        )


def test_the_simulation_has_power():
    drawn = np.abs(simulated(LaplaceLaw(2.0), 2) @ (0.5, 0.5))
    assert abs(LaplaceLaw(2.05).tail(2.0, weights=(0.5, 0.5)) - (drawn > 2.0).mean()) > ERROR


@pytest.mark.parametrize("stddev", [1e-6, 0.01, 1.0, 50.0])
@pytest.mark.parametrize("distance", [0.0, 0.1, 3.0, 40.0])
def test_a_laplace_and_a_normal_error_have_the_tail_of_their_convolution(stddev, distance):
    def beyond(x):  # in the normal error's own scale
        z = np.abs(x)
        return (
            stats.norm.pdf(x)
            * (stats.laplace.sf(distance - stddev * x) + stats.laplace.cdf(-distance - stddev * x))
            * (z < 40)
        )

    kinks = [p for p in (distance / stddev, -distance / stddev) if abs(p) < 39]
    expected = integrate.quad(beyond, -40, 40, points=kinks or None, limit=500, epsabs=1e-13)[0]
    assert LaplaceLaw(1.0).tail(distance, stddev=stddev) == pytest.approx(expected, abs=1e-9)


@given(weights, st.floats(0, 30), st.floats(0, 5))
@settings(max_examples=200)
def test_a_tail_is_a_probability_and_falls(mix, distance, stddev):
    for law in LAWS:
        near = law.tail(distance, weights=mix, stddev=stddev)
        far = law.tail(distance + 1.0, weights=mix, stddev=stddev)
        assert 0 <= far <= near + 1e-7
        assert near <= 1


@given(weights, st.floats(0.5, 0.999))
@settings(max_examples=100)
def test_a_half_width_leaves_out_one_minus_its_level(mix, level):
    for law in LAWS:
        distance = half_width(law, level=level, weights=mix)
        if distance > 0:
            assert law.tail(distance, weights=mix) == pytest.approx(1 - level, abs=1e-4)


@pytest.mark.parametrize(
    "law", [LaplaceLaw(s) for s in (0.3, 1.0, 7.3)] + [GaussianLaw(s) for s in (0.4, 1.0, 9.0)]
)
def test_whole_tails_are_sums_of_the_discrete_laws(law):
    x = np.arange(-2000, 2001)
    exponent = np.abs(x) / law.scale if isinstance(law, LaplaceLaw) else x**2 / (2 * law.stddev**2)
    mass = np.exp(-exponent) / np.exp(-exponent).sum()
    for distance in (0, 1, 5, 20):
        assert law.whole_tail(distance) == pytest.approx(
            mass[np.abs(x) > distance].sum(), rel=1e-9, abs=1e-300
        )


@pytest.mark.parametrize(
    "law", [LaplaceLaw(0.2), LaplaceLaw(3.0), LaplaceLaw(1e6), GaussianLaw(0.3), GaussianLaw(2e4)]
)
def test_a_whole_half_width_is_the_least_that_covers(law):
    distance = whole_half_width(law, level=0.95)
    assert law.whole_tail(distance) <= 0.05
    assert distance == 0 or law.whole_tail(distance - 1) > 0.05


def test_nothing_random_has_no_width():
    assert half_width(LaplaceLaw(1.0), level=0.95, weights=(0.0,)) == 0.0
    assert GaussianLaw(0.0).tail(1.0) == 0.0


def test_an_interval_is_cut_to_where_the_truth_must_lie_but_not_below_its_number():
    interval = around(-3.0, 1.0, level=0.9, within=(0.0, 5.0), covers=(Covers.NOISE, Covers.SAMPLING))
    assert (interval.lower, interval.upper, interval.level) == (-3.0, 0.0, 0.9)
    assert around(4.0, 9.0, level=0.9, within=(0.0, 5.0)).lower == 0.0
    assert around(4.0, 9.0, level=0.9, within=(0.0, 5.0)).upper == 5.0
    assert interval.covers == (Covers.NOISE, Covers.SAMPLING)


def test_accepted_values_are_those_with_a_large_p_value():
    law = GaussianLaw(1.0)
    lower, upper = accepted(lambda v: law.tail(abs(v - 2.0)), center=2.0, within=(-9.0, 9.0), level=0.95)
    assert (lower, upper) == pytest.approx((2 - 1.96, 2 + 1.96), abs=1e-3)
    cut = accepted(lambda v: law.tail(abs(v - 2.0)), center=2.0, within=(1.0, 9.0), level=0.95)
    assert cut == (1.0, pytest.approx(3.96, abs=1e-3))


def test_where_every_value_is_refused_nothing_is_excluded():
    assert accepted(lambda v: 0.0, center=0.5, within=(0.0, 1.0), level=0.95) == (0.0, 1.0)


@pytest.mark.parametrize("level", [0.0, 1.0, math.nan])
def test_levels_are_probabilities(level):
    for call in (
        lambda: half_width(LaplaceLaw(1.0), level=level),
        lambda: whole_half_width(LaplaceLaw(1.0), level=level),
        lambda: accepted(lambda v: 1.0, center=0.0, within=(0.0, 1.0), level=level),
    ):
        with pytest.raises(InvalidParameterError, match="level"):
            call()
