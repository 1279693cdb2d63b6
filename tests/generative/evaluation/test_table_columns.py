# SPDX-License-Identifier: Apache-2.0
"""Tables by the synthesizer's declarations: codes, features and labels, for any value of a cell."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.table_columns import (
    codes_of,
    declared,
    features_of,
    labeled_table,
    numbers_of,
)
from sfumato.generative.tables.bought_domain import UnknownCategory
from sfumato.generative.tables.domain import Category, Domain, Number

COLUMNS = {
    "age": Number(lower=0, upper=100, bins=(0, 20, 60, 100)),
    "sex": Category(values=("f", "m")),
    "sick": Category(values=(False, True)),
}
TABLE = pd.DataFrame(
    {"age": [5, 20, 100, 130], "sex": ["f", "m", "x", None], "sick": [True, False, True, True]}
)


def test_codes_are_those_of_the_synthesizer():
    assert codes_of(TABLE, COLUMNS).tolist() == [[0, 0, 1], [1, 1, 0], [2, 2, 1], [2, 2, 1]]
    assert np.array_equal(codes_of(TABLE, Domain(COLUMNS)), Domain(COLUMNS).encode(TABLE))


def test_columns_that_are_not_declared_are_left_out():
    assert np.array_equal(codes_of(TABLE.assign(weight=1), COLUMNS), codes_of(TABLE, COLUMNS))


def test_features_lie_between_0_and_1():
    found = features_of(TABLE, COLUMNS)
    assert found.shape == (4, 2 + 3 + 3) and found.min() == 0 and found.max() == 1
    assert found[0].tolist() == [0.05, 0, 1, 0, 0, 0, 1, 0]
    assert found[3].tolist() == [1, 0, 0, 0, 1, 0, 1, 0]


def test_columns_that_cannot_be_missing_have_no_mark():
    columns = {"age": Number(lower=0, upper=10, missing=False), "one": Number(lower=3, upper=3.5)}
    found = features_of({"age": [None, 5, 11], "one": [3, None, 4]}, columns)
    assert found.tolist() == [[0, 0, 0], [0.5, 0, 1], [1, 1, 0]]


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
    assert codes_of({name: [Strange()] for name in COLUMNS}, COLUMNS).tolist() == [[3, 2, 2]]


def test_frames_of_polars_are_read():
    frame = pl.DataFrame({**TABLE.to_dict("list"), "sex": ["f", "m", "x", None]})
    assert np.array_equal(codes_of(frame, COLUMNS), codes_of(TABLE, COLUMNS))


def test_nullable_columns_of_pandas_are_read():
    ages = pd.Series([1, None], dtype="Int64")
    assert np.isnan(numbers_of(ages)[1])
    assert codes_of({"age": ages}, {"age": COLUMNS["age"]}).tolist() == [[0], [3]]


def test_a_target_gives_labels_and_rows_of_other_values_are_left_out():
    rows = labeled_table(TABLE, COLUMNS, target="sex")
    assert rows.labels.tolist() == [0, 1] and rows.classes == 2 and rows.features.shape == (2, 5)


@pytest.mark.parametrize("target", ["age", "height"])
def test_a_target_without_categories_is_refused(target):
    with pytest.raises(InvalidParameterError, match=f"the target '{target}' must be a declared Category"):
        labeled_table(TABLE, COLUMNS, target=target)


def test_a_table_without_a_declared_target_value_is_refused():
    with pytest.raises(InvalidParameterError, match="no row has a declared category"):
        labeled_table(TABLE.assign(sex="x"), COLUMNS, target="sex")


def test_a_target_alone_is_refused():
    with pytest.raises(InvalidParameterError, match="beside the target"):
        labeled_table(TABLE, {"sex": COLUMNS["sex"]}, target="sex")


def test_missing_columns_are_refused_by_name():
    with pytest.raises(InvalidParameterError, match="no column 'age'"):
        codes_of(TABLE[["sex", "sick"]], COLUMNS)
    with pytest.raises(InvalidParameterError, match="needs columns"):
        features_of(TABLE, {})


def test_a_column_whose_values_were_bought_needs_the_domain_of_the_generator():
    with pytest.raises(InvalidParameterError, match="columns=generator"):
        declared({"city": UnknownCategory()})
