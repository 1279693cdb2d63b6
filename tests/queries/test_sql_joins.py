# SPDX-License-Identifier: Apache-2.0
"""JOIN in SQL is the join of public tables; everything else in it is refused by name."""

import pandas as pd
import pyarrow as pa
import pytest

import sfumato as sf
from sfumato.errors import InvalidParameterError
from sfumato.queries import sql
from sfumato.statistics.contributions.owned_rows import OwnedRows
from sfumato.statistics.sources.tables import private_table

ROWS = pa.table(
    {
        "zip": ["10", "20", "20", "99", None],
        "year": [2020, 2020, 2021, 2020, 2020],
        "cost": [1.0, 2.0, 3.0, 4.0, 5.0],
    }
)
ZIPS = pd.DataFrame({"zip": ["10", "20"], "region": ["north", "south"]})
RATES = pd.DataFrame({"code": ["10", "20", "20"], "when": [2020, 2020, 2021], "rate": [2.0, 3.0, 4.0]})
SIDES = pd.DataFrame({"region": ["south"], "warm": ["yes"]})
TABLES = {"zips": ZIPS, "rates": RATES, "sides": SIDES}
TERMS = {"epsilon": 1e6, "bounds": {"cost": (0, 10), "rate": (0, 10)}, "tables": TABLES}


@pytest.mark.parametrize(
    ("joined", "n"),
    [
        ("JOIN zips ON data.zip = zips.zip", 3),
        ("JOIN zips USING (zip)", 3),
        ("INNER JOIN zips z ON z.zip = data.zip", 3),
        ("LEFT JOIN zips ON data.zip = zips.zip", 5),
        ("LEFT OUTER JOIN zips USING (zip)", 5),
        ("JOIN rates r ON zip = r.code AND data.year = r.when", 3),
        ("LEFT JOIN zips USING (zip) JOIN rates r ON data.zip = r.code AND data.year = r.when", 3),
        ("JOIN zips z USING (zip) JOIN sides ON z.region = sides.region", 2),
    ],
)
def test_rows_are_those_of_duckdb(joined, n):
    release = sql(private_table(ROWS), f"SELECT COUNT(*) AS n FROM data {joined}", **TERMS).release()
    assert release.values["n"] == [n]


def test_joined_columns_are_grouped_filtered_and_added_up():
    statement = (
        "SELECT z.region, COUNT(*) AS n, SUM(r.rate) AS total FROM data AS d JOIN zips z ON d.zip = z.zip "
        "JOIN rates r ON d.zip = r.code AND d.year = r.when WHERE d.cost < 9 AND r.rate > 1 GROUP BY z.region"
    )
    clients = sf.open("orders", ROWS, budget=sf.Budget(epsilon=1e7, delta=0.0))
    release = clients.sql(statement, keys=["north", "south"], **TERMS).release()
    assert release.values["n"] == [1, 2]
    assert release.values["total"] == pytest.approx([2, 7], abs=0.01)
    assert len(clients.account.releases()) == 1


@pytest.mark.parametrize(
    ("joined", "says"),
    [
        ("JOIN zips ON 1 = 1", "ON takes equal columns"),
        ("JOIN zips ON data.zip >= zips.zip", "ON takes equal columns"),
        ("JOIN zips ON data.zip = zips.zip OR data.year = 1", "ON takes equal columns"),
        ("JOIN zips ON zips.zip = zips.region", "one column of zips with one of the private table"),
        ("JOIN zips ON data.zip = data.year", "one column of zips with one of the private table"),
        ("JOIN zips", "it needs ON or USING"),
        (", zips", "it needs ON or USING"),
        ("CROSS JOIN zips", "JOIN and LEFT JOIN are answered"),
        ("RIGHT JOIN zips USING (zip)", "JOIN and LEFT JOIN are answered"),
        ("FULL JOIN zips USING (zip)", "JOIN and LEFT JOIN are answered"),
        ("SEMI JOIN zips USING (zip)", "JOIN and LEFT JOIN are answered"),
        ("ANTI JOIN zips USING (zip)", "JOIN and LEFT JOIN are answered"),
        ("NATURAL JOIN zips", "are answered|needs ON"),
        ("JOIN zips USING (nothing)", "no column 'nothing'"),
        ("JOIN other USING (zip)", "a joined table is public"),
        ("JOIN data d USING (zip)", "a joined table is public"),
        ("JOIN (SELECT * FROM data) AS z USING (zip)", "a joined table is public"),
        ("JOIN zips data USING (zip)", "a second table of that name"),
        ("JOIN zips USING (zip) WHERE zips.cost > 1", "its table has no such column"),
        ("JOIN zips USING (zip) WHERE other.cost > 1", "its table has no such column"),
        ("JOIN zips z USING (zip) WHERE z.zip = '10'", "named by the private column"),
        ("JOIN zips ON other.zip = zips.zip", "its table has no such column"),
        ("JOIN zips ON main.data.zip = zips.zip", "DB"),
        (
            "LEFT JOIN zips z USING (zip) JOIN rates r ON z.zip = r.code AND data.year = r.when",
            "private column",
        ),
        ("JOIN rates r ON data.year = r.when AND data.year = r.code", "compared twice"),
        ("JOIN rates r ON data.zip = r.code AND data.year = r.code", "each once"),
        ("JOIN rates ON data.zip = rates.code", "several rows for code = '20'"),
    ],
)
def test_other_joins_are_refused_before_anything_is_read(joined, says, monkeypatch):
    monkeypatch.setattr(OwnedRows, "table", lambda *given: pytest.fail("data was read"))
    with pytest.raises(InvalidParameterError, match=says):
        sql(private_table(ROWS), f"SELECT COUNT(*) FROM data {joined}", **TERMS)
