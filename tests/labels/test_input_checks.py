# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.labels.input_checks import (
    check_classes,
    check_features,
    check_shape,
    checked_evaluation,
    checked_labels,
    checked_owners,
    checked_prior,
)

BAD = {
    "fractions": [0.0, 1.0, 2.0],
    "soft": [[0.1, 0.9, 0.0]] * 3,
    "one-hot": np.eye(3, dtype=int),
    "text": ["0", "1", "cancer"],
    "missing": [0, None, 1],
    "nan": np.array([0.0, np.nan, 1.0]),
    "ragged": [[0], [1, 2], 1],
    "short": [0, 1],
    "long": [0, 1, 2, 0],
    "half-precision": torch.zeros(3, dtype=torch.bfloat16),
    "scalar": torch.tensor(1),
}


@pytest.mark.parametrize("kind", list(BAD))
def test_what_is_no_label_is_refused_and_never_shown(kind):
    with pytest.raises(InvalidParameterError) as caught:
        checked_labels(BAD[kind], classes=3, rows=3)
    said = str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    for private in ("-1", "cancer", "nan", "None", "0.9", str(2**64 - 1)):
        assert private not in said
    assert said in (
        "labels must be whole numbers from 0 to 2, one for each of 3 rows of features; fractions and rows of "
        "probabilities are not accepted. Nothing was released.",
        "labels cannot be read as an array; nothing was released.",
    )


@pytest.mark.parametrize(
    ("labels", "read"),
    [
        ([0, -1, 1], [0, 0, 1]),
        (torch.tensor([0, 3, 1]), [0, 2, 1]),
        (torch.tensor([4711, -(2**63), 2**63 - 1]), [2, 0, 2]),
        (np.array([0, 1, 2**64 - 1], dtype=np.uint64), [0, 1, 2]),
        (np.array([-128, 127, 1], dtype=np.int8), [0, 2, 1]),
    ],
    ids=str,
)
def test_a_whole_number_outside_of_the_classes_is_the_nearest_class(labels, read):
    assert checked_labels(labels, classes=3, rows=3).tolist() == read


@pytest.mark.parametrize("labels", [[0, 9, 9], [7, 1, 1], [-3, 2, 0]])
def test_evaluation_labels_outside_of_the_classes_are_refused(labels):
    with pytest.raises(InvalidParameterError, match="evaluation labels must be whole numbers from 0 to 2"):
        checked_evaluation((torch.zeros(3, 4), labels), classes=3)


@pytest.mark.parametrize(
    "labels",
    [[0, 2, 1], np.array([0, 2, 1], dtype=np.uint8), torch.tensor([0, 2, 1], dtype=torch.int32)],
    ids=["list", "numpy", "torch"],
)
def test_labels_come_out_as_int64(labels):
    found = checked_labels(labels, classes=3, rows=3)
    assert found.dtype == torch.int64 and found.tolist() == [0, 2, 1]


def test_no_rows_have_no_labels_and_truth_values_are_classes():
    assert checked_labels([], classes=2, rows=0).shape == (0,)
    assert checked_labels([True, False], classes=2, rows=2).tolist() == [1, 0]


def test_labels_are_copied():
    given = torch.tensor([0, 1])
    checked_labels(given, classes=2, rows=2)[0] = 1
    assert given.tolist() == [0, 1]


@pytest.mark.parametrize("classes", [1, 0, -2, 2.0, True])
def test_fewer_than_two_classes_are_refused(classes):
    with pytest.raises(InvalidParameterError, match="classes must be"):
        check_classes(classes)


@pytest.mark.parametrize(
    "prior",
    [
        [1.0, 1.0],
        [[1.0, 0.0, 0.0]],
        [-0.1, 0.6, 0.5],
        [0.0, 0.0, 0.0],
        [np.nan, 1, 1],
        [np.inf, 1, 1],
        ["a"] * 3,
    ],
    ids=["classes", "rows", "negative", "empty", "nan", "infinite", "text"],
)
def test_what_is_no_prior_is_refused(prior):
    with pytest.raises(InvalidParameterError, match="prior"):
        checked_prior(prior, classes=3, rows=2)


def test_an_owner_of_too_many_rows_is_refused():
    checked_owners([7, 7, 8], rows=3, contribution_bound=2)
    checked_owners([], rows=0, contribution_bound=1)
    with pytest.raises(InvalidParameterError, match="contribution_bound=2"):
        checked_owners(torch.tensor([7, 7, 8]), rows=3, contribution_bound=1)
    with pytest.raises(InvalidParameterError, match="each of 3 rows"):
        checked_owners([7, 8], rows=3, contribution_bound=1)


@pytest.mark.parametrize("owners", [[7, 7, 8], ["ann", "ann", "bob"], np.array([7, 7, 9], dtype=np.uint8)])
def test_owners_come_out_as_numbers(owners):
    found = checked_owners(owners, rows=3, contribution_bound=2)
    assert found.dtype == torch.int64 and found.tolist() == [0, 0, 1]


@pytest.mark.parametrize("owners", [[0.5, 1.5], torch.rand(2), [None, "ann"], [1j, 2j]])
def test_owners_that_are_no_names_are_refused(owners):
    with pytest.raises(InvalidParameterError, match="owners must be whole numbers or names"):
        checked_owners(owners, rows=2, contribution_bound=2)


@pytest.mark.parametrize("labels", [None, 3, torch.tensor(1), torch.rand(2), [0], {"a": 1}])
def test_what_has_not_one_label_for_each_row_is_refused_unread(labels):
    with pytest.raises(InvalidParameterError, match="Nothing was spent"):
        check_shape(labels, rows=2)


def test_evaluation_labels_come_out_beside_their_features():
    x = torch.zeros(2, 4)
    for labels in ([0, 2], np.array([0, 2]), torch.tensor([0, 2], dtype=torch.uint8)):
        features, known = checked_evaluation((x, labels), classes=3)
        assert features is x and known.dtype == torch.int64 and known.tolist() == [0, 2]


@pytest.mark.parametrize("features", [[[1.0]], np.zeros((2, 2)), torch.tensor(1.0), torch.zeros(0, 2)])
def test_what_are_no_features_is_refused(features):
    with pytest.raises(InvalidParameterError, match="features must be a tensor"):
        check_features(features)


@pytest.mark.parametrize(
    "labels",
    [
        pd.Series([True, False], dtype="boolean"),
        pd.Series([1, 0], dtype="Int64"),
        pd.Series([1, 0], dtype="int64[pyarrow]"),
        pd.Series([True, False], dtype="bool[pyarrow]"),
        pa.array([1, 0]),
        [1, 0],
        range(2),
    ],
    ids=lambda labels: str(getattr(labels, "dtype", type(labels).__name__)),
)
def test_types_that_one_label_could_change_are_refused_before_anything_is_paid(labels):
    with pytest.raises(InvalidParameterError, match="Nothing was spent"):
        check_shape(labels, rows=2)


@pytest.mark.parametrize("labels", [pd.Series([1, 0]), np.array([True, False]), torch.tensor([1, 0])])
def test_types_of_whole_numbers_are_labels(labels):
    check_shape(labels, rows=2)
