# SPDX-License-Identifier: Apache-2.0
"""At most so many rows of a unit count, and no other unit decides which."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.generative.tables.private_table import (
    DeferredTable,
    PrivateColumns,
    PrivateRows,
    private_rows,
)

OWNERS = st.lists(st.sampled_from(["ann", "bob", "cem", 7, 7.5, None]), max_size=30)


def kept(units, bound):
    rows = PrivateRows(table={"row": list(range(len(units)))}, units=units)
    return list(PrivateColumns.of(rows, ("row",), rows_per_unit=bound).cells["row"])


@given(OWNERS, st.integers(1, 4))
def test_no_unit_has_more_rows_than_its_bound(units, bound):
    found = [units[row] for row in kept(units, bound)]
    for unit in {*units} - {None}:
        assert found.count(unit) == min(bound, units.count(unit))
    assert None not in found


@given(OWNERS, st.integers(1, 4))
def test_removing_a_unit_changes_no_row_of_others(units, bound):
    for gone in {*units}:
        left = [place for place, unit in enumerate(units) if unit != gone]
        fewer = kept([units[place] for place in left], bound)
        assert [left[row] for row in fewer] == [row for row in kept(units, bound) if units[row] != gone]


def test_units_that_cannot_be_compared_are_left_out():
    assert kept(["ann", [1], {}, np.nan, pd.NaT, "bob"], 1) == [0, 5]


def test_without_units_every_row_counts():
    rows = PrivateRows(table=pd.DataFrame({"a": [1, 2, 3]}))
    assert list(PrivateColumns.of(rows, ("a",), rows_per_unit=2).cells["a"]) == [1, 2, 3]


def test_lengths_that_differ_are_refused():
    for rows in (
        PrivateRows(table={"a": [1, 2], "b": [1]}),
        PrivateRows(table={"a": [1, 2], "b": [1, 2]}, units=[1]),
    ):
        with pytest.raises(InvalidParameterError):
            PrivateColumns.of(rows, ("a", "b"), rows_per_unit=1)


def test_a_deferred_table_brings_its_units_and_names():
    table = DeferredTable(columns=("a",), read=lambda: PrivateRows(table={"a": [1]}))
    assert private_rows(table, None) is table
    table.require(("a",))
    with pytest.raises(InvalidParameterError, match="'b'"):
        table.require(("a", "b"))
    with pytest.raises(InvalidParameterError, match="brings its units"):
        private_rows(table, [1])
    with pytest.raises(InvalidParameterError, match="names"):
        DeferredTable(columns=(), read=lambda: PrivateRows(table={}))


def test_a_repr_shows_no_cell():
    assert "secret" not in repr(PrivateRows(table={"a": ["secret"]}))
    assert "secret" not in repr(PrivateColumns({"a": ["secret"]}))
