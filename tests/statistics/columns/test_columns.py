# SPDX-License-Identifier: Apache-2.0
import datetime
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.categories import categories_of
from sfumato.statistics.columns.columns import (
    STEPS,
    ArrayColumn,
    column_of,
    in_steps,
    is_missing,
    objects_of,
    rows_of,
)

any_float = st.floats()  # includes 0, huge, inf and NaN
columns = st.lists(any_float, max_size=20)
bounds = st.tuples(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9)).map(lambda b: (b[0], b[0] + b[1]))
SECRET = "Ada Lovelace"


def difference(one: ArrayColumn, two: ArrayColumn, limits: tuple[float, float]) -> tuple[int, int, int]:
    a, b = one.moments(limits), two.moments(limits)
    return a.count - b.count, a.total - b.total, a.squares - b.squares


@given(columns, any_float, bounds)
def test_one_row_moves_each_sum_by_at_most_steps(values, one, limits):
    count, total, squares = difference(column_of([*values, one]), column_of(values), limits)
    assert count == (not math.isnan(one))
    assert abs(total) <= STEPS
    assert 0 <= squares <= STEPS


@given(columns, bounds, st.randoms(use_true_random=False))
def test_sums_do_not_depend_on_the_order_of_rows(values, limits, random):
    mixed = random.sample(values, len(values))
    assert column_of(values).moments(limits) == column_of(mixed).moments(limits)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), bounds)
def test_the_grid_moves_a_sum_by_at_most_half_a_step_for_each_row(values, limits):
    lower, upper = limits
    middle, half = lower / 2 + upper / 2, upper / 2 - lower / 2
    true = sum(Fraction(min(max(v, lower), upper)) - Fraction(middle) for v in values)
    step = Fraction(half) / STEPS
    off = abs(true - column_of(values).moments(limits).total * step)
    slack = Fraction(1e-15) * Fraction(max(abs(lower), abs(upper)))  # float64 around the middle
    assert off <= len(values) * (step * Fraction(0.5000001) + slack)


def test_sums_over_many_chunks_are_those_of_a_plain_loop():
    values = np.random.default_rng(0).normal(50, 30, 200_000)
    steps = in_steps(values, (0, 100))
    moments = column_of(values).moments((0, 100))
    assert moments.total == sum(int(s) for s in steps)
    assert moments.squares == sum(round(int(s) ** 2 / STEPS) for s in steps)
    assert column_of(values).moments((0, 100), squares=False).squares == 0


@pytest.mark.parametrize(
    "huge", [10**400, Fraction(10**400, 3), Decimal("1e400")], ids=["int", "fraction", "decimal"]
)
def test_numbers_beyond_float64_are_clipped_as_infinities_are(huge):
    for values in ([huge, -huge, 1], [huge, None, -huge, 1.0], [True, huge, -huge]):
        infinite = [{huge: math.inf, -huge: -math.inf}.get(value, value) for value in values]
        assert column_of(values).moments((0, 2)) == column_of(infinite).moments((0, 2))
    rows = next(rows_of([[1, huge], [-huge, 2.5]]).batches())
    assert rows.tolist() == [[1.0, math.inf], [-math.inf, 2.5]]


def test_infinities_are_clipped_and_nan_is_left_out():
    moments = column_of([math.inf, -math.inf, math.nan, 1.0]).moments((0, 2))
    assert (moments.count, moments.total, moments.squares) == (3, 0, 2 * STEPS)


@pytest.mark.parametrize(
    "edges",
    [
        [0.0, 1.0],
        [0.0, 1.0, 2.0],
        [0.0, 1.2, 1.9, 3.0],
        [0.1, 0.2, 0.3, 0.4],
        [-5.0, 0.0, 0.001, 7.0],
        [-1.7e308, 0.0, 1.7e308],
    ],
    ids=str,
)
@given(values=st.lists(any_float, max_size=30))
def test_a_histogram_counts_each_row_once_as_a_plain_loop_does(edges, values):
    values = [*values, *edges, *np.nextafter(edges, np.inf), *np.nextafter(edges, -np.inf)]
    counts = [0] * (len(edges) - 1)
    for value in values:
        if not math.isnan(value):
            counts[sum(value >= edge for edge in edges[1:-1])] += 1
    assert column_of(values).histogram(np.array(edges)).tolist() == counts


