# SPDX-License-Identifier: Apache-2.0
"""The share of rows that a bound leaves out: right, bounded, and paid for."""

import numpy as np
import pandas as pd
import pytest

from sfumato.accounting import Relation
from sfumato.errors import InvalidParameterError
from sfumato.statistics.contributions.owned_rows import OwnedRows
from sfumato.statistics.query import cost
from sfumato.statistics.questions.left_out_rows import LeftOutShare
from sfumato.statistics.sources.tables import private_table
from sfumato.testing import seeded

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")

RELATIONS = [Relation.ADD_REMOVE, Relation.REPLACE_ONE]


def visits(sizes: list[int]) -> pd.DataFrame:
    return pd.DataFrame({"who": np.repeat(np.arange(len(sizes)), sizes), "cost": 1.0})


def opened(sizes: list[int], bound: int = 2):
    return private_table(visits(sizes), privacy_unit="who", contribution_bound=bound)


@pytest.mark.parametrize(("most", "expected"), [(3, 1 / 6), (5, 3 / 8), (8, 6 / 11), (100, 6 / 11)])
def test_the_share_is_that_of_rows_beyond_the_bound_up_to_the_most_that_are_counted(most, expected):
    table = opened([1, 8, 2] * 2000)  # of 11 rows 5 are within the bound
    release = table.left_out_share(epsilon=1e4, most_rows=most).release()
    assert release.value == pytest.approx(expected, abs=0.01)
    assert release.value in release.interval


def test_one_unit_with_very_many_rows_counts_as_the_most_only():
    query = opened([1] * 1000 + [100_000]).left_out_share(epsilon=1e4, most_rows=12)
    assert query.release().value == pytest.approx(10 / 1012, abs=1e-3)


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda r: r.value)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("mine", [1, 2, 3, 20, 500])
def test_replayed_without_a_unit_only_noise_leaves(mine, delta, relation, neighbors):
    query = opened([3] * 20 + [mine]).left_out_share(
        epsilon=0.5, most_rows=20, delta=delta, relation=relation
    )
    gone = opened([3] * 20 + [1 if relation.replaces else 0])
    other = gone.left_out_share(epsilon=0.5, most_rows=20).data
    neighbors.replay(query.question, query.data, other)


def test_the_replay_catches_a_count_without_a_most(neighbors, monkeypatch):
    query = opened([3] * 20 + [500]).left_out_share(epsilon=0.5, most_rows=20)
    other = opened([3] * 20).left_out_share(epsilon=0.5, most_rows=20).data
    counts = OwnedRows.counts
    monkeypatch.setattr(OwnedRows, "counts", lambda self, kept, most: counts(self, kept, 10**6))
    with pytest.raises(neighbors.LeakError, match="added up"):
        neighbors.replay(query.question, query.data, other)


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda r: r.value)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_cost_is_what_was_asked_for(delta, relation):
    question = LeftOutShare(kept=2, contribution_bound=20, epsilon=0.5, delta=delta, relation=relation)
    assert 0.45 < cost(question) <= 0.5 * (1 + 1e-9)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_intervals_cover_the_share_without_noise(delta, check_coverage, monkeypatch):
    query = opened([1]).left_out_share(epsilon=0.2, most_rows=10, delta=delta)
    monkeypatch.setattr(OwnedRows, "counts", lambda *_: [3000, 4000])
    check_coverage(lambda run: 0.25 in query.question.answer(query.data, generator=seeded(run)).interval)


def test_the_answer_says_what_it_counts_and_what_it_cannot_tell():
    query = opened([4] * 500).left_out_share(epsilon=1.0)
    assert "of at most 20 row(s)" in repr(query)  # ten times the bound
    release = query.release()
    assert release.name == "share of rows left out by a bound of 2"
    assert "at most 20 rows of each who count" in release.notes
    assert "the share of all rows is larger" in release.notes[0]
    assert "GROUP BY" in query.plan() and "LEAST" in query.plan()


def test_without_rows_the_answer_is_that_it_failed():
    values = [opened([]).left_out_share(epsilon=0.1).release().value for _ in range(20)]
    assert None in values and all(value is None or 0 <= value <= 1 for value in values)


def test_where_each_row_is_a_unit_nothing_is_left_out():
    with pytest.raises(InvalidParameterError, match="no row is left out"):
        private_table(visits([1, 2])).left_out_share(epsilon=1.0)


@pytest.mark.parametrize("most", [0, 1, 2, 2.5, True, float("nan")])
def test_rows_must_be_counted_beyond_the_bound(most):
    with pytest.raises(InvalidParameterError, match=r"most_rows|contribution_bound"):
        opened([1]).left_out_share(epsilon=1.0, most_rows=most)
