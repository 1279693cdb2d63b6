# SPDX-License-Identifier: Apache-2.0
"""The same questions on a cluster: a local Spark stands for it."""

import gzip
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import sfumato
from sfumato.errors import ColumnTypeError, InvalidParameterError, QueryFailedError
from sfumato.statistics.columns.categories import categories_of
from sfumato.statistics.columns.columns import column_of
from sfumato.statistics.sources.tables import private_table

# A virtual machine of Java starts, and pyspark 4.3 warns about pandas 3 at every step.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

VALUES = [*range(30), float("nan"), float("inf"), -float("inf"), 0.3, 1e300]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ibis

        pyspark = pytest.importorskip("pyspark.sql", reason="needs pyspark: run `make test-spark`")
        if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
            pytest.skip("needs Java 17 or later for Spark: install one, then run `make test-spark`")
        quiet = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.host": "localhost",
        }
        building = pyspark.SparkSession.builder.master("local[1]").config(map=quiet)
        session = building.config(
            "spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("spark"))
        ).getOrCreate()
        yield ibis.pyspark.connect(session)
        session.stop()


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "people.parquet"
    frame = pd.DataFrame({"x": np.array(VALUES, dtype=float)})
    frame = frame.assign(who=np.arange(len(VALUES)) % 7, k=[f"k{i % 3}" for i in range(len(VALUES))])
    pd.concat([frame, pd.DataFrame({"x": [None], "who": [1], "k": [None]})]).to_parquet(path)
    return str(path)


def test_a_cluster_gives_what_memory_gives(engine, parquet):
    column = private_table(parquet, engine=engine)["x"]
    expected = column_of(VALUES)
    assert column.moments((0, 20)) == expected.moments((0, 20))
    for edges in (np.linspace(0, 20, 9), np.array([0.0, 1.0, 7.0, 30.0])):
        assert column.histogram(edges).tolist() == expected.histogram(edges).tolist()
    assert column.ordered((0, 20)).tolist() == expected.ordered((0, 20)).tolist()


def test_units_are_bounded_and_groups_and_keys_found(engine, parquet):
    table = private_table(parquet, engine=engine, privacy_unit="who", contribution_bound=2)
    assert table["x"].moments((0, 20)).count == 14
    grouped = table.group_by("k", keys=["k0", "k1", "k2", "none"])
    counts = grouped.count(epsilon=1e3).release().value
    assert sum(counts.values()) == 14 and counts["none"] == 0
    rows = private_table(parquet, engine=engine)
    means = rows.group_by("k", keys=["k0"]).mean("x", bounds=(0, 20), epsilon=1e4).release().value
    local = private_table(parquet).group_by("k", keys=["k0"]).mean("x", bounds=(0, 20), epsilon=1e4)
    assert means["k0"] == pytest.approx(local.release().value["k0"], abs=0.1)
    assert rows.keys("k", epsilon=20.0, delta=0.01).release().value == ["k0", "k1", "k2"]
    assert "ROW_NUMBER()" in grouped.count(epsilon=1.0).plan()


@pytest.mark.parametrize("unit", ["who", "name"])
def test_a_cluster_keeps_the_rows_that_memory_keeps(engine, tmp_path, unit):
    draw = np.random.default_rng(0)
    who = draw.integers(0, 300, 5000)
    frame = pd.DataFrame({"who": who, "name": [f"patient {n}" for n in who], "cost": np.arange(5000) % 17.0})
    frame = frame.assign(
        flag=(draw.random(5000) < 0.01).astype(float), ward=draw.choice(["a", "B", "é"], 5000)
    )
    frame.to_parquet(tmp_path / "v.parquet")
    for bound in (1, 4):
        table = private_table(
            str(tmp_path / "v.parquet"), engine=engine, privacy_unit=unit, contribution_bound=bound
        )
        units = {"owners": frame[unit], "contribution_bound": bound}
        for name in ("flag", "cost"):
            expected = column_of(frame[name].to_numpy(), **units)
            assert table[name].moments((0, 20)) == expected.moments((0, 20))
        wards = categories_of(frame["ward"], **units)
        assert dict(table.categories("ward").tallies()) == dict(wards.tallies())
    flags = frame.assign(flag=frame.flag.astype(int))
    flags.to_parquet(tmp_path / "f.parquet")
    pairs = private_table(str(tmp_path / "f.parquet"), engine=engine, privacy_unit=unit)
    wanted = [("a", 1), ("B", 0)]
    counts = pairs.group_by("ward", "flag", keys=wanted).count(epsilon=1e3).release().value
    asked = flags[[pair in wanted for pair in zip(flags.ward, flags.flag, strict=True)]]
    assert sum(counts.values()) == asked[unit].nunique()


