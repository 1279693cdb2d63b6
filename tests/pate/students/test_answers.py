# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.pate.students.answers import checked_answers


@pytest.mark.parametrize("given", [[1, -1, 0], np.array([1, -1, 0], np.int8), torch.tensor([1, -1, 0])])
def test_lists_arrays_and_tensors_give_the_same_answers(given):
    found = checked_answers(given, classes=2, rows=3)
    assert found.dtype == np.int64
    assert found.tolist() == [1, -1, 0]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([-1, -1, -1], "none of 3 public rows was answered"),
        ([0, 1], "one for each of 3 public rows"),
        ([0.0, 1.0, -1.0], "whole numbers"),
        ([[0], [1], [1]], "shape"),
        ([0, 2, -1], "from 0 to 1, or -1 where there is none, but one of them is 2"),
        ([0, -2, 1], "but one of them is -2"),
    ],
)
def test_answers_that_do_not_fit_are_refused_with_the_reason(answers, message):
    with pytest.raises(InvalidParameterError, match=message):
        checked_answers(answers, classes=2, rows=3)


def test_no_public_row_and_a_single_class_are_refused():
    with pytest.raises(InvalidParameterError, match="no public rows"):
        checked_answers([], classes=2, rows=0)
    with pytest.raises(InvalidParameterError, match="classes must be 2 or more"):
        checked_answers([0], classes=1, rows=1)
