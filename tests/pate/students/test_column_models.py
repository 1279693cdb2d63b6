# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.pate.students.column_models import column_models, forest_models

X = np.array([[0.0, 900.0], [0.1, 100.0], [0.9, 950.0], [1.0, 120.0]] * 5)
Y = np.array([0, 0, 1, 1] * 5)


@pytest.mark.parametrize("scaled", [True, False])
def test_teacher_and_student_learn(scaled):
    rows = X / [1.0, 1000.0] if scaled else X
    teacher, student = column_models(scaled=scaled)
    assert (teacher.fit(rows, Y).predict(rows) == Y).all()
    assert (student.fit(rows, Y, classes=2).predict(rows) == Y).all()


def test_trees_learn_from_many_answers_of_which_a_fifth_is_wrong():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 4))
    truth = (rows[:, 0] > 0.3).astype(int)
    answers = np.where(rng.random(2000) < 0.2, 1 - truth, truth)
    teacher, student = forest_models()
    assert (student.fit(rows, answers, classes=2).predict(rows) == truth).mean() > 0.95
    assert (teacher.fit(rows[:200], truth[:200]).predict(rows) == truth).mean() > 0.9
