# SPDX-License-Identifier: Apache-2.0
"""Exact totals of groups: what one unit moves, and that they are the sums of the rows that count."""

import math
from dataclasses import replace

import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.accounting.guarantee import Relation
from sfumato.queries.grouped import group_by
from sfumato.queries.totals import Bins, Kind, Total
from sfumato.statistics.columns.columns import STEPS, in_steps
from sfumato.statistics.contributions.owned_rows import OwnedRows
from sfumato.statistics.groups.group_statistics import step_of
from sfumato.statistics.sources.tables import private_table

KEYS = ["a", "b", "c", "nothing"]
BOUNDS = (-5.0, 10.0)
TOTALS = (
    Total(Kind.ROWS),
    Total(Kind.KNOWN, "x"),
    Total(Kind.STEPS, "x", BOUNDS),
    Total(Kind.SQUARES, "x", BOUNDS),
    Total(Kind.GRID, "x", BOUNDS),
    Total(Kind.DISTINCT, "z"),
    Total(Kind.DISTINCT, "who"),
)
OF_X = tuple(total for total in TOTALS if total.column == "x")
BINS = (Bins("x", BOUNDS, 8),)
LARGEST = math.ceil(10 / step_of(BOUNDS))
OF_ROW = {Kind.STEPS: STEPS, Kind.SQUARES: STEPS, Kind.GRID: LARGEST}  # what one row may add

hostile = st.tuples(
    st.integers(0, 3), st.sampled_from([*KEYS, "other", None]), st.floats(width=64), st.sampled_from("pqr")
)


def computed(rows: pd.DataFrame, bound: int, within: tuple[int, int] | None):
    table = private_table(rows, privacy_unit="who", contribution_bound=bound)
    per_group, groups = within or (None, None)
    grouped = group_by(table, "key", keys=KEYS, rows_per_group=per_group, groups_per_unit=groups)
    source = grouped.source()
    return source.grouped().compute(TOTALS, BINS), grouped.reach(Relation.ADD_REMOVE)


def moved(with_unit, without) -> dict[Total, np.ndarray]:
    return {total: with_unit.totals[total] - without.totals[total] for total in TOTALS}


def require_within_reach(with_unit, without, reach) -> None:
    for total, change in moved(with_unit, without).items():
        each = OF_ROW.get(total.kind, 1)
        most = reach.most_groups if total.column == "who" else reach.l1
        assert np.abs(change).sum() <= most * each, total
        square = math.sqrt(reach.most_groups) if total.column == "who" else reach.l2_of_sums
        assert math.sqrt((change.astype(float) ** 2).sum()) <= square * each * (1 + 1e-12), total
    groups = zip(with_unit.bins[BINS[0]], without.bins[BINS[0]], strict=True)
    by_group = [np.abs(w.histogram(BINS[0].edges) - o.histogram(BINS[0].edges)).sum() for w, o in groups]
    assert sum(by_group) <= reach.l1 and max(by_group) <= reach.rows


@settings(max_examples=12, deadline=None)
@given(
    rows=st.lists(hostile, min_size=1, max_size=24),
    terms=st.sampled_from([(1, None), (3, None), (4, (2, 2)), (3, (1, 3)), (6, (2, 2)), (2, (2, 1))]),
)
def test_one_unit_moves_every_total_by_at_most_its_reach_whatever_its_values(rows, terms):
    data = pd.DataFrame(rows, columns=["who", "key", "x", "z"])
    with_unit, reach = computed(data, *terms)
    without, _ = computed(data[data.who != rows[0][0]], *terms)
    require_within_reach(with_unit, without, reach)


CROWD = pd.DataFrame(
    {"who": [0] * 40 + [1] * 4, "key": ["a", "b", "c", "a"] * 11, "x": [9.0] * 44, "z": ["p"] * 44}
)


def forgets_every_bound(patch) -> None:
    patch.setattr(OwnedRows, "_bounded", lambda self, rows, **_: rows)


def forgets_the_rows_of_a_group(patch) -> None:
    patch.setattr(OwnedRows, "_bounded", lambda self, rows, *, within, **_: self._in_few_groups(rows, within))


def forgets_the_groups_of_a_unit(patch) -> None:
    patch.setattr(OwnedRows, "_in_few_groups", lambda self, rows, within: rows.mutate(group=0))


def counts_one_row_too_many(patch) -> None:
    patch.setattr(OwnedRows, "_at_most", _with_more(OwnedRows._at_most))


def _with_more(method):
    return lambda self, bound, rows, **terms: method(self, bound + 1, rows, **terms)


