# SPDX-License-Identifier: Apache-2.0
"""A column in an engine gives what the same column in memory gives: number for number."""

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.statistics.columns import table_columns
from sfumato.statistics.columns.columns import STEPS, Moments, column_of
from sfumato.statistics.sources.tables import private_table

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")

FLOATS = st.lists(
    st.one_of(
        st.floats(width=64),  # NaN, infinities and subnormal numbers too
        st.sampled_from([0.3, 0.1 + 0.2, 0.7, -0.0, 0.0, 1.0, math.nextafter(1.0, 2), 1e308, -1e308]),
        st.integers(-20, 20).map(lambda i: i / 10),
    ),
    max_size=40,
)
BOUNDS = st.sampled_from(
    [(0.0, 1.0), (-3.0, 7.5), (0.1, 0.3), (1e16, 1e16 + 2), (-1e-300, 1e-300), (-1e308, 1e308)]
)
EDGES = st.sampled_from(
    [
        np.linspace(0.0, 1.0, 11),
        np.linspace(-2.0, 2.0, 41),
        np.linspace(-0.7, 0.9, 8),
        np.linspace(1e16, 1e16 + 8, 5),
        np.array([-1e308, -5e307, 0.0, 5e307, 1e308]),
        np.array([-1.0, 0.0, 0.1, 5.0]),
        np.array([0.0, 1.0]),
    ]
)


def column(values: list[float]):
    # Not pandas, whose NaN becomes null on the way into the engine.
    return private_table(pa.table({"x": pa.array(values, type=pa.float64())}))["x"]


@settings(max_examples=40, deadline=None)
@given(values=FLOATS, bounds=BOUNDS)
def test_moments_are_those_of_memory(values, bounds):
    expected = column_of(values).moments(bounds)
    assert column(values).moments(bounds) == expected
    without = column(values).moments(bounds, squares=False)
    assert (without.count, without.total, without.squares) == (expected.count, expected.total, 0)


@pytest.mark.parametrize("bounds", [(1e16, 1e16 + 2), (2.0**53 + 2, 2.0**53 + 4)], ids=["above", "below"])
def test_one_row_moves_a_sum_by_at_most_the_steps_though_the_middle_of_the_bounds_was_rounded(bounds):
    for value in bounds:
        assert abs(column([value]).moments(bounds).total) <= STEPS


@settings(max_examples=60, deadline=None)
@given(values=FLOATS, edges=EDGES)
def test_a_histogram_is_that_of_memory(values, edges):
    assert column(values).histogram(edges).tolist() == column_of(values).histogram(edges).tolist()


@settings(max_examples=20, deadline=None)
@given(bins=st.integers(1, 300), lower=st.floats(-1e6, 1e6), width=st.floats(1e-3, 1e6))
def test_values_at_and_beside_each_edge_fall_into_the_right_bin(bins, lower, width):
    edges = np.linspace(lower, lower + width, bins + 1)
    values = np.concatenate([edges, np.nextafter(edges, np.inf), np.nextafter(edges, -np.inf)]).tolist()
    assert column(values).histogram(edges).tolist() == column_of(values).histogram(edges).tolist()


def test_evenly_spaced_edges_are_counted_in_the_engine(monkeypatch):
    monkeypatch.setattr(table_columns.TableColumn, "_looked_up", None)
    assert column([0.05, 0.95, 2.0]).histogram(np.linspace(0, 1, 65537)).sum() == 3


@settings(max_examples=15, deadline=None)
@given(values=FLOATS, bounds=BOUNDS)
def test_ordered_values_are_those_of_memory(values, bounds):
    assert column(values).ordered(bounds).tolist() == column_of(values).ordered(bounds).tolist()


def test_of_more_rows_than_float64_has_room_for_integers_are_added_up(monkeypatch):
    # Sums of float64 would be rounded beyond 2^53: with more than 2^33 rows.
    asked = column([1.0, 2.0, 2.5])
    kinds, compute = [], asked._moments

    def noted(bounds, *, squares, kind):
        kinds.append(kind)
        schema = compute(bounds, squares=squares, kind=kind).schema()
        assert str(schema["total"]) == str(schema["squares"]) == kind
        return compute(bounds, squares=squares, kind=kind)

    monkeypatch.setattr(type(asked), "_moments", lambda self, bounds, **terms: noted(bounds, **terms))
    few = asked.moments((0.0, 3.0))
    monkeypatch.setattr(table_columns, "MOST_ROWS", 2)
    assert asked.moments((0.0, 3.0)) == few and kinds == ["float64", "float64", "int64"]


def test_groups_add_up_integers():
    query = private_table(pd.DataFrame({"g": ["a"], "x": [1.0]})).group_by("g", keys=["a"])
    for question in (query.sum("x", bounds=(0, 1), epsilon=1.0), query.mean("x", bounds=(0, 1), epsilon=1.0)):
        totals = question.data.totals("x", question.question._steps)
        assert str(totals.schema()["total"]) == "int64"


def test_an_empty_column_has_empty_answers():
    empty = column([])
    assert empty.moments((0, 1)) == Moments(count=0, total=0, squares=0)
    assert empty.histogram(np.linspace(0, 1, 4)).tolist() == [0, 0, 0]
    assert empty.ordered((0, 1)).size == 0


def test_more_values_than_memory_should_hold_are_an_error_that_does_not_say_how_many(monkeypatch):
    monkeypatch.setattr(table_columns, "MOST_ORDERED", 3)
    with pytest.raises(QueryFailedError, match="more than 3") as failure:
        column([1.0] * 17).ordered((0, 1))
    assert "17" not in str(failure.value)


@pytest.mark.parametrize("kind", ["int8", "int64", "uint16", "float32", "bool", "Int64"])
def test_every_type_of_number_is_read(kind):
    frame = pd.DataFrame({"x": pd.array([1, 0, 1], dtype=kind)})
    assert private_table(frame)["x"].moments((0, 2)).count == 3


def test_text_and_dates_are_refused_by_their_type_before_any_row_is_read():
    frame = pd.DataFrame({"x": ["1", "2"], "when": pd.to_datetime(["2024-01-01", "2024-01-02"])})
    for name in frame:
        with pytest.raises(InvalidParameterError, match="not a number") as refusal:
            private_table(frame)[name]
        assert "2024-01" not in str(refusal.value)


def test_an_unknown_column_is_named_beside_those_there_are():
    with pytest.raises(InvalidParameterError, match=r"no column 'z'\. The table has: x"):
        private_table(pd.DataFrame({"x": [1.0]}))["z"]


def test_rows_come_without_those_that_miss_a_value():
    frame = pd.DataFrame({"a": [1.0, 2.0, None, 4.0], "b": [5, 6, 7, 8], "c": [1.0, np.nan, 1.0, 1.0]})
    rows = private_table(frame).rows("b", "a", "c")
    assert np.concatenate(list(rows.batches())).tolist() == [[5, 1, 1], [8, 4, 1]]
    assert rows.names == ("b", "a", "c") and rows.privacy_unit == "row"


def test_rows_of_a_unit_are_bounded():
    frame = pd.DataFrame({"u": ["a"] * 9 + ["b"], "x": np.arange(10.0)})
    rows = private_table(frame, privacy_unit="u", contribution_bound=4).rows("x")
    assert sum(len(batch) for batch in rows.batches()) == 5