def test_the_mean_of_a_cluster_is_that_of_uniform_sampling(engine, tmp_path):
    who, row = np.divmod(np.arange(30_000), 10)
    frame = pd.DataFrame({"who": who, "name": [f"patient {n}" for n in who], "flag": (row == 0) * 1.0})
    frame.to_parquet(tmp_path / "v.parquet")
    for unit in ("who", "name"):
        table = private_table(str(tmp_path / "v.parquet"), engine=engine, privacy_unit=unit)
        assert table["flag"].ordered((0, 1)).mean() == pytest.approx(0.1, abs=5 * np.sqrt(0.09 / 3000))


def test_no_row_of_a_csv_file_decides_its_schema(engine, tmp_path):
    schema = {"who": "string", "age": "string"}
    for rows in ("a,30\n", "a,30\nb,secret\n", "a\n", ""):
        (tmp_path / "t.csv").write_text("who,age\n" + rows)
        assert private_table(tmp_path / "t.csv", engine=engine).schema == schema
    typed = private_table(tmp_path / "t.csv", engine=engine, types={"age": "float64"})
    assert typed.schema == schema | {"age": "float64"}


def test_declared_types_are_read_as_duckdb_reads_them(engine, tmp_path):
    cells = ["1", "-2", " 3 ", "+4", "3.7", "1e3", "9" * 30, "x", "true", "No", "2024-02-29", "2023-02-29"]
    (tmp_path / "t.csv").write_text("k,x\n" + "".join(f"{i},{cell}\n" for i, cell in enumerate(cells)))
    for kind in ("number", "integer", "boolean", "date", "text"):
        tables = [private_table(tmp_path / "t.csv", engine=e, types={"x": kind}) for e in (None, engine)]
        assert tables[0].schema == tables[1].schema
        here, there = (dict(table.categories("x").tallies()) for table in tables)
        assert here == there and here


