# SPDX-License-Identifier: Apache-2.0
"""Keys and names that cannot be answered are refused before the charge, or are missing: never after it."""

import pandas as pd
import pyarrow as pa
import pytest

import sfumato as sf
from sfumato import queries as q
from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.statistics.sources.tables import private_table

FRAME = pd.DataFrame({"g": ["a", "b"] * 300, "x": [1.0] * 600})


@pytest.mark.parametrize(
    ("values", "kind", "keys"),
    [
        ([2**64 - 1, 2**63, 7], pa.uint64(), [7]),
        ([2**63 - 1, 2**63, 2**63 - 1], pa.uint64(), [2**63 - 1]),
        (["a\0b", "\0", "ab"], pa.string(), ["ab"]),
        (["a'\"%_;--\n", " ", ""], pa.string(), ["", " ", "a'\"%_;--\n"]),
    ],
)
@pytest.mark.parametrize("second", [False, True])
def test_a_discovered_key_never_fails_the_statistics_after_the_charge(values, kind, keys, second):
    rows = pa.table({"k": pa.array(values * 200, kind), "j": ["same"] * 600})
    clients = sf.open("t", rows, budget=sf.Budget(epsilon=1e6, delta=1e-2))
    columns = ("k", "j") if second else ("k",)
    found = clients.group_by(*columns, keys=q.Discovered()).agg(n=q.count(), epsilon=50, delta=1e-4).release()
    assert found.keys == [(key, "same") if second else key for key in keys]
    assert found.values["n"] == pytest.approx([200.0 * values.count(key) for key in keys], abs=8)
    assert private_table(rows).keys(*columns, epsilon=50, delta=1e-4).release().value == found.keys


@pytest.mark.parametrize("key", ["a\0b", "\ud800"])
def test_a_named_key_that_cannot_stand_in_a_query_is_refused(key):
    with pytest.raises(InvalidParameterError):
        q.group_by(private_table(FRAME), "g", keys=["a", key])
    with pytest.raises(InvalidParameterError):
        private_table(FRAME).group_by("g", keys=["a", key])


def test_keys_may_be_anything_that_is_read_once():
    table = private_table(FRAME)
    for keys in (iter("ab"), (key for key in "ab"), {"g": (key for key in "ab")}, pd.Series(["a", "b"])):
        found = q.group_by(table, "g", keys=keys).agg(n=q.count(), epsilon=1e6).release()
        assert found.keys == ["a", "b"] and found.values["n"] == [300.0, 300.0]
    for wrong in (7, "ab", {"g": 7}, {"g": "ab"}, iter([])):
        with pytest.raises(InvalidParameterError):
            q.group_by(table, "g", keys=wrong)
    with pytest.raises(InvalidParameterError, match="at most"):
        q.group_by(table, "g", keys=iter(map(str, range(q.grouped.MOST_KEYS + 1))))


@pytest.mark.parametrize("names", [("g",), ("n", "n_lower"), ("n_upper", "n"), ("key",)])
def test_names_that_would_be_one_column_of_the_release_are_refused(names):
    grouped = q.group_by(private_table(FRAME), "g", keys=["a"])
    with pytest.raises(InvalidParameterError, match="cannot be the name"):
        grouped.agg(**{name: q.count() for name in names}, epsilon=1.0)


def test_an_explanation_counts_the_search_for_keys_as_part_of_the_budget():
    grouped = q.group_by(private_table(FRAME), "g", keys=q.Discovered(share=1.0))
    explained = grouped.agg(n=q.count(), m=q.count("x"), epsilon=3.0, delta=1e-6).explain()
    assert explained.search == pytest.approx(1 / 3, rel=0.01) and "search for keys: 33%" in str(explained)
    assert sum(each.cost for each in explained.statistics) == pytest.approx(2 / 3, rel=0.01)


def test_a_refusal_promises_no_epsilon_that_target_errors_exceed():
    clients = sf.open("t", FRAME, budget=sf.Budget(epsilon=1, delta=1e-5))
    with pytest.raises(BudgetExceededError) as caught:
        clients.agg(n=q.count(error=1), m=q.mean("x", bounds=(0, 2)), epsilon=30).release()
    assert "whole query fits" not in str(caught.value)
    grouped = clients.group_by("g", keys=q.Discovered())
    with pytest.raises(BudgetExceededError) as caught:
        grouped.agg(n=q.count(), epsilon=30, delta=1e-6).release()
    assert "whole query fits" not in str(caught.value)  # keys are not discovered with delta=0
