# SPDX-License-Identifier: Apache-2.0
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from sfumato.accounting.roots import root_between
from sfumato.errors import CalibrationError

FUNCTIONS = {
    "line": lambda c: lambda x: x - c,
    "cubic": lambda c: lambda x: (x - c) ** 3,
    "exponential": lambda c: lambda x: math.expm1(x - c),
    "flat": lambda c: lambda x: math.copysign(abs(x - c) ** 9, x - c),
    "steep": lambda c: lambda x: math.atan(1e6 * (x - c)),
    "step": lambda c: lambda x: -1.0 if x < c else 2.0,
    "tiny": lambda c: lambda x: 1e-300 * (x - c),
    "wave": lambda c: lambda x: math.sin(x - c) + (x - c) / 2,
    "falling": lambda c: lambda x: math.exp(-x) - math.exp(-c),
}


@given(
    st.sampled_from(sorted(FUNCTIONS)),
    st.floats(-20, 20),
    st.floats(1e-6, 30),
    st.floats(1e-6, 30),
    st.sampled_from([1e-14, 1e-9, 2e-12, 1e-3]),
)
def test_the_root_is_that_of_scipy_to_the_last_bit(name, root, below, above, xtol):
    function, low, high = FUNCTIONS[name](root), root - below, root + above
    ends = function(low), function(high)
    if math.copysign(1, ends[0]) == math.copysign(1, ends[1]) and 0.0 not in ends:
        return  # rounded to one sign: the next test is about these
    calls, known = [], []
    try:
        expected = brentq(lambda x: known.append(x) or function(x), low, high, xtol=xtol)
    except RuntimeError:  # not found in a hundred steps
        with pytest.raises(CalibrationError, match="100 steps"):
            root_between(function, low, high, xtol=xtol)
        return
    assert root_between(lambda x: calls.append(x) or function(x), low, high, xtol=xtol) == expected
    assert calls == known


def test_ends_of_one_sign_are_refused():
    with pytest.raises(CalibrationError, match="same sign"):
        root_between(lambda x: x * x + 1, -1.0, 1.0)


@pytest.mark.parametrize("bad", [-1.0, 0.0, 1.0])
def test_a_function_without_a_value_is_refused(bad):
    with pytest.raises(CalibrationError, match="no value"):
        root_between(lambda x: math.nan if abs(x - bad) < 0.1 else x + 1e-9, -1.0, 1.0)


@pytest.mark.parametrize(("low", "high"), [(0.0, 5.0), (-5.0, 0.0)])
def test_a_root_at_an_end_is_found_there(low, high):
    assert root_between(lambda x: x, low, high) == 0.0


def test_what_takes_too_many_steps_is_refused():
    with pytest.raises(CalibrationError, match="100 steps"):
        root_between(lambda x: x**3, -1.0, 2.0, xtol=1e-14)
