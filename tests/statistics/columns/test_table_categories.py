# SPDX-License-Identifier: Apache-2.0
"""What an engine counts as one category is written in one way, whichever row comes first."""

import datetime
from functools import partial

import ibis
import numpy as np
import pandas as pd
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.statistics import histogram
from sfumato.statistics.questions.top_k import top_k
from sfumato.statistics.sources.tables import private_table

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")


def written(found) -> dict[str, int]:
    return {repr(category): found[category] for category in found}


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("values", [[-0.0, 0.0, 0.0], [0.0, 0.0, -0.0]], ids=["first", "last"])
def test_zero_has_no_sign(values, kind):
    categories = private_table(pd.DataFrame({"x": np.array([*values, 1.5], dtype=kind)})).categories("x")
    assert written(categories.tallies()) == {"0": 3, "1.5": 1}
    assert categories.tally([-0.0, 1.5]).tolist() == [3, 1]


@pytest.fixture
def collated():
    def made(names):
        connection = ibis.duckdb.connect()
        connection.raw_sql("CREATE TABLE people (who VARCHAR COLLATE nocase.noaccent)")
        connection.con.executemany("INSERT INTO people VALUES (?)", [[name] for name in names])
        return private_table(connection.table("people"))

    return made


@pytest.mark.parametrize("names", [["ANN", "ann", "ann", "änn"], ["ann", "änn", "ann", "ANN"]], ids="-".join)
def test_texts_that_differ_are_different_whatever_the_collation(names, collated):
    categories = collated(names).categories("who")
    assert dict(categories.tallies()) == {"ann": 2, "ANN": 1, "änn": 1}
    assert categories.tally(["ann", "änn", "Ann"]).tolist() == [2, 1, 0]


def test_other_categories_are_counted_as_they_are():
    day = datetime.date(2020, 1, 1)
    frame = pd.DataFrame({"day": [day, day], "yes": [True, False], "n": [3, 3]})
    table = private_table(frame).mutate(day=lambda row: row.day.try_cast("date"))
    assert dict(table.categories("day").tallies()) == {day: 2}
    assert table.categories("yes").tally([True, False]).tolist() == [1, 1]
    assert written(table.categories("n").tallies()) == {"3": 2}


@pytest.mark.parametrize("value", ["INTERVAL 1 MONTH", "[1.0]", "{'a': 1}"])
def test_a_type_whose_equal_values_may_be_written_differently_is_refused(value):
    connection = ibis.duckdb.connect()
    connection.raw_sql(f"CREATE TABLE t AS SELECT {value} AS x")
    with pytest.raises(InvalidParameterError, match="categories are text"):
        private_table(connection.table("t")).categories("x").tallies()


def test_categories_of_another_type_are_refused_before_anything_is_charged(account, tmp_path):
    for last in ("3", "x"):  # DuckDB would cast each text to a number, and fail on one of them
        (tmp_path / "codes.csv").write_text(f"id,code\n1,1\n2,2\n3,{last}\n")
        codes = private_table(tmp_path / "codes.csv").categories("code")
        for ask in (histogram, partial(top_k, k=1)):
            with pytest.raises(InvalidParameterError, match=r"has type text.*types=\{'code': 'integer'\}"):
                ask(codes, categories=[1, 2, 3], epsilon=0.1, account=account)
        assert codes.tally(["1", "x"]).tolist() == [1, int(last == "x")]
        typed = private_table(tmp_path / "codes.csv", types={"code": "int64"}).categories("code")
        assert typed.tally([1, 3]).tolist() == [1, int(last == "3")]
        with pytest.raises(InvalidParameterError, match="has type integer"):
            typed.tally(["1"])
    assert account.spent().epsilon == 0


def test_named_categories_of_odd_types_are_refused():
    connection = ibis.duckdb.connect()
    connection.raw_sql("CREATE TABLE t AS SELECT 1.5::DECIMAL(5, 2) AS d, uuid() AS u, 1::TINYINT AS i")
    table = private_table(connection.table("t"))
    for name, category in {"d": 1.5, "u": "a", "i": 2**70}.items():
        with pytest.raises(InvalidParameterError, match="category has another type"):
            table.categories(name).tally([category])
