# SPDX-License-Identifier: Apache-2.0
"""A student is tried before the charge: on public rows with made-up answers, and on the evaluation rows.

Guarantee  Nothing private is used, so errors are quoted.
Edge cases As many answers are made up as queries are planned, at most 500 or 10 for each class, so that a
           student that needs more rows than it can get is found. A copy of the student is fitted, if it can
           be copied. A student with a method `rehearse` is tried by that instead of `fit`.
Not here   Students that fail for some answers alone: too few of them, or one class.
"""

import copy
import io
from typing import Any

import joblib
import numpy as np

from sfumato.errors import InvalidParameterError, SfumatoError, UnsupportedModelError
from sfumato.pate.public_inputs import PublicInputs, first_rows
from sfumato.pate.students.answers import UNANSWERED
from sfumato.pate.teaching import rows
from sfumato.pate.teaching.lesson import ABSTAINS, as_votes
from sfumato.pate.teaching.quiet import quiet, seeded_draws

__all__ = ["rehearse_student"]

_MOST, _PER_CLASS = 500, 10
_TRIED = "the student was tried on public rows with made-up answers, and nothing was spent."


def rehearse_student(
    student: Any, inputs: PublicInputs, *, queries: int, probabilities: bool = False, kept: bool = False
) -> None:
    """Raise if a student cannot learn from public rows, or not predict public and evaluation rows.

    Args:
        student: The student.
        inputs: The public rows, evaluation rows and classes.
        queries: How many answers there can be.
        probabilities: Whether it must also predict probabilities, as `InteractiveGNMax` needs them.
        kept: Whether it will be written to a file.

    Raises:
        InvalidParameterError: If it is no student, or its settings are wrong.
        UnsupportedModelError: If it fails.
    """
    _require_student(student)
    classes = len(inputs.names)
    public = rows.row_count(inputs.public)
    count = min(public, max(_MOST, _PER_CLASS * classes))
    few = first_rows(inputs.seen, count)
    answers = np.where(np.arange(count) < queries, np.arange(count) % classes, UNANSWERED)
    try:
        with quiet(), seeded_draws(0):
            fitted = _fitted(student, few, answers, classes)
            _require_classes(fitted, few, count, classes)
            if inputs.evaluation is not None:
                features = inputs.evaluation[0]
                _require_classes(fitted, features, rows.row_count(features), classes, what="evaluation rows")
            if probabilities:
                _require_probabilities(fitted, few, (count, classes))
            if kept:
                joblib.dump(fitted, io.BytesIO())
    except SfumatoError as error:
        raise type(error)(f"{_TRIED} {error}") from error
    except Exception as error:
        raise UnsupportedModelError(
            f"{_TRIED} {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        ) from error


def _require_student(student: Any) -> None:
    if isinstance(student, type) or not callable(getattr(student, "fit", None)):
        raise InvalidParameterError(
            "student must be an object with fit(features, answers, classes=..., progress=...), such as "
            f"SupervisedStudent(estimator), but a {type(student).__name__} was given."
        )
    if hasattr(student, "get_params"):
        raise InvalidParameterError(
            f"a {type(student).__name__} is an estimator, and no student: pass "
            f"SupervisedStudent({type(student).__name__}(...))."
        )


def _fitted(student: Any, few: Any, answers: Any, classes: int) -> Any:
    """Return a fitted copy: a student that keeps what it learned must not keep this."""
    try:
        tried = copy.deepcopy(student)
    except Exception:  # it holds something that has no copy, such as a lock
        tried = student
    if hasattr(tried, "rehearse"):
        return tried.rehearse(few, answers, classes=classes)
    return tried.fit(few, answers, classes=classes, progress=False)


def _require_classes(
    fitted: Any, features: Any, count: int, classes: int, *, what: str = "public rows"
) -> None:
    try:
        found = np.asarray(fitted.predict(features))
    except Exception as error:
        raise UnsupportedModelError(
            f"It does not predict the {what}. {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        ) from error
    votes = as_votes(found, queries=count, classes=classes)
    if found.shape != (count,) or (votes == ABSTAINS).any():
        raise UnsupportedModelError(
            f"It must predict a class number for each of the {what}, from 0 to {classes - 1}, but some of "
            "its predictions are something else."
        )


def _require_probabilities(fitted: Any, few: Any, shape: tuple[int, int]) -> None:
    found = np.asarray(fitted.predict_proba(few), dtype=np.float64)
    if found.shape != shape or not np.isfinite(found).all():
        raise UnsupportedModelError(
            f"InteractiveGNMax needs a probability for each of {shape[1]} classes from its `predict_proba`."
        )
