# SPDX-License-Identifier: Apache-2.0
"""PATE in one call: teachers learn, vote and answer; a student learns from the answers.

`label` is the private half alone: it returns answers, from which any model may learn.

Guarantee  The labeling job is one release. It is charged before a private row is read, and nothing of the
           private rows leaves but its answers. Which public rows are asked about, and in which order, is
           drawn without looking at votes.
Unit       A row, or with `units` all rows with the same entry there, which are in the same teacher.
Failure    Settings, public rows, files, the teacher's estimator and the student are checked first, on public
           rows; an error there costs nothing. An error after the charge leaves the job spent. Answers are
           written to the folder before the student learns, and an error once there are answers has them in
           its attribute `answers`.
Source     Papernot et al. 2017, arXiv:1610.05755, and 2018, arXiv:1802.08908.
"""

from collections.abc import Hashable, Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.pate.payment import carried_by_errors
from sfumato.pate.planning import Job
from sfumato.pate.private_rows import given_rows
from sfumato.pate.public_inputs import PublicInputs, public_inputs
from sfumato.pate.release import released_answers
from sfumato.pate.run import PateRun, ReleasedAnswers
from sfumato.pate.settings import VoteKeywords, VoteSettings
from sfumato.pate.students.rehearsal import rehearse_student
from sfumato.pate.students.supervised import FittedStudent, Student
from sfumato.pate.teaching import rows
from sfumato.pate.teaching.classifier import Classifier
from sfumato.pate.votes.interaction import InteractiveGNMax

__all__ = ["label", "train"]


def label(
    teacher: Classifier,
    features: Any,
    labels: Any,
    *,
    public: Any,
    classes: int | Sequence[Hashable],
    job: Job | None = None,
    units: Sequence[Any] | npt.NDArray[Any] | None = None,
    groups: Sequence[int] | npt.NDArray[Any] | None = None,
    student: Student | None = None,
    **keywords: Unpack[VoteKeywords],
) -> ReleasedAnswers:
    """Let teachers learn from private rows, and release their answers about public ones.

    Args:
        teacher: A classifier of scikit-learn, a pipeline, or a `TorchClassifier`. Each teacher is a copy.
        features: The private rows, or `DeferredRows`, which are read after the charge.
        labels: The private label of each row. None for deferred rows, which bring labels, units and groups.
        public: Public rows of the same kind, without labels. They are not protected.
        classes: The public list of labels, or their number if they are 0, 1, ...
        job: The job, as `pate.plan` returns it. Default: planned from the keywords.
        units: What identifies the privacy unit of each private row. Default: each row is a unit.
        groups: The privacy group of each private row, 0 for the strictest, if budgets are individual.
        student: A student that learns between rounds, for `InteractiveGNMax`.
        **keywords: The fields of `VoteSettings`: what `pate.plan` takes, such as `epsilon`, `delta` and
            `teachers`; `account` and `purpose`; `folder`, `workers`, `audit` and others.

    Returns:
        The answers, with their guarantee.

    Raises:
        InvalidParameterError: If a setting is missing, unknown or out of range. Nothing is spent.
        UnsupportedModelError: If the teacher does not work on the public rows. Nothing is spent.
        BudgetExceededError: If an account cannot pay. Nothing is spent.

    >>> from sklearn.tree import DecisionTreeClassifier
    >>> x = np.arange(4000.0).reshape(-1, 1) % 40
    >>> answers = label(DecisionTreeClassifier(), x, x[:, 0] >= 20, public=np.array([[1.0], [39.0]]),
    ...                 classes=[False, True], teachers=50, epsilon=8.0, delta=1e-5, progress=False)
    >>> answers.asked
    2
    """
    settings = VoteSettings.of(keywords)
    private = given_rows(features, labels, units, groups)
    inputs = public_inputs(public, like=private.blank, labels=labels, classes=classes)
    planned = settings.job(job, public_rows=rows.row_count(inputs.public))
    if student is not None and not isinstance(planned.aggregator, InteractiveGNMax):
        raise InvalidParameterError(
            "a student learns between rounds of InteractiveGNMax alone: leave student=... out, or use "
            "pate.train."
        )
    if student is not None:
        rehearse_student(student, inputs, queries=planned.queries, probabilities=True)
    return released_answers(teacher, private, inputs, planned, settings, student)


