# SPDX-License-Identifier: Apache-2.0
"""The same questions of a PostgreSQL server: one of our own, as the ledger's tests have."""

import os
import threading
import time
from collections import Counter
from decimal import Decimal

import ibis
import numpy as np
import psycopg
import pyarrow as pa
import pytest

from sfumato import queries
from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.ledger import Budget, Ledger, Progress
from sfumato.queries.grouped import group_by
from sfumato.queries.totals import Bins, Kind, Total
from sfumato.statistics.columns.categories import categories_of
from sfumato.statistics.columns.columns import column_of
from sfumato.statistics.sources.tables import private_table

VALUES = [float(i) for i in range(30)] + [float("nan"), float("inf"), -float("inf"), 0.3, 1e300]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory):
    runtime = tmp_path_factory.mktemp("runtime")
    runtime.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "XDG_RUNTIME_DIR", str(runtime))
        import pgserver

        server = pgserver.get_server(tmp_path_factory.mktemp("postgresql"), cleanup_mode="stop")
        rows = ", ".join(f"({i % 7}, 'k{i % 3}', '{x}'::float8)" for i, x in enumerate(VALUES))
        server.psql(f"CREATE TABLE people AS SELECT * FROM (VALUES {rows}, (1, NULL, NULL)) AS t(who, k, x)")
        yield server.get_uri()
        server.cleanup()


@pytest.fixture
def opened(url):
    tables = []

    def open_table(**unit):
        tables.append(private_table(url, table="people", **unit))
        return tables[-1]

    yield open_table
    for table in tables:
        table.owned.engine.disconnect()


OF_X = [Total(Kind.KNOWN, "x")]
OF_X += [Total(kind, "x", (0.0, 20.0)) for kind in (Kind.STEPS, Kind.SQUARES, Kind.GRID)]


@pytest.mark.parametrize("unit", [{}, {"privacy_unit": "who", "contribution_bound": 40}])
@pytest.mark.parametrize("bins", [(), (Bins("x", (0.0, 20.0), 64),)])
def test_a_workload_adds_up_and_counts_what_duckdb_does(opened, unit, bins):
    rows = [(i % 7, f"k{i % 3}", x) for i, x in enumerate(VALUES)] + [(1, None, None)]
    frame = pa.table(dict(zip(("who", "k", "x"), map(list, zip(*rows, strict=True)), strict=True)))
    found, expected = (
        group_by(table, "k", keys=["k0", "k2", "other"]).source().grouped().compute(OF_X, bins)
        for table in (opened(**unit), private_table(frame, **unit))
    )
    assert all((found.totals[total] == expected.totals[total]).all() for total in OF_X)
    for each in bins:
        pairs = zip(found.bins[each], expected.bins[each], strict=True)
        assert all((one.histogram(each.edges) == other.histogram(each.edges)).all() for one, other in pairs)
        assert sum(group.counts.sum() for group in found.bins[each]) == found.totals[OF_X[0]].sum() > 0


@pytest.mark.parametrize("bounds", [(-1e10, 1e10), (0.0, 1e7), (-1e100, 1e100)], ids=str)
@pytest.mark.parametrize("unit", [None, "who"])
def test_a_value_so_close_to_0_that_its_product_is_0_stops_nothing(url, unit, bounds):
    with psycopg.connect(url) as connection:
        values = ", ".join(f"(1, 'k', '{x}'::float8)" for x in ("5e-324", "-5e-324", "1e-290", "0", "1"))
        connection.execute("DROP TABLE IF EXISTS tiny")
        connection.execute(f"CREATE TABLE tiny AS SELECT * FROM (VALUES {values}) AS t(who, k, x)")
    connected = ibis.connect(url)
    table = private_table(connected.table("tiny"), privacy_unit=unit, contribution_bound=5 if unit else 1)
    asked = {
        "n": queries.count("x"),
        "sum": queries.sum("x", bounds=bounds),
        "mean": queries.mean("x", bounds=bounds),
        "median": queries.median("x", bounds=bounds),
    }
    groups = group_by(table, "k", keys=["k"])
    assert groups.agg(epsilon=1e6, **asked).release().values["n"] == pytest.approx([5.0])
    assert sum(groups.ranges("x", bounds=bounds, bins=8, epsilon=1e6)["k"].counts) == pytest.approx(
        5, abs=0.1
    )
    assert column_of(table["x"]).histogram(np.linspace(*bounds, 9)).sum() == 5
    connected.disconnect()


