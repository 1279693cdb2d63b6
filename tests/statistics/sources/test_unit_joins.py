# SPDX-License-Identifier: Apache-2.0
"""Joins of two private tables by the unit: what one unit moves, and what is refused."""

import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sfumato as sf
from sfumato import queries as q
from sfumato.errors import InvalidParameterError
from sfumato.statistics.contributions.owned_rows import OwnedRows
from sfumato.statistics.sources.tables import private_table

PEOPLE = pd.DataFrame({"who": ["a", "b", "c", None], "age": [30.0, 40.0, np.nan, 1.0]})
VISITS = pd.DataFrame({"who": ["a", "a", "b", "d", None], "cost": [1.0, 2.0, 3.0, 4.0, 5.0]})


def opened(people: pd.DataFrame, visits: pd.DataFrame, bounds=(1, 2)):
    connection = ibis.duckdb.connect()
    frames = {"people": people, "visits": visits}
    sources = [
        connection.create_table(name, pa.Table.from_pandas(frame, preserve_index=False))
        for name, frame in frames.items()
    ]
    return [
        private_table(source, privacy_unit="who", contribution_bound=bound)
        for source, bound in zip(sources, bounds, strict=True)
    ]


def rows(table) -> pd.DataFrame:
    return table.owned.engine.to_pyarrow(table.owned.expression).to_pandas()


def test_each_row_stands_beside_each_row_of_the_same_unit():
    people, visits = opened(PEOPLE, VISITS)
    joined = people.join_by_unit(visits)
    found = rows(joined).sort_values(["who", "cost"])
    assert found.values.tolist() == [["a", 30.0, 1.0], ["a", 30.0, 2.0], ["b", 40.0, 3.0]]
    assert (joined.privacy_unit, joined.contribution_bound) == ("who", 2)
    assert not joined.rows("cost").has_every_row()


def test_one_account_pays_and_large_epsilons_give_the_exact_numbers():
    people, visits = opened(PEOPLE, VISITS)
    budget = sf.Budget(epsilon=1e7, delta=0.0)
    clients = sf.open("people", people.owned.expression, privacy_unit="who", budget=budget)
    joined = clients.join_by_unit(visits).mutate(old=lambda row: row.age > 35)
    release = joined.group_by("old", keys=[True, False]).agg(
        n=q.count(), cost=q.sum("cost", bounds=(0, 10)), epsilon=1e6
    ).release()  # fmt: skip
    assert release.values["n"] == [1, 2] and np.allclose(release.values["cost"], [3, 3], atol=0.01)
    assert len(clients.account.releases()) == 1
    other = sf.open("visits", visits.owned.expression, privacy_unit="who", budget=budget)
    with pytest.raises(InvalidParameterError, match="one account pays"):
        clients.join_by_unit(other)


units = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1.0, 5.0])), min_size=1, max_size=12)


def moved(first, second, bounds) -> tuple[float, float, int]:
    """Return how far unit 0 moves the rows and a clipped sum, and the bound that is claimed."""
    whole, part = (
        opened(
            pd.DataFrame(first, columns=["who", "x"]).query(kept).astype({"who": "int64", "x": float}),
            pd.DataFrame(second, columns=["who", "y"]).query(kept).astype({"who": "int64", "y": float}),
            bounds,
        )
        for kept in ("who >= 0", "who != 0")
    )
    joined, without = whole[0].join_by_unit(whole[1]), part[0].join_by_unit(part[1])
    bound = joined.contribution_bound
    counts = [table.owned.counts(bound)[0] for table in (joined, without)]
    sums = [table["y"].ordered((0.0, 5.0)).sum() for table in (joined, without)]
    in_all = [len(rows(table)) for table in (joined, without)]
    return max(counts[0] - counts[1], in_all[0] - in_all[1]), sums[0] - sums[1], bound


@settings(max_examples=8, deadline=None)
@given(units, units, st.sampled_from([(1, 1), (1, 3), (2, 2)]))
def test_a_unit_moves_no_more_than_the_product_of_the_bounds(first, second, bounds):
    counted, added, bound = moved(first, second, bounds)
    assert bound == bounds[0] * bounds[1]
    assert 0 <= counted <= bound and 0 <= added <= 5 * bound


def test_a_join_that_forgets_to_bound_its_tables_is_caught(monkeypatch):
    many = [(0, 5.0)] * 6 + [(1, 1.0)]
    assert moved(many, many, (2, 2))[0] == 4
    monkeypatch.setattr(OwnedRows, "_bounded", lambda self, rows, **named: rows)  # the planted bug
    assert moved(many, many, (2, 2))[0] == 36


def test_other_joins_are_refused_by_their_schemas():
    people, visits = opened(PEOPLE, VISITS)
    apart, _ = opened(PEOPLE, VISITS)
    with pytest.raises(InvalidParameterError, match="one DuckDB connection"):
        apart.join_by_unit(visits)
    with pytest.raises(InvalidParameterError, match="same privacy_unit column"):
        people.join_by_unit(private_table(visits.owned.expression))
    with pytest.raises(InvalidParameterError, match="the columns 'age' and 'age' have one name"):
        people.join_by_unit(people)
    connection = people.owned.engine
    listed = connection.create_table("listed", schema={"who": "string", "many": "array<int64>"})
    with pytest.raises(InvalidParameterError, match="'many' has type"):
        people.join_by_unit(private_table(listed, privacy_unit="who"))
    numbers = connection.create_table("numbers", schema={"who": "int64", "n": "int64"})
    with pytest.raises(InvalidParameterError, match="different types"):
        people.join_by_unit(private_table(numbers, privacy_unit="who"))
