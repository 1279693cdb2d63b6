# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.accounting.guarantee import Relation
from sfumato.statistics.gaussian_vectors import in_ball, whole_rows
from sfumato.statistics.matrices import product_sums
from sfumato.statistics.matrices.product_sums import COARSE, GRAIN, Scatter, added_up

ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
numbers = st.lists(st.tuples(*[st.floats(-1.5, 1.5)] * 3), min_size=1, max_size=5)


def whole(rows, box: bool) -> np.ndarray:
    known = np.array(rows, dtype=float).reshape(-1, 3)
    return whole_rows(np.clip(known, -1, 1) if box else in_ball(known, np.zeros(3), 1.0), steps=GRAIN)


@pytest.mark.parametrize("box", [True, False])
@given(rows=numbers, more=numbers, other=numbers)
@settings(max_examples=60, deadline=None)
def test_units_move_the_triangle_by_at_most_the_reach(box, rows, more, other):
    layout = Scatter(dimension=3, squared_length=1.0, box=box)
    base, some, others = (added_up([whole(part, box)], 3) for part in (rows, more, other))
    here, there = (layout.triangle(base + part) for part in (some, others))
    added = np.linalg.norm(here - layout.triangle(base))
    assert added <= layout.reach(rows=len(more), relation=ADD)
    replaced = np.linalg.norm(here - there)
    assert replaced <= layout.reach(rows=max(len(more), len(other)), relation=REPLACE)


@pytest.mark.parametrize("box", [True, False])
def test_the_reach_is_met_by_some_row(box):
    layout = Scatter(dimension=3, squared_length=1.0, box=box)
    row = [[1.0, 1.0, 1.0]] if box else [[1.0, 0.0, 0.0]]
    moved = np.linalg.norm(layout.triangle(added_up([whole(row, box)], 3)))
    assert moved > 0.999 * layout.reach(rows=1, relation=ADD)


def test_sums_are_exact_and_go_back_to_the_matrix(monkeypatch):
    monkeypatch.setattr(product_sums, "_CHUNK", 7)
    rows = whole(np.random.default_rng(0).normal(size=(50, 3)), box=True)
    total = added_up([rows[:20], rows[20:]], 3)
    slow = sum(np.outer(row, row).astype(object) for row in rows.astype(np.int64))
    assert (total == slow).all()
    for box in (True, False):
        layout = Scatter(dimension=3, squared_length=1.0, box=box)
        back = layout.matrix(layout.triangle(total).astype(float)) * GRAIN**2
        assert np.abs(back - total).max() <= COARSE


@pytest.mark.parametrize("box", [True, False])
@pytest.mark.parametrize("base", [0, 127, 2**61 - 12345, 2**61 - 1])
def test_the_largest_sums_keep_the_reach(box, base):
    # 2^33 rows: their sums have 62 bits, which float64 rounds; the reach has room for that.
    layout = Scatter(dimension=3, squared_length=1.0, box=box)
    many = np.full((3, 3), base, dtype=np.int64)
    for row in ([1.0, 1.0, 1.0], [0.3, -0.9, 0.31], [1.0, 0.0, 0.0]):
        moved = layout.triangle(many + added_up([whole([row], box)], 3)) - layout.triangle(many)
        assert np.linalg.norm(moved) <= layout.reach(rows=1, relation=ADD)


def test_more_rows_than_64_bits_hold_are_clamped_and_never_wrap_around(monkeypatch):
    largest = np.full((4, 1), float(GRAIN))
    monkeypatch.setattr(product_sums, "_MOST", 3 * GRAIN**2)
    assert added_up([largest], 1).tolist() == [[3 * GRAIN**2]]  # a clamp moves no two sums further apart
    monkeypatch.undo()
    huge = np.full((1, 2), 2.0**31)  # as if of 2^34 rows; products of 2^62, whose sum 64 bits do not hold
    assert added_up([huge * [1, -1]] * 3, 2).tolist() == [[2**61, -(2**61)], [-(2**61), 2**61]]
