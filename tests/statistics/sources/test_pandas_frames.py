# SPDX-License-Identifier: Apache-2.0
"""pandas frames: nothing that is printed tells whether a value is missing or out of range."""

import io
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.statistics import mean
from sfumato.statistics.sources.pandas_frames import read_alike
from sfumato.statistics.sources.tables import private_table

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")

BASE = {
    "who": [1, 2, 3, 4],
    "age": [20, 30, 40, 50],
    "ill": [True, False, True, True],
    "city": ["a", "b", "a", "b"],
    "height": [1.5, 1.6, 1.7, 1.8],
}


def printed(frame: pd.DataFrame, unit: str | None) -> list[str]:
    """Everything that a table says of itself without a release."""
    table = private_table(frame, privacy_unit=unit)
    wider = table.filter(lambda row: row.age > 20).mutate(twice=lambda row: row.age * 2)
    return [
        repr(table),
        repr(wider),
        table.count(epsilon=1.0).plan(),
        table.keys("age", "ill", "city", epsilon=1.0, delta=1e-3).plan(),
        table.group_by("age", keys=[20, 30]).mean("height", bounds=(0, 5), epsilon=1.0).plan(),
        table.group_by("ill", keys=[True]).sum("age", bounds=(0, 5), epsilon=1.0).plan(),
        wider["twice"].plan(),
        table["ill"].plan(),
        table.categories("age").plan(),
        table.categories("ill").plan(),
        table.rows("age", "ill", "height").plan(),
    ]


@pytest.mark.parametrize("unit", [None, "who"])
@pytest.mark.parametrize("column", list(BASE))
def test_what_is_printed_does_not_tell_that_a_value_is_missing(column, unit):
    with_missing = pd.DataFrame(BASE | {column: [*BASE[column][:3], None]})
    assert printed(with_missing, unit) == printed(pd.DataFrame(BASE), unit)


@pytest.mark.parametrize("huge", [10**400, -(10**400), 2**63, 2**64])
def test_a_number_out_of_range_is_infinite_and_changes_nothing_else(huge):
    frame = pd.DataFrame({"n": [0, 1, huge, None][: 4 if huge < 2**63 else 3]})
    table = private_table(frame)
    assert table.schema == {"n": "float64"}
    values = table["n"].ordered((-5.0, 5.0)).tolist()
    assert values == sorted([0.0, 1.0, 5.0 if huge > 0 else -5.0])


def test_whole_numbers_are_keys_and_categories_with_and_without_missing_values():
    for last in ([], [None], [1.5], [float("inf")]):
        table = private_table(pd.DataFrame({"year": [2020] * 60 + last}))
        (found,) = table.keys("year", epsilon=5.0, delta=1e-3).release().value
        assert (found, type(found)) == (2020, int)
        assert table.group_by("year", keys=[2020]).count(epsilon=50.0).release().value == {2020: 60}
        assert dict(table.categories("year").tallies())[2020] == 60
        assert "2020.0" not in repr(table.categories("year").tallies())


OF_CSV = {  # pandas chooses types by the values in each of these
    "default": lambda cells: _read(cells),
    "nullable": lambda cells: _read(cells, dtype_backend="numpy_nullable"),
    "converted": lambda cells: _read(cells).convert_dtypes(),
    "converted to Arrow": lambda cells: _read(cells).convert_dtypes(dtype_backend="pyarrow"),
}


def _read(cells, **options):
    return pd.read_csv(io.StringIO("a,b\n" + "".join(f"{cell},1\n" for cell in cells)), **options)


@pytest.mark.parametrize("reader", OF_CSV)
@pytest.mark.parametrize("more", ["", "3", "0.5", "inf", "-1e300", str(2**63)])
@pytest.mark.parametrize("cells", [["1", "2"], ["1.5", "2"], [str(2**40)] * 2])
def test_one_number_does_not_decide_the_type_of_a_column_in_any_type_of_pandas(cells, more, reader):
    """Int64 becomes Float64 for one fraction, and UInt64 for one large number."""
    tables = [private_table(OF_CSV[reader](rows)) for rows in (cells, [*cells, more])]
    assert tables[0].schema == tables[1].schema == {"a": "float64", "b": "float64"}
    for table in tables:
        assert table.categories("a").tally([float(cells[0])]).tolist() == [cells.count(cells[0])]


@pytest.mark.parametrize("kind", ["Int64", "Int8", "UInt16", "Float64", "Float32", "boolean"])
@pytest.mark.parametrize("rows", [[1, 0, 1], [1, None, 0], [None] * 3, []])
def test_the_type_of_a_nullable_column_does_not_tell_whether_a_value_is_missing(kind, rows):
    table = private_table(pd.DataFrame({"a": pd.array(rows, dtype=kind)}))
    assert table.schema == {"a": "boolean" if kind == "boolean" else "float64"}
    assert table["a"].moments((0, 2)).count == sum(row is not None for row in rows)


