# SPDX-License-Identifier: Apache-2.0
import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.columns import STEPS, ArrayColumn, column_of, in_steps, rows_of

any_float = st.floats()  # includes 0, huge, inf and NaN


columns = st.lists(any_float, max_size=20)


bounds = st.tuples(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9)).map(lambda b: (b[0], b[0] + b[1]))


def difference(one: ArrayColumn, two: ArrayColumn, limits: tuple[float, float]) -> tuple[int, int, int]:
    a, b = one.moments(limits), two.moments(limits)
    return a.count - b.count, a.total - b.total, a.squares - b.squares


@given(columns, any_float, bounds)
def test_one_row_moves_each_sum_by_at_most_steps(values, one, limits):
    count, total, squares = difference(column_of([*values, one]), column_of(values), limits)
    assert count == (not math.isnan(one))
    assert abs(total) <= STEPS
    assert 0 <= squares <= STEPS


@given(columns, bounds, st.randoms(use_true_random=False))
def test_sums_do_not_depend_on_the_order_of_rows(values, limits, random):
    mixed = random.sample(values, len(values))
    assert column_of(values).moments(limits) == column_of(mixed).moments(limits)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), bounds)
def test_the_grid_moves_a_sum_by_at_most_half_a_step_for_each_row(values, limits):
    lower, upper = limits
    middle, half = lower / 2 + upper / 2, upper / 2 - lower / 2
    true = sum(Fraction(min(max(v, lower), upper)) - Fraction(middle) for v in values)
    step = Fraction(half) / STEPS
    off = abs(true - column_of(values).moments(limits).total * step)
    slack = Fraction(1e-15) * Fraction(max(abs(lower), abs(upper)))  # float64 around the middle
    assert off <= len(values) * (step * Fraction(0.5000001) + slack)


def test_sums_over_many_chunks_are_those_of_a_plain_loop():
    values = np.random.default_rng(0).normal(50, 30, 200_000)
    steps = in_steps(values, (0, 100))
    moments = column_of(values).moments((0, 100))
    assert moments.total == sum(int(s) for s in steps)
    assert moments.squares == sum(round(int(s) ** 2 / STEPS) for s in steps)
    assert column_of(values).moments((0, 100), squares=False).squares == 0


def test_infinities_are_clipped_and_nan_is_left_out():
    moments = column_of([math.inf, -math.inf, math.nan, 1.0]).moments((0, 2))
    assert (moments.count, moments.total, moments.squares) == (3, 0, 2 * STEPS)


@pytest.mark.parametrize(
    "edges",
    [
        [0.0, 1.0],
        [0.0, 1.0, 2.0],
        [0.0, 1.2, 1.9, 3.0],
        [0.1, 0.2, 0.3, 0.4],
        [-5.0, 0.0, 0.001, 7.0],
        [-1.7e308, 0.0, 1.7e308],
    ],
    ids=str,
)
@given(values=st.lists(any_float, max_size=30))
def test_a_histogram_counts_each_row_once_as_a_plain_loop_does(edges, values):
    values = [*values, *edges, *np.nextafter(edges, np.inf), *np.nextafter(edges, -np.inf)]
    counts = [0] * (len(edges) - 1)
    for value in values:
        if not math.isnan(value):
            counts[sum(value >= edge for edge in edges[1:-1])] += 1
    assert column_of(values).histogram(np.array(edges)).tolist() == counts


def test_ordered_values_are_clipped_and_rise():
    assert column_of([9.0, -math.inf, 1.0]).ordered((0.0, 2.0)).tolist() == [0.0, 1.0, 2.0]


def test_a_column_passes_as_it_is():
    column = column_of([1.0])
    assert column_of(column) is column


def test_rows_with_a_missing_value_are_left_out_and_columns_are_named():
    rows = rows_of(pd.DataFrame({"a": [1.0, None], "b": [2.0, 3.0]}))
    assert next(rows.batches()).tolist() == [[1.0, 2.0]]
    assert rows_of([[1.0, 2.0]], names=("x", "y")).names == ("x", "y")
    assert rows_of([[1.0, 2.0]]).names == ("column 0", "column 1")


@pytest.mark.parametrize("wrong", [[1.0], [[]], [[[1.0]]], [["a"]]], ids=repr)
def test_rows_must_be_a_matrix_of_numbers(wrong):
    with pytest.raises(InvalidParameterError):
        rows_of(wrong)


def test_rows_need_a_name_for_each_column():
    with pytest.raises(InvalidParameterError, match="names"):
        rows_of([[1.0, 2.0]], names=("x",))
