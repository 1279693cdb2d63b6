# SPDX-License-Identifier: Apache-2.0
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.estimators import LogisticRegression
from sfumato.estimators.reading import entries_of, matrix_of, numbers_of

NONE = [None, pd.NA, pd.NaT, "1", b"1", 1j, [1.0], {}, Decimal("sNaN"), Fraction(10**400), np.array([1.0])]
entries = st.one_of(st.floats(), st.integers(), st.booleans(), st.sampled_from(NONE[:-1]))


@pytest.mark.parametrize("odd", NONE, ids=lambda odd: type(odd).__name__)
def test_what_is_no_number_is_missing_and_changes_no_other_entry(odd):
    for values in ([[0.5, 1], [odd, 2]], pd.DataFrame({"a": [0.5, odd], "b": [1, 2]}, dtype=object)):
        np.testing.assert_array_equal(matrix_of(values), [[0.5, 1], [np.nan, 2]])
    assert numbers_of(entries_of([0.5, odd]), what="y") == pytest.approx([0.5, np.nan], nan_ok=True)


@given(st.lists(st.tuples(entries, entries), min_size=2, max_size=6))
@example([(0.0, 0.0), ([1.0], [1.0])])
def test_what_a_row_is_read_as_depends_on_no_other_row(rows):
    together = matrix_of([list(row) for row in rows])
    alone = np.vstack([matrix_of([list(row)]) for row in rows])
    np.testing.assert_array_equal(together, alone)


def test_numbers_of_any_kind_are_numbers():
    given = [True, 2, Fraction(1, 2), Decimal("0.25"), np.float32(0.5), np.int8(3), np.array(4.0), np.True_]
    assert numbers_of([None, *given], what="y")[1:].tolist() == [1.0, 2.0, 0.5, 0.25, 0.5, 3.0, 4.0, 1.0]


def test_a_frame_of_nullable_numbers_is_read_with_the_row_left_out():
    X = np.linspace(-1, 1, 200)
    plain = pd.DataFrame({"a": X.round(), "b": np.ones(200)})
    nullable = plain.astype("Int64")
    nullable.loc[0, "a"], plain.loc[0, "a"] = pd.NA, np.nan
    model = LogisticRegression(epsilon=1.0, clip_norm=1.0, classes=(0, 1), random_state=0)
    expected = model.fit(plain, [0, 1] * 100).coef_
    assert model.fit(nullable, [0, 1] * 100).coef_ == pytest.approx(expected)
    assert list(model.feature_names_in_) == ["a", "b"]
    assert np.isnan(matrix_of(pl.DataFrame({"a": [1, None]}))).tolist() == [[False], [True]]


@pytest.mark.parametrize(
    "wrong",
    [
        pd.DataFrame({"a": ["secret"], "b": [1.0]}),
        pd.DataFrame({"a": pd.Categorical(["secret"]), "b": [1.0]}),
        pd.DataFrame({"a": [datetime(2020, 1, 1)], "b": [1.0]}),
        pl.DataFrame({"a": ["secret"], "b": [1.0]}),
        np.array([["secret"]]),
        np.array([["2020-01-01"]], dtype="M8[D]"),
        np.array([[1j]]),
        {"a": 1},
    ],
    ids=["text", "categories", "dates", "polars", "array", "days", "complex", "dict"],
)
def test_a_type_of_all_rows_that_is_no_number_is_refused_unseen(wrong):
    with pytest.raises(InvalidParameterError) as caught:
        matrix_of(wrong)
    assert "secret" not in str(caught.value) and caught.value.__context__ is None


def test_one_dimension_is_one_feature_where_that_is_wanted():
    assert matrix_of([1.0, None], flat=True).shape == (2, 1)
    with pytest.raises(InvalidParameterError, match="dimension"):
        matrix_of([1.0, 2.0])


def test_lists_in_a_list_of_labels_are_entries_and_no_axis():
    assert entries_of([[0], [1]]).shape == (2,) and entries_of(np.array([[0], [1]])).shape == (2, 1)
