# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from sfumato.errors import InvalidParameterError
from sfumato.pate.teaching import rows

anything = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(), st.booleans(), st.just([1]), st.just(10**400)
)


@given(st.lists(anything, max_size=10))
def test_a_label_is_a_class_or_nothing(labels):
    found = rows.class_numbers(labels, (0, 1, "yes"))
    for label, number in zip(labels, found.tolist(), strict=True):
        assert number == next((i for i, name in enumerate((0, 1, "yes")) if label == name), -1)


@given(st.lists(st.tuples(anything, anything), max_size=6))
def test_rows_of_objects_become_finite_numbers_or_are_left_out(values):
    given = np.empty((len(values), 2), dtype=object)
    for place, row in enumerate(values):
        given[place, 0], given[place, 1] = row
    with np.errstate(all="ignore"):
        found, usable = rows.like_public(given, np.dtype(np.float32))
    assert found.dtype == np.float32 and np.isfinite(found[usable]).all()


def test_only_finite_rows_are_used_whatever_holds_them():
    values = np.array([[1.0, 2.0], [np.nan, 0.0], [0.0, -np.inf], [0.0, 0.0]])
    for kind in (np.asarray, torch.tensor, pd.DataFrame, sparse.csr_matrix):
        assert rows.finite_rows(kind(values)).tolist() == [True, False, False, True]
    assert rows.finite_rows(np.array([["a"], [None]], dtype=object)).all()
    assert rows.finite_rows(np.zeros((0, 4))).shape == (0,) and rows.finite_rows(np.zeros((2, 0))).all()


def test_a_table_gets_the_public_types_where_it_can():
    public = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.0]})
    private = pd.DataFrame({"a": [1.0, 2.0], "b": [1, 2]})
    found, usable = rows.like_public(private, rows.public_type(public))
    assert list(found.dtypes) == list(public.dtypes) and usable.all()
    broken = pd.DataFrame({"a": [1.0, np.nan], "b": ["x", 2]})
    assert len(rows.like_public(broken, rows.public_type(public))[0]) == 2


def test_a_label_that_is_text_changes_no_other_label():
    for labels, classes in (([0, 1], (0, 1)), ([0.5, 1.0], (0.5, 1)), ([True, False], (True, False))):
        alone = rows.class_numbers(np.array(labels), classes).tolist()
        assert alone == rows.class_numbers(labels, classes).tolist() == [0, 1]
        assert rows.class_numbers(np.array([*labels, "a diagnosis"]), classes).tolist() == [*alone, -1]
    assert rows.class_numbers(["1", "1.0", 1, "x"], ("1", 1)).tolist() == [0, 1, 1, -1]


def test_categories_of_other_rows_are_not_seen():
    few, many = (pd.DataFrame({"c": pd.Categorical(["b", "d", *more])}) for more in ([], ["a"]))
    for public in (pd.Categorical(["d", "b"]), ["b", "d"], [1, 2]):
        kind = rows.public_type(pd.DataFrame({"c": public}))
        seen = [rows.like_public(table.iloc[:2], kind)[0] for table in (few, many)]
        pd.testing.assert_frame_equal(*seen)
        assert seen[0]["c"].tolist() == ["b", "d"]
    assert rows.like_public(many, None)[0]["c"].dtype == object


def test_fractions_are_never_rounded_to_the_type_of_public_rows():
    for whole in (np.dtype(np.uint8), np.dtype(np.int64), np.dtype(bool)):
        assert rows.like_public(np.array([[0.5], [1.0]]), whole)[0].tolist() == [[0.5], [1.0]]
        assert rows.like_public(np.array([[0.0], [np.nan], [1.0]]), whole)[0].dtype == whole
    table = pd.DataFrame({"a": [0.5, 1.0]})
    assert rows.like_public(table, {"a": np.dtype(np.int64)})[0]["a"].tolist() == [0.5, 1.0]


def test_a_digest_depends_on_rows_types_labels_and_key():
    x, y, key = np.zeros((2, 2)), np.array([0, 1]), b"k"
    others = [
        rows.digest(x, y, b"other"),
        rows.digest(x + 1, y, key),
        rows.digest(x.astype(np.float32), y, key),
        rows.digest(x.reshape(4, 1), y, key),
        rows.digest(x, y[::-1].copy(), key),
        rows.digest(pd.DataFrame(x), y, key),
    ]
    assert len({rows.digest(x, y, key), *others}) == 7
    assert rows.digest(x, y, key) == rows.digest(torch.tensor(x), y, key) == rows.digest(x.copy(), y, key)


def test_a_list_is_refused_since_one_entry_could_decide_its_type():
    with pytest.raises(InvalidParameterError):
        rows.check_features([[1.0]])
    with pytest.raises(InvalidParameterError):
        rows.class_numbers(np.eye(2), (0, 1))