@pytest.mark.parametrize("reader", OF_CSV)
@pytest.mark.parametrize("types", [None, {"a": "integer"}, {"a": "number"}, {"a": "text"}])
@pytest.mark.parametrize("more", ["", "0.5", str(2**63), "1e30"])
def test_one_number_does_not_decide_which_units_of_a_file_count(more, types, reader):
    ids = [str(2**53 + i) for i in range(100)] + ["7"]
    counts = [
        private_table(OF_CSV[reader](rows), privacy_unit="a", types=types)["b"].moments((0, 9)).count
        for rows in (ids, [*ids, more])
    ]
    assert counts[0] == 1 and counts[1] in (1, 2)  # "7", and perhaps the row that differs


@pytest.mark.parametrize("reader", OF_CSV)
@pytest.mark.parametrize("declared", ["integer", "number", "text"])
@pytest.mark.parametrize("more", ["x", "1" + "0" * 30])
def test_one_word_does_not_decide_which_units_count_if_their_type_is_declared(more, declared, reader):
    ids = [str(2**53 + i) for i in range(100)] + ["7"]
    counts = [
        private_table(OF_CSV[reader](rows), privacy_unit="a", types={"a": declared})["b"]
        .moments((0, 9))
        .count
        for rows in (ids, [*ids, more])
    ]
    assert counts[0] == 1 and counts[1] in (1, 2)


@pytest.mark.parametrize("kind", ["str", "string", "object"])
def test_units_are_told_apart_beyond_what_float64_can_in_columns_of_text(kind):
    frame = pd.DataFrame({"who": pd.Series([str(2**60), str(2**60 + 1)]).astype(kind), "age": [1.0, 2.0]})
    assert private_table(frame, privacy_unit="who")["age"].ordered((0, 9)).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("types", [None, {"who": "integer"}, {"who": "text"}])
@pytest.mark.parametrize("other", [None, "x", 7.5])
def test_one_row_does_not_change_which_whole_numbers_are_one_unit(other, types):
    who = [2**53 + i for i in range(100)]
    extra = {"who": [*who, other], "x": [1.0] * 100 + [math.nan]}
    frames = [
        pd.DataFrame({"who": who, "x": 1.0}),
        pd.DataFrame(extra),
        pd.DataFrame(extra).astype({"who": object}),
    ]
    found = [
        private_table(frame, privacy_unit="who", types=types)["x"].moments((0, 9)).count for frame in frames
    ]
    assert set(found) == {0}  # a number that may stand for two people is nobody


@pytest.mark.parametrize("types", [None, {"who": "integer"}, {"who": "number"}, {"who": "text"}])
@pytest.mark.parametrize(
    "kind",
    ["int64", "uint64", "float64", "object", "Int64", "Float64", "float32", "Float32", "int64[pyarrow]"],
)
def test_two_people_are_never_one_unit_and_others_count(kind, types):
    """The row of one would decide whether that of the other counts: a sum moves by twice its bound."""
    first = 2**24 if kind.lower() == "float32" else 2**53
    who = pd.Series([first, first + 1, 7, 8, first - 1]).astype(kind)
    values = [1.0, -1.0, 2.0, 3.0, 4.0]
    frame = pd.DataFrame({"who": who, "x": values})
    for rows in (frame, frame.drop(index=[0]), frame.drop(index=[1])):
        table = private_table(rows, privacy_unit="who", types=types)
        assert sorted(table["x"].ordered((-9, 9)).tolist()) == [2.0, 3.0, 4.0]


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_units_that_are_floats_in_other_frames_are_told_apart_as_well(library):
    frame = {"who": [float(2**53), 2.0**53 + 2, 7.0, math.inf, None], "x": [1.0, 2.0, 3.0, 4.0, 5.0]}
    opened = pl.DataFrame(frame) if library == "polars" else pa.table(frame)
    assert private_table(opened, privacy_unit="who")["x"].ordered((0, 9)).tolist() == [3.0]


ZIPS = ["01067", "01067", "10115"]
KEPT = {  # what keeps zeros before digits: no other row decides that they are numbers
    "polars": lambda folder: pl.DataFrame({"zip": ZIPS}),
    "pyarrow": lambda folder: pa.table({"zip": ZIPS}),
    "from pandas": lambda folder: pa.Table.from_pandas(pd.DataFrame({"zip": ZIPS})),
    "csv": lambda folder: _filed(pd.DataFrame({"zip": ZIPS}), folder / "zips.csv"),
}


def _filed(frame, path):
    frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("types", [None, {"zip": "text"}])
