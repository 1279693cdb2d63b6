# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sfumato.errors import InvalidParameterError
from sfumato.pate.students.supervised import SupervisedStudent, constant_classifier

ROWS = np.concatenate([np.zeros((10, 2)), np.ones((10, 2))]) + np.linspace(0, 0.1, 20)[:, None]
TRUE = np.repeat([0, 1], 10)
SOME = np.where(np.arange(20) % 3 == 0, TRUE, -1)


def test_unanswered_rows_have_no_influence():
    moved = ROWS.copy()
    moved[SOME < 0] = 1e6
    student = SupervisedStudent(GaussianNB())
    plain, other = student.fit(ROWS, SOME, classes=2), student.fit(moved, SOME, classes=2)
    np.testing.assert_array_equal(plain.estimator.theta_, other.estimator.theta_)
    assert plain.answered == 7


def test_it_learns_what_the_estimator_would_learn_from_the_answered_rows():
    fitted = SupervisedStudent(LogisticRegression()).fit(ROWS, SOME, classes=2)
    alone = LogisticRegression().fit(ROWS[SOME >= 0], SOME[SOME >= 0])
    np.testing.assert_array_equal(fitted.estimator.coef_, alone.coef_)
    np.testing.assert_array_equal(fitted.predict(ROWS), TRUE)


@pytest.mark.parametrize("made", [torch.tensor, pd.DataFrame, list], ids=["tensor", "table", "list"])
def test_rows_may_be_tensors_tables_or_lists(made):
    student = SupervisedStudent(make_pipeline(StandardScaler(), LogisticRegression()))
    np.testing.assert_array_equal(student.fit(made(ROWS), SOME, classes=2).predict(made(ROWS)), TRUE)


def test_the_estimator_passed_in_is_not_fitted():
    estimator = LogisticRegression()
    SupervisedStudent(estimator).fit(ROWS, SOME, classes=2)
    assert not hasattr(estimator, "coef_")


def test_one_answered_class_gives_a_constant_student_that_says_so():
    fitted = SupervisedStudent(LogisticRegression()).fit(ROWS, np.where(SOME == 1, 1, -1), classes=2)
    assert fitted.constant
    assert fitted.predict(ROWS).tolist() == [1] * 20
    assert not SupervisedStudent(LogisticRegression()).fit(ROWS, SOME, classes=2).constant


def test_a_constant_student_predicts_for_any_number_of_columns():
    assert constant_classifier(np.array([2, -1]), classes=5).predict(torch.zeros(3, 1, 4, 4)).tolist() == [
        2,
        2,
        2,
    ]


def test_an_estimator_that_needs_more_rows_is_refused_when_it_is_fitted():
    with pytest.raises(InvalidParameterError, match=r"KNeighborsClassifier cannot learn from 7 answered"):
        SupervisedStudent(KNeighborsClassifier(8)).fit(ROWS, SOME, classes=2)


def test_images_for_an_estimator_of_columns_are_refused_with_their_shape():
    with pytest.raises(InvalidParameterError, match=r"of shape \[1, 1, 2\]"):
        SupervisedStudent(LogisticRegression()).fit(ROWS.reshape(20, 1, 1, 2), SOME, classes=2)


def test_no_answered_row_is_an_error():
    with pytest.raises(InvalidParameterError, match="none of 20 public rows was answered"):
        SupervisedStudent(LogisticRegression()).fit(ROWS, np.full(20, -1), classes=2)
