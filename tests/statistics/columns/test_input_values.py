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

from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.categories import categories_of
from sfumato.statistics.columns.columns import column_of, rows_of
from sfumato.statistics.columns.input_values import is_missing

SECRET = "Ada Lovelace"


@pytest.mark.parametrize(
    "huge", [10**400, Fraction(10**400, 3), Decimal("1e400")], ids=["int", "fraction", "decimal"]
)
def test_numbers_beyond_float64_are_clipped_as_infinities_are(huge):
    for values in ([huge, -huge, 1], [huge, None, -huge, 1.0], [True, huge, -huge]):
        infinite = [{huge: math.inf, -huge: -math.inf}.get(value, value) for value in values]
        assert column_of(values).moments((0, 2)) == column_of(infinite).moments((0, 2))
    rows = next(rows_of([[1, huge], [-huge, 2.5]]).batches())
    assert rows.tolist() == [[1.0, math.inf], [-math.inf, 2.5]]


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