@pytest.mark.parametrize("source", KEPT)
def test_zeros_before_digits_are_kept_where_the_type_is_that_of_the_source(source, types, tmp_path):
    table = private_table(KEPT[source](tmp_path), types=types)
    assert dict(table.categories("zip").tallies()) == {"01067": 2, "10115": 1}
    found = table.group_by("zip", keys=["01067", "1067"]).count(epsilon=1e6).release().value
    assert found == {"01067": 2, "1067": 0}


@pytest.mark.parametrize("kind", ["str", "object", "string"])
def test_zeros_before_digits_are_kept_in_pandas_frames_unless_text_is_declared(kind):
    """Declared, a text is read alike whether or not another row made pandas read numbers."""
    frame = pd.DataFrame({"zip": pd.Series(ZIPS, dtype=kind)})
    assert dict(private_table(frame).categories("zip").tallies()) == {"01067": 2, "10115": 1}
    declared = private_table(frame, types={"zip": "text"})
    assert dict(declared.categories("zip").tallies()) == {"1067": 2, "10115": 1}
    with pytest.raises(InvalidParameterError, match="polars or pyarrow"):
        declared.group_by("zip", keys=["01067"])


@pytest.mark.parametrize("kind", [None, "date", "timestamp"])
def test_one_row_does_not_decide_in_which_steps_times_are_kept(kind):
    texts = ["2250-01-01 00:00:00"] * 50
    finer = [*texts, "2024-01-01 00:00:00.000000001"]
    types = None if kind is None else {"until": kind}
    schemas, counts = [], []
    for rows in (texts, finer):
        frame = pd.DataFrame({"until": pd.to_datetime(pd.Series(rows), format="ISO8601")})
        table = private_table(frame, types=types)
        schemas.append(table.schema)
        counts.append(sum(table.categories("until").tallies().values()))
    assert schemas[0] == schemas[1] and counts == [50, 51]


def test_a_missing_value_does_not_rename_categories_that_are_whole_numbers():
    for rows in ([10115, 20095] * 5, [10115, 20095] * 5 + [None]):
        frame = pd.DataFrame({"zip": pd.Series(rows).astype("category")})
        assert dict(private_table(frame).categories("zip").tallies()) == {"10115": 5, "20095": 5}


