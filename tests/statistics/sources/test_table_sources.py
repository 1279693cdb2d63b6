# SPDX-License-Identifier: Apache-2.0
"""The same rows from every source; nothing of a row decides what a table looks like."""

import datetime
import gzip
import os
import subprocess
import sys
from itertools import chain, product

import duckdb
import ibis
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.statistics.sources.table_sources import _rows_of_lines
from sfumato.statistics.sources.tables import private_table

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")

FRAME = pd.DataFrame({"who": ["a", "b", "b"], "age": [30.0, 50.0, 70.0]})
BOUNDS = (0.0, 100.0)
EXPECTED = FRAME.age.sum()


def total(table) -> float:
    moments = table["age"].moments(BOUNDS)
    return moments.count * 50 + moments.total * 50 / 2**20


def of_csv(folder):
    FRAME.to_csv(folder / "t.csv", index=False)
    return folder / "t.csv"


def of_zipped_tsv(folder):
    with gzip.open(folder / "t.tsv.gz", "wt") as file:
        FRAME.to_csv(file, index=False, sep="\t")
    return str(folder / "t.tsv.gz")


def of_many_parquet_files(folder):
    for i in range(3):
        FRAME.iloc[i : i + 1].to_parquet(folder / f"part{i}.parquet")
    return str(folder / "*.parquet")


def of_ibis(folder):
    connection = ibis.duckdb.connect(folder / "t.duckdb")
    connection.con.register("given", FRAME)
    connection.raw_sql("CREATE TABLE people AS SELECT * FROM given")
    return connection.table("people")


