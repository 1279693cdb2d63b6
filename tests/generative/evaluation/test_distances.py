# SPDX-License-Identifier: Apache-2.0
"""Nearest rows: right by an obvious loop, and on the grid independent of all other rows, bit by bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.distances import (
    STEPS,
    grid_rows,
    holdout_distances,
    nearest,
    nearest_on_grid,
    on_grid,
    public_rows,
)
from sfumato.generative.tables.domain import Category, Number

RNG = np.random.default_rng(0)


def test_nearest_rows_are_those_of_a_loop():
    rows, others = RNG.normal(size=(40, 7)) + 1000, RNG.normal(size=(60, 7)) + 1000
    away = np.array([[np.linalg.norm(a - b) for b in others] for a in rows])
    distances, places = nearest(rows, others, neighbors=3)
    assert np.allclose(distances, np.sort(away, axis=1)[:, :3])
    assert np.array_equal(places, np.argsort(away, axis=1)[:, :3])


def test_a_row_is_no_neighbor_of_itself():
    rows = RNG.normal(size=(30, 4))
    distances, places = nearest(rows, rows, same=True)
    assert (distances > 0).all() and (places[:, 0] != np.arange(30)).all()
    assert (nearest(rows, rows)[0] == 0).all()


def test_too_few_rows_are_refused():
    with pytest.raises(InvalidParameterError, match="has 2 other rows"):
        nearest(np.zeros((3, 1)), np.zeros((3, 1)), neighbors=3, same=True)


hostile = st.floats(width=64, allow_nan=True, allow_infinity=True)


@given(arrays(np.float64, (6, 3), elements=hostile), arrays(np.float64, (3,), elements=hostile))
def test_another_row_changes_no_distance_of_a_row(rows, other):
    """The property behind a sensitivity of 1: exact equality, whatever the values."""
    synthetic = on_grid(np.random.default_rng(1).random((50, 3)))
    found = nearest_on_grid(on_grid(rows), synthetic)
    changed = rows.copy()
    changed[2] = other
    again = nearest_on_grid(on_grid(changed), synthetic)
    kept = np.arange(6) != 2
    assert np.array_equal(found[kept], again[kept])
    alone = [nearest_on_grid(on_grid(rows[k : k + 1]), synthetic)[0] for k in range(6)]
    assert np.array_equal(found, alone)


def test_distances_on_the_grid_are_exact_whole_numbers():
    rows, others = (on_grid(RNG.random((20, 784))) for _ in range(2))
    slow = [min(sum(int(v) ** 2 for v in a - b) for b in others) for a in rows]
    assert nearest_on_grid(rows, others).tolist() == slow


def test_the_grid_clips_rounds_and_marks():
    steps = on_grid(np.array([[-5.0, 10.0], [0.0, np.nan], [5.0, 7.5]]), bounds=(0.0, 10.0))
    assert steps[0].tolist() == [0, STEPS] and np.isnan(steps[1]).all()
    assert steps[2].tolist() == [STEPS / 2, STEPS * 3 / 4]
    with pytest.raises(InvalidParameterError, match="bounds"):
        on_grid(np.zeros((1, 1)), bounds=(1.0, 0.0))


def test_a_row_without_another_is_infinitely_far():
    assert nearest_on_grid(np.array([[1.0]]), np.array([[1.0]]), same=True).tolist() == [np.inf]


def test_copies_of_public_rows_are_seen_and_others_are_not():
    holdout, fresh = RNG.random((300, 20)), RNG.random((300, 20))
    copied = np.concatenate([holdout[:150], fresh[:150]])
    assert holdout_distances(copied, holdout).copies_share >= 0.5
    independent = holdout_distances(fresh, holdout)
    assert independent.copies_share < 0.05
    assert independent.synthetic[-1] == pytest.approx(independent.holdout[-1], rel=0.05)
    assert "of the synthetic rows are as near to a public row" in str(independent)


def test_tables_are_compared_by_their_declared_columns():
    columns = {"age": Number(lower=0, upper=100), "sex": Category(values=("f", "m"))}
    table = {"age": [10, 90], "sex": ["f", "m"]}
    assert holdout_distances(table, table, columns=columns).copies_share == 1.0
    assert grid_rows({"age": [None], "sex": [[]]}, (0.0, 1.0), columns).tolist() == [[0, STEPS, 0, 0, STEPS]]


@pytest.mark.parametrize(
    ("synthetic", "holdout", "match"),
    [
        (np.full((3, 2), np.nan), np.zeros((3, 2)), "finite synthetic row"),
        (np.zeros((3, 2)), np.full((3, 2), np.inf), "all finite"),
        (np.zeros((3, 2)), np.zeros((3, 4)), "another shape"),
        (np.zeros(3), np.zeros((3, 4)), "two dimensions"),
    ],
)
def test_wrong_public_rows_are_refused(synthetic, holdout, match):
    with pytest.raises(InvalidParameterError, match=match):
        public_rows(synthetic, holdout, (0.0, 1.0), None)


def test_one_public_row_has_no_distances():
    with pytest.raises(InvalidParameterError, match="at least two"):
        holdout_distances(np.zeros((3, 2)), np.zeros((1, 2)))
