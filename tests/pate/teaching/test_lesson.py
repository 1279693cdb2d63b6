# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.naive_bayes import GaussianNB

from sfumato.pate.teaching.lesson import Lesson, as_votes, teach, vote


def lesson():
    return Lesson(
        estimator=GaussianNB(), classes=2, kind=None, settings="", seeds=bytes(32), secret=bytes(range(32))
    )


@given(st.lists(st.one_of(st.floats(), st.integers(-5, 10), st.booleans()), min_size=1, max_size=9))
def test_a_vote_is_a_class_or_an_abstention(predicted):
    found = as_votes(predicted, queries=len(predicted), classes=3)
    assert found.dtype == np.int16
    for value, number in zip(predicted, found.tolist(), strict=True):
        assert number == (int(value) if value in (0, 1, 2) else -1)


@pytest.mark.parametrize("wrong", [[0, 1], 0, None, "00", [[0, 1, 0]], [["0"]] * 3, {}])
def test_predictions_of_another_shape_or_kind_abstain(wrong):
    assert as_votes(wrong, queries=3, classes=2).tolist() == [-1] * 3


def test_a_column_is_read_as_a_list():
    assert as_votes([[1], [0]], queries=2, classes=2).tolist() == [1, 0]


def test_a_teacher_is_trained_once(tmp_path):
    x, y = np.array([[0.0], [1.0], [5.0], [6.0]]), np.array([0, 0, 1, 1])
    first = teach(lesson(), 3, x, y, tmp_path / "a")
    before = (tmp_path / "a").stat().st_mtime_ns
    assert teach(lesson(), 3, x, y, tmp_path / "a") == first and first[0] == 3
    assert (tmp_path / "a").stat().st_mtime_ns == before
    assert vote(lesson(), 3, tmp_path / "a", first[1], x).tolist() == [0, 0, 1, 1]
    assert teach(lesson(), 4, x, y, tmp_path / "b")[1] != first[1]


def test_rows_that_cannot_be_read_give_a_teacher_that_abstains(tmp_path):
    class Unreadable:
        shape = (2, 1)
        iloc = dtypes = None

    number, key = teach(lesson(), 0, Unreadable(), np.array([0, 1]), tmp_path / "a")
    assert vote(lesson(), number, tmp_path / "a", key, np.zeros((2, 1))).tolist() == [-1, -1]


def test_processes_of_teachers_do_not_import_torch():
    """A process that starts must not pay for what its teachers do not use."""
    code = "import sys, sfumato.pate.teaching.lesson; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
