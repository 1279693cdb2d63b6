# SPDX-License-Identifier: Apache-2.0
"""Cells become numbers and texts one by one; only names and shapes are refused."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.generative.tables.cells import (
    UnknownDomainError,
    cells_of,
    numbers_of,
    place_of,
    require_columns,
    text_of,
)

anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.complex_numbers(),
    st.lists(st.integers()), st.decimals(), st.fractions(), st.dates(),
)  # fmt: skip


@given(st.lists(anything))
def test_each_number_depends_on_its_own_cell(cells):
    alone = [numbers_of([cell])[0] for cell in cells]
    np.testing.assert_array_equal(numbers_of(cells), np.array(alone, dtype=float))


def test_text_of_numbers_is_read_and_other_text_is_missing():
    np.testing.assert_array_equal(numbers_of(["7", " 8 ", "x", True]), [7.0, 8.0, np.nan, 1.0])


@given(anything)
def test_a_text_is_short_or_absent(cell):
    found = text_of(cell)
    assert found is None or 0 < len(found) <= 200


def test_numbers_that_are_equal_have_one_text():
    assert text_of(1) == text_of(1.0) == text_of(np.int8(1)) == text_of(np.float32(1)) == "1"
    assert text_of(math.inf) is None and text_of(10**400) is None


@given(anything)
def test_every_cell_has_a_place(cell):
    assert place_of(cell, {"a": 0}, 1) in (0, 1)


def test_cells_of_arrays_series_and_lists_are_the_same():
    for column in ([1, None, "x"], np.array([1, None, "x"], dtype=object), pd.Series([1, None, "x"])):
        assert list(cells_of(column)) == [1, None, "x"]
    assert cells_of(pd.Series([1.0, 2.0])).dtype == float


@pytest.mark.parametrize("column", [np.zeros((2, 2)), "text", 7, None])
def test_what_is_no_column_is_refused(column):
    with pytest.raises(InvalidParameterError):
        cells_of(column)


def test_columns_are_compared_by_name():
    require_columns({"a": [1], "b": [2]}, ("b", "a"))
    with pytest.raises(UnknownDomainError, match="'b'"):
        require_columns({"a": [1], "b": [2]}, ("a",))
    with pytest.raises(InvalidParameterError, match="'c'"):
        require_columns({"a": [1]}, ("a", "c"))