def test_ordered_values_are_clipped_and_rise():
    assert column_of([9.0, -math.inf, 1.0]).ordered((0.0, 2.0)).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    "values",
    [
        [1, None, 3],
        [1.0, math.nan, 3.0],
        np.array([1, np.nan, 3], dtype=np.float32),
        pd.Series([1, None, 3], dtype="Int64"),
        pd.Series([1.0, None, 3.0]),
        pl.Series([1, None, 3]),
        pa.array([1, None, 3]),
        [Fraction(1), None, Fraction(3)],
    ],
    ids=lambda v: type(v).__name__ + str(getattr(v, "dtype", "")),
)
def test_columns_of_many_kinds_are_read_and_their_nulls_left_out(values):
    assert column_of(values).ordered((0.0, 10.0)).tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    "values",
    [
        [SECRET],
        ["1", "2"],
        np.array(["1", 2.0], dtype=object),
        pd.Series(["1", "2"]),
        [1j],
        [[1.0, 2.0]],
        [{SECRET: 1}],
        3.0,
        None,
        [datetime.date(2020, 1, 1)],
    ],
    ids=repr,
)
def test_what_is_no_column_of_numbers_is_refused_unseen(values):
    with pytest.raises(InvalidParameterError) as refused:
        column_of(values)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None


def test_a_series_gives_its_name_and_a_name_that_is_given_wins():
    assert column_of(pd.Series([1.0], name="age")).name == "age"
    assert column_of(pl.Series("height", [1.0])).name == "height"
    assert column_of(pd.Series([1.0], name="age"), name="years").name == "years"
    assert column_of([1.0]).name == "values"


def test_at_most_the_bound_of_each_owner_is_kept():
    values, owners = [1.0, 2.0, 3.0, 4.0, 5.0], ["a", "b", "a", "a", "b"]
    kept = column_of(values, owners=owners, contribution_bound=2)
    found = kept.ordered((0.0, 9.0)).tolist()
    assert len(found) == 4 and {2.0, 5.0} < set(found) < set(values)
    assert (kept.contribution_bound, kept.privacy_unit) == (2, "owner")


owned = st.lists(st.tuples(st.integers(0, 4), st.one_of(any_float, st.none())), max_size=25)


@given(owned, st.integers(1, 3), st.integers(0, 4), bounds)
def test_one_owner_moves_sums_by_at_most_its_rows(rows, bound, gone, limits):
    def column(kept):
        return column_of(
            np.array([np.nan if v is None else v for _, v in kept], dtype=float),
            owners=[o for o, _ in kept],
            contribution_bound=bound,
        )

    count, total, squares = difference(column(rows), column([r for r in rows if r[0] != gone]), limits)
    assert 0 <= count <= bound
    assert abs(total) <= bound * STEPS
    assert 0 <= squares <= bound * STEPS


def test_a_missing_value_does_not_use_up_its_owners_rows():
    kept = column_of([math.nan, 2.0], owners=["a", "a"], contribution_bound=1)
    assert kept.ordered((0.0, 9.0)).tolist() == [2.0]


@pytest.mark.parametrize(
    "owners",
    [
        [1.0, math.nan],
        ["a", None],
        [None, None],
        pd.Series([1, None], dtype="Int64"),
        np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
    ],
    ids=repr,
)
def test_rows_of_no_owner_are_left_out(owners):
    alone = column_of([1.0, 2.0], owners=owners).moments((0.0, 4.0)).count
    assert alone == sum(not is_missing(owner) for owner in objects_of(owners, what="owners"))


