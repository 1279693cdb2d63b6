# SPDX-License-Identifier: Apache-2.0
import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.columns import ArrayColumn
from sfumato.statistics.questions import ranks
from sfumato.statistics.questions.ranks import Grid, draw, grid_of, ranks_of, settle
from sfumato.testing import seeded

ALPHA = 1e-6
ADD = Relation.ADD_REMOVE
GRIDS = [Grid(bounds=(0.0, 8.0), cells=8, parts=p, whole=w) for p, w in ((4, 1), (1, 1), (8, 3), (3, 100))]
values = st.lists(st.floats(-2, 10) | st.sampled_from([0.0, 1.0, 4.5, 8.0, np.inf, -np.inf]), max_size=30)


def of(rows, grid) -> ranks.Ranks:
    return ranks_of(ArrayColumn(np.array(rows, dtype=float)), grid)


def rank_ranges(found: ranks.Ranks) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest rank in the middle of every part of the grid, in the slow way."""
    edges, least, most = ranks._intervals(found)
    place = np.searchsorted(edges, np.arange(found.low, found.high) + 0.5, side="right") - 1
    return least[place], most[place]


def slow_ranges(rows, grid) -> tuple[np.ndarray, np.ndarray]:
    lower, upper = grid.bounds
    cells = np.clip(
        np.floor((np.clip(rows, lower, upper) - lower) / (upper - lower) * grid.cells), 0, grid.cells - 1
    )
    least, most = [], []
    for cell in range(grid.cells):
        before, inside = int((cells < cell).sum()), int((cells == cell).sum())
        for part in range(grid.parts):
            spread = part * max(inside - grid.whole, 0) // grid.parts
            least.append(before + spread)
            most.append(before + spread + min(inside, grid.whole))
    return np.array(least), np.array(most)


@pytest.mark.parametrize("grid", GRIDS)
@given(rows=values)
@settings(max_examples=40, deadline=None)
def test_ranks_are_those_of_a_slow_count(grid, rows):
    least, most = rank_ranges(of(rows, grid))
    slow_least, slow_most = slow_ranges(np.array(rows, dtype=float), grid)
    assert least.tolist() == slow_least.tolist()
    assert most.tolist() == slow_most.tolist()


@pytest.mark.parametrize("grid", GRIDS)
@given(rows=values, more=st.floats(-2, 10))
@settings(max_examples=40, deadline=None)
def test_one_more_row_moves_every_rank_by_zero_or_one(grid, rows, more):
    for before, after in zip(rank_ranges(of(rows, grid)), rank_ranges(of([*rows, more], grid)), strict=True):
        assert set((after - before).tolist()) <= {0, 1}


@pytest.mark.parametrize("grid", GRIDS)
@given(rows=values, more=st.floats(-2, 10), share=st.floats(0, 1), again=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_one_more_row_is_added_to_exactly_one_side_of_every_split(grid, rows, more, share, again):
    cut = int(share * grid.cells * grid.parts)
    sides = [of(rows, grid).split(cut), of([*rows, more], grid).split(cut)]
    grown = [b.rows - a.rows for a, b in zip(*sides, strict=True)]
    assert sorted(grown) == [0, 1]
    for a, b in zip(*sides, strict=True):
        assert (a.low, a.high) == (b.low, b.high)
        for before, after in zip(rank_ranges(a), rank_ranges(b), strict=True):
            assert set((after - before).tolist()) <= ({0, 1} if b.rows > a.rows else {0})
        inner = a.low + int(again * (a.high - a.low))  # and so on, inside each side
        deeper = [d.rows - c.rows for c, d in zip(a.split(inner), b.split(inner), strict=True)]
        assert sorted(deeper) == [0, b.rows - a.rows]


@pytest.mark.parametrize("grid", GRIDS)
def test_a_full_cell_is_cut_so_that_one_more_row_goes_to_one_side(grid):
    for rows, cut in itertools.product(range(40), range(4 * grid.parts, 5 * grid.parts + 1)):
        sides = [of([4.5] * count, grid).split(cut) for count in (rows, rows + 1)]
        assert sorted(b.rows - a.rows for a, b in zip(*sides, strict=True)) == [0, 1]
        share = (cut - 4 * grid.parts) / grid.parts
        assert abs(sides[0][0].rows - share * rows) < 1


def test_points_have_exactly_the_stated_law():
    grid = Grid(bounds=(0.0, 8.0), cells=8, parts=2, whole=1)
    found, q = of([1.5, 1.5, 1.6, 3.0, 6.0], grid), Fraction(2, 5)
    least, most = rank_ranges(found)
    target = float(q) * 5
    law = np.exp(-0.75 * np.maximum(np.maximum(least - target, target - most), 0))
    generator = seeded(1)
    draws = [
        draw(found, q, epsilon=1.5, sensitivity=Fraction(1), relation=ADD, generator=generator)
        for _ in range(3000)
    ]
    counts = np.bincount(np.minimum(np.floor(draws).astype(int), 15), minlength=16)
    assert chisquare(counts, law / law.sum() * 3000).pvalue > ALPHA
    flatter = law**0.6
    assert chisquare(counts, flatter / flatter.sum() * 3000).pvalue < ALPHA


def test_rows_far_from_the_wanted_rank_are_left_out_without_a_trace(monkeypatch):
    grid = Grid(bounds=(0.0, 1.0), cells=2**32, parts=2**12, whole=1)
    found = of(np.random.default_rng(0).uniform(size=2000), grid)
    given = {"epsilon": 1.0, "sensitivity": Fraction(1, 2), "relation": ADD}
    near = [draw(found, Fraction(1, 2), **given, generator=seeded(s)) for s in range(50)]
    monkeypatch.setattr(ranks, "_DEPTH", 10**6)
    all_of_them = [draw(found, Fraction(1, 2), **given, generator=seeded(s)) for s in range(50)]
    assert near == pytest.approx(all_of_them, rel=1e-9)


@given(
    rows=values, q=st.fractions(0, 1, max_denominator=50), epsilon=st.sampled_from([1e-300, 1e-9, 1.0, 1e9])
)
@settings(max_examples=40, deadline=None)
def test_any_epsilon_gives_a_point_of_the_bounds(rows, q, epsilon):
    found = of(rows, GRIDS[0])
    given = {"sensitivity": Fraction(1), "relation": ADD, "generator": seeded(0)}
    assert 0 <= draw(found, q, epsilon=epsilon, shift=-3.5, **given) <= 32


def test_no_width_left_gives_the_one_point_there_is():
    nothing = dataclasses.replace(of([], GRIDS[0]), low=7, high=7)
    given = {"sensitivity": Fraction(1), "relation": ADD, "generator": seeded(0)}
    assert draw(nothing, Fraction(1, 2), epsilon=1.0, **given) == 7


def test_a_decimal_quantile_is_that_decimal():
    assert [settle(q) for q in (0.1, 0.25, 0.999, 1 / 3)] == [
        Fraction(1, 10), Fraction(1, 4), Fraction(999, 1000), Fraction(1, 3),
    ]  # fmt: skip


def test_resolution_is_public_and_bounded():
    column = ArrayColumn(np.zeros(3))
    assert grid_of(column, (0, 1), None).cells == 2**32
    assert grid_of(column, (0, 1), 100).cells == 100
    for wrong in (0, 2**41, 1.5):
        with pytest.raises(InvalidParameterError, match="resolution"):
            grid_of(column, (0, 1), wrong)


def test_a_value_is_inside_the_bounds_however_they_round():
    grid = Grid(bounds=(0.1, 0.7), cells=8, parts=4, whole=1)
    assert grid.value(0.0) == 0.1
    assert grid.value(32.0) == 0.7
