# SPDX-License-Identifier: Apache-2.0
"""What is public is checked before the charge: columns by name, labels by type, evaluation by value."""

import math

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sparse
import torch

from sfumato.errors import InvalidParameterError
from sfumato.pate.public_inputs import first_rows, in_order, public_inputs, taken_rows

PRIVATE = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0], "c": [5.0, 6.0]})
ROWS = np.ones((4, 3))
TERMS = {"like": ROWS, "labels": np.array([0, 1, 0, 1]), "classes": 2}


def test_columns_in_another_order_are_put_in_order_by_name():
    found = public_inputs(
        PRIVATE[["c", "b", "a"]],
        like=PRIVATE,
        labels=None,
        classes=2,
        evaluation=(PRIVATE[["b", "a", "c"]], [0, 1]),
    )
    pd.testing.assert_frame_equal(found.public, PRIVATE)
    pd.testing.assert_frame_equal(found.evaluation[0], PRIVATE)
    assert found.seen is found.public


def test_evaluation_has_the_order_of_the_rows_that_the_student_sees():
    seen = PRIVATE.rename(columns={"a": "x"})[["x", "c"]]
    found = public_inputs(
        PRIVATE,
        like=PRIVATE,
        labels=None,
        classes=2,
        student_public=seen,
        evaluation=(seen[["c", "x"]], [0, 1]),
    )
    pd.testing.assert_frame_equal(found.evaluation[0], seen)


@pytest.mark.parametrize(
    "wrong", [PRIVATE.rename(columns={"a": "z"}), PRIVATE[["a", "b"]], PRIVATE[["a", "b", "c", "c"]]]
)
def test_other_columns_are_refused_by_name(wrong):
    with pytest.raises(InvalidParameterError, match="must have the same columns"):
        in_order(wrong, PRIVATE, what="public", model="private")


def test_rows_without_names_stay_as_they_are():
    for given, like in ((ROWS, PRIVATE), (PRIVATE, ROWS), (ROWS, ROWS)):
        assert in_order(given, like, what="public", model="private") is given


@pytest.mark.parametrize(
    "labels", [np.array([0, 1, 1, 0]), torch.tensor([0, 1, 1, 0]), pd.Series([0.0, 1, 1, 0])]
)
def test_labels_that_can_be_no_class_by_their_type_are_refused(labels):
    with pytest.raises(InvalidParameterError, match="every class is text"):
        public_inputs(ROWS, like=ROWS, labels=labels, classes=["n0", "n1"])
    public_inputs(ROWS, like=ROWS, labels=labels, classes=2)


@pytest.mark.parametrize("labels", [["n0"] * 4, np.array(["x"] * 4), pd.Series(["n0"] * 4), [7] * 4, None])
def test_labels_that_may_be_classes_by_their_type_are_not_looked_at(labels):
    public_inputs(ROWS, like=ROWS, labels=labels, classes=["n0", "n1"])


def test_bytes_are_not_text():
    with pytest.raises(InvalidParameterError, match="bytes"):
        public_inputs(ROWS, like=ROWS, labels=np.array([b"n0"] * 4), classes=["n0", "n1"])


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"evaluation": (ROWS, [0, 1, 2, 1])}, "row 2"),
        ({"evaluation": (ROWS, [0, 1])}, "one label for each row"),
        ({"evaluation": (ROWS, 3)}, "one label for each row"),
        ({"evaluation": ROWS}, "rows and their labels"),
        ({"evaluation": ("text", [0])}, "evaluation"),
        ({"student_public": ROWS[:3]}, "same rows"),
        ({"student_public": 5}, "student_public"),
    ],
)
def test_wrong_inputs_are_told(wrong, said):
    with pytest.raises(InvalidParameterError, match=said):
        public_inputs(ROWS, **TERMS, **wrong)


def test_a_public_row_with_a_missing_number_is_told_by_its_number():
    wrong = ROWS.copy()
    wrong[2, 1] = math.nan
    with pytest.raises(InvalidParameterError, match="row 2"):
        public_inputs(wrong, **TERMS)


@pytest.mark.parametrize(
    "rows",
    [np.arange(6).reshape(3, 2), torch.arange(6).reshape(3, 2), pd.DataFrame(np.arange(6).reshape(3, 2))],
)
def test_first_and_taken_rows_of_any_kind(rows):
    assert np.asarray(first_rows(rows, 2)).tolist() == [[0, 1], [2, 3]]
    assert np.asarray(taken_rows(rows, np.array([2, 0]))).tolist() == [[4, 5], [0, 1]]


def test_first_and_taken_rows_of_lists_and_sparse_rows():
    assert first_rows(["a", "b", "c"], 2) == ["a", "b"] and taken_rows(["a", "b", "c"], [2, 0]) == ["c", "a"]
    assert first_rows(sparse.coo_matrix(np.eye(3)), 2).shape == (2, 3)
