# SPDX-License-Identifier: Apache-2.0
"""Every value of a frame of Arrow can be read: what DuckDB would fail on is missing."""

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sfumato.statistics.sources.arrow_frames import readable
from sfumato.statistics.sources.tables import private_table

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")

FIRST, LAST = -(2**63) + 1, 2**63 - 1
COARSE = [pa.timestamp("s", "UTC"), pa.timestamp("ms", "Europe/Rome"), pa.duration("s"), pa.duration("ms")]


def frame(kind: pa.DataType, *values: int) -> pa.Table:
    return pa.table({"v": pa.array([1, *values], type=pa.int64()).view(kind), "x": [1.0] * (1 + len(values))})


def asked(source) -> float:
    """Ask how many rows there are, for which DuckDB may read any column."""
    return private_table(source).count(epsilon=1e3).release().value


@pytest.mark.parametrize("kind", COARSE, ids=str)
def test_a_time_that_does_not_fit_microseconds_is_missing_and_stops_nothing(kind):
    table = frame(kind, FIRST, LAST, 2)
    assert asked(table) == 4
    assert readable(table)["v"].null_count == 2
    assert private_table(table).schema == private_table(frame(kind)).schema
    held = pd.DataFrame({"v": pd.Series(pd.array(table["v"], dtype=pd.ArrowDtype(kind))), "x": 1.0})
    assert asked(held) == 4


def test_a_time_of_polars_that_does_not_fit_microseconds_is_missing():
    table = pl.DataFrame({"v": [1, LAST], "x": [1.0, 2.0]}).with_columns(
        pl.col("v").cast(pl.Datetime("ms")).dt.replace_time_zone("UTC")
    )
    assert asked(table) == 2
    assert private_table(table)["x"].ordered((0, 9)).tolist() == [1.0, 2.0]


def test_columns_that_can_be_read_are_not_touched():
    table = frame(pa.timestamp("us", "UTC"), LAST)
    assert readable(table) is table
    assert readable(pl_frame := pl.DataFrame({"x": [1.0]})) is pl_frame
    assert readable("a path") == "a path"


@pytest.mark.parametrize("dictionary", [False, True])
def test_a_text_that_is_not_utf_8_is_missing_and_stops_nothing(dictionary):
    texts = pa.array([b"ann", b"\xff\xfe", b"ann", None, b"\xed\xa0\x80"]).view(pa.string())
    if dictionary:
        texts = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3, 4]), texts)
    table = private_table(pa.table({"v": texts}))
    assert dict(table.categories("v").tallies()) == {"ann": 2}
    assert table.count(epsilon=1e3).release().value == 5


BAD = pa.array([b"ann", b"\xff\xfe", b"ann", None, b"\xed\xa0\x80"]).view(pa.string())
FRAMES = {
    "pandas": lambda: pa.table({"v": BAD}).to_pandas(),
    "pandas, pyarrow": lambda: pa.table({"v": BAD}).to_pandas(types_mapper=pd.ArrowDtype),
    "polars": lambda: pl.from_arrow(pa.table({"v": BAD})),
    "polars, categories": lambda: pl.from_arrow(pa.table({"v": BAD})).cast(pl.Categorical),
    "polars, lazy": lambda: pl.from_arrow(pa.table({"v": BAD})).lazy(),
}


@pytest.mark.filterwarnings("ignore:Determining the column names of a LazyFrame")
@pytest.mark.parametrize("terms", [{}, {"types": {"v": "text"}}, {"privacy_unit": "v"}], ids=str)
@pytest.mark.parametrize("library", FRAMES)
def test_a_text_that_is_not_utf_8_stops_no_other_library(library, terms):
    """Such a row made pandas frames fail with its own bytes in the message, and queries of polars fail."""
    made = FRAMES[library]()
    table = private_table(made, **terms)
    known = private_table(made[:1], **terms)
    assert table.schema == known.schema
    if "privacy_unit" in terms:
        assert table.count(epsilon=1e3).release().value == 1  # a row without a unit is left out
    else:
        assert dict(table.categories("v").tallies()) == {"ann": 2}
        assert table.count(epsilon=1e3).release().value == 5
