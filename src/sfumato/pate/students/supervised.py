# SPDX-License-Identifier: Apache-2.0
"""Students: models that learn from public rows, and from the answers that teachers gave for some of them.

`SupervisedStudent` fits any estimator of scikit-learn on the answered rows.
`semi_supervised.SemiSupervisedStudent` also uses the rows that were not answered.

Guarantee  Post-processing: a student sees public rows and released answers, never a vote or a private row.
           Its weights and predictions cost nothing. Its messages may show public rows and answers.
Edge cases If all answers are one class, the student is constant: it predicts that class for every row, and
           `constant` of the result is True. A class without an answer is never predicted by a supervised
           student. No answered row, and an estimator that needs more rows, are errors.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from sklearn.base import clone, is_regressor
from sklearn.dummy import DummyClassifier

from sfumato._torch import is_tensor
from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.pate.students.answers import checked_answers

__all__ = ["FittedEstimator", "FittedStudent", "Student", "SupervisedStudent", "constant_classifier"]

Classes = npt.NDArray[np.int64]


class FittedStudent(Protocol):
    """A fitted student."""

    def predict(self, features: Any, /) -> Classes:
        """Return the class of each row.

        Args:
            features: The rows.

        Returns:
            Int64 [rows].
        """
        ...

    def predict_proba(self, features: Any, /) -> npt.NDArray[np.float64]:
        """Return the probabilities of the classes, which `InteractiveGNMax` asks for.

        Args:
            features: The rows.

        Returns:
            Float64 [rows, classes].
        """
        ...


class Student(Protocol):
    """A way to learn from public rows and the answers for some of them."""

    def fit(self, features: Any, answers: Any, *, classes: int, progress: bool = True) -> FittedStudent:
        """Learn. Each call starts anew: one is made before the charge, on public rows with made-up answers.

        Args:
            features: All public rows.
            answers: One class for each row, or -1 where there is no answer.
            classes: The number of classes.
            progress: Whether to show a progress bar, if the student takes long.

        Returns:
            The fitted classifier.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class FittedEstimator:
    """A fitted estimator of scikit-learn.

    Attributes:
        estimator: The estimator.
        classes: The number of classes.
        answered: The number of rows that it learned from.
        constant: Whether all answers were one class, so that the student predicts it always.
    """

    estimator: Any
    classes: int
    answered: int
    constant: bool = False

    def predict(self, features: Any) -> Classes:
        """Return the class of each row.

        Args:
            features: Rows as those it learned from: a tensor, an array or a table.

        Returns:
            Int64 [rows].
        """
        return np.asarray(self.estimator.predict(_without_torch(features))).astype(np.int64)

    def predict_proba(self, features: Any) -> npt.NDArray[np.float64]:
        """Return the probabilities of the classes; 1 for the predicted one if the estimator gives none.

        Args:
            features: Rows as those it learned from.

        Returns:
            Float64 [rows, classes].
        """
        if not hasattr(self.estimator, "predict_proba"):
            return np.eye(self.classes)[self.predict(features)]
        known = np.asarray(self.estimator.predict_proba(_without_torch(features)), dtype=np.float64)
        found = np.zeros((len(known), self.classes))
        found[:, np.asarray(self.estimator.classes_).astype(np.int64)] = known
        return found


@dataclass(frozen=True, slots=True)
class SupervisedStudent:
    """A student that learns from the answered rows alone.

    Args:
        estimator: A classifier or pipeline as in scikit-learn. A copy of it is fitted. It gets the rows in
            their own shape: for images and an estimator that needs columns, pass `images.flatten(1)`.

    Raises:
        InvalidParameterError: If it is a class, a regressor, or has no `fit` and `predict`.

    >>> from sklearn.linear_model import LogisticRegression
    >>> rows = np.array([[0.0], [1.0], [2.0], [9.0]])
    >>> fitted = SupervisedStudent(LogisticRegression()).fit(rows, [0, -1, -1, 1], classes=2)
    >>> fitted.predict(rows), fitted.answered
    (array([0, 0, 0, 1]), 2)
    """

    estimator: Any

    def __post_init__(self) -> None:
        if isinstance(self.estimator, type):
            raise InvalidParameterError(
                f"estimator must be an object: pass {self.estimator.__name__}() instead of the class."
            )
        if not all(
            callable(getattr(self.estimator, name, None)) for name in ("fit", "predict", "get_params")
        ):
            raise InvalidParameterError(
                "estimator must be a classifier or pipeline of scikit-learn, but a "
                f"{type(self.estimator).__name__} was given."
            )
        if is_regressor(self.estimator):
            raise InvalidParameterError(
                f"a {type(self.estimator).__name__} predicts numbers: a student needs a classifier."
            )

    def fit(self, features: Any, answers: Any, *, classes: int, progress: bool = True) -> FittedEstimator:
        """Fit a copy of the estimator on the answered rows.

        Args:
            features: All public rows: a tensor, an array or a table.
            answers: One class for each row, or -1 where there is no answer.
            classes: The number of classes.
            progress: Not used: an estimator does not report its progress.

        Returns:
            The fitted estimator.

        Raises:
            InvalidParameterError: If answers do not fit, none is given, or the estimator cannot be fitted on
                the answered rows, for example because it needs more of them.
        """
        rows = _without_torch(features)
        known = checked_answers(answers, classes=classes, rows=len(rows))
        answered = np.flatnonzero(known >= 0)
        if len(np.unique(known[answered])) == 1:
            return constant_classifier(known, classes=classes)
        taken = rows.iloc[answered] if hasattr(rows, "iloc") else rows[answered]
        return FittedEstimator(
            estimator=_fitted(clone(self.estimator), taken, known[answered]),
            classes=classes,
            answered=len(answered),
        )


def constant_classifier(answers: Classes, *, classes: int) -> FittedEstimator:
    """Return a student that predicts the only class that was answered.

    Args:
        answers: Checked answers, all of them one class or -1.
        classes: The number of classes.

    Returns:
        The student.

    >>> constant_classifier(np.array([-1, 3, 3]), classes=5).predict(np.zeros((2, 4)))
    array([3, 3])
    """
    answered = answers[answers >= 0]
    estimator = DummyClassifier(strategy="constant", constant=int(answered[0]))
    estimator.fit(np.zeros((len(answered), 1)), answered)
    return FittedEstimator(estimator=estimator, classes=classes, answered=len(answered), constant=True)


def _without_torch(features: Any) -> Any:
    """Return rows as an array; a table is left as it is."""
    if is_tensor(features):
        return features.detach().cpu().numpy()
    return features if hasattr(features, "iloc") else np.asarray(features)


def _fitted(estimator: Any, rows: Any, answers: Classes) -> Any:
    try:
        estimator.fit(rows, answers)
        found = np.asarray(estimator.predict(rows))  # some notice only now that they need more rows
    except SfumatoError:
        raise
    except ValueError as error:
        raise InvalidParameterError(
            f"{type(estimator).__name__} cannot learn from {len(answers)} answered rows of shape "
            f"{list(rows.shape[1:])}: {error}"
        ) from error
    if found.shape != answers.shape or not np.isin(found, answers).all():
        raise InvalidParameterError(
            f"{type(estimator).__name__} predicts something that is no class: a student needs a classifier."
        )
    return estimator
