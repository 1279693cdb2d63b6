# SPDX-License-Identifier: Apache-2.0
"""Groups with public keys: exact sums, one vector of noise, intervals that cover."""

import datetime

import ibis
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.statistics.groups import grouped_rows
from sfumato.statistics.sources.tables import private_table

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")


KEYS = ["steel", "wood", "glass", "nothing"]


BOUNDS = (-20.0, 100.0)


def frame(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    pay = draw.normal(30, 40, rows)
    pay[:6] = [np.nan, np.inf, -np.inf, 1e300, np.nan, 0.0]
    return pd.DataFrame(
        {
            "who": draw.integers(0, rows // 5, rows),
            "sector": draw.choice(["steel", "wood", "glass", "other", None], rows),
            "pay": pay,
        }
    )


def asked(grouped, kind: str, bounds=BOUNDS, **terms):
    if kind == "count":
        return grouped.count(**terms)
    return getattr(grouped, kind)("pay", bounds=bounds, **terms)


KINDS = ["count", "sum", "mean"]


@settings(max_examples=15, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(KEYS), st.floats(width=64)), min_size=1, max_size=20
    ),
    bound=st.integers(1, 3),
    kind=st.sampled_from(KINDS),
)
def test_no_unit_moves_an_answer_beyond_its_sensitivity_whatever_its_values(rows, bound, kind, neighbors):
    data = pd.DataFrame(rows, columns=["who", "sector", "pay"])

    def grouped(given_rows):
        return private_table(given_rows, privacy_unit="who", contribution_bound=bound).group_by(
            "sector", keys=KEYS
        )

    query = asked(grouped(data), kind, epsilon=1.0)
    neighbors.replay(query.question, query.data, grouped(data[data.who != rows[0][0]]))


def test_the_replay_catches_a_bound_that_is_not_enforced(neighbors, monkeypatch):
    monkeypatch.setattr(
        "sfumato.statistics.contributions.owned_rows.OwnedRows._bounded", lambda self, rows, **_: rows
    )
    data = pd.DataFrame({"who": ["a"] * 5 + ["b"], "sector": ["wood"] * 6, "pay": [1.0] * 6})

    def grouped(rows):
        return private_table(rows, privacy_unit="who", contribution_bound=2).group_by("sector", keys=["wood"])

    query = grouped(data).count(epsilon=1.0)
    with pytest.raises(neighbors.LeakError, match="moves numbers"):
        neighbors.replay(query.question, query.data, grouped(data[data.who != "a"]))


def test_several_columns_make_keys_of_tuples():
    data = pd.DataFrame({"a": ["x", "x", "y"] * 50, "b": [1, 2, 1] * 50})
    wanted = [("x", 1), ("y", 2), ("y", 1)]
    found = private_table(data).group_by("a", "b", keys=wanted).count(epsilon=1e3).release()
    assert found.value == {("x", 1): 50, ("y", 2): 0, ("y", 1): 50}


def test_keys_may_be_numbers_truths_and_dates():
    day = datetime.date(2024, 5, 1)
    data = pd.DataFrame({"n": [1, 2], "b": [True, False]})
    data["d"] = pd.array([day, day], dtype="date32[pyarrow]")
    table = private_table(data)
    assert table.group_by("n", keys=[2, 3]).count(epsilon=1e3).release().value == {2: 1, 3: 0}
    assert table.group_by("b", keys=[True]).count(epsilon=1e3).release().value == {True: 1}
    assert table.group_by("d", keys=[day]).count(epsilon=1e3).release().value == {day: 2}


def test_rows_with_other_keys_take_no_place_of_those_asked_for():
    data = pd.DataFrame({"who": ["a"] * 50, "sector": ["other"] * 49 + ["wood"]})
    table = private_table(data, privacy_unit="who", contribution_bound=1)
    assert table.group_by("sector", keys=["wood"]).count(epsilon=1e3).release().value == {"wood": 1}


def pairs(rows: int = 5000) -> pd.DataFrame:
    """Of each unit one row with a pair that is asked for, and one of the same parts that is not."""
    who = np.repeat(np.arange(rows), 2)
    town, year = np.where(who % 2, "Rome", "Oslo"), np.where(who % 2, 2020, 2021)
    year = np.where(np.arange(2 * rows) % 2, 4041 - year, year)
    day = [datetime.date(y, 1, 1) for y in year]
    return pd.DataFrame(
        {"who": who, "town": town, "year": year, "late": year > 2020, "x": 1.0, "t": "a\x01b"}
    ).assign(day=pd.array(day, dtype="date32[pyarrow]"))


