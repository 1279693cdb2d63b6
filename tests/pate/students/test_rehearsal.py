# SPDX-License-Identifier: Apache-2.0
"""A student is tried on public rows first: what cannot work is told before anything is spent."""

import threading

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC
from torch import nn

from sfumato.errors import InvalidParameterError, SfumatoError, UnsupportedModelError
from sfumato.pate.public_inputs import PublicInputs
from sfumato.pate.students.rehearsal import rehearse_student
from sfumato.pate.students.semi_supervised import SemiSupervisedStudent
from sfumato.pate.students.supervised import SupervisedStudent

ROWS = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
LOGISTIC = SupervisedStudent(LogisticRegression())


def inputs(evaluation=None, seen=ROWS):
    labeled = None if evaluation is None else (evaluation, np.zeros(len(evaluation), dtype=int))
    return PublicInputs(public=ROWS, seen=seen, names=(0, 1, 2), evaluation=labeled)


class Remembers:
    """A student with a state, which a rehearsal must not change."""

    def __init__(self, predicted=0):
        self.fits, self.predicted = 0, predicted

    def fit(self, features, answers, *, classes, progress=True):
        self.fits += 1
        assert not progress
        return self

    def predict(self, features):
        return np.full(len(features), self.predicted)


def test_students_that_work_pass():
    for student in (LOGISTIC, SemiSupervisedStudent(model=nn.Linear(4, 3)), Remembers()):
        rehearse_student(student, inputs(ROWS[:7]), queries=30, kept=True)
    rehearse_student(LOGISTIC, inputs(), queries=30, probabilities=True)


def test_a_student_keeps_nothing_of_it():
    student = Remembers()
    rehearse_student(student, inputs(), queries=30)
    assert student.fits == 0


def test_a_student_without_a_copy_is_tried_itself():
    student = Remembers()
    student.lock = threading.Lock()
    rehearse_student(student, inputs(), queries=30)
    assert student.fits == 1


@pytest.mark.parametrize("student", ["svm", None, 3, LogisticRegression(), SupervisedStudent, Remembers])
def test_what_is_no_student_is_refused(student):
    with pytest.raises(InvalidParameterError, match="student"):
        rehearse_student(student, inputs(), queries=30)


def test_an_estimator_is_told_how_to_become_a_student():
    with pytest.raises(InvalidParameterError, match=r"SupervisedStudent\(SVC"):
        rehearse_student(SVC(), inputs(), queries=30)


@pytest.mark.parametrize(
    "student",
    [
        SupervisedStudent(LogisticRegression(C=-1.0)),
        SupervisedStudent(KNeighborsClassifier(31)),  # more neighbors than answers
        SemiSupervisedStudent(model=nn.Linear(3, 3)),
        SemiSupervisedStudent(model=nn.Linear(4, 10)),
        Remembers(predicted=3),
        Remembers(predicted=0.5),
    ],
)
def test_students_that_fail_are_told_and_nothing_is_spent(student):
    with pytest.raises(SfumatoError, match="nothing was spent"):
        rehearse_student(student, inputs(), queries=30)


def test_as_many_answers_are_made_up_as_queries_are_planned():
    rehearse_student(SupervisedStudent(KNeighborsClassifier(31)), inputs(), queries=31)


@pytest.mark.parametrize(
    "evaluation", [ROWS[:, :3], np.full((3, 4), np.nan), np.array([["x"] * 4])], ids=["narrow", "nan", "text"]
)
def test_evaluation_rows_that_it_cannot_predict_are_told(evaluation):
    with pytest.raises(UnsupportedModelError, match=r"nothing was spent.*evaluation rows"):
        rehearse_student(LOGISTIC, inputs(evaluation), queries=30)


def test_rows_of_the_student_count():
    with pytest.raises(UnsupportedModelError, match="evaluation rows"):
        rehearse_student(LOGISTIC, inputs(ROWS, seen=ROWS[:, :2]), queries=30)
    rehearse_student(LOGISTIC, inputs(ROWS[:, :2], seen=ROWS[:, :2]), queries=30)


def test_probabilities_are_asked_for_where_they_are_needed():
    with pytest.raises(UnsupportedModelError, match="predict_proba"):
        rehearse_student(Remembers(), inputs(), queries=30, probabilities=True)


def test_a_student_that_cannot_be_written_is_told_if_it_will_be():
    class Unkept(Remembers):
        def __reduce__(self):
            raise TypeError("no pickle")

        def __deepcopy__(self, memo):
            return self

    rehearse_student(Unkept(), inputs(), queries=30)
    with pytest.raises(UnsupportedModelError, match="no pickle"):
        rehearse_student(Unkept(), inputs(), queries=30, kept=True)


def test_estimators_that_cannot_be_students_are_refused():
    for wrong in (LogisticRegression, LinearRegression(), "svm", None):
        with pytest.raises(InvalidParameterError):
            SupervisedStudent(wrong)
