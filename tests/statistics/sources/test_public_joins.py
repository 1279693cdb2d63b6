# SPDX-License-Identifier: Apache-2.0
"""Joins of private rows with public tables: no row is multiplied, lost or read, or stops a query."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sfumato as sf
from sfumato import queries as q
from sfumato.errors import InvalidParameterError
from sfumato.statistics.sources import public_joins
from sfumato.statistics.sources.private_tables import PrivateTable
from sfumato.statistics.sources.tables import private_table

ZIPS = pd.DataFrame(
    {"zip": ["10", "20", "30"], "region": ["north", "south", "south"], "rate": [1.0, 2.0, np.nan]}
)
VISITS = pd.DataFrame(
    {
        "who": [0, 0, 1, 2, 3, 4],
        "zip": ["10", "20", "20", "99", None, "30"],
        "year": [2020, 2021, 2020, 2020, 2021, 2022],
        "cost": [1.0, 2.0, 3.0, 4.0, 5.0, np.nan],
    }
)
FRAMES: dict[str, Callable] = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "pyarrow": pa.Table.from_pandas,
}


def rows(table: PrivateTable) -> pd.DataFrame:
    return table.owned.engine.to_pyarrow(table.owned.expression).to_pandas()


@pytest.mark.parametrize("private", FRAMES)
@pytest.mark.parametrize("public", FRAMES)
def test_every_row_stays_one_row_with_the_values_of_its_key(private, public):
    table = private_table(FRAMES[private](VISITS), privacy_unit="who", contribution_bound=2)
    found = table.join(FRAMES[public](ZIPS), on="zip")
    expected = VISITS.merge(ZIPS, on="zip", how="left")
    got = rows(found).sort_values(["who", "year"])[expected.columns].reset_index(drop=True)
    got["who"] = got.who.astype(int)  # the unit of a pandas frame is text
    pd.testing.assert_frame_equal(got, expected, check_dtype=False)
    assert (found.privacy_unit, found.contribution_bound) == ("who", 2)
    inner = rows(table.join(FRAMES[public](ZIPS), on="zip", keep_unmatched=False))
    assert sorted(inner.zip) == ["10", "20", "20", "30"]


def test_keys_of_several_columns_and_of_other_names_are_joined():
    rates = pd.DataFrame({"code": ["10", "20", "20"], "when": [2020, 2020, 2021], "rate": [1.0, 2.0, 3.0]})
    found = rows(private_table(VISITS).join(rates, on={"zip": "code", "year": "when"}))
    assert found.sort_values(["who", "year"]).rate.fillna(-1).tolist() == [1, 3, 2, -1, -1, -1]


def test_a_public_file_is_joined_and_what_changes_in_it_later_does_not_count(tmp_path):
    path = tmp_path / "zips.parquet"
    ZIPS.to_parquet(path)
    found = private_table(VISITS).join(path, on="zip")
    pd.concat([ZIPS] * 5).to_parquet(path)
    assert len(rows(found)) == len(VISITS)


def test_joined_columns_are_grouped_filtered_and_joined_again():
    clients = sf.open("visits", VISITS, budget=sf.Budget(epsilon=1e7, delta=0.0))
    joined = clients.join(ZIPS, on="zip").join(
        pd.DataFrame({"region": ["north", "south"], "boss": ["Ann", "Bo"]}), on="region"
    )
    asked = joined.group_by("boss", keys=["Ann", "Bo"]).agg(
        n=q.count(), cost=q.sum("cost", bounds=(0, 10)), epsilon=1e6, where=lambda row: row.year < 2022
    )
    release = asked.release()
    assert release.values["n"] == [1, 2]
    assert np.allclose(release.values["cost"], [1, 5], atol=0.01)
    assert joined.account is clients.account and len(clients.account.releases()) == 1


DOUBLED = pd.concat([ZIPS, ZIPS.iloc[:1]])


@pytest.mark.parametrize(
    ("public", "on", "says"),
    [
        (DOUBLED, "zip", "several rows for zip = '10'"),
        (ZIPS.assign(zip=[10, 20, 30]), "zip", "is text in the private table, and 'zip' is integer"),
        (ZIPS, "area", "no column 'area'"),
        (ZIPS, {"zip": "area"}, "no column 'area'"),
        (ZIPS, [], "names one or more columns"),
        (ZIPS, {"zip": "zip", "year": "zip"}, "each once"),
        (ZIPS.rename(columns={"rate": "cost"}), "zip", "the columns 'cost' and 'cost' have one name"),
        (ZIPS.rename(columns={"rate": "Cost"}), "zip", "the columns 'cost' and 'Cost' have one name"),
        (ZIPS.rename(columns={"rate": "who"}), "zip", "the columns 'who' and 'who' have one name"),
        (ZIPS[["zip"]], "zip", "nothing would be added"),
        (ZIPS.assign(zip=[10, "20", None]), "zip", "values of several types"),
        (pa.table({"zip": ["10"], "many": [[1, 2]]}), "zip", "has type array"),
        ("nowhere.parquet", "zip", "there is no file"),
        ({"zip": ["10"]}, "zip", "frame"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_anything_private_is_read(public, on, says):
    table = private_table(VISITS, privacy_unit="who", contribution_bound=2)
    with pytest.raises(InvalidParameterError, match=says):
        table.join(public, on=on)


def test_null_keys_match_nothing_however_many_there_are():
    public = pd.DataFrame({"zip": ["10", None, None], "region": ["north", "a", "b"]})
    assert rows(private_table(VISITS).join(public, on="zip")).region.dropna().tolist() == ["north"]


def test_texts_that_differ_in_bytes_are_different_keys():
    public = pd.DataFrame({"zip": ["a", "A", "a ", "\u00e9", "e\u0301"], "region": list("vwxyz")})
    private = private_table(pd.DataFrame({"zip": public.zip}))
    found = rows(private.join(public, on="zip"))
    assert dict(zip(found.zip, found.region, strict=True)) == dict(
        zip(public.zip, public.region, strict=True)
    )


hostile = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 3))


@settings(max_examples=15, deadline=None)
@given(st.lists(hostile, min_size=1, max_size=10))
def test_any_key_stays_one_row_and_makes_no_query_fail(values):
    table = private_table(pa.table({"k": pa.array(values, pa.int64())}))
    public = pd.DataFrame({"k": [0.0, 1.0, np.nan, 2.0], "name": list("abcd")})  # whole numbers as floats
    found = rows(table.join(public, on="k"))
    assert len(found) == len(values)
    assert found.name.notna().sum() == sum(value in (0, 1, 2) for value in values)


def moved_by_one_row(monkeypatch) -> float:
    """Return how far one row moves a count of a table in which each row is a unit."""

    def counted(frame):
        table = private_table(frame).join(DOUBLED, on="zip")
        return table.owned.counts(1)[0]

    return counted(VISITS) - counted(VISITS.iloc[1:])


def test_a_join_that_doubles_a_unit_is_refused_and_without_the_check_it_would_count_twice(monkeypatch):
    with pytest.raises(InvalidParameterError, match="would multiply private rows"):
        moved_by_one_row(monkeypatch)
    monkeypatch.setattr(public_joins, "_require_unique", lambda *given: None)  # the planted bug
    assert moved_by_one_row(monkeypatch) == 2


def test_even_then_a_unit_with_a_column_has_no_more_rows_than_its_bound(monkeypatch):
    monkeypatch.setattr(public_joins, "_require_unique", lambda *given: None)
    one = VISITS[VISITS.who == 0]
    table = private_table(one, privacy_unit="who", contribution_bound=2).join(DOUBLED, on="zip")
    assert len(rows(table)) == 3 and table.owned.counts(2) == [2]


def test_rows_that_a_join_or_a_filter_before_it_leaves_out_are_known_to_be_left_out():
    table = private_table(VISITS)
    assert table.join(ZIPS, on="zip").rows("cost").has_every_row()
    assert not table.join(ZIPS, on="zip", keep_unmatched=False).rows("cost").has_every_row()
    filtered = table.filter(lambda row: row.cost > 2)
    assert not filtered.join(ZIPS, on="zip").rows("cost").has_every_row()


def test_other_engines_are_refused():
    class Other:
        name = "postgres"

    table = private_table(VISITS)
    with pytest.raises(InvalidParameterError, match="joined in DuckDB, not in postgres"):
        public_joins.joined(
            type(table.owned)(expression=None, engine=Other(), unit=None, contribution_bound=1),
            ZIPS, on="zip", keep_unmatched=True,
        )  # fmt: skip
