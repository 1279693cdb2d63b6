# SPDX-License-Identifier: Apache-2.0
"""What an engine counts as one category is written in one way, whichever row comes first."""

import datetime

import ibis
import numpy as np
import pandas as pd
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.statistics.tables import private_table

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")


def written(found) -> dict[str, int]:
    return {repr(category): found[category] for category in found}


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("values", [[-0.0, 0.0, 0.0], [0.0, 0.0, -0.0]], ids=["first", "last"])
def test_zero_has_no_sign(values, kind):
    categories = private_table(pd.DataFrame({"x": np.array([*values, 1.5], dtype=kind)})).categories("x")
    assert written(categories.tallies()) == {"0.0": 3, "1.5": 1}
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
