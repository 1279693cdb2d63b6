# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import FastGenerator
from sfumato.statistics.columns.columns import column_of
from sfumato.statistics.unbounded.bounds import AutomaticBounds, bounds
from sfumato.testing import seeded

any_float = st.floats()
TERMS = [{}, {"delta": 1e-6}, {"relation": "replace-one"}]


@pytest.mark.parametrize("terms", TERMS, ids=str)
@given(values=st.lists(any_float, max_size=12), one=any_float, other=any_float)
@settings(max_examples=25, deadline=None)
def test_replayed_on_a_neighbor_only_the_noise_comes_out(neighbors, terms, values, one, other):
    replaced = [*values, other] if "relation" in terms else values
    neighbors.replay(AutomaticBounds(epsilon=0.5, **terms), column_of([*values, one]), column_of(replaced))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (20.0, 60.0, (16.0, 64.0)),
        (-60.0, -20.0, (-64.0, -16.0)),
        (-60.0, 20.0, (-64.0, 32.0)),
        (1e-9, 1e-8, (0.0, 2.0**-20)),
        (1e15, 2e15, (2.0**39, 2.0**40)),
        (0.3, 900.0, (0.25, 1024.0)),
    ],
)
def test_bounds_are_the_bins_that_hold_the_values(low, high, expected):
    values = np.geomspace(low, high, 2000) if low * high > 0 else np.linspace(low, high, 2000)
    assert bounds(values, epsilon=1.0, generator=seeded(0)).value == expected


def test_a_few_outliers_are_left_out():
    values = [30.0] * 1000 + [1e9, -1e9, math.inf]
    assert bounds(values, epsilon=1.0, generator=seeded(0)).value == (16.0, 32.0)


def test_bounds_can_be_used_as_bounds():
    found = bounds([5.0] * 200, epsilon=1.0).value
    assert found[0] < found[1]


@pytest.mark.parametrize("values", [[], [3.0], [math.nan] * 50], ids=len)
def test_too_few_rows_fail_privately(values):
    release = bounds(values, epsilon=0.5, generator=seeded(1))
    assert release.value is None
    assert "failed" in release.notes[0]


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_empty_bins_pass_as_rarely_as_stated(terms):
    question = AutomaticBounds(epsilon=0.5, false_alarm=0.2, **terms)
    generator, runs, data = FastGenerator(1), 1000, column_of([])
    alarms = sum(question.answer(data, generator=generator).value is not None for _ in range(runs))
    assert alarms / runs < 0.2 + 5 * math.sqrt(0.2 * 0.8 / runs)
    assert alarms / runs > 0.08  # the threshold is no higher than it must be


def test_the_edges_are_public_and_end_where_they_are_told_to():
    question = AutomaticBounds(epsilon=1.0, smallest=1.0, largest=1000.0, base=10.0)
    assert question.edges.tolist() == [-1000, -100, -10, -1, 0, 1, 10, 100, 1000]
    ragged = AutomaticBounds(epsilon=1.0, smallest=1.0, largest=5.0)
    assert ragged.edges.tolist() == [-5, -4, -2, -1, 0, 1, 2, 4, 5]


@pytest.mark.parametrize(
    "wrong",
    [
        {"base": 1.0},
        {"base": math.nan},
        {"base": 1.0001},
        {"smallest": 0.0},
        {"largest": math.inf},
        {"smallest": 10.0, "largest": 1.0},
        {"false_alarm": 0.0},
        {"false_alarm": 1.0},
        {"epsilon": 0.0},
    ],
    ids=str,
)
def test_parameters_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        bounds([1.0], **({"epsilon": 1.0} | wrong))


def test_a_failed_release_is_spent(account):
    bounds([], epsilon=0.5, account=account, generator=seeded(1))
    assert account.spent().epsilon == pytest.approx(0.5)