def train(
    teacher: Classifier,
    student: Student,
    features: Any,
    labels: Any,
    *,
    public: Any,
    classes: int | Sequence[Hashable],
    job: Job | None = None,
    units: Sequence[Any] | npt.NDArray[Any] | None = None,
    groups: Sequence[int] | npt.NDArray[Any] | None = None,
    student_public: Any = None,
    evaluation: tuple[Any, Any] | None = None,
    **keywords: Unpack[VoteKeywords],
) -> PateRun:
    """Let teachers answer about public rows, and a student learn from that.

    Args:
        teacher: A classifier of scikit-learn, a pipeline, or a `TorchClassifier`. Each teacher is a copy.
        student: What learns from the answers, such as `SupervisedStudent(estimator)`.
        features: The private rows, or `DeferredRows`, which are read after the charge.
        labels: The private label of each row. None for deferred rows, which bring labels, units and groups.
        public: Public rows of the same kind, without labels. They are not protected.
        classes: The public list of labels, or their number if they are 0, 1, ...
        job: The job, as `pate.plan` returns it. Default: planned from the keywords.
        units: What identifies the privacy unit of each private row. Default: each row is a unit.
        groups: The privacy group of each private row, 0 for the strictest, if budgets are individual.
        student_public: The same public rows with the features that the student takes, if these are others.
        evaluation: Rows as the student takes them, and their labels, which are NOT protected.
        **keywords: The fields of `VoteSettings`: what `pate.plan` takes, such as `epsilon`, `delta` and
            `teachers`; `account` and `purpose`; `folder`, `workers`, `audit` and others.

    Returns:
        The run: the student, the answers and their guarantee.

    Raises:
        InvalidParameterError: If a setting is missing, unknown or out of range. Nothing is spent.
        UnsupportedModelError: If the teacher does not work on the public rows, or the student not on them or
            on the evaluation rows. Nothing is spent.
        BudgetExceededError: If an account cannot pay. Nothing is spent.
        QueryFailedError: If no query was answered, so that there is nothing to learn from. The job is spent.
            This and all errors after the charge have the answers in their attribute `answers`.
    """
    settings = VoteSettings.of(keywords)
    private = given_rows(features, labels, units, groups)
    inputs = public_inputs(
        public,
        like=private.blank,
        labels=labels,
        classes=classes,
        student_public=student_public,
        evaluation=evaluation,
    )
    planned = settings.job(job, public_rows=rows.row_count(inputs.public))
    rehearse_student(
        student,
        inputs,
        queries=planned.queries,
        probabilities=isinstance(planned.aggregator, InteractiveGNMax),
        kept=settings.folder is not None,
    )
    released = released_answers(teacher, private, inputs, planned, settings, student)
    with carried_by_errors(released):
        return _taught_student(student, inputs, released, settings)


# --- the student ------------------------------------------------------------------------------------------


def _taught_student(
    student: Student, inputs: PublicInputs, released: ReleasedAnswers, settings: VoteSettings
) -> PateRun:
    """Let a student learn from answers. They are paid for, whatever happens here."""
    if released.answered == 0:
        raise QueryFailedError(
            f"none of {released.asked} queries was answered, so a student has nothing to learn from. The job "
            "stays spent. Plan with a lower threshold, more teachers or a larger epsilon."
        )
    fitted = student.fit(inputs.seen, released.classes, classes=len(inputs.names), progress=settings.progress)
    run = PateRun(
        student=fitted,
        answers=released,
        accuracy=None if inputs.evaluation is None else _accuracy(fitted, *inputs.evaluation),
    )
    if settings.folder is not None:
        run.save(settings.folder)
    return run


def _accuracy(student: FittedStudent, features: Any, truth: npt.NDArray[np.int64]) -> float:
    return float((np.asarray(student.predict(features)) == truth).mean())
