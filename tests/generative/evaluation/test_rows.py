# SPDX-License-Identifier: Apache-2.0
"""Rows with labels: what is accepted, and what is refused by name."""

import numpy as np
import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.rows import array_of, check_same_kind, labeled_rows, sample


def test_tensors_and_arrays_give_the_same_rows():
    images = np.linspace(0, 1, 32).reshape(2, 1, 4, 4)
    first = labeled_rows(images, [0, 2], classes=3)
    second = labeled_rows(torch.tensor(images), torch.tensor([0, 2]), classes=3)
    assert np.array_equal(first.features, second.features) and first.features.dtype == np.float32
    assert first.is_images and first.flat.shape == (2, 16) and first.present == [0, 2]


def test_rows_of_a_class_and_some_rows():
    rows = labeled_rows([[1.0], [2.0], [3.0]], [1, 0, 1], classes=3)
    assert rows.of_class(1).ravel().tolist() == [1.0, 3.0] and len(rows.of_class(2)) == 0
    assert rows.take(np.array([2])).labels.tolist() == [1] and rows.counts.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("features", "labels", "match"),
    [
        (np.zeros((2, 3, 4)), [0, 0], "shape is \\[2, 3, 4\\]"),
        (np.zeros((0, 3)), [], "at least one row"),
        (np.zeros((2, 3)), [0], "2 rows, but labels"),
        (np.zeros((2, 3)), [0, 5], "class numbers from 0 to 1"),
        (np.zeros((2, 3)), [0, -1], "class numbers from 0 to 1"),
        (np.zeros((2, 3)), [0, 0.5], "whole numbers"),
        (np.zeros((2, 3)), [0, np.nan], "whole numbers"),
        (np.full((2, 1, 2, 2), 255.0), [0, 1], "rescale"),
        (np.full((2, 1, 2, 2), -1.0), [0, 1], "rescale"),
        ([["a"], ["b"]], [0, 1], "array of numbers"),
    ],
)
def test_wrong_rows_are_refused_by_name(features, labels, match):
    with pytest.raises(InvalidParameterError, match=match):
        labeled_rows(features, labels, classes=2)


def test_rows_that_are_not_finite_are_kept_and_told():
    images = np.zeros((3, 1, 2, 2))
    images[1, 0, 0, 0], images[2, 0, 1, 1] = np.nan, np.inf
    rows = labeled_rows(images, [0, 0, 0], classes=1)
    assert rows.finite.tolist() == [True, False, False]
    with pytest.raises(InvalidParameterError, match="holdout rows hold a value that is not finite"):
        rows.require_finite("holdout")


def test_rows_of_another_kind_are_refused():
    rows = labeled_rows(np.zeros((2, 3)), [0, 0], classes=2)
    with pytest.raises(InvalidParameterError, match="shape \\[3\\], but one of the holdout has \\[4\\]"):
        check_same_kind(rows, labeled_rows(np.zeros((2, 4)), [0, 0], classes=2))
    with pytest.raises(InvalidParameterError, match="2 classes, but the holdout has 3"):
        check_same_kind(rows, labeled_rows(np.zeros((2, 3)), [0, 0], classes=3))


def test_a_sample_has_distinct_rows_in_order():
    drawn = sample(100, 10, seed=3)
    assert len(set(drawn.tolist())) == 10 and (np.diff(drawn) > 0).all()
    assert sample(5, 10, seed=3).tolist() == [0, 1, 2, 3, 4]
    assert drawn.tolist() != sample(100, 10, seed=4).tolist()


def test_whole_numbers_become_floats():
    assert array_of([1, 2], name="x").dtype == np.float64


def test_tensors_of_half_precision_are_read():
    assert array_of(torch.tensor([0.5], dtype=torch.bfloat16), name="x").tolist() == [0.5]
    assert (
        labeled_rows(torch.zeros(2, 3).half(), torch.tensor([0, 1]), classes=2).features.dtype == np.float64
    )