def test_columns_are_found_by_names_that_are_numbers():
    for other in (None, "x"):
        frame = pd.DataFrame({0: [*[i // 3 for i in range(30)], other], "x": [*[1.0] * 30, math.nan]})
        table = private_table(frame, privacy_unit="0")
        assert table["x"].moments((0, 9)).count == 10 and table.schema == {"0": "string", "x": "float64"}
    with pytest.raises(InvalidParameterError, match="the same name"):
        private_table(pd.DataFrame([[1, 2]], columns=[1, "1"]))


@pytest.mark.parametrize(
    "column",
    [
        pd.array([1.5, 2.5], dtype="float64").astype("float16"),
        pd.period_range("2020-01", periods=2, freq="M"),
        pd.interval_range(0, 2),
        np.array([1, 2], dtype=">i8"),
        pd.arrays.SparseArray([0.0, 1.0]),
    ],
    ids=["float16", "period", "interval", "big-endian", "sparse"],
)
def test_columns_of_rare_types_are_read(column):
    table = private_table(pd.DataFrame({"c": column, "x": [1.0, 2.0]}))
    assert table["x"].moments((0, 9)).count == 2
    assert sum(table.categories("c").tallies().values()) == 2


def test_a_type_that_no_engine_has_is_refused_in_our_words():
    with pytest.raises(InvalidParameterError, match="has a type that DuckDB does not support"):
        private_table(pd.DataFrame({"c": [1j, 2j]}))


def test_true_and_false_count_as_numbers_also_where_one_is_missing():
    frame = pd.DataFrame({"ill": [True, False, None] * 100})
    found = mean(private_table(frame)["ill"], bounds=(0, 1), epsilon=100.0).value
    assert found == pytest.approx(0.5, abs=0.05)


def test_the_frame_of_the_caller_is_left_alone():
    frame = pd.DataFrame({"n": [1, 2], "ill": [True, None]})
    read_alike(frame)
    assert [str(kind) for kind in frame.dtypes] == ["int64", "object"]


class Evil:
    def __str__(self) -> str:
        raise ValueError("SECRET")


ODD = ["\ud800", b"\xff", b"bytes", Decimal("sNaN"), Evil(), [1, 2], 1 + 2j, pd.NaT, pd.NA]


@pytest.mark.parametrize("odd", ODD, ids=[type(odd).__name__ + str(i) for i, odd in enumerate(ODD)])
@pytest.mark.parametrize("types", [None, {"k": "float64"}], ids=["untyped", "typed"])
def test_an_odd_object_stops_nothing_and_changes_nothing_else(odd, types):
    frame = pd.DataFrame({"k": pd.Series(["1", "1", odd], dtype=object), "x": [1.0, 2.0, 3.0]})
    table = private_table(frame, types=types)
    assert table.schema == {"k": "float64" if types else "string", "x": "float64"}
    assert table["x"].moments((0, 9)).count == 3
    counted = dict(table.categories("k").tallies())
    assert counted[1 if types else "1"] == 2
    assert private_table(frame, privacy_unit="k", contribution_bound=2)["x"].moments((0, 9)).count in (2, 3)


def test_units_that_are_huge_whole_numbers_stay_different():
    frame = pd.DataFrame({"who": [2**70, 2**70 + 1], "x": [1.0, 2.0]})
    assert private_table(frame, privacy_unit="who")["x"].moments((0, 9)).count == 2


@pytest.mark.parametrize(
    ("values", "more"),
    [
        ([1, None, 10**30], 0.5),
        ([True, None], pd.NaT),
        ([True, None], Decimal("nan")),
        ([1, None], pd.NaT),
        ([Decimal("1.5"), None], 2),
        (["a", "b"], 1),
    ],
)
def test_one_more_row_does_not_change_what_a_column_of_objects_is(values, more):
    schemas = [
        private_table(pd.DataFrame({"a": pd.Series(rows, dtype=object)})).schema
        for rows in (values, [*values, more])
    ]
    assert schemas[0] == schemas[1]


@pytest.mark.parametrize("values", [[1, 2], [0.5, 1.5]])
def test_numbers_stay_numbers_where_one_is_beyond_64_bits(values):
    schemas = [private_table(pd.DataFrame({"a": rows})).schema for rows in (values, [*values, 10**400])]
    assert schemas == [{"a": "float64"}] * 2


def test_categories_of_mixed_kinds_are_text():
    frame = pd.DataFrame({"a": pd.Categorical(["a", "b", 1])})
    assert private_table(frame).schema == {"a": "string"}


def test_text_that_is_no_utf_8_is_missing_in_a_column_of_text_too():
    frame = pd.DataFrame({"a": pd.array(["x", "\ud800"], dtype=pd.StringDtype("python"))})
    assert read_alike(frame)["a"].isna().tolist() == [False, True]


@pytest.mark.parametrize("extra", [[], [None], ["x"]])
@pytest.mark.parametrize(
    ("values", "declared", "category", "counted"),
    [
        ([1] * 100, "text", "1", 100),
        ([True] * 100, "text", "true", 100),
        ([2] * 100, "boolean", True, 0),
        ([np.float32(1)] * 100, "integer", 1, 100),
    ],
)
def test_one_more_value_does_not_change_how_others_are_read(values, declared, category, counted, extra):
    table = private_table(pd.DataFrame({"a": values + extra}), types={"a": declared})
    assert table.categories("a").tally([category]).tolist() == [counted]


@pytest.mark.parametrize("backend", [None, "numpy_nullable"])
@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("1234567890123456789", None),
        ("123456789012345678", None),
        ("01", "1"),
        ("1.0", "1"),
        ("0.1", "0.1"),
        ("1e5", "100000"),
        (" 7", "7"),
        ("TRUE", "true"),
        ("NULL", None),
        ("inf", None),
        ("tea", "tea"),
        ("2020-01-01", "2020-01-01"),
    ],
)
def test_one_cell_does_not_rename_the_other_texts_of_a_column(cell, written, backend):
    for last in ("5", "x", "", "0.5", "18446744073709551615", "True", "1" + "0" * 30):
        file = io.StringIO("id,b\n" + f"{cell},u\n" * 6 + f"{last},u\n")
        frame = pd.read_csv(file) if backend is None else pd.read_csv(file, dtype_backend=backend)
        for source in (frame, frame.astype({"id": "category"})):
            found = private_table(source, types={"id": "text"}).categories("id").tallies()
            assert [key for key, count in found.items() if count >= 6] == (
                [] if written is None else [written]
            )


def test_public_values_are_refused_in_a_writing_that_no_row_has():
    frame = pd.DataFrame({"zip": ["01", "x"] * 20, "x": 1.0})
    table = private_table(frame, types={"zip": "text"})
    assert table.group_by("zip", keys=["1", "x"]).count(epsilon=50.0).release().value == {"1": 20, "x": 20}
    for value, match in (("01", "is written as '1'"), ("1234567890123456789", "counts as missing")):
        with pytest.raises(InvalidParameterError, match=match):
            table.group_by("zip", keys=[value, "x"]).count(epsilon=50.0)
        with pytest.raises(InvalidParameterError, match=match):
            table.categories("zip").require_fitting([value])
