# SPDX-License-Identifier: Apache-2.0
"""Queries in PostgreSQL and in Spark: the same numbers as those of pandas and of DuckDB, by the same code.

DuckDB is in all other tests of queries.
"""

import datetime
import os
import shutil
from contextlib import contextmanager

import ibis
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sfumato import queries as q
from sfumato.audit import replay
from sfumato.errors import InvalidParameterError
from sfumato.statistics.sources.tables import private_table
from sfumato.testing import seeded

B = {"bounds": (0.0, 200.0)}
KEYS = ["a", "b", "c", "nobody"]


def frame(rows: int = 3000) -> pd.DataFrame:
    """Return skewed and tied values, some missing or not finite, of units with several rows."""
    draw = np.random.default_rng(0)
    amount = np.floor(draw.lognormal(3, 1, rows))
    amount[::13] = np.nan
    amount[1:9:4] = [np.inf, -np.inf]
    return pd.DataFrame(
        {
            "who": draw.integers(0, rows // 4, rows),
            "region": draw.choice([*KEYS[:3], "other"], rows, p=[0.7, 0.15, 0.1, 0.05]),
            "amount": amount,
            "age": draw.integers(18, 60, rows),
            "day": pd.to_datetime(draw.choice(pd.date_range("2024-01-01", "2024-03-31"), rows)),
        }
    )


DATA = frame()


# A virtual machine of Java starts, and pyspark 4.3 warns about pandas 3 at every step.
SPARK = pytest.param("pyspark", marks=[pytest.mark.slow, pytest.mark.filterwarnings("ignore")])
FAR = DATA.assign(who=DATA.who * 2.0**51)  # units that are floats, of which four are below 2^53
TABLES = {"visits": DATA, "fewer": DATA[DATA.who != 0], "far": FAR}


@pytest.fixture(scope="module", params=["postgres", SPARK])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Give a connection to an engine of our own with the rows in two tables."""
    made = {"postgres": postgresql, "pyspark": spark}[request.param]
    with made(tmp_path_factory) as connection:
        yield connection


@contextmanager
def postgresql(folders: pytest.TempPathFactory):
    runtime = folders.mktemp("runtime")
    runtime.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "XDG_RUNTIME_DIR", str(runtime))
        import pgserver

        running = pgserver.get_server(folders.mktemp("postgresql"), cleanup_mode="stop")
        connection = ibis.connect(running.get_uri())
        for name, rows in TABLES.items():
            connection.create_table(name, pa.Table.from_pandas(rows, preserve_index=False))
        yield connection
        connection.disconnect()
        running.cleanup()


@contextmanager
def spark(folders: pytest.TempPathFactory):
    sql = pytest.importorskip("pyspark.sql", reason="needs pyspark: run `make test-spark`")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("needs Java 17 or later for Spark: install one, then run `make test-spark`")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "localhost",
    }
    building = sql.SparkSession.builder.master("local[1]").config(map=settings)
    folder = folders.mktemp("spark")
    session = building.config("spark.sql.warehouse.dir", str(folder)).getOrCreate()
    for name, rows in TABLES.items():
        rows.to_parquet(folder / f"{name}.parquet", coerce_timestamps="us")
        session.read.parquet(str(folder / f"{name}.parquet")).createOrReplaceTempView(name)
    yield ibis.pyspark.connect(session)
    session.stop()


def opened(server, name: str = "visits", **terms):
    return private_table(server.table(name), **terms)


def everything() -> dict[str, q.Statistic]:
    return {
        "n": q.count(),
        "known": q.count("amount"),
        "total": q.sum("amount", **B),
        "average": q.mean("amount", **B),
        "spread": q.standard_deviation("amount", **B),
        "typical": q.median("age", bounds=(0, 100)),
        "high": q.quantile("age", 0.9, bounds=(0, 100), interval=True),
        "people": q.count_distinct("who"),
        "ages": q.count_distinct("age"),
    }


def exact(data: pd.DataFrame, by: str = "region") -> pd.DataFrame:
    groups = data.assign(amount=data.amount.clip(*B["bounds"])).groupby(by)
    return pd.DataFrame(
        {
            "n": groups.size(),
            "known": groups.amount.count(),
            "total": groups.amount.sum(),
            "average": groups.amount.mean(),
            "spread": groups.amount.std(ddof=0),
            "typical": groups.age.median(),
            "high": groups.age.quantile(0.9),
            "people": groups.who.nunique(),
            "ages": groups.age.nunique(),
        }
    )


CLOSE = {"total": 10.0, "average": 0.05, "spread": 0.05, "typical": 0.6, "high": 0.6}


@pytest.mark.parametrize(
    "terms",
    [
        {},
        {"privacy_unit": "who", "contribution_bound": 40},
        {"privacy_unit": "who", "contribution_bound": 80, "rows_per_group": 20},
    ],
)
def test_at_a_large_epsilon_a_workload_has_the_exact_numbers(server, terms):
    within = {name: value for name, value in terms.items() if name == "rows_per_group"}
    unit = {name: value for name, value in terms.items() if name not in within}
    groups = q.group_by(opened(server, **unit), "region", keys=KEYS[:3], **within)
    found = groups.agg(**everything(), epsilon=1e6).release()
    truth = exact(DATA)
    for name, values in found.values.items():
        assert np.allclose(values, truth[name][KEYS[:3]], rtol=0, atol=CLOSE.get(name, 0.01)), name


def test_rows_are_bounded_as_in_duckdb(server):
    rows = {"privacy_unit": "who", "contribution_bound": 2}
    asked = {"n": q.count(), "people": q.count_distinct("who"), "total": q.sum("age", bounds=(0, 100))}
    for within in ({}, {"rows_per_group": 1, "groups_per_unit": 2}):
        found = [
            q.group_by(table, "region", keys=KEYS, **within).agg(**asked, epsilon=1e6).release().values
            for table in (opened(server, **rows), private_table(DATA, **rows))
        ]
        assert sum(found[0]["n"]) == sum(found[1]["n"])  # which rows are kept is drawn, how many is not
        assert found[0]["n"][3] == found[0]["people"][3] == 0
        if within:
            assert found[0]["n"] == found[0]["people"]


def test_a_bound_that_named_keys_cap_counts_every_row(server):
    terms, keys = {"privacy_unit": "who", "contribution_bound": 60}, KEYS[:2]
    truth = exact(DATA)
    for table in (
        opened(server, **terms),
        private_table(DATA, **terms),
        private_table(pl.from_pandas(DATA), **terms),
    ):
        groups = q.group_by(table, "region", keys=keys, rows_per_group=30, groups_per_unit=9)
        found = groups.agg(**everything(), epsilon=1e6).release()
        for name, values in found.values.items():
            assert np.allclose(values, truth[name][keys], rtol=0, atol=CLOSE.get(name, 0.01)), name


def test_units_that_are_floats_are_told_apart_or_missing(server):
    for source in (server.table("far"), pl.from_pandas(FAR), FAR):
        table = private_table(source, privacy_unit="who", contribution_bound=80)
        found = q.group_by(table).agg(n=q.count(), people=q.count_distinct("who"), epsilon=1e6).release()
        assert found.values == {"n": [(DATA.who < 4).sum()], "people": [4]}


def test_conditions_and_discovered_keys(server):
    groups = q.group_by(opened(server), "region", keys=KEYS[:3])
    found = groups.agg(
        n=q.count(), total=q.sum("age", bounds=(0, 100)), epsilon=1e6, where=lambda row: row.age >= 40
    )
    truth = DATA[DATA.age >= 40].groupby("region").age
    values = found.release().values
    assert values["n"] == truth.size()[KEYS[:3]].tolist()
    assert values["total"] == pytest.approx(truth.sum()[KEYS[:3]].tolist(), abs=1)
    groups = q.group_by(opened(server), "region", keys=q.Discovered())
    assert groups.agg(n=q.count(), epsilon=20, delta=1e-6).release().keys == ["a", "b", "c", "other"]


def test_dates_that_some_row_cannot_be_truncated_to_are_refused_before_data_is_read(server):
    asks = "SELECT DATE_TRUNC('month', day) AS month, COUNT(*) AS n FROM data GROUP BY 1"
    with pytest.raises(InvalidParameterError, match="that no row can make fail in"):
        q.sql(opened(server), asks, epsilon=1, keys=[datetime.date(2024, 1, 1)])


def test_ranges_of_all_rows_and_of_groups(server):
    table = opened(server)
    found = q.group_by(table, "region", keys=KEYS).ranges("amount", **B, bins=200, epsilon=1e6)
    values = DATA[DATA.region == "b"].amount.dropna().clip(*B["bounds"])
    for lower, upper in ((0, 10), (20, 21), (10, 150)):
        truth = ((values >= lower) & (values < upper)).sum()
        assert found["b"].between(lower, upper).value == pytest.approx(truth, abs=0.5)
    assert found["nobody"].between(0, 200).value == pytest.approx(0, abs=0.5)
    every = q.ranges(table["amount"], **B, bins=200, epsilon=1e3)
    assert every.between(0, 200).value == pytest.approx(DATA.amount.count(), abs=2)


def test_sql_is_the_same_query(server):
    asks = "SELECT region, COUNT(*) AS n, AVG(amount) AS mean FROM data WHERE age < 50 GROUP BY region"
    query = q.sql(opened(server), asks, epsilon=1e6, bounds={"amount": B["bounds"]}, keys=KEYS[:3])
    truth = exact(DATA[DATA.age < 50])
    found = query.release().values
    assert found["n"] == truth.n[KEYS[:3]].tolist()
    assert found["mean"] == pytest.approx(truth.average[KEYS[:3]].tolist(), abs=0.05)
    assert "region" in query.explain().plan


def test_a_unit_moves_only_numbers_that_get_enough_noise(server):
    terms = {"privacy_unit": "who", "contribution_bound": 4}

    def release(name, generator):
        groups = q.group_by(opened(server, name, **terms), "region", keys=KEYS, rows_per_group=2)
        counted = groups.agg(n=q.count(), total=q.sum("amount", **B), epsilon=1.0)
        ranged = groups.ranges("amount", **B, bins=8, epsilon=1.0, generator=generator)
        return counted.release(generator=generator).to_json(), ranged.release.to_json()

    assert len(replay(release, "visits", "fewer", generator=seeded(0))) == 3


def test_joins_are_refused_by_name(server):
    offices = pd.DataFrame({"region": KEYS, "office": KEYS})
    with pytest.raises(InvalidParameterError, match="joined in DuckDB, not in"):
        opened(server).join(offices, on="region")
