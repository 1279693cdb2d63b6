# SPDX-License-Identifier: Apache-2.0
"""Cells become numbers and texts one by one; only names and shapes are refused."""

import io
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
    places_of,
    require_columns,
    text_of,
)
from sfumato.generative.tables.domain import Category, Domain

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


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ((1, 2), ["1.0", "2.0"]),
        ((1, 2), ["01", "02"]),
        (("1", "2"), ["1", "2"]),
        ((True, False), ["TRUE", "FALSE"]),
    ],
)
@pytest.mark.parametrize("read", [pd.read_csv, lambda file: pd.read_csv(file, dtype=str)])
def test_one_word_among_numbers_recodes_no_other_cell_of_a_frame(values, texts, read):
    """A word makes a column of numbers one of text, in pandas: cells must not notice."""
    places = places_of(values)

    def codes(cells):
        frame = read(io.StringIO("\n".join(["a", *cells])))
        return [place_of(cell, places, 9) for cell in cells_of(frame["a"])]

    clean = codes(texts * 3)
    assert clean == [0, 1] * 3
    assert codes([*texts * 3, "x"]) == [*clean, 9]
    assert (
        numbers_of(cells_of(pd.Series([*texts, "x"])))[:2].tolist()
        == numbers_of(cells_of(read(io.StringIO("\n".join(["a", *texts])))["a"])).tolist()
    )


def test_lists_are_read_as_frames_are():
    places = places_of(["01", "x"])
    assert [place_of(cell, places, 9) for cell in ("01", "1", 1, True, "x")] == [0, 0, 0, 0, 1]


def test_columns_of_times_have_their_text_in_iso_format():
    times = ["2020-01-01", "2020-01-02T10:30:00", None]
    for kind in ("s", "ms", "us", "ns"):
        cells = cells_of(pd.Series(np.array(times, dtype=f"datetime64[{kind}]")))
        assert [text_of(cell) for cell in cells] == times
    assert [text_of(cell) for cell in cells_of(np.array(["20000-01-01"], dtype="datetime64[us]"))] == [None]


@pytest.mark.parametrize("declared", [["123456789012345", "z"], ["z"]])
@pytest.mark.parametrize("cell", ["1234567890123456789", "123456789012345678", "123456789012345"])
def test_one_replaced_cell_changes_the_code_of_no_other(declared, cell):
    """The counterexample of a review: 600 of 600 cells moved, with a claim of epsilon 1 for one row."""
    domain = Domain({"id": Category(values=declared)})
    codes = [
        domain.encode(pd.read_csv(io.StringIO("id,b\n" + f"{cell},u\n" * 600 + f"{last},u\n"))[["id"]])[:600]
        for last in ("5", "x", "", "NULL", "0.5", "18446744073709551615", "1" + "0" * 30)
    ]
    expected = 0 if cell in declared else len(declared)
    assert [set(found.ravel().tolist()) for found in codes] == [{expected}] * 7
