# SPDX-License-Identifier: Apache-2.0
"""What leaves an engine is such as Python can hold, and written in one way only."""

import datetime
from decimal import Decimal

import ibis
import pytest

from sfumato.statistics.sources.engine_values import comparable, portable, read_back
from sfumato.statistics.sources.tables import private_table

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")


def tallied(values: str) -> dict:
    connection = ibis.duckdb.connect()
    connection.raw_sql(f"CREATE TABLE t AS SELECT unnest([{values}]) AS v")
    return dict(private_table(connection.table("t")).categories("v").tallies())


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("DATE '2020-01-01', DATE 'infinity', DATE '20000-01-01'", {datetime.date(2020, 1, 1): 1}),
        ("DATE '0001-01-01', DATE '9999-12-31', DATE '0044-01-01 (BC)'",
         {datetime.date(1, 1, 1): 1, datetime.date(9999, 12, 31): 1}),
        ("TIME '10:00:00', TIME '24:00:00', TIME '00:00:00'",
         {datetime.time(10): 1, datetime.time(0): 1}),
        ("TIMESTAMP '9999-12-31 23:59:59', TIMESTAMP 'infinity', TIMESTAMP '20000-01-01'",
         {datetime.datetime(9999, 12, 31, 23, 59, 59): 1}),
        ("1.50::DECIMAL(5, 2), 1.5::DECIMAL(5, 2), -999.99::DECIMAL(5, 2)",
         {Decimal("1.50"): 2, Decimal("-999.99"): 1}),
        (f"{2**127 - 1}::HUGEINT, 1::HUGEINT", {Decimal(2**127 - 1): 1, Decimal(1): 1}),
        ("0.0::DOUBLE, -0.0::DOUBLE, 'nan'::DOUBLE, 'inf'::DOUBLE", {0.0: 2, float("inf"): 1}),
        ("'00000000-0000-0000-0000-000000000001'::UUID", {"00000000-0000-0000-0000-000000000001": 1}),
    ],
    ids=lambda given: given.split("::")[0][:20] if isinstance(given, str) else "",
)  # fmt: skip
def test_what_python_can_hold_leaves_as_it_is_and_nothing_else(values, expected):
    found = tallied(values)
    assert found == expected
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def test_a_unit_that_python_cannot_hold_owns_nothing():
    connection = ibis.duckdb.connect()
    connection.raw_sql(
        "CREATE TABLE t AS SELECT unnest([DATE '2020-01-01', 'infinity', '20000-01-01']) AS who, 1.0 AS x"
    )
    table = private_table(connection.table("t"), privacy_unit="who")
    assert table.count(epsilon=1e3).release().value == 1
    assert table.rows("x").read()[1].tolist() == [0]


def test_decimals_and_uuids_are_units_of_their_own():
    connection = ibis.duckdb.connect()
    for values in ("1.0::DECIMAL(5, 2), 2.0, 1.0", "uuid(), uuid(), NULL"):
        connection.raw_sql(f"CREATE OR REPLACE TABLE t AS SELECT unnest([{values}]) AS who, 1.0 AS x")
        table = private_table(connection.table("t"), privacy_unit="who")
        assert sorted(table.rows("x").read()[1].tolist()) == [0, 1]


def test_a_decimal_of_postgresql_has_no_digits_that_say_nothing_and_no_nan():
    table = ibis.table({"v": "decimal"}, name="t")
    sql = ibis.to_sql(
        table.select(v=portable(comparable(table.v, engine="postgres"), engine="postgres")), "postgres"
    )
    assert "TRIM_SCALE(" in str(sql) and "'NaN'" in str(sql)


def test_texts_are_read_back_as_what_they_were():
    table = ibis.table({"d": "decimal(9, 2)", "t": "time", "ts": "timestamp", "s": "string"}, name="t")
    kinds = dict(table.schema().items())
    assert read_back(["1.20", "-3"], kinds["d"]) == [Decimal("1.20"), Decimal(-3)]
    assert read_back(["23:59:59.999999", "24:00:00", "24:00:00+15:59:59"], kinds["t"]) == [
        datetime.time(23, 59, 59, 999999),
        None,
        None,
    ]
    moment = datetime.datetime(2020, 1, 1, 10)
    assert read_back(["2020-01-01 10:00:00", moment], kinds["ts"]) == [moment, moment]
    assert read_back(["a", ""], kinds["s"]) == ["a", ""]