@pytest.mark.parametrize("few", [0, 32], ids=["looked up", "compared"])
@pytest.mark.parametrize("second", ["year", "late", "day"])
def test_rows_of_pairs_that_were_not_asked_for_take_no_place_of_those_that_were(second, few, monkeypatch):
    monkeypatch.setattr(grouped_rows, "_FEW", few)
    label = {"year": lambda y: y, "late": lambda y: y > 2020, "day": lambda y: datetime.date(y, 1, 1)}[second]
    wanted = [("Rome", label(2020)), ("Oslo", label(2021))]
    grouped = private_table(pairs(), privacy_unit="who").group_by("town", second, keys=wanted)
    assert grouped.count(epsilon=1e3).release().value == dict.fromkeys(wanted, 2500)
    sums = grouped.sum("x", bounds=(0, 1), epsilon=1e3).release().value
    assert sum(sums.values()) == pytest.approx(5000, abs=1)


def test_part_by_part_rows_that_were_not_asked_for_would_take_places(monkeypatch):
    monkeypatch.setattr(grouped_rows, "_has_one", grouped_rows._has_parts)
    wanted = [("Rome", 2020), ("Oslo", 2021)]
    grouped = private_table(pairs(), privacy_unit="who").group_by("town", "year", keys=wanted)
    assert sum(grouped.count(epsilon=1e3).release().value.values()) == pytest.approx(2500, abs=200)


def test_keys_are_told_apart_whatever_characters_they_have():
    parts = ["a", "a\x01", "\x01b", "b", "\x01", "\x02", "a\x01\x02"]
    combined = [(one, two) for one in parts for two in parts]
    data = pd.DataFrame(combined, columns=["one", "two"]).assign(who=range(len(combined)))
    wanted = combined[::2]
    found = private_table(data, privacy_unit="who").group_by("one", "two", keys=wanted).count(epsilon=1e4)
    assert found.release().value == dict.fromkeys(wanted, 1)
    three = data.assign(three=-data.who)
    keys = [(one, two, -who) for who, (one, two) in enumerate(combined)]
    found = private_table(three, privacy_unit="who").group_by("one", "two", "three", keys=keys[:-1])
    assert found.count(epsilon=1e4).release().value == dict.fromkeys(keys[:-1], 1)


def test_many_pairs_are_one_query():
    data = pd.DataFrame({"who": range(2000), "a": range(2000), "b": [f"b{i}" for i in range(2000)]})
    wanted = [(i, f"b{i}") for i in range(1200)]
    found = private_table(data, privacy_unit="who").group_by("a", "b", keys=wanted).count(epsilon=1e4)
    assert set(found.release().value.values()) == {1}


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_no_row_and_one_row_get_an_answer(kind, rows):
    data = pd.DataFrame({"sector": pd.array(["wood"] * rows, dtype="string"), "pay": [3.0] * rows})
    query = asked(private_table(data).group_by("sector", keys=KEYS), kind, epsilon=0.5)
    release = query.release()
    assert list(release.value) == KEYS and all(np.isfinite(v) for v in release.value.values())
    assert all(interval.lower <= interval.upper for interval in release.interval)


@pytest.mark.parametrize(
    "keys",
    [[], ["wood", "wood"], [None], [1], [("wood",)], ["wood", True]],
    ids=["none", "twice", "null", "int", "tuple", "bool"],
)
def test_keys_that_are_no_keys_are_refused(keys):
    with pytest.raises(InvalidParameterError, match="key"):
        private_table(frame()).group_by("sector", keys=keys)


def test_without_keys_the_error_points_to_private_discovery():
    with pytest.raises(InvalidParameterError, match=r"table.keys\('sector', epsilon=..., delta=...\)"):
        private_table(frame()).group_by("sector")


def test_keys_that_a_collation_holds_for_equal_are_different_ones():
    connection = ibis.duckdb.connect()
    connection.raw_sql("CREATE TABLE people (who VARCHAR COLLATE nocase)")
    connection.con.executemany("INSERT INTO people VALUES (?)", [["ANN"], *[["ann"]] * 300, ["ANN"]])
    table = private_table(connection.table("people"))
    for keys in (["ann", "ANN"], ["ANN", "ann"]):
        assert table.group_by("who", keys=keys).count(epsilon=1e3).release().value == {"ann": 300, "ANN": 2}
    assert table.group_by("who", keys=["Ann"]).count(epsilon=1e3).release().value == {"Ann": 0}
