# SPDX-License-Identifier: Apache-2.0
import math
import traceback
from fractions import Fraction

import numpy as np
import pytest

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import (
    AboveThreshold,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    Gaussian,
    IntervalExponential,
    Laplace,
    NoisyMax,
    PermuteAndFlip,
    ProposeTestRelease,
    RandomizedResponse,
    SmoothMedian,
    SparseVector,
    UnaryEncoding,
    inputs,
)
from sfumato.mechanisms.grid import Grid

ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
SECRET = "secret-137"


class Talkative:
    """A value whose every conversion fails and quotes it."""

    def __array__(self, *args, **kwargs):
        raise RuntimeError(SECRET)

    def __float__(self) -> float:
        raise ArithmeticError(SECRET)

    __int__ = __index__ = __float__

    def __repr__(self) -> str:
        return SECRET


SELECTION = {"epsilon": 1.0, "sensitivity": 1.0, "relation": REPLACE}
RUN = {
    "threshold": 0.0,
    "threshold_epsilon": 1.0,
    "comparison_epsilon": 1.0,
    "sensitivity": 1.0,
    "max_answers": 1,
    "relation": REPLACE,
}
INTERVALS = IntervalExponential(**SELECTION, bounds=(0.0, 1.0))
PTR = ProposeTestRelease(proposed_sensitivity=0.5, test_epsilon=1.0, release_epsilon=1.0, delta=1e-6)
RESPONSE, UNARY = RandomizedResponse(noise_parameter=0.5), UnaryEncoding(epsilon=1.0, num_buckets=2)

# Every way a private value comes in.
DOORS = {
    "Laplace": Laplace(scale=1.0, sensitivity=1.0, relation=ADD).release,
    "Gaussian": Gaussian(stddev=1.0, sensitivity=1.0, relation=ADD).release,
    "DiscreteLaplace": DiscreteLaplace(scale=1.0, sensitivity=1, relation=ADD).release,
    "DiscreteGaussian": DiscreteGaussian(stddev=1.0, sensitivity=1, relation=ADD).release,
    "Exponential": lambda value: Exponential(**SELECTION).release([value, 1.0]),
    "NoisyMax": lambda value: NoisyMax(**SELECTION).release([value, 1.0]),
    "PermuteAndFlip": lambda value: PermuteAndFlip(**SELECTION).release([value, 1.0]),
    "interval scores": lambda value: INTERVALS.release([0.0, 1.0], [value]),
    "interval edges": lambda value: INTERVALS.release([0.0, value, 1.0], [0.0, 0.0]),
    "AboveThreshold": AboveThreshold(**RUN).ask,
    "SparseVector": SparseVector(**RUN, answer_epsilon=1.0).ask,
    "SmoothMedian": lambda value: SmoothMedian(epsilon=1.0, bounds=(0.0, 1.0)).release([value, 1.0]),
    "PTR value": lambda value: PTR.release(value, distance=100),
    "PTR distance": lambda value: PTR.release(1.0, distance=value),
    "RandomizedResponse": lambda value: RESPONSE.release([value, 1]),
    "response counts": lambda value: RESPONSE.estimate([value, 1]),
    "UnaryEncoding": lambda value: UNARY.release([value, 1]),
    "unary counts": lambda value: UNARY.estimate([value, 1], num_reports=2),
    "Grid": lambda value: Grid(1.0).place([value, 1.0]),
}


@pytest.mark.parametrize(
    "value",
    [SECRET, [SECRET], {SECRET: 1}, Talkative(), Fraction(137 * 10**400), 137 * 10**400, 137j],
    ids=["text", "list", "dict", "talkative", "fraction", "integer", "complex"],
)
@pytest.mark.parametrize("door", DOORS)
def test_a_private_value_that_cannot_be_read_is_refused_and_appears_nowhere(door, value):
    with pytest.raises(InvalidParameterError) as error:
        DOORS[door](value)
    assert "137" not in str(error.value)
    assert error.value.__cause__ is None and error.value.__context__ is None
    assert "137" not in "".join(traceback.format_exception_only(error.value))


@pytest.mark.parametrize("door", [d for d in DOORS if d not in ("RandomizedResponse", "UnaryEncoding")])
def test_a_private_value_that_can_be_read_passes(door):
    DOORS[door](1)


@pytest.mark.parametrize("values", [["1", "2"], [1 + 2j], np.array(["2020-01-01"], dtype="datetime64[D]")])
def test_text_dates_and_complex_numbers_are_no_numbers(values):
    with pytest.raises(InvalidParameterError, match="scores must be real numbers"):
        inputs.numbers(values, what="scores")


def test_numbers_keep_their_value_and_wide_ones_become_infinite_without_a_warning():
    given = [True, 2, np.float32(0.5), Fraction(1, 4)]
    assert inputs.numbers(given, what="scores").tolist() == [1.0, 2.0, 0.5, 0.25]
    wide = np.array([np.finfo(np.longdouble).max])
    assert inputs.numbers(wide, what="scores")[0] in (math.inf, float(wide[0]))


@pytest.mark.parametrize("value", [2**62, -(2**62), np.int32(7), True])
def test_whole_numbers_pass(value):
    assert inputs.whole_number(value) == value and type(inputs.whole_number(value)) is int
