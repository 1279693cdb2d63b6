# SPDX-License-Identifier: Apache-2.0
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato import _check
from sfumato.errors import InvalidParameterError, SfumatoError

# Each validator with values it must take and values it must refuse, NaN and the wrong kind always among them.
NEVER = [math.nan, "1", None, True, [1.0], 1j]
CASES = [
    (_check.positive, [1, 1e-300, np.float64(2), Fraction(1, 3)], [0, -1, math.inf, -0.0]),
    (_check.non_negative, [0, -0.0, 5], [-1e-300, math.inf]),
    (_check.finite, [-5, 0, 1e308, 10**400], [math.inf, -math.inf]),
    (_check.probability, [0.5, 1e-300], [0, 1, -0.1, 1.1]),
    (_check.delta, [0.1, 1e-300], [0, 1, 0.11, 0.5]),
    (_check.rate, [1, 0.5, 1e-9], [0, 1.5, -1]),
    (_check.count, [1, np.int64(7), 10**30], [0, -1, 1.0, 2.5]),
]


@pytest.mark.parametrize(("check", "value"), [(c, v) for c, good, _ in CASES for v in good])
def test_a_sensible_value_passes(check, value):
    check(parameter=value)


@pytest.mark.parametrize(("check", "value"), [(c, v) for c, _, bad in CASES for v in bad + NEVER])
def test_a_refusal_names_the_parameter_and_shows_the_value(check, value):
    with pytest.raises(InvalidParameterError, match=r"^parameter must be ") as refusal:
        check(parameter=value)
    assert repr(value) in str(refusal.value)
    assert isinstance(refusal.value, ValueError) and isinstance(refusal.value, SfumatoError)


@pytest.mark.parametrize("pair", [(1, 0), (1, 1), (0, math.inf), (math.nan, 1), (0, 1, 2), "01", None, 3])
def test_bounds_are_a_finite_rising_pair(pair):
    _check.bounds(bounds=(0, 1))
    with pytest.raises(InvalidParameterError, match="bounds must be a pair"):
        _check.bounds(bounds=pair)


@pytest.mark.parametrize(("pair", "sums", "squares"), [
    ((0, 1), True, True),
    ((-1e100, 1e100), True, True),
    ((0, 1e101), True, False),
    ((0, 1e-100), True, True),
    ((0, 1e-101), True, False),
    ((-1e280, 0), True, False),
    ((0, 1e281), False, False),
])  # fmt: skip
def test_bounds_of_sums_and_of_squares_stay_in_float64(pair, sums, squares):
    for check, passes in ((_check.summable, sums), (_check.squarable, squares)):
        if passes:
            check(bounds=pair)
            continue
        with pytest.raises(InvalidParameterError, match="bounds must be a pair of numbers of at most"):
            check(bounds=pair)
    for check in (_check.summable, _check.squarable):
        with pytest.raises(InvalidParameterError, match="bounds must be a pair"):
            check(bounds=(1, 0))


def test_a_standard_deviation_is_not_lost_beside_its_bounds():
    _check.resolvable(1.0, within=(-1e12, 1e12))
    with pytest.raises(InvalidParameterError, match=r"^stddev must be at least 90.9"):
        _check.resolvable(1.0, within=(-1e14, 0))


@pytest.mark.parametrize("text", ["", "  ", None, 3])
def test_text_says_something(text):
    _check.text(name="x")
    with pytest.raises(InvalidParameterError, match="name must be a non-empty string"):
        _check.text(name=text)


@given(st.floats(), st.floats(-10, 10), st.floats(-10, 10))
def test_in_range_takes_exactly_the_range(value, low, high):
    inside = low <= value <= high
    try:
        _check.in_range(low, high, value=value)
    except InvalidParameterError:
        assert not inside
    else:
        assert inside
