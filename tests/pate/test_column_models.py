# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.pate.column_models import column_models

X = np.array([[0.0, 900.0], [0.1, 100.0], [0.9, 950.0], [1.0, 120.0]] * 5)
Y = np.array([0, 0, 1, 1] * 5)


@pytest.mark.parametrize("scaled", [True, False])
def test_teacher_and_student_learn(scaled):
    rows = X / [1.0, 1000.0] if scaled else X
    teacher, student = column_models(scaled=scaled)
    assert (teacher.fit(rows, Y).predict(rows) == Y).all()
    assert (student.fit(rows, Y, classes=2).predict(rows) == Y).all()