SOURCES = {
    "csv": of_csv,
    "tsv.gz": of_zipped_tsv,
    "parquet": of_many_parquet_files,
    "ibis": of_ibis,
    "pandas": lambda _: FRAME,
    "polars": lambda _: pl.DataFrame(FRAME.to_dict("list")),
    "pyarrow": lambda _: pa.table(FRAME.to_dict("list")),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_the_same(name, tmp_path):
    table = private_table(SOURCES[name](tmp_path), types={"age": "number"})
    assert total(table) == pytest.approx(EXPECTED)
    assert list(table.schema) == ["who", "age"]


def test_a_database_is_opened_by_its_url(tmp_path):
    of_ibis(tmp_path).get_backend().disconnect()
    assert total(private_table(f"duckdb://{tmp_path}/t.duckdb", table="people")) == pytest.approx(EXPECTED)


def test_a_csv_file_has_the_same_schema_whatever_is_in_it(tmp_path):
    (tmp_path / "a.csv").write_text("who,age\na,30\n")
    (tmp_path / "b.csv").write_text("who,age\na,secret\n,,,,\n")
    (tmp_path / "c.csv").write_text("who,age\n")
    schemas = [private_table(tmp_path / f"{name}.csv").schema for name in "abc"]
    assert schemas == [{"who": "string", "age": "string"}] * 3


def test_what_is_no_number_in_a_csv_file_is_missing_and_lines_that_are_no_rows_are_left_out(tmp_path):
    lines = b'who,age\na,30\nb,secret\nc,\nd\ne,1,2,3\nk,\xff\xfe\n"f,g", 20 \nh,1e3\ni,inf\nj,nan\n'
    (tmp_path / "t.csv").write_bytes(lines)
    column = private_table(tmp_path / "t.csv", types={"age": "number"})["age"]
    assert column.ordered((0, 100)).tolist() == [20.0, 30.0, 100.0, 100.0]


def test_columns_of_a_csv_file_can_be_given_types(tmp_path):
    (tmp_path / "t.csv").write_text("who,age,since\na,30,2024-02-01\nb,old,2024-13-01\n")
    table = private_table(tmp_path / "t.csv", types={"age": "float64", "since": "date"})
    assert table.schema == {"who": "string", "age": "float64", "since": "date"}
    assert table.filter(lambda row: row.age > 20)["age"].moments(BOUNDS).count == 1
    assert table.filter(lambda row: row.since > datetime.date(2024, 1, 1))["age"].moments(BOUNDS).count == 1
    with pytest.raises(InvalidParameterError, match="do not exist: agee"):
        private_table(tmp_path / "t.csv", types={"agee": "float64"})


DAMAGED = {
    "a quote that is not closed": b'"oops,1',
    "text after a quote": b'"a"b,1',
    "a quote in the last field": b'x,"1',
    "a quote within a field": b'a"b,1',
    "a quote after spaces": b'  "oops,1',
    "a quote alone": b'"',
    "a backslash": b'"a\\",1',
    "a carriage return": b"a\rb,1",
    "two line ends": b"a,1\r",
    "many carriage returns": b"\r\r\ra,1\r\r",
    "nothing": b"",
    "too few": b"a",
    "too many": b"a,1,2,3",
    "the delimiter of lines": b"a\x01b,1\x01",
    "a null byte": b"a\0b,1",
    "bad bytes": b"\xff\xfe,1",
    "a bad byte and a carriage return": b"\xff\r\xfe,1",
    "a comment": b"#a,1",
    "a very long line": b"z" * 3_000_000 + b",1",
    "a very long text": b'"' + b"z" * 3_000_000 + b'",1',
}


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_line_of_a_csv_file_takes_no_other_line_with_it(name, end, tmp_path):
    lines = [b"who,age", *(b'"n, %d",1' % i if i % 2 else b"n%d,1" % i for i in range(3000))]
    lines.insert(1500, DAMAGED[name])
    (tmp_path / "t.csv").write_bytes(end.join(lines) + end)
    table = private_table(tmp_path / "t.csv", types={"age": "number"})
    found = dict(table.categories("who").tallies())
    assert [found.get(f"n, {i}" if i % 2 else f"n{i}") for i in range(3000)] == [1] * 3000
    assert table.count(epsilon=1e3).release().value in (3000, 3001)
    assert table["age"].moments(BOUNDS).count in (3000, 3001)


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_no_sequence_of_line_ends_quotes_and_delimiters_takes_a_line_with_it(end, tmp_path):
    expected = [f"n{i}" for i in range(6)]
    path = tmp_path / "t.csv"
    for part in chain.from_iterable(product('\r\n",\x01', repeat=length) for length in range(4)):
        lines = ["who", *expected[:3], "".join(part), *expected[3:]]
        path.write_bytes((end.join(lines) + end).encode())
        rows = _rows_of_lines(str(path), ",", ["who"])
        found = [row[0] for row in duckdb.sql(f"SELECT * FROM ({rows})").fetchall()]
        assert [name for name in found if name in expected] == expected


def test_quotes_of_a_csv_file_are_read_within_a_line(tmp_path):
    lines = 'who,"the ""age"", now",x\n"a, ""b""",1,\n"",2,"z"\nit\'s,"3",\n,,\n"two\nlines",4,5\n'
    (tmp_path / "it's.csv").write_text(lines)
    table = private_table(tmp_path / "it's.csv", types={'the "age", now': "number"})
    assert list(table.schema) == ["who", 'the "age", now', "x"]
    assert dict(table.categories("who").tallies()) == {'a, "b"': 1, "it's": 1, 'lines"': 1}
    assert table['the "age", now'].ordered(BOUNDS).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_column_alone_and_many_files_are_read(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("\ufeffx\n1\n\n2\n", encoding="utf-8")
    table = private_table(str(tmp_path / "*.csv"), types={"x": "number"})
    assert table["x"].ordered(BOUNDS).tolist() == [1.0, 1.0, 2.0, 2.0]


def test_an_engine_to_which_different_texts_are_equal_is_refused(tmp_path):
    table = of_ibis(tmp_path)
    table.get_backend().raw_sql("SET default_collation = 'nocase'")
    with pytest.raises(InvalidParameterError, match="collation"):
        private_table(table)


@pytest.mark.parametrize("text", ["", "a,a\n1,2\n", "a,\n1,2\n"], ids=["empty", "twice", "unnamed"])
def test_a_csv_file_without_a_line_of_names_is_refused(text, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InvalidParameterError, match="must name the columns"):
        private_table(tmp_path / "t.csv")


def test_objects_in_a_pandas_frame_are_text_whatever_they_are():
    frame = pd.DataFrame({"x": pd.Series([1, "secret", None, 2.5], dtype=object)})
    assert private_table(frame).schema == {"x": "string"}
    assert private_table(frame.iloc[:1]).schema == {"x": "string"}


@pytest.mark.parametrize(
    "source",
    [3, {"x": [1]}, "t.xlsx", "nowhere.parquet", "postgres://nobody@localhost:1/none", pd.Series([1.0])],
)
def test_what_cannot_be_opened_is_refused(source):
    with pytest.raises(InvalidParameterError, match=r"Pass|Convert"):
        private_table(source)


def test_words_of_an_engine_are_not_passed_on(tmp_path):
    (tmp_path / "t.parquet").write_text("secret")
    with pytest.raises(InvalidParameterError) as refusal:
        private_table(tmp_path / "t.parquet")
    assert "secret" not in str(refusal.value) and refusal.value.__cause__ is None
    assert refusal.value.__context__ is None


def test_spilled_rows_go_to_a_folder_of_their_own():
    engine = private_table(FRAME).owned.engine
    folder = engine.con.sql("SELECT current_setting('temp_directory')").fetchall()[0][0]
    assert "sfumato-" in folder and os.getcwd() not in folder


def test_ibis_is_imported_only_for_a_table():
    code = (
        "import sys, sfumato.statistics.sources.tables; print('ibis' in sys.modules, 'duckdb' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]


# --- partitions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["7", "ann"])
def test_the_names_of_folders_do_not_change_the_schema(tmp_path, last):
    for who in ("1", "2", last):
        (tmp_path / f"who={who}").mkdir()
        pq.write_table(pa.table({"x": [1.0]}), tmp_path / f"who={who}" / "part.parquet")
    named = private_table(f"{tmp_path}/who=*/*.parquet", privacy_unit="who")
    assert named.schema == {"x": "float64", "who": "string"}
    assert named["x"].moments((0, 1)).count == 3
    assert private_table(f"{tmp_path}/*/*.parquet").schema == {"x": "float64"}


def test_why_a_source_cannot_be_opened_is_not_told(tmp_path):
    said = set()
    for name, content in {"a": b"PAR1", "b": b"", "c": b"oops" * 99}.items():
        (tmp_path / f"{name}.parquet").write_bytes(content)
        with pytest.raises(InvalidParameterError) as failure:
            private_table(tmp_path / f"{name}.parquet")
        said.add(str(failure.value))
        assert failure.value.__context__ is None
    assert len(said) == 1 and "Error" not in said.pop()


def test_times_in_milliseconds_are_not_read_from_parquet_files_in_which_one_could_stop_a_query(tmp_path):
    coarse = pa.timestamp("ms")
    within = pa.struct([("t", coarse), ("n", pa.int64())])
    table = pa.table(
        {
            "x": [1.0, 2.0],
            "fine": pa.array([0, 1], type=pa.int64()).view(pa.timestamp("us")),
            "coarse": pa.array([0, 2**63 - 1], type=pa.int64()).view(coarse),
            "zoned": pa.array([0, 2**63 - 1], type=pa.int64()).view(pa.timestamp("ms", "UTC")),
            "within": pa.array([{"t": None, "n": 1}] * 2, type=within),
            "listed": pa.array([[None], []], type=pa.list_(coarse)),
            "clock": pa.array([0, 1], type=pa.int32()).view(pa.time32("ms")),
            "y": [3.0, 4.0],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table, tmp_path / "b.parquet")
    opened = private_table(str(tmp_path / "*.parquet"))
    assert list(opened.schema) == ["x", "fine", "clock", "y"]
    assert opened.count(epsilon=1e3).release().value == 4
    assert opened["y"].ordered((0, 9)).tolist() == [3.0, 3.0, 4.0, 4.0]


@pytest.mark.parametrize("first", ["39, State-gov, 77516", "a,2.5e3", "nan,b"])
def test_a_first_line_with_numbers_is_refused_and_not_quoted(tmp_path, first):
    (tmp_path / "t.csv").write_text(f"{first}\n50, Private, 83311\n")
    with pytest.raises(InvalidParameterError, match="as if the line were a row") as refused:
        private_table(tmp_path / "t.csv")
    assert not any(cell.strip() in str(refused.value) for cell in first.split(",") if len(cell) > 1)


def test_numbers_may_name_columns_whose_types_are_declared(tmp_path):
    (tmp_path / "t.csv").write_text("who,2024\na,5\n")
    table = private_table(tmp_path / "t.csv", types={"2024": "number"})
    assert table.schema == {"who": "string", "2024": "float64"}


# --- NaN ----------------------------------------------------------------------------------------------------

NAN, OUTSIDE = [float("nan")] * 50, [30.0]
NOT_ABOVE = {
    "at most": lambda row: row.v <= 20,
    "not above": lambda row: ~(row.v > 20),
    "between": lambda row: row.v.between(-5, 20),
    "rounded": lambda row: row.v.round() <= 20,
    "by cases": lambda row: ibis.cases((row.v > 20, 0), else_=1) == 1,
    "in a struct": lambda row: row.s["x"] <= 20,
    "in an array": lambda row: row.a[0] <= 20,
}
ABOVE = {
    "above": lambda row: row.v > 20,
    "at least": lambda row: row.v >= 20,
    "in a struct": lambda row: row.s["x"] > 20,
    "in an array": lambda row: row.a[0] > 20,
}


def with_nan(extra):
    """Return numbers up to 9, among them NaN: as a column, in structs and in arrays."""
    numbers = [float(i % 10) for i in range(10)] + NAN + extra
    values = pa.array(numbers, pa.float64(), from_pandas=False)
    structs = pa.StructArray.from_arrays([values], ["x"])
    return pa.table(
        {"v": values, "s": structs, "a": pa.array([[v] for v in numbers], pa.list_(pa.float64()))}
    )


def parquet_with_nan(folder, extra):
    path = folder / f"{len(extra)}.parquet"
    pq.write_table(with_nan(extra), path)
    return private_table(path)


def arrow_with_nan(folder, extra):
    return private_table(with_nan(extra))


def duckdb_with_nan(folder, extra):
    connection = ibis.duckdb.connect(folder / f"{len(extra)}.duckdb")
    connection.create_table("nan", with_nan(extra))
    return private_table(connection.table("nan"))


@pytest.mark.parametrize("opened", [parquet_with_nan, arrow_with_nan, duckdb_with_nan])
@pytest.mark.parametrize("name", NOT_ABOVE)
def test_whether_nan_is_below_a_limit_does_not_depend_on_other_rows(tmp_path, opened, name):
    without, beside = (opened(tmp_path, extra).filter(NOT_ABOVE[name]) for extra in ([], OUTSIDE))
    whole = (
        60 if name == "by cases" else 10
    )  # a case that is not met has the other value, for missing ones too
    assert without.owned.counts(10**6) == beside.owned.counts(10**6) == [whole]


@pytest.mark.parametrize("opened", [parquet_with_nan, arrow_with_nan, duckdb_with_nan])
@pytest.mark.parametrize("name", ABOVE)
def test_whether_nan_is_above_a_limit_does_not_depend_on_other_rows(tmp_path, opened, name):
    without, beside = (opened(tmp_path, extra).filter(ABOVE[name]) for extra in ([], OUTSIDE))
    assert without.owned.counts(10**6) == [0] and beside.owned.counts(10**6) == [1]