@pytest.mark.parametrize("owners", [["a"], [["a", "b"], ["c", "d"]], [[SECRET], [SECRET, 1]]], ids=repr)
def test_owners_that_do_not_fit_the_rows_are_refused(owners):
    with pytest.raises(InvalidParameterError) as refused:
        column_of([1.0, 2.0], owners=owners)
    assert SECRET not in str(refused.value)


def test_owners_of_different_kinds_are_told_apart():
    kept = column_of([1.0, 2.0, 3.0], owners=["a", 1, "a"], contribution_bound=1)
    assert kept.ordered((0.0, 9.0)).tolist() in ([1.0, 2.0], [2.0, 3.0])


def test_a_contribution_bound_needs_owners():
    with pytest.raises(InvalidParameterError, match="owners"):
        column_of([1.0], contribution_bound=2)


def test_a_column_passes_as_it_is():
    column = column_of([1.0])
    assert column_of(column) is column


def test_rows_with_a_missing_value_are_left_out_and_columns_are_named():
    rows = rows_of(pd.DataFrame({"a": [1.0, None], "b": [2.0, 3.0]}))
    assert next(rows.batches()).tolist() == [[1.0, 2.0]]
    assert rows_of([[1.0, 2.0]], names=("x", "y")).names == ("x", "y")
    assert rows_of([[1.0, 2.0]]).names == ("column 0", "column 1")


@pytest.mark.parametrize("wrong", [[1.0], [[]], [[[1.0]]], [["a"]]], ids=repr)
def test_rows_must_be_a_matrix_of_numbers(wrong):
    with pytest.raises(InvalidParameterError):
        rows_of(wrong)


def test_rows_need_a_name_for_each_column():
    with pytest.raises(InvalidParameterError, match="names"):
        rows_of([[1.0, 2.0]], names=("x",))


@pytest.mark.parametrize("nobody", [Decimal("NaN"), np.datetime64("NaT"), float("nan"), None, pd.NA])
def test_owners_that_do_not_equal_themselves_are_nobody(nobody):
    column = column_of([1.0] * 6, owners=[nobody] * 5 + ["somebody"])
    assert column.moments((0.0, 4.0)).count == 1


# --- one row does not decide how others are read ----------------------------------------------------------


def whole_numbers():
    return {
        "polars": lambda values: pl.Series(values, dtype=pl.Int64),
        "pyarrow": lambda values: pa.array(values, type=pa.int64()),
        "chunks of pyarrow": lambda values: pa.chunked_array([pa.array(values, type=pa.int64())]),
        "pandas": lambda values: pd.Series(values, dtype="Int64"),
        "pandas of pyarrow": lambda values: pd.Series(values, dtype="int64[pyarrow]"),
    }


@pytest.mark.parametrize("kind", ["polars", "pyarrow", "chunks of pyarrow", "pandas", "pandas of pyarrow"])
def test_a_null_changes_neither_the_owners_nor_the_categories_of_others(kind):
    make = whole_numbers()[kind]
    large = [2**53 + i for i in range(5)]
    for extra in ([], [None]):
        rows = [1.0] * (5 + len(extra))
        assert column_of(rows, owners=make(large + extra)).moments((0, 1)).count == 5
        found = categories_of(make(large + extra)).tallies()
        assert {(category, type(category)) for category in found} == {(value, int) for value in large}


class Loud:
    def __ne__(self, other: object) -> bool:
        raise ValueError("SECRET")

    def __eq__(self, other: object) -> bool:
        raise ValueError("SECRET")

    __hash__ = object.__hash__


def test_a_value_that_fails_to_compare_is_not_missing_and_says_nothing():
    assert not is_missing(Loud())
    assert is_missing(Decimal("sNaN")) and is_missing(Decimal("nan"))
    assert column_of([1.0, Decimal("sNaN")]).moments((0, 1)).count == 1
    with pytest.raises(InvalidParameterError) as failure:
        column_of([1.0, Loud()])
    assert "SECRET" not in str(failure.value) and failure.value.__context__ is None
