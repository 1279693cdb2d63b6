# SPDX-License-Identifier: Apache-2.0
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, laplace

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.grid import Grid
from sfumato.testing import seeded

ALPHA = 1e-6
finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.floats(1e-6, 1e6), st.floats(-1e9, 1e9), st.floats(-1, 1))
def test_values_within_the_sensitivity_lie_within_its_units(sensitivity, value, share):
    grid = Grid(sensitivity)
    other = value + share * sensitivity
    if abs(other - value) > sensitivity:  # the sum was rounded outwards: no neighbor
        return
    steps = grid.place([value, other])
    assert abs(int(steps[0]) - int(steps[1])) <= grid.units


def test_values_halfway_between_grid_points_lie_within_the_units_too():
    grid = Grid(1.0 + 2.0**-20)  # an odd number of steps: rounding to even would move both ends apart
    low, high = grid.place([0.5 * grid.step, 0.5 * grid.step + grid.sensitivity])
    assert high - low == grid.units == 2**20 + 1


@given(st.floats(1e-6, 1e6), finite, finite)
def test_a_larger_value_never_lies_lower(sensitivity, a, b):
    low, high = Grid(sensitivity).place(sorted([a, b]))
    assert low <= high


@given(st.floats(1e-200, 1e200))
def test_the_grid_costs_less_than_a_millionth(sensitivity):
    grid = Grid(sensitivity)
    assert sensitivity <= grid.units * grid.step <= sensitivity * (1 + 2.0**-20)
    assert math.frexp(grid.step)[0] == 0.5


def test_noise_has_the_stated_scale():
    grid = Grid(3.0)
    noise = grid.laplace(60_000, multiple=2, epsilon=0.5, generator=seeded(1)) * grid.step
    assert kstest(noise, laplace(scale=12.0).cdf).pvalue > ALPHA
    assert kstest(noise, laplace(scale=13.2).cdf).pvalue < ALPHA  # 10% off is caught: the test has power


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf, 1e-300, 1e300])
def test_a_sensitivity_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InvalidParameterError, match="sensitivity must be"):
        Grid(wrong)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused_without_being_shown(wrong):
    with pytest.raises(InvalidParameterError, match="nothing was released") as error:
        Grid(1.0).place([0.0, wrong])
    assert str(wrong) not in str(error.value)


def test_an_epsilon_too_small_for_integers_is_refused():
    with pytest.raises(InvalidParameterError, match="too small"):
        Grid(1.0).laplace(1, multiple=1, epsilon=1e-12, generator=None)
