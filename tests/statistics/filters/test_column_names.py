# SPDX-License-Identifier: Apache-2.0
"""Columns that an engine takes for one another are never used together: one row would decide what fails."""

import json

import ibis
import pandas as pd
import pyarrow as pa
import pytest

import sfumato as sf
from sfumato.errors import InvalidParameterError
from sfumato.queries import count, mean
from sfumato.statistics.filters.column_names import alike, folded, unused
from sfumato.statistics.sources.tables import private_table

# Kelvin, long s, sharp s, dotted I, ligature, decomposed accent, trailing spaces, full width, quotes
ALIKE = [
    ("x", "X"), ("k", "\u212a"), ("s", "\u017f"), ("stra\u00dfe", "STRASSE"), ("\u2126", "\u03c9"),
    ("fi", "\ufb01"), ("\u00e9", "E\u0301"), ("x", "x "), ("x", "\uff38"), ('a"b', 'A"B'),
    ("\u03c2", "\u03a3"),
]  # fmt: skip


def rows(last: str = "12") -> pd.DataFrame:
    return pd.DataFrame({"person": range(100), "x": ["12"] * 99 + [last], "value": [1.0] * 100})


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_a_new_column_whose_name_an_engine_may_take_for_another_is_refused(one, other):
    assert folded(one) == folded(other) and alike([one, "y", other]) == (one, other)
    table = private_table(pd.DataFrame({one: [1.0] * 5, "person": range(5)}), privacy_unit="person")
    with pytest.raises(InvalidParameterError, match="may take"):
        table.mutate(**{other: lambda row: row[one] + 41.0})
    with pytest.raises(InvalidParameterError, match="may take"):  # two new ones
        table.mutate(**{f"new {one}": lambda row: row[one], f"new {other}": lambda row: row[one] + 1.0})
    assert unused(other, [one]) != other and table.mutate(**{one: lambda row: row[one]}).schema


def test_every_pair_that_duckdb_takes_for_one_is_refused():
    letters = [chr(code) for code in range(32, 0x2FFF) if chr(code).isalpha()]
    connection = ibis.duckdb.connect().con
    for letter in letters:
        for other in {letter.lower(), letter.upper(), letter.swapcase()} - {letter}:
            read = connection.execute(f'SELECT "{other}" FROM (SELECT 1 AS "{letter}", 2 AS "{other}")')
            assert read.fetchone() == (2,) or alike([letter, other]), (letter, other)


@pytest.mark.parametrize("last", ["12", "oops"])
def test_no_row_decides_whether_a_query_fails(last):
    clients = sf.open("t", rows(last), privacy_unit="person", budget=sf.Budget(epsilon=1e7, delta=1e-5))
    with pytest.raises(InvalidParameterError, match="may take 'X' for 'x'"):
        clients.mutate(X=lambda row: row.x.try_cast("int64"))
    with pytest.raises(InvalidParameterError, match="may take 'X' for 'x'"):
        clients.table.mutate(X=lambda row: row.x.try_cast("int64"))
    named = clients.mutate(number=lambda row: row.x.try_cast("int64")).group_by("number", keys=[12])
    assert named.agg(n=count(), epsilon=1e6).release().values["n"] == [100.0 - (last == "oops")]
    asks = "SELECT CAST(x AS BIGINT) AS X, COUNT(*) AS n FROM data GROUP BY X"
    found = clients.sql(asks, epsilon=1e6, keys=[12]).release()
    assert found.values["n"] == [100.0 - (last == "oops")]
    assert json.loads(found.to_json())["rows"][0]["key"] == {"X": 12}


def test_the_column_of_units_is_not_replaced_by_a_name_in_other_case():
    table = private_table(rows(), privacy_unit="person")
    with pytest.raises(InvalidParameterError, match="may take"):
        table.mutate(Person=lambda row: row.value)


def test_tables_that_have_such_columns_are_refused_at_the_door(tmp_path):
    frame = pd.DataFrame({"x": ["12"] * 5, "X": [1.0] * 5})
    for source in (frame, pa.table({"x": ["12"], "X": [1.0]})):
        with pytest.raises(InvalidParameterError, match="differ only by"):
            private_table(source)
    table = ibis.duckdb.connect().create_table("t", pa.table({"x": ["12"], "y": [1.0]}))
    for made in (table.mutate(X=table.x.try_cast("int64")), table.mutate(X=table.x)[["X", "y"]].drop("y")):
        if len(made.columns) > 1:
            with pytest.raises(InvalidParameterError, match="may take"):
                private_table(made)
    path = tmp_path / "rows.csv"
    path.write_text("person,age,Age\n" + "".join(f"{i},12,7\n" for i in range(50)))
    with pytest.raises(InvalidParameterError):  # DuckDB renames the second column, so it has no such name
        private_table(path, types={"Age": "number"})


def test_derived_columns_of_sql_that_differ_only_by_case_stay_apart():
    frame = pd.DataFrame({"region": ["n"] * 90 + ["N"] * 10, "day": pd.to_datetime(["2024-01-15"] * 100)})
    clients = sf.open("t", frame, budget=sf.Budget(epsilon=1e8, delta=1e-5))
    terms = {"epsilon": 1e6, "bounds": {"a": (0, 1), "b": (0, 1)}}
    asks = "SUM(CAST(CAST(region = '{}' AS BIGINT) AS DOUBLE)) AS {}"
    found = clients.sql(
        f"SELECT {asks.format('n', 'a')}, {asks.format('N', 'b')} FROM data", **terms
    ).release()
    assert [round(found.values[name][0]) for name in "ab"] == [90, 10]
    month = [pd.Timestamp(2024, 1, 1).date()]
    asks = "SELECT DATE_TRUNC('month', day) AS Day, COUNT(*) AS n FROM data GROUP BY Day"
    found = clients.sql(asks, epsilon=1e6, keys=month).release()
    assert found.values["n"] == [100.0] and found.release.value.columns == ("Day",)


def test_whether_a_row_has_a_value_is_asked_of_its_own_column():
    frame = pd.DataFrame({"x": [1.0, None] * 50, "X has a value": [1.0] * 100})
    table = private_table(frame)
    assert sf.statistics.count(table.present("x"), epsilon=1e6).value == 50


def test_means_of_a_new_column_are_its_own():
    clients = sf.open("t", rows(), budget=sf.Budget(epsilon=1e7, delta=1e-5))
    made = clients.mutate(more=lambda row: row.value + 41.0).agg(m=mean("more", bounds=(0, 100)), epsilon=1e6)
    assert made.release().values["m"][0] == pytest.approx(42, abs=0.1)
