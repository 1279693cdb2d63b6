# SPDX-License-Identifier: Apache-2.0
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.columns import STEPS, ArrayColumn, column_of
from sfumato.statistics.columns.input_values import is_missing, objects_of

any_float = st.floats()  # includes 0, huge, inf and NaN


bounds = st.tuples(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9)).map(lambda b: (b[0], b[0] + b[1]))


SECRET = "Ada Lovelace"


def difference(one: ArrayColumn, two: ArrayColumn, limits: tuple[float, float]) -> tuple[int, int, int]:
    a, b = one.moments(limits), two.moments(limits)
    return a.count - b.count, a.total - b.total, a.squares - b.squares


def test_at_most_the_bound_of_each_owner_is_kept():
    values, owners = [1.0, 2.0, 3.0, 4.0, 5.0], ["a", "b", "a", "a", "b"]
    kept = column_of(values, owners=owners, contribution_bound=2)
    found = kept.ordered((0.0, 9.0)).tolist()
    assert len(found) == 4 and {2.0, 5.0} < set(found) < set(values)
    assert (kept.contribution_bound, kept.privacy_unit) == (2, "owner")


owned = st.lists(st.tuples(st.integers(0, 4), st.one_of(any_float, st.none())), max_size=25)


@given(owned, st.integers(1, 3), st.integers(0, 4), bounds)
def test_one_owner_moves_sums_by_at_most_its_rows(rows, bound, gone, limits):
    def column(kept):
        return column_of(
            np.array([np.nan if v is None else v for _, v in kept], dtype=float),
            owners=[o for o, _ in kept],
            contribution_bound=bound,
        )

    count, total, squares = difference(column(rows), column([r for r in rows if r[0] != gone]), limits)
    assert 0 <= count <= bound
    assert abs(total) <= bound * STEPS
    assert 0 <= squares <= bound * STEPS


def test_a_missing_value_does_not_use_up_its_owners_rows():
    kept = column_of([math.nan, 2.0], owners=["a", "a"], contribution_bound=1)
    assert kept.ordered((0.0, 9.0)).tolist() == [2.0]


@pytest.mark.parametrize(
    "owners",
    [
        [1.0, math.nan],
        ["a", None],
        [None, None],
        pd.Series([1, None], dtype="Int64"),
        np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
    ],
    ids=repr,
)
def test_rows_of_no_owner_are_left_out(owners):
    alone = column_of([1.0, 2.0], owners=owners).moments((0.0, 4.0)).count
    assert alone == sum(not is_missing(owner) for owner in objects_of(owners, what="owners"))


@pytest.mark.parametrize("owners", [["a"], [["a", "b"], ["c", "d"]], [[SECRET], [SECRET, 1]]], ids=repr)
def test_owners_that_do_not_fit_the_rows_are_refused(owners):
    with pytest.raises(InvalidParameterError) as refused:
        column_of([1.0, 2.0], owners=owners)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "owners",
    [list(torch.zeros(3)), [object()] * 3, [("a", object())] * 3],
    ids=["tensors", "objects", "in tuples"],
)
def test_owners_that_may_equal_nothing_but_themselves_are_refused(owners):
    # Each element of a tensor is another object: the rows of one owner would be those of three.
    with pytest.raises(InvalidParameterError, match="names or numbers"):
        column_of([1.0, 2.0, 3.0], owners=owners)


def test_owners_of_different_kinds_are_told_apart():
    kept = column_of([1.0, 2.0, 3.0], owners=["a", 1, "a"], contribution_bound=1)
    assert kept.ordered((0.0, 9.0)).tolist() in ([1.0, 2.0], [2.0, 3.0])


def test_a_contribution_bound_needs_owners():
    with pytest.raises(InvalidParameterError, match="owners"):
        column_of([1.0], contribution_bound=2)


@pytest.mark.parametrize("nobody", [Decimal("NaN"), np.datetime64("NaT"), float("nan"), None, pd.NA])
def test_owners_that_do_not_equal_themselves_are_nobody(nobody):
    column = column_of([1.0] * 6, owners=[nobody] * 5 + ["somebody"])
    assert column.moments((0.0, 4.0)).count == 1