@pytest.mark.parametrize(
    "bug",
    [
        forgets_every_bound,
        forgets_the_rows_of_a_group,
        forgets_the_groups_of_a_unit,
        counts_one_row_too_many,
    ],
)
def test_a_forgotten_bound_is_caught(bug, monkeypatch):
    others = CROWD[CROWD.who != 0]
    with_unit, reach = computed(CROWD, 4, (2, 2))
    require_within_reach(with_unit, computed(others, 4, (2, 2))[0], reach)  # correct code passes
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        require_within_reach(computed(CROWD, 4, (2, 2))[0], computed(others, 4, (2, 2))[0], reach)


def test_a_bound_within_groups_cannot_exceed_that_of_the_table():
    table = private_table(CROWD, privacy_unit="who", contribution_bound=4)
    source = group_by(table, "key", keys=KEYS, rows_per_group=2, groups_per_unit=2).source()
    wider = replace(source.owned, contribution_bound=3)
    with pytest.raises(ValueError, match="must not exceed"):
        replace(source, owned=wider).grouped().compute(TOTALS, ())


def test_totals_are_those_of_the_rows_with_missing_and_infinite_values_and_other_keys():
    draw = np.random.default_rng(0)
    rows = pd.DataFrame(
        {
            "who": np.arange(3000),
            "key": draw.choice([*KEYS[:3], "other", None], 3000),
            "x": draw.choice([1.5, 7.0, np.nan, np.inf, -np.inf, 1e300], 3000),  # ties
            "z": draw.choice(["p", "q", None], 3000),
        }
    )
    found, _ = computed(rows, 1, None)
    for i, key in enumerate(KEYS):
        group = rows[rows.key == key]
        known = group.x.dropna().clip(*BOUNDS)
        steps = np.rint((known - 2.5) * (STEPS / 7.5))
        assert found.totals[Total(Kind.ROWS)][i] == len(group)
        assert found.totals[Total(Kind.KNOWN, "x")][i] == len(known)
        assert found.totals[Total(Kind.STEPS, "x", BOUNDS)][i] == steps.sum()
        assert found.totals[Total(Kind.GRID, "x", BOUNDS)][i] == np.rint(known / step_of(BOUNDS)).sum()
        assert found.totals[Total(Kind.DISTINCT, "z")][i] == group.z.nunique()
        assert found.bins[BINS[0]][i].counts.sum() == len(known)


def test_more_rows_than_floats_can_add_up_are_added_up_as_whole_numbers(monkeypatch):
    expected, _ = computed(CROWD, 4, None)
    monkeypatch.setattr("sfumato.queries.totals.MOST_ROWS", 0)
    found, _ = computed(CROWD, 4, None)
    assert all((found.totals[total] == expected.totals[total]).all() for total in TOTALS)


def counted_queries(patch) -> list[int]:
    asked: list[int] = []
    original = OwnedRows.table
    patch.setattr(OwnedRows, "table", lambda self, query: asked.append(1) or original(self, query))
    return asked


def test_one_query_computes_all_totals(monkeypatch):
    asked = counted_queries(monkeypatch)
    table = private_table(CROWD, privacy_unit="who", contribution_bound=4)
    group_by(table, "key", keys=KEYS).source().grouped().compute(TOTALS * 3, ())
    assert len(asked) == 1


@pytest.mark.parametrize(("totals", "queries"), [((), 1), (OF_X, 1), (TOTALS, 2)])
def test_a_histogram_and_the_totals_of_its_column_are_one_query(totals, queries, monkeypatch):
    asked = counted_queries(monkeypatch)
    grouped = group_by(private_table(CROWD), "key", keys=KEYS).source().grouped()
    grouped.compute(totals, BINS)
    assert len(asked) == queries == grouped.plan(totals, BINS).count(";") + 1