def test_a_server_gives_what_memory_gives(opened):
    column = opened()["x"]
    expected = column_of(VALUES)
    assert column.moments((0, 20)) == expected.moments((0, 20))
    for edges in (np.linspace(0, 20, 9), np.array([0.0, 1.0, 7.0, 30.0])):
        assert column.histogram(edges).tolist() == expected.histogram(edges).tolist()
    assert column.ordered((0, 20)).tolist() == expected.ordered((0, 20)).tolist()


def test_units_are_bounded_and_groups_and_keys_found(opened):
    table = opened(privacy_unit="who", contribution_bound=2)
    assert table["x"].moments((0, 20)).count == 14
    assert table.count(epsilon=1e3).release().value == 14
    grouped = table.group_by("k", keys=["k0", "k1", "k2", "none"])
    counts = grouped.count(epsilon=1e3).release().value
    assert sum(counts.values()) == 14 and counts["none"] == 0
    means = grouped.mean("x", bounds=(0, 20), epsilon=1e3).release().value
    assert all(0 <= mean <= 20 for mean in means.values())
    rows = opened()
    assert rows.keys("k", epsilon=20.0, delta=0.01).release().value == ["k0", "k1", "k2"]
    assert rows.filter(ibis._.k == "k1").count(epsilon=1e3).release().value == 12


KINDS = {
    "bool": "i % 2 = 0", "int2": "i % 9", "float4": "(i % 9) / 2.0",
    "numeric": "(i % 9) * (ARRAY[1.0, 1.00])[i % 2 + 1]",
    "float8": "CASE WHEN i % 9 > 0 THEN i % 9 WHEN i % 2 = 0 THEN '-0'::float8 ELSE 0.0 END",
    "date": "DATE '2020-01-01' + i % 9",
    "timestamp": "TIMESTAMP '2020-01-01' + (i % 9) * INTERVAL '1 second'",
    "uuid": "md5((i % 9)::text)::uuid", "bytea": "decode(md5((i % 9)::text), 'hex')", "text": "'p' || i % 9",
    "char(5)": "'p' || i % 9",
}  # fmt: skip


@pytest.fixture(scope="module")
def visits(url):
    """Give flags and costs of units of every type, and the same rows in memory."""
    units = ", ".join(f'CAST({kind} AS {name}) AS "{name}"' for name, kind in KINDS.items())
    with psycopg.connect(url, autocommit=True) as server:
        rows = f"SELECT i % 331 AS who, 'patient ' || i % 331 AS name, {units}"
        values = "(i * 7919 % 100 = 0)::int::float8 AS flag, i * 31 % 17 AS cost, chr(97 + i % 5) AS ward"
        server.execute(f"CREATE TABLE visits AS {rows}, {values} FROM generate_series(0, 9999) AS t(i)")
        columns = "who", "name", "flag", "cost", "ward"
        found = server.execute(f"SELECT {', '.join(columns)} FROM visits").fetchall()
    engine = ibis.connect(url)
    yield engine.table("visits"), dict(zip(columns, zip(*found, strict=True), strict=True))
    engine.disconnect()


@pytest.mark.parametrize("bound", [1, 4])
@pytest.mark.parametrize("unit", ["who", "name"])
def test_a_server_keeps_the_rows_that_memory_keeps(visits, unit, bound):
    table = private_table(visits[0], privacy_unit=unit, contribution_bound=bound)
    rows, units = visits[1], {"owners": visits[1][unit], "contribution_bound": bound}
    for name in ("flag", "cost"):
        expected = column_of(np.array(rows[name], dtype=float), **units)
        assert table[name].moments((0, 20)) == expected.moments((0, 20))
    wards = categories_of(list(rows["ward"]), **units)
    assert dict(table.categories("ward").tallies()) == dict(wards.tallies())


def test_the_mean_of_a_server_is_that_of_uniform_sampling(visits):
    flag, who = np.array(visits[1]["flag"]), np.array(visits[1]["who"])
    for unit in ("who", "name"):
        found = private_table(visits[0], privacy_unit=unit)["flag"].ordered((0, 1)).mean()
        expected = np.mean([flag[who == owner].mean() for owner in range(331)])
        assert found == pytest.approx(expected, abs=5 * np.sqrt(0.01 * 0.99 / 331))


@pytest.mark.parametrize("kind", KINDS)
def test_units_of_every_type_are_bounded(visits, kind):
    table = private_table(visits[0], privacy_unit=kind, contribution_bound=2)
    counted = Counter(table.rows("cost").read()[1].tolist())
    assert sorted(counted.values()) == [2] * (2 if kind == "bool" else 9)


def test_pairs_that_were_not_asked_for_take_no_place(visits):
    table = private_table(visits[0], privacy_unit="who")
    wanted = [("a", True), ("b", False), ("c", True)]
    counts = table.group_by("ward", "bool", keys=wanted).count(epsilon=1e3).release().value
    assert sum(counts.values()) == 331


