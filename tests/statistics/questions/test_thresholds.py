# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.accounting.events import SparseVectorDpEvent
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import FastGenerator
from sfumato.statistics.columns.columns import column_of
from sfumato.statistics.query import cost
from sfumato.statistics.questions.thresholds import FirstAbove, Found, first_above
from sfumato.testing import seeded

any_float = st.floats()
RANGES = ((0.0, 1.0), (1.0, 2.0), (0.5, 3.0), (-1e9, 1e9))


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@given(values=st.lists(any_float, max_size=12), one=any_float, other=any_float)
@settings(max_examples=30, deadline=None)
def test_replayed_on_a_neighbor_only_the_run_comes_out(neighbors, counted, relation, values, one, other):
    question = FirstAbove(
        ranges=RANGES, threshold=3.0, epsilon=1.0, max_answers=2, counted=counted, relation=relation
    )
    replaced = [*values, other] if relation == "replace-one" else values
    neighbors.replay(question, column_of([*values, one]), column_of(replaced))


@given(st.lists(any_float, max_size=30))
def test_each_range_counts_what_lies_in_it(values):
    rows = FirstAbove(ranges=RANGES, threshold=1.0, epsilon=1.0)._rows(column_of(values))
    assert rows == [sum(lower <= v < upper for v in values) for lower, upper in RANGES]


def test_the_first_ranges_above_are_found_and_then_it_stops():
    values = [0.5] * 10 + [1.5] * 300 + [2.5] * 900
    asked = [(0, 1), (1, 2), (2, 3), (0, 3)]
    one = first_above(values, ranges=asked, threshold=100, epsilon=2.0, generator=seeded(0))
    assert one.value == (Found(lower=1.0, upper=2.0),)
    assert one.interval is None
    two = first_above(values, ranges=asked, threshold=100, epsilon=4.0, max_answers=2, generator=seeded(0))
    assert [f.lower for f in two.value] == [1.0, 2.0]


def test_a_run_that_finds_nothing_says_so_and_is_paid_for(account):
    release = first_above([], ranges=[(0, 1)], threshold=1000, epsilon=0.5, account=account)
    assert release.value == ()
    assert account.spent().epsilon == pytest.approx(0.5)


def test_a_whole_run_is_one_charge_however_many_ranges_it_asks_about():
    def event(ranges):
        return FirstAbove(ranges=ranges, threshold=5.0, epsilon=0.9).event()

    assert event(RANGES[:1]) == event(RANGES * 50)
    assert isinstance(event(RANGES), SparseVectorDpEvent)
    counted = FirstAbove(ranges=RANGES, threshold=5.0, epsilon=0.9, counted=True, max_answers=3)
    assert cost(counted) == pytest.approx(0.9)
    assert counted.event().answer_epsilon == pytest.approx(0.3)


def test_the_split_gives_the_least_variance_of_the_comparison():
    for relation, c in (("add-remove", 4), ("replace-one", 4)):
        question = FirstAbove(ranges=RANGES, threshold=5.0, epsilon=1.0, max_answers=c, relation=relation)
        multiple = c if relation == "add-remove" else 2 * c
        found = question.event().threshold_epsilon
        shares = np.linspace(0.001, 0.999, 9999)
        best = shares[np.argmin(1 / shares**2 + (multiple / (1 - shares)) ** 2)]
        assert found == pytest.approx(best, abs=1e-3)


def test_counts_are_covered_as_often_as_they_say(check_coverage):
    question = FirstAbove(ranges=((0, 1),), threshold=10.0, epsilon=1.0, counted=True)
    data, generator = column_of([0.5] * 500), FastGenerator(1)
    check_coverage(lambda _: 500 in question.answer(data, generator=generator).interval[0])


@pytest.mark.parametrize(
    "wrong",
    [
        {"ranges": []},
        {"ranges": [(1, 0)]},
        {"ranges": [(0, math.inf)]},
        {"threshold": math.nan},
        {"max_answers": 0},
        {"epsilon": -1.0},
    ],
    ids=str,
)
def test_parameters_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        first_above([1.0], **({"ranges": [(0, 1)], "threshold": 1.0, "epsilon": 1.0} | wrong))


def test_a_delta_has_no_use_here():
    with pytest.raises(InvalidParameterError, match="remove delta"):
        FirstAbove(ranges=RANGES, threshold=1.0, epsilon=1.0, delta=1e-6)
