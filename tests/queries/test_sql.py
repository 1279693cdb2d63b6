# SPDX-License-Identifier: Apache-2.0
"""SQL becomes the same query objects, and what has no private answer is refused by naming the clause."""

import datetime
import importlib

import pandas as pd
import pytest

import sfumato as sf
from sfumato.errors import ColumnTypeError, InvalidParameterError
from sfumato.queries import Discovered, sql
from sfumato.queries.sql import condition
from sfumato.queries.sql_nodes import require_read
from sfumato.statistics.contributions.owned_rows import OwnedRows
from sfumato.statistics.sources.tables import private_table

sql_module = importlib.import_module("sfumato.queries.sql")  # the package has a function of that name
ROWS = pd.DataFrame(
    {
        "Region": ["a", "b"] * 500,
        "amount": [float(i % 50) for i in range(1000)],
        "who": [i // 2 for i in range(1000)],
        "day": pd.to_datetime(["2024-01-15", "2024-02-03"] * 500),
    }
)
BOUNDS = {"amount": (0.0, 50.0), "double": (0.0, 100.0), "who": (0.0, 500.0)}


def asked(statement: str, **terms):
    given = {"epsilon": 1e6, "bounds": BOUNDS} | terms
    return sql(private_table(ROWS), statement, **given)


def test_every_aggregate_is_that_of_duckdb_at_a_large_epsilon():
    query = asked(
        "SELECT region, COUNT(*) AS n, COUNT(amount) AS known, SUM(amount) AS total, AVG(amount) AS mean, "
        "STDDEV_POP(amount) AS spread, VAR_POP(amount) AS square, MEDIAN(amount) AS mid, "
        "QUANTILE_CONT(amount, 0.75) AS high, COUNT(DISTINCT amount) AS kinds, SUM(amount * 2) AS double "
        "FROM data WHERE amount >= 10 AND region IN ('a', 'b') AND NOT amount IS NULL "
        "AND amount BETWEEN 0 AND 48 "
        "AND (day < DATE '2024-02-04' OR region LIKE 'z%') GROUP BY 1",
        keys=["b", "a"],
    )
    table, rows = query.release(), ROWS[(ROWS.amount >= 10) & (ROWS.amount <= 48)]
    for i, region in enumerate(["b", "a"]):
        values = rows[rows.Region == region].amount
        truth = {
            "n": len(values), "known": len(values), "total": values.sum(), "mean": values.mean(),
            "spread": values.std(ddof=0), "square": values.var(ddof=0), "kinds": values.nunique(),
            "double": 2 * values.sum(),
        }  # fmt: skip
        found = {name: table.values[name][i] for name in truth}
        assert found == pytest.approx(truth, abs=0.05)
        assert table.values["mid"][i] == pytest.approx(values.median(), abs=2)  # values are 2 apart
        assert table.values["high"][i] == pytest.approx(values.quantile(0.75), abs=2)


def test_groups_are_named_by_place_by_alias_and_by_expression():
    months = [datetime.date(2024, 1, 1), datetime.date(2024, 2, 1)]
    for by in ("1", "m", "DATE_TRUNC('month', day)"):
        query = asked(
            f"SELECT DATE_TRUNC('month', day) AS m, COUNT(*) AS n FROM data GROUP BY {by}", keys=months
        )
        assert query.release().values["n"] == [500.0, 500.0]


def test_columns_without_an_alias_are_named():
    table = asked("SELECT COUNT(*), AVG(amount), SUM(amount) FROM data").release()
    assert list(table.values) == ["count", "avg_amount", "sum_amount"]


def test_a_statement_is_one_charge_to_the_account():
    clients = sf.open(
        "shops", ROWS, privacy_unit="who", contribution_bound=2, budget=sf.Budget(epsilon=2, delta=1e-5)
    )
    query = clients.sql("SELECT COUNT(*), AVG(amount) FROM shops", epsilon=1, bounds=BOUNDS)
    assert query.release().release.account == "shops" and clients.spent().epsilon == pytest.approx(1)
    found = clients.sql(
        "SELECT region, COUNT(*) FROM data GROUP BY region", epsilon=0.3, delta=1e-6, keys=Discovered()
    )
    assert found.release().keys == ["a", "b"] and len(clients.account.releases()) == 2


REFUSED = {
    "SELECT region FROM data GROUP BY region": "no aggregate",
    "SELECT * FROM data": r"SELECT \*",
    "SELECT amount, COUNT(*) FROM data": "shows rows",
    "SELECT COUNT(*) FROM data JOIN x ON 1 = 1": "JOIN x",
    "SELECT COUNT(*) FROM data, x": ", x",
    "SELECT COUNT(*) FROM (SELECT * FROM data)": "FROM",
    "SELECT COUNT(*) FROM data WHERE amount > (SELECT AVG(amount) FROM data)": "WHERE",
    "SELECT COUNT(*) FROM data WHERE amount IN (SELECT amount FROM data)": "subquery",
    "SELECT COUNT(*) FROM data WHERE EXISTS (SELECT 1)": "EXISTS",
    "SELECT COUNT(*) FROM data HAVING COUNT(*) > 1": "HAVING",
    "SELECT COUNT(*) FROM data ORDER BY 1": "ORDER",
    "SELECT COUNT(*) FROM data LIMIT 1": "LIMIT",
    "SELECT DISTINCT COUNT(*) FROM data": "DISTINCT",
    "WITH a AS (SELECT 1) SELECT COUNT(*) FROM data": "WITH",
    "SELECT COUNT(*) FROM data UNION SELECT 1": "UNION",
    "SELECT COUNT(*) FROM data; SELECT 1": "one SELECT",
    "SELECT MAX(amount) FROM data": "MAX",
    "SELECT SUM(amount) OVER () FROM data": "OVER",
    "SELECT COUNT(*) FILTER (WHERE amount > 1) FROM data": "FILTER",
    "SELECT SUM(DISTINCT amount) FROM data": "DISTINCT",
    "SELECT SUM(SUM(amount)) FROM data": "SUM",
    "SELECT COUNT(*) + 1 FROM data": "not answered",
    "SELECT SUM(other) FROM data": "no such column",
    'SELECT SUM("AMOUNT") FROM data': "no such column",
    "SELECT SUM(amount * 3) FROM data": "pass bounds",
    "SELECT COUNT(*) AS n, COUNT(who) AS n FROM data": "alias",
    "SELECT COUNT(*) AS epsilon FROM data": "another alias",
    "SELECT COUNT(*) FROM other": "FROM other",
    "SELECT COUNT(*) FROM main.data": "FROM",
    "SELECT COUNT(*) FROM data TABLESAMPLE 10%": "FROM",
    "SELECT COUNT(*) FROM read_csv('x')": "FROM",
    "SELECT COUNT(*) FROM data GROUP BY ROLLUP(region)": "ROLLUP",
    "SELECT COUNT(*) FROM data GROUP BY ALL": "GROUP BY",
    "SELECT region, COUNT(*) FROM data GROUP BY region": "is private",
    "SELECT COUNT(*) FROM data WHERE random() < 0.5": "WHERE",
    "SELECT COUNT(*) FROM data WHERE region > 3": "types",
    "SELECT COUNT(*) FROM data WHERE amount": "true or false",
    "SELECT COUNT(*) FROM data WHERE CAST(region AS INTERVAL) IS NULL": "casts",
    "SELECT COUNT(amount, who) FROM data": r"COUNT\(amount, who\), EXPRESSIONS",
    "SELECT COUNT(*) FROM data WHERE amount IN amount": "list the values",
    "SELECT COUNT(*) FROM data WHERE amount BETWEEN SYMMETRIC 9 AND 1": "SYMMETRIC",
    "SELECT COUNT(*) FROM data AS d(a, b)": "COLUMNS",
    "SELECT COUNT(*) FROM data WHERE other.amount > 1": "no table 'other'",
    "SELECT COUNT(*) FROM data WHERE main.data.amount > 1": "DB",
    "SELECT SUM(other.amount) FROM data": "no table 'other': the statement names 'data'",
    "SELECT SUM(data.amount) FROM data AS d": "no table 'data': the statement names 'd'",
    "SELECT COUNT(*) FROM data d WHERE data.amount > 1": "the statement names 'd'",
    "SELECT COUNT(*) FROM data GROUP BY other.region": "the statement names 'data'",
    "DROP TABLE data": "one SELECT",
    "SELEC 1": "not SQL",
    "": "one SELECT",
}


@pytest.mark.parametrize("statement", REFUSED)
def test_what_has_no_private_answer_is_refused_by_name_and_before_data_is_read(statement, monkeypatch):
    def read(self, *given, **named):
        raise AssertionError("data was read")

    monkeypatch.setattr(OwnedRows, "table", read)
    with pytest.raises(InvalidParameterError, match=REFUSED[statement]) as caught:
        asked(statement)
    assert caught.value.__cause__ is None


def test_a_mean_of_text_is_refused_by_the_schema():
    with pytest.raises(ColumnTypeError):
        asked("SELECT AVG(region) FROM data", bounds={"Region": (0, 1)})


def test_an_alias_that_is_another_column_does_not_name_its_bounds():
    with pytest.raises(InvalidParameterError, match=r"pass bounds=\{'amount \* 2'"):
        asked("SELECT SUM(amount * 2) AS amount FROM data")
    with pytest.raises(InvalidParameterError, match=r"pass bounds=\{.Region."):
        asked("SELECT AVG(region) AS amount FROM data")
    assert asked("SELECT SUM(amount) AS amount FROM data").release().values["amount"]


@pytest.mark.parametrize("text", ["amount > 1 GROUP BY region", "amount > 1 LIMIT 3", "amount > 1; SELECT 1"])
def test_a_condition_with_more_behind_it_is_refused(text):
    with pytest.raises(InvalidParameterError):
        condition(private_table(ROWS), text)


def test_values_of_any_type_are_counted():
    rows = ROWS.assign(word=["w", None, None, ""] * 250, when=[pd.NaT, *ROWS.day[1:]])
    asks = "SELECT COUNT(word) AS n, COUNT(d.when) AS m, COUNT(amount) AS k FROM data AS d"
    found = sql(private_table(rows), asks, epsilon=1e6).release().values
    assert found == {"n": [500.0], "m": [999.0], "k": [1000.0]}


def test_a_column_is_qualified_by_the_name_or_the_alias_of_the_table():
    clients = sf.open("shops", ROWS, budget=sf.Budget(epsilon=1e7, delta=0.0))
    for table, name in (("data", "data"), ("shops", "Shops"), ("data AS d", "D"), ("shops s", "s")):
        asks = (
            f"SELECT {name}.region, SUM({name}.amount) AS n FROM {table} WHERE {name}.amount >= 40 GROUP BY 1"
        )
        found = clients.sql(asks, epsilon=1e6, bounds=BOUNDS, keys=["a", "b"]).release()
        assert found.values["n"] == pytest.approx([4400, 4500], abs=1)
    for table, name in (("shops", "data"), ("data", "shops"), ("shops AS s", "shops")):
        with pytest.raises(InvalidParameterError, match=f"no table {name!r}"):
            clients.sql(f"SELECT SUM({name}.amount) FROM {table}", epsilon=1, bounds=BOUNDS)


def test_no_part_of_a_statement_is_ignored():
    """A part that sqlglot adds to a node, and nobody reads, is refused wherever it is."""
    asks = "COUNT(*) AS n, SUM(amount * 2) AS double FROM data AS d WHERE NOT amount > 1"
    statement = f"SELECT region, {asks} GROUP BY 1"
    for place in range(len(list(sql_module._parsed(statement).walk()))):
        select = sql_module._parsed(statement)
        require_read(select)
        list(select.walk())[place].set("unheard_of", True)
        with pytest.raises(InvalidParameterError, match=r"UNHEARD_OF|one table"):
            require_read(select)