NUMERICS = ["1e309", "-1e309", "1e131000", "1e-400", "-1e-400", "NaN", "Infinity", "1.0", "1.00", "7"]


@pytest.fixture
def numerics(url):
    with psycopg.connect(url, autocommit=True) as connection:
        rows = ", ".join(f"('{value}'::numeric, {i % 2 == 0})" for i, value in enumerate(NUMERICS))
        connection.execute(f"CREATE TABLE numerics AS SELECT * FROM (VALUES {rows}) AS t(n, flag)")
        table = private_table(url, table="numerics")
        yield table
        table.owned.engine.disconnect()
        connection.execute("DROP TABLE numerics")


def test_numbers_beyond_float64_are_clipped_those_near_zero_are_zero_and_nan_is_missing(numerics):
    expected = [-5.0, 0.0, 0.0, 1.0, 1.0, 7.0, 9.0, 9.0, 9.0]
    assert numerics["n"].ordered((-5, 9)).tolist() == expected
    computed = numerics.mutate(y=lambda row: row.n.cast("float64"))
    assert computed["y"].ordered((-5, 9)).tolist() == expected


def test_equal_numbers_are_one_category_written_in_one_way(numerics):
    found = dict(numerics.categories("n").tallies())
    assert found[Decimal(1)] == 2 and [str(key) for key in found if key == 1] == ["1"]
    assert not any(category.is_nan() for category in found) and len(found) == 8


def test_true_and_false_are_numbers(numerics):
    assert numerics["flag"].ordered((0, 1)).tolist() == [0.0] * 5 + [1.0] * 5
    assert numerics.mutate(y=lambda row: row.flag.cast("int64"))["y"].moments((0, 1)).count == 10
    means = numerics.group_by("flag", keys=[True]).mean("flag", bounds=(0, 1), epsilon=1e3).release().value
    assert means[True] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    "test",
    [
        lambda row: row.k.like("k\\"),
        lambda row: row.k.ilike("k\\0"),
        lambda row: row.k.substr(1, -1) == "",
        lambda row: row.k.right(-1) == "",
        lambda row: row.who.cast("boolean"),
        lambda row: row.x.hash() + 1 > 0,
    ],
)
def test_what_fails_on_some_rows_only_or_on_all_of_them_is_refused(opened, test):
    with pytest.raises(InvalidParameterError):
        opened().filter(test)


def test_an_encoding_that_has_texts_that_are_none_in_utf_8_is_refused(url):
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE western TEMPLATE template0 ENCODING 'WIN1252' LOCALE 'C'")
    western = url.replace("/postgres?", "/western?")
    with psycopg.connect(western, autocommit=True) as connection:
        connection.execute("CREATE TABLE people AS SELECT 1 AS k")
    engine = ibis.connect(western)
    with pytest.raises(InvalidParameterError, match="encoding of this PostgreSQL database is WIN1252"):
        private_table(engine.table("people"))
    engine.disconnect()


def test_when_the_server_ends_the_connection_the_budget_stays_spent_and_nothing_is_said(
    url, opened, tmp_path
):
    table = opened()
    ledger = Ledger(tmp_path / "ledger.db")
    account = ledger.open("people", privacy_unit="row", budget=Budget(epsilon=1, delta=1e-6))
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("ALTER TABLE people RENAME TO hidden")
        slow = "CREATE VIEW people AS SELECT who, k, x + length(pg_sleep(20)::text) AS x FROM hidden"
        try:
            other.execute(slow)
            ending = threading.Thread(target=ends_others, args=(url,))
            ending.start()
            with pytest.raises(QueryFailedError, match="stays spent") as failure:
                table.group_by("k", keys=["k0"]).mean("x", bounds=(0, 20), epsilon=0.1).release(
                    account=account
                )
            ending.join()
        finally:
            other.execute("DROP VIEW IF EXISTS people")
            other.execute("ALTER TABLE hidden RENAME TO people")
    for word in ("terminat", "administrator", "OperationalError", "k0", "server"):
        assert word not in str(failure.value)
    assert failure.value.__cause__ is None and failure.value.__context__ is None
    assert [release.progress for release in account.releases()] == [Progress.BEGUN]
    assert account.remaining().epsilon < 1
    ledger.verify()


def ends_others(url: str) -> None:
    """Wait until a query sleeps, and end the connection that asked it."""
    sleeping = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND pid <> pg_backend_pid()"
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(200):
            found = connection.execute(sleeping).fetchall()
            if found:
                connection.execute("SELECT pg_terminate_backend(%s)", [found[0][0]])
                return
            time.sleep(0.05)
