# SPDX-License-Identifier: Apache-2.0
"""Texts that differ are different, or are refused."""

import sqlite3

import ibis
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.statistics.sources.collations import told_apart
from sfumato.statistics.sources.tables import private_table

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")


@pytest.fixture
def collated():
    connection = ibis.duckdb.connect()
    connection.raw_sql("CREATE TABLE v (who VARCHAR COLLATE nocase, x DOUBLE)")
    connection.raw_sql("INSERT INTO v VALUES ('ann', 1), ('ANN', 2), ('Ann', 3), ('Ann', 4), ('bob', 5)")
    return connection.table("v")


def test_units_that_a_collation_holds_for_equal_are_different_ones(collated):
    table = private_table(collated, privacy_unit="who", contribution_bound=1)
    assert table["x"].moments((0, 9)).count == 4
    rows, owners = table.rows("x").read()
    assert len(rows) == 4 and sorted(owners.tolist()) == [0, 1, 2, 3]
    both = private_table(collated, privacy_unit="who", contribution_bound=2).rows("x").read()
    assert sorted(len(set(both[1][both[1] == owner])) for owner in set(both[1])) == [1] * 4


@pytest.mark.parametrize("engine", ["mysql", "mssql", "trino", "snowflake"])
def test_text_is_refused_where_its_collation_is_not_known(engine):
    table = ibis.table({"city": "string", "n": "int64"}, name="t")
    with pytest.raises(InvalidParameterError, match=f"in {engine} different texts may be equal"):
        told_apart(table.city, engine=engine)
    number = table.n
    assert told_apart(number, engine=engine) is number


def test_sqlite_is_refused_as_its_types_bind_nobody(tmp_path):
    path = tmp_path / "data.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE v (n INTEGER)")
    for source in (f"sqlite:///{path}", ibis.sqlite.connect(path).table("v")):
        with pytest.raises(InvalidParameterError, match="SQLite keeps any value"):
            private_table(source, table="v" if isinstance(source, str) else None)


@pytest.mark.parametrize("value", ["INTERVAL 1 MONTH", "[1.0]", "{'a': 1}"])
def test_a_unit_whose_equal_values_may_be_written_differently_is_refused(value):
    connection = ibis.duckdb.connect()
    connection.raw_sql(f"CREATE TABLE t AS SELECT {value} AS who, 1.0 AS x")
    with pytest.raises(InvalidParameterError, match="a unit must be text"):
        private_table(connection.table("t"), privacy_unit="who")
