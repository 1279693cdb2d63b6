# SPDX-License-Identifier: Apache-2.0
"""The private half: answers that were paid for are never lost, and a student between rounds stops nothing."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from sfumato import Budget, Ledger
from sfumato.ledger.reservation import Reservation
from sfumato.pate.pipeline import label, train
from sfumato.pate.run import ReleasedAnswers
from sfumato.pate.students.supervised import SupervisedStudent
from sfumato.pate.votes.aggregators import GNMax
from sfumato.pate.votes.interaction import InteractiveGNMax

X, Y = load_digits(return_X_y=True)
PRIVATE, PUBLIC = slice(0, 1200), slice(1200, 1500)
NEAREST = KNeighborsClassifier(1)
TERMS = {"public": X[PUBLIC], "classes": 10, "teachers": 12, "progress": False, "delta": 1e-5}
LARGE = {"epsilon": 2000.0, "aggregator": GNMax(stddev=0.6)}


class Constant:
    """A student that learns the most frequent answer."""

    def __init__(self) -> None:
        self.fitted: list[np.ndarray] = []

    def fit(self, features, answers, *, classes, progress=True):
        self.fitted.append(answers.copy())
        self.likely = int(np.bincount(answers[answers >= 0], minlength=classes).argmax())
        self.classes = classes
        return self

    def predict(self, features):
        return np.full(len(features), self.likely)

    def predict_proba(self, features):
        return np.eye(self.classes)[self.predict(features)]


def run(**changed):
    return label(NEAREST, X[PRIVATE], Y[PRIVATE], **{**TERMS, **LARGE, **changed})


def account_of(tmp_path):
    return Ledger(tmp_path / "ledger.db").open(
        "digits", privacy_unit="row", budget=Budget(epsilon=3000.0, delta=1e-4)
    )


@pytest.mark.parametrize("broken", ["save", "commit"])
def test_answers_that_were_paid_for_are_not_lost(tmp_path, monkeypatch, broken):
    def fail(*_, **__):
        raise OSError("the disk is full")

    target = (ReleasedAnswers, "save") if broken == "save" else (Reservation, "commit")
    monkeypatch.setattr(*target, fail)
    account = account_of(tmp_path)
    with pytest.raises(OSError, match="the disk is full") as error:
        run(folder=tmp_path / "run", account=account, purpose="x")
    assert (error.value.answers.classes == Y[PUBLIC]).mean() > 0.85
    assert len(account.releases()) == 1


def test_an_interactive_student_that_cannot_learn_yet_stops_nothing():
    rule = InteractiveGNMax(threshold=1.0, threshold_stddev=0.5, stddev=0.5, confidence=0.9)
    needs_many = SupervisedStudent(KNeighborsClassifier(150))
    found = run(aggregator=rule, epsilon=1e5, student=needs_many, rounds=6)
    assert found.answered > 100


def test_an_interactive_student_sees_its_own_rows():
    class Narrow(Constant):
        def fit(self, features, answers, *, classes, progress=True):
            assert features.shape[1] == 9
            return super().fit(features, answers, classes=classes)

    rule = InteractiveGNMax(threshold=4.0, threshold_stddev=0.5, stddev=0.5, confidence=0.9)
    student = Narrow()
    train(
        NEAREST,
        student,
        X[PRIVATE],
        Y[PRIVATE],
        student_public=X[PUBLIC][:, :9],
        **{**TERMS, **LARGE, "epsilon": 1e5, "aggregator": rule},
    )
    assert len(student.fitted) == 4  # three rounds after the first, and the end
