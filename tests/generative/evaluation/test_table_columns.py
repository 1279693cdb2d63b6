# SPDX-License-Identifier: Apache-2.0
"""Declared columns: bins and features, for any value of a cell."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.table_columns import (
    Categories,
    Edges,
    bins_of,
    features_of,
    labeled_table,
    numbers_of,
)

COLUMNS = {"age": Edges((0, 20, 60, 100)), "sex": Categories(("f", "m")), "sick": Categories((False, True))}
TABLE = pd.DataFrame(
    {"age": [5, 20, 100, 130], "sex": ["f", "m", "x", None], "sick": [True, False, True, True]}
)


def test_bins_hold_their_left_edge_and_the_last_both():
    assert bins_of(TABLE, COLUMNS).tolist() == [[0, 0, 1], [1, 1, 0], [2, 2, 1], [3, 2, 1]]


def test_features_lie_between_0_and_1():
    found = features_of(TABLE, COLUMNS)
    assert found.shape == (4, 2 + 3 + 3) and found.min() == 0 and found.max() == 1
    assert found[0].tolist() == [0.05, 0, 1, 0, 0, 0, 1, 0]
    assert found[3].tolist() == [0, 1, 0, 0, 1, 0, 1, 0]


class Strange:
    def __float__(self):
        raise RuntimeError("no")

    def __hash__(self):
        raise RuntimeError("no")


cells = st.one_of(
    st.none(),
    st.floats(),
    st.integers(),
    st.text(),
    st.booleans(),
    st.just([]),
    st.just(10**400),
)


@given(st.lists(cells, min_size=1, max_size=6))
def test_no_cell_raises_and_each_counts_alone(values):
    table = {"age": values, "sex": values, "sick": values}
    found = features_of(table, COLUMNS)
    alone = [features_of({name: [value] for name in COLUMNS}, COLUMNS)[0] for value in values]
    assert np.isfinite(found).all() and np.array_equal(found, alone)


def test_a_cell_that_can_neither_be_a_number_nor_a_category_is_another_value():
    assert bins_of({name: [Strange()] for name in COLUMNS}, COLUMNS).tolist() == [[3, 2, 2]]


def test_frames_of_polars_are_read():
    frame = pl.DataFrame({**TABLE.to_dict("list"), "sex": ["f", "m", "x", None]})
    assert np.array_equal(bins_of(frame, COLUMNS), bins_of(TABLE, COLUMNS))


def test_nullable_columns_of_pandas_are_read():
    ages = pd.Series([1, None], dtype="Int64")
    assert np.isnan(numbers_of(ages)[1]) and Edges((0, 2)).bins(ages).tolist() == [0, 1]


def test_a_target_gives_labels_and_undeclared_rows_are_left_out():
    rows = labeled_table(TABLE, COLUMNS, target="sex")
    assert rows.labels.tolist() == [0, 1] and rows.classes == 2 and rows.features.shape == (2, 5)


@pytest.mark.parametrize("target", ["age", "height"])
def test_a_target_without_categories_is_refused(target):
    with pytest.raises(InvalidParameterError, match=f"declare the target '{target}'"):
        labeled_table(TABLE, COLUMNS, target=target)


def test_a_table_without_a_declared_target_value_is_refused():
    with pytest.raises(InvalidParameterError, match="no row has a declared category"):
        labeled_table(TABLE.assign(sex="x"), COLUMNS, target="sex")


def test_missing_columns_are_refused_by_name():
    with pytest.raises(InvalidParameterError, match="no column 'age'"):
        bins_of(TABLE[["sex", "sick"]], COLUMNS)
    with pytest.raises(InvalidParameterError, match="at least one column"):
        features_of(TABLE, {})


@pytest.mark.parametrize("edges", [(1,), (1, 1), (2, 1), (0, np.nan), (0, np.inf)])
def test_edges_rise(edges):
    with pytest.raises(InvalidParameterError, match="edges must be"):
        Edges(edges)


@pytest.mark.parametrize("values", [(), ("a", "a"), "text"])
def test_categories_are_distinct(values):
    with pytest.raises(InvalidParameterError, match="categories must be"):
        Categories(values)
