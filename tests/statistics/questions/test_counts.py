# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from dp_accounting import dp_event as dp
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import FastGenerator
from sfumato.statistics.columns.columns import column_of
from sfumato.statistics.query import cost
from sfumato.statistics.questions.counts import Count, Sum, count, sum
from sfumato.statistics.release import Covers
from sfumato.testing import seeded

any_float = st.floats()
columns = st.lists(any_float, max_size=15)
bounds = st.tuples(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9)).map(lambda b: (b[0], b[0] + b[1]))
RELATIONS = ["add-remove", "replace-one"]
SURE = 1e6  # an epsilon that leaves next to no noise


def neighbor(values, one, other, relation):
    return [*values, one], ([*values, other] if relation == "replace-one" else values)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("relation", RELATIONS)
@given(values=columns, one=any_float, other=any_float)
@settings(max_examples=25, deadline=None)
def test_replayed_on_a_neighbor_a_count_lets_out_its_noise_alone(
    neighbors, delta, relation, values, one, other
):
    pair = (column_of(v) for v in neighbor(values, one, other, relation))
    neighbors.replay(Count(epsilon=0.5, delta=delta, relation=relation), *pair)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("relation", RELATIONS)
@given(values=columns, one=any_float, other=any_float, limits=bounds)
@settings(max_examples=50, deadline=None)
def test_replayed_on_a_neighbor_a_sum_lets_out_its_noise_alone(
    neighbors, delta, relation, values, one, other, limits
):
    pair = (column_of(v) for v in neighbor(values, one, other, relation))
    neighbors.replay(Sum(bounds=limits, epsilon=0.5, delta=delta, relation=relation), *pair)


@given(st.lists(st.tuples(st.integers(0, 3), any_float), max_size=15), st.integers(1, 3), bounds)
@settings(max_examples=50, deadline=None)
def test_replayed_without_an_owner_its_rows_are_hidden_together(neighbors, rows, bound, limits):
    def column(kept):
        values = np.array([v for _, v in kept], dtype=float)
        return column_of(values, owners=[o for o, _ in kept], contribution_bound=bound)

    pair = column(rows), column([row for row in rows if row[0] != 0])
    neighbors.replay(Count(epsilon=0.5, contribution_bound=bound), *pair)
    neighbors.replay(Sum(bounds=limits, epsilon=0.5, contribution_bound=bound), *pair)


@pytest.mark.parametrize(
    ("limits", "relation", "moved"),
    [
        ((18, 100), "add-remove", 100),
        ((18, 100), "replace-one", 100),  # from no row at all to a row of 100
        ((-1, 1), "add-remove", 1),
        ((-1, 1), "replace-one", 2),
        ((-50, -10), "add-remove", 50),
        ((1e6, 1e6 + 1), "add-remove", 1e6 + 1),
    ],
)
def test_the_noise_of_a_sum_is_sized_for_what_one_row_can_move(limits, relation, moved):
    question = Sum(bounds=limits, epsilon=0.5, relation=relation)
    assert question._noise().law.scale * question.step == pytest.approx(moved / 0.5, rel=1e-5)
    assert question._noise().law.scale * question.step >= moved / 0.5 * (1 - 1e-12)


@pytest.mark.parametrize("limits", [(0, 100), (18, 100), (-3, 0.1), (1e6, 1e6 + 1), (-1e-9, 1e-9)], ids=str)
def test_a_sum_without_noise_is_the_sum_of_clipped_values(limits):
    values = np.random.default_rng(0).normal(30, 40, 500)
    true = np.clip(values, *limits).sum()
    released = Sum(bounds=limits, epsilon=SURE).answer(column_of(values), generator=seeded(0)).value
    assert released == pytest.approx(true, abs=500 * (limits[1] - limits[0]) * 1e-6 + abs(max(limits)) * 1e-3)


def test_counts_and_sums_leave_out_what_is_missing():
    values = [1.0, None, math.nan, 3.0]
    assert count(values, epsilon=100.0, generator=seeded(0)).value == 2
    assert sum(values, bounds=(0, 10), epsilon=1e4, generator=seeded(0)).value == pytest.approx(4.0, abs=0.1)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_a_count_is_covered_as_often_as_it_says(check_coverage, delta):
    question, data, generator = Count(epsilon=0.3, delta=delta), column_of(np.zeros(500)), FastGenerator(1)
    check_coverage(lambda _: 500 in question.answer(data, generator=generator).interval)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_a_sum_is_covered_as_often_as_it_says(check_coverage, delta):
    values = np.random.default_rng(1).normal(40, 30, 500)
    true = np.clip(values, 18, 100).sum()
    question, data = Sum(bounds=(18, 100), epsilon=0.3, delta=delta), column_of(values)
    generator = FastGenerator(2)
    check_coverage(lambda _: true in question.answer(data, generator=generator).interval)


def test_intervals_cover_the_noise_and_say_so():
    found = [sum([1.0, 2.0], bounds=(0, 1), epsilon=1.0, generator=seeded(n)) for n in range(40)]
    for release in found:
        assert release.interval.covers == (Covers.NOISE,)
        # Of numbers that are not negative, unless noise made their sum negative: the interval contains it.
        assert release.interval.lower >= min(0, release.value)
    assert any(release.value < 0 for release in found) and any(
        release.interval.lower == 0 for release in found
    )


def test_the_interval_widens_with_its_level():
    def width(level):
        interval = count(np.zeros(10_000), epsilon=0.1, level=level, generator=seeded(1)).interval
        return interval.upper - interval.lower

    assert width(0.5) < width(0.9) < width(0.99)


@pytest.mark.parametrize("values", [[], [7.0], [7.0] * 100], ids=len)
def test_no_rows_one_row_and_equal_rows_are_released_like_any_other(values):
    assert isinstance(count(values, epsilon=1.0).value, int)
    assert math.isfinite(sum(values, bounds=(0, 10), epsilon=1.0).value)


def test_a_count_is_discrete_laplace_or_discrete_gaussian():
    assert Count(epsilon=0.5).event() == dp.DiscreteLaplaceDpEvent(0.5, 1)
    assert type(Count(epsilon=0.5, delta=1e-6).event()).__name__ == "DiscreteGaussianDpEvent"
    assert cost(Count(epsilon=0.5, contribution_bound=3)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "wrong", [(1, 1), (2, 1), (0, math.inf), (math.nan, 1), None, (1,), (0, "1")], ids=repr
)
def test_bounds_that_make_no_sense_are_refused_before_anything_is_read(wrong):
    with pytest.raises(InvalidParameterError, match="bounds"):
        sum([1.0], bounds=wrong, epsilon=1.0)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("epsilon", w) for w in (0.0, -1.0, math.nan, math.inf, "1")]
    + [("delta", w) for w in (-1e-9, 1.0, math.nan)]
    + [("level", w) for w in (0.0, 1.0, 95)]
    + [("relation", "sideways")],
    ids=repr,
)
def test_terms_that_make_no_sense_are_refused(field, wrong):
    with pytest.raises(InvalidParameterError, match=field):
        count([1.0], **({"epsilon": 1.0} | {field: wrong}))


def test_a_refused_sum_spends_nothing(account):
    with pytest.raises(InvalidParameterError):
        sum(["a"], bounds=(0, 1), epsilon=0.1, account=account)
    with pytest.raises(InvalidParameterError):
        sum([1.0], bounds=(1, 0), epsilon=0.1, account=account)
    assert account.releases() == []
