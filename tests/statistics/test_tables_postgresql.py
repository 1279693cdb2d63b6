# SPDX-License-Identifier: Apache-2.0
"""The same questions of a PostgreSQL server: one of our own, as the ledger's tests have."""

import os

import ibis
import numpy as np
import pytest

from sfumato.statistics.columns import column_of
from sfumato.statistics.tables import private_table

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