HOSTILE_ROWS = pa.table(
    {
        "who": pa.array([i // 3 for i in range(600)]),
        "key": pa.array([[*KEYS, "other", None][i % 6] for i in range(600)]),
        "x": pa.array(
            [[1.5, 7.0, None, math.nan, math.inf, -math.inf, -0.0, 10.0][i % 8] for i in range(600)]
        ),
        "z": pa.array([["p", "q", None][i % 7 % 3] for i in range(600)]),
    }
)


@pytest.mark.parametrize("terms", [{}, {"privacy_unit": "who", "contribution_bound": 2}])
def test_totals_are_the_same_beside_a_histogram(terms):
    grouped = group_by(private_table(HOSTILE_ROWS, **terms), "key", keys=KEYS).source().grouped()
    bins = (*BINS, Bins("x", (0.0, 2.0), 5))
    alone, beside = grouped.compute(TOTALS, ()), grouped.compute(TOTALS, bins)
    assert all((alone.totals[total] == beside.totals[total]).all() for total in TOTALS)
    known = beside.totals[Total(Kind.KNOWN, "x")]
    for each in bins:
        assert [group.counts.sum() for group in beside.bins[each]] == known.tolist()
    assert known.sum() > 0


@settings(max_examples=30, deadline=None)
@given(
    values=st.lists(st.floats(width=64), min_size=1, max_size=30),
    bounds=st.sampled_from([(0.0, 1.0), (-5.0, 10.0), (1e9, 1e9 + 3), (-1e280, 1e280), (0.0, 1e-200)]),
    cells=st.sampled_from([1, 2, 3, 7, 64, 1000, 4095, 2**16 - 1, 2**16]),
)
def test_each_value_is_in_the_bin_of_its_whole_steps(values, bounds, cells):
    edges = np.linspace(*bounds, min(cells, 64) + 1)
    column = np.concatenate([values, edges, np.nextafter(edges, -np.inf)])
    table = private_table(pa.table({"x": column}))
    bins = Bins("x", bounds, cells)
    found = group_by(table).source().grouped().compute((), (bins,)).bins[bins][0]
    known = column[~np.isnan(column)]
    steps = [int(step) + STEPS for step in in_steps(known, bounds)]
    expected = [min(step * cells // (2 * STEPS), cells - 1) for step in steps]
    assert found.histogram(bins.edges).tolist() == np.bincount(expected, minlength=cells).tolist()


def test_a_value_on_an_edge_is_in_the_bin_above_it_and_half_a_step_tells_two_bins_apart():
    cells, (lower, upper) = 2**12, (18.0, 90.0)
    bins = Bins("x", (lower, upper), cells)
    step = (upper - lower) / 2 / STEPS
    column = np.concatenate([bins.edges, bins.edges[1:] - 0.6 * step])
    grouped = group_by(private_table(pa.table({"x": column}))).source().grouped()
    counts = grouped.compute((), (bins,)).bins[bins][0].histogram(bins.edges)
    assert counts.tolist() == [2] * (cells - 1) + [3]  # the upper bound is in the last bin


def test_bounds_that_are_too_narrow_for_the_bins_are_refused_by_their_numbers():
    grouped = group_by(private_table(CROWD)).source().grouped()
    bounds = (1e9, math.nextafter(1e9, 2e9))
    with pytest.raises(ValueError, match="cannot be divided into 8 bins"):
        grouped.require_computable((), (Bins("x", bounds, 8),))


def test_texts_that_a_collation_or_a_language_calls_equal_are_different_groups():
    names = ["a", "A", "\u00e9", "e\u0301", "", " a", "\U0001f600"]
    connection = ibis.duckdb.connect()
    connection.raw_sql("CREATE TABLE t (name VARCHAR COLLATE NOCASE, number BIGINT)")
    for i, name in enumerate(names):
        connection.con.execute("INSERT INTO t SELECT ?, ? FROM range(?)", [name, i % 2, i + 1])
    connection.raw_sql("INSERT INTO t VALUES (NULL, 1), ('other', 1)")
    table = private_table(connection.table("t"))
    found = group_by(table, "name", keys=names).source().grouped().compute((), ())
    assert found.totals[Total(Kind.ROWS)].tolist() == list(range(1, len(names) + 1))
    pairs = [(name, i % 2) for i, name in enumerate(names)] + [("a", 1)]
    found = group_by(table, "name", "number", keys=pairs).source().grouped().compute((), BINS_OF_NUMBER)
    assert found.totals[Total(Kind.ROWS)].tolist() == [*range(1, len(names) + 1), 0]
    assert [each.counts.sum() for each in found.bins[BINS_OF_NUMBER[0]]] == [*range(1, len(names) + 1), 0]


BINS_OF_NUMBER = (Bins("number", (0.0, 2.0), 4),)


def test_whole_numbers_are_not_looked_at_for_nan_but_floats_are():
    rows = pa.table({"i": [1, None, 3], "b": [True, None, False], "x": [1.0, None, float("nan")]})
    grouped = group_by(private_table(rows)).source().grouped()
    totals = [Total(Kind.KNOWN, name) for name in "ibx"]
    assert [grouped.compute(totals, ()).totals[each].tolist() for each in totals] == [[2], [2], [1]]
    assert grouped.plan(totals, ()).count("ISNAN") == 2  # of x alone: when it is opened, and when it is read