def test_a_cluster_refuses_text_for_numbers_and_compares_classes_of_text(engine, tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n" + "1,a\n-1,b\n5,c\n" * 9)
    table = private_table(tmp_path / "t.csv", engine=engine, types={"x": "number"})
    with pytest.raises(ColumnTypeError, match=r"types=\{'y': 'number'\}"):
        table["y"]
    rows = np.concatenate(list(table.rows("x", "y", classes=("b", "a")).batches()))
    assert np.unique(rows, axis=0).tolist() == [[-1.0, 0.0], [1.0, 1.0]] and len(rows) == 18


@pytest.mark.parametrize("text", ["", "\na,1\n", "a,a\n1,2\n", "a,\n1,2\n"], ids=repr)
def test_a_csv_file_without_a_line_of_names_is_refused(engine, text, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InvalidParameterError, match="must name the columns"):
        private_table(tmp_path / "t.csv", engine=engine)


def test_no_engine_that_may_guess_types_reads_a_csv_file(tmp_path):
    import ibis

    (tmp_path / "t.csv").write_text("x\n1\n")
    with pytest.raises(InvalidParameterError, match="DuckDB or Spark, not by polars"):
        private_table(tmp_path / "t.csv", engine=ibis.polars.connect())


DAMAGED = {  # and whether it is a row
    "a quote that is not closed": (b'"oops,1', False),
    "text after a quote": (b'"a"b,1', False),
    "a quote in the last field": (b'x,"1', False),
    "a quote within a field": (b'a"b,1', True),
    "many quotes": (b'"' + b'""' * 50_000 + b'",1', True),
    "many quotes that are not closed": (b'""",' * 50_000, False),
    "a quote alone": (b'"', False),
    "a backslash": (b'"a\\",1', True),
    "a line end in quotes": (b'"a\nb', False),
    "a carriage return": (b"a\rb", False),
    "many carriage returns": (b"\r\r\ra\r\r", False),
    "nothing": (b"", False),
    "too few": (b"a", False),
    "too many": (b"a,1,2,3", False),
    "far too many": (b"," * 30_000, False),
    "the first line": (b"who,age", False),
    "a text for a number": (b"a,secret", True),
    "a null byte": (b"a\0b,1", True),
    "bad bytes": (b"\xff\xfe,1", False),
    "a byte order mark": (b"\xef\xbb\xbfa,1", True),
    "a line end of Unicode": ("a\u2028b\x85,1".encode(), True),
    "a long line": (b"z" * 1_000_000 + b",1", True),
    "a very long line": (b"z" * 3_000_000 + b",1", False),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_line_of_a_csv_file_takes_no_other_line_with_it(engine, name, tmp_path):
    line, is_row = DAMAGED[name]
    others = [f"n, {i}" if i % 2 else f"n{i}" for i in range(100)]
    lines = [b"who,age", *(f'"{who}",1'.encode() for who in others)]
    lines.insert(50, line)
    for end in (b"\n", b"\r\n"):
        (tmp_path / "t.csv").write_bytes(end.join(lines) + end)
        table = private_table(tmp_path / "t.csv", engine=engine, types={"age": "number"})
        assert table.categories("who").tally(others).tolist() == [1] * 100
        assert table.count(epsilon=1e3).release().value == 100 + is_row
        numbers = 100 + (is_row and name != "a text for a number")
        assert table["age"].moments((0, 100)).count == numbers


def test_lines_are_read_alone_across_the_blocks_of_a_file(engine, tmp_path):
    others = [f"n{i}" for i in range(1000)]
    lines = [*others[:500], "z" * 2_200_000, *others[500:700], '"oops', *others[700:]]
    (tmp_path / "t.csv").write_text("\n".join(["who", *lines]))
    session = engine.raw_sql("SELECT 1").sparkSession
    session.conf.set("spark.sql.files.maxPartitionBytes", 100_000)
    session.conf.set("spark.sql.files.openCostInBytes", 1)
    try:
        table = private_table(tmp_path / "t.csv", engine=engine)
        assert list(table.schema) == ["who"]
        assert table.categories("who").tally(others).tolist() == [1] * 1000
        assert table.count(epsilon=1e3).release().value == 1000
    finally:
        session.conf.unset("spark.sql.files.maxPartitionBytes")
        session.conf.unset("spark.sql.files.openCostInBytes")


def test_a_cluster_reads_the_rows_of_a_csv_file_that_duckdb_reads(engine, tmp_path):
    lines = 'who,"the ""age"", now",x\n"a, ""b""",1,\n"",2,"z"\nit\'s,"3",\n,,\n"two\nlines",4,5\nc, 20 ,\n'
    (tmp_path / "it's.csv").write_text("\ufeff" + lines + "d,1e3,\ne,inf,\nf,nan,\ng,,\n", encoding="utf-8")
    types = {'the "age", now': "number"}
    here, there = (private_table(tmp_path / "it's.csv", engine=e, types=types) for e in (None, engine))
    assert there.schema == here.schema
    assert list(there.schema) == ["who", 'the "age", now', "x"]
    assert dict(there.categories("who").tallies()) == dict(here.categories("who").tallies())
    numbers = there['the "age", now'].ordered((0, 100)).tolist()
    assert numbers == here['the "age", now'].ordered((0, 100)).tolist()
    assert numbers == [1.0, 2.0, 3.0, 4.0, 20.0, 100.0, 100.0]


def test_many_zipped_files_are_one_table(engine, tmp_path):
    for name in "ab":
        with gzip.open(tmp_path / f"{name}.tsv.gz", "wt") as file:
            file.write("\ufeffwho\tx\n,\t1\n\n-\t2\n")
    table = private_table(str(tmp_path / "*.tsv.gz"), engine=engine, types={"x": "number"})
    assert table["x"].ordered((0, 100)).tolist() == [1.0, 1.0, 2.0, 2.0]
    assert table.categories("who").tally([",", "-", "who"]).tolist() == [2, 2, 0]


def test_what_a_cluster_says_when_it_fails_is_not_passed_on_and_stays_paid_for(engine, tmp_path, account):
    (tmp_path / "t.csv").write_text("who,age\nsecret,30\n")
    table = private_table(tmp_path / "t.csv", engine=engine)
    (tmp_path / "t.csv").unlink()
    with pytest.raises(QueryFailedError) as failure:
        table.count(epsilon=0.5).release(account=account)
    assert failure.value.__cause__ is None and failure.value.__context__ is None
    assert not any(word in str(failure.value) for word in ("secret", "t.csv"))
    assert account.spent().epsilon == pytest.approx(0.5)


def test_the_readme_points_the_same_query_at_a_cluster(engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"client_id": range(5000), "age": [20 + i % 59 for i in range(5000)]}).to_parquet(
        "c.parquet"
    )
    readme = Path(__file__).parents[3] / "README.md"
    [block] = re.findall(r"^```text\n(.*?)^```", readme.read_text(), re.MULTILINE | re.DOTALL)
    here = {"yarn": "local[1]", "s3a://bucket/clients/*.parquet": str(tmp_path / "c.parquet")}
    for there, local in {**here, "budget=...": "budget=sf.Budget(epsilon=1, delta=1e-6)"}.items():
        assert there in block
        block = block.replace(there, local)
    known = {"sf": sfumato}
    exec(block, known)
    assert known["clients"].spent().epsilon == pytest.approx(0.5)
    assert "pyspark" in repr(known["clients"])


KILLED = """
import os, signal, threading, warnings
warnings.simplefilter("ignore")
import ibis
from pyspark.sql import SparkSession
import sfumato as sf
building = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
session = building.config("spark.driver.host", "localhost").getOrCreate()
session.range(10**12).selectExpr("id % 4711 AS age").createTempView("people")  # would take hours
table = ibis.pyspark.connect(session).table("people")
people = sf.open("people", table, budget=sf.Budget(epsilon=1, delta=1e-6), ledger="ledger.db")
engine = session.sparkContext._gateway.proc.pid
threading.Timer(3.0, os.kill, (engine, signal.SIGKILL)).start()
try:
    people.mean("age", bounds=(0, 100), epsilon=0.5)
except sf.errors.QueryFailedError as error:
    print(repr(error.__context__), error)
os._exit(0)  # what is left of Spark's client would talk to the dead
"""


def test_a_cluster_that_is_killed_midway_leaves_the_release_spent_and_says_nothing(engine, tmp_path):
    ran = subprocess.run(
        [sys.executable, "-uc", KILLED], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert ran.stdout.startswith("None mean of age: the data could not be read"), ran.stderr
    assert "4711" not in ran.stdout
    ledger = sfumato.Ledger(tmp_path / "ledger.db")
    ledger.verify()
    [release] = ledger.account("people").releases()
    assert release.progress.name == "BEGUN"
    assert ledger.account("people").spent().epsilon == pytest.approx(0.5)


def test_the_tutorial_runs_on_spark_and_prints_what_it_shows(engine, tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "tutorials" / "spark.md").read_text()
    code = re.findall(r'^```python(?: title="On Spark")?\n(.*?)^```', page, re.MULTILINE | re.DOTALL)
    assert sum("spark" in block for block in code) == 2
    (tmp_path / "page.py").write_text("\n".join(code))
    command = [sys.executable, "-W", "ignore", "page.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert not ran.returncode, ran.stderr
    shown = "".join(re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    assert [_words(ran.stdout)] == [_words(shown)]


def _words(text: str) -> list[str]:
    """Return the words of a text, with numbers masked: they differ from run to run."""
    return re.sub(r"\d[\d.]*(e-\d+)?", "#", text).split()
