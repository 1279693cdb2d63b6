# SPDX-License-Identifier: Apache-2.0
"""PATE in one call: teachers learn, vote and answer; a student learns from the answers.

`label` is the private half alone: it returns answers, from which any model may learn.

Guarantee  The labeling job is one release. It is charged before a private row is read, and nothing of the
           private rows leaves but its answers. Which public rows are asked about, and in which order, is
           drawn without looking at votes.
Unit       A row, or with `units` all rows with the same entry there, which are in the same teacher.
Failure    Settings, public rows and the teacher's estimator are checked first, on public rows; an error there
           costs nothing. An error after the charge leaves the job spent. Answers are written to the folder
           before the student learns.
Source     Papernot et al. 2017, arXiv:1610.05755, and 2018, arXiv:1802.08908.
"""

import time
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from sfumato import _files
from sfumato.errors import InvalidParameterError
from sfumato.ledger.recorded import record_note
from sfumato.mechanisms.random import study_note, uniform_below
from sfumato.pate.payment import paid, unit_of
from sfumato.pate.planning import Job
from sfumato.pate.private_rows import DeferredRows, PrivateRows, given_rows
from sfumato.pate.run import PateRun, ReleasedAnswers, facts_of
from sfumato.pate.settings import VoteKeywords, VoteSettings
from sfumato.pate.students.supervised import FittedStudent, Student
from sfumato.pate.teaching import ranks, rows
from sfumato.pate.teaching.classifier import Classifier
from sfumato.pate.teaching.partition import Partition, whole_number
from sfumato.pate.teaching.teachers import Ensemble, check_teacher, train_teachers
from sfumato.pate.teaching.unit_bytes import unit_values
from sfumato.pate.votes.aggregators import NO_ANSWER
from sfumato.pate.votes.interaction import InteractiveGNMax, interactive_answers
from sfumato.pate.votes.labeling import Labeling

__all__ = ["label", "train"]

_KEY, _TEACHERS = "partition.key", "teachers"


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
    known = _public_rows(public)
    planned = settings.job(job, public_rows=rows.row_count(known))
    accounts = settings.accounts(planned)
    private = given_rows(features, labels, units, groups)
    unit = unit_of(accounts, settings.privacy_unit, by_unit=private.by_unit)
    _check_groups(planned, grouped=private.grouped)
    _check_interaction(planned, student)
    promises = planned.guarantees(unit)  # what cannot be priced is refused before anything is paid
    partition = ranks.first_decides(lambda: _partition(settings, planned, by_unit=private.by_unit))
    check_teacher(teacher, partition=partition, classes=classes, public=known, features=private.blank)
    order = ranks.first_decides(lambda: _order(rows.row_count(known))[: planned.queries])
    asked = rows.take(known, order)
    verdict = (
        None
        if settings.audit is None
        else settings.audit.attack(planned, privacy_unit=unit, generator=settings.generator)
    )
    payment = paid(planned, accounts, purpose=settings.purpose or "", generator=settings.generator)
    with ExitStack() as stack:
        # One release, also where several processes train: the first one pays, and a refusal stops all.
        ranks.first_decides(lambda: stack.enter_context(payment))
        ensemble = stack.enter_context(
            _taught(teacher, private, planned, settings, partition, classes=classes, public=known)
        )
        found = _answers(ensemble, asked, planned, settings, student)
    answers = np.full(rows.row_count(known), NO_ANSWER, dtype=np.int64)
    answers[order] = found
    released = ReleasedAnswers(
        classes=answers,
        guarantee=planned.guarantee(unit),
        guarantees=promises,
        facts=facts_of(planned),
        account=", ".join(repr(each.name) for each in accounts) or None,
        record_note=next((note for note in map(record_note, accounts or (None,)) if note), None),
        study_note=study_note(settings.generator),
        audit=verdict,
        job=planned,
        names=rows.class_list(classes),
    )
    if settings.folder is not None:
        released.save(settings.folder)
    return released


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
        InvalidParameterError: If a setting is missing, unknown or out of range, and nothing is spent; or if
            no query was answered, so that there is nothing to learn from, and the job is spent.
        UnsupportedModelError: If the teacher does not work on the public rows. Nothing is spent.
        BudgetExceededError: If an account cannot pay. Nothing is spent.
    """
    names = rows.class_list(classes)
    seen = _student_rows(public, student_public)
    if evaluation is not None:
        _check_evaluation(evaluation)
    released = label(
        teacher,
        features,
        labels,
        public=public,
        classes=classes,
        job=job,
        units=units,
        groups=groups,
        student=student,
        **keywords,
    )
    if released.answered == 0:
        raise InvalidParameterError(
            f"none of {released.asked} queries was answered, so a student has nothing to learn from. The job "
            "stays spent. Plan with a lower threshold, more teachers or a larger epsilon."
        )
    began = time.monotonic()
    fitted = student.fit(seen, released.classes, classes=len(names), progress=keywords.get("progress", True))
    run = PateRun(
        student=fitted,
        answers=released,
        seconds=time.monotonic() - began,
        accuracy=None if evaluation is None else _accuracy(fitted, names, *evaluation),
    )
    folder = keywords.get("folder")
    if folder is not None:
        run.save(folder)
    return run


# --- steps ------------------------------------------------------------------------------------------------


def _taught(
    teacher: Classifier,
    private: PrivateRows | DeferredRows,
    job: Job,
    settings: VoteSettings,
    partition: Partition,
    *,
    classes: int | Sequence[Hashable],
    public: Any,
) -> Ensemble:
    """Read the private rows, and let teachers learn from them. The job is charged before."""
    # One process reads for all: a source may return its rows in another order each time.
    read = ranks.first_decides(private.read) if isinstance(private, DeferredRows) else private
    return train_teachers(
        teacher,
        read.features,
        read.labels,
        partition=partition,
        classes=classes,
        units=read.units,
        groups=_teacher_groups(job, read.groups),
        copies=_copies(job, read.groups),
        workers=settings.workers,
        folder=None if settings.folder is None else Path(settings.folder) / _TEACHERS,
        progress=settings.progress,
        rehearsal=public,
    )


def _answers(
    ensemble: Ensemble, asked: Any, job: Job, settings: VoteSettings, student: Student | None
) -> npt.NDArray[np.int64]:
    """Let teachers vote, and return the answers; counts do not leave this function."""
    counts = ensemble.counts(asked, weights=job.ballots())
    return ranks.first_decides(lambda: _noisy(counts, asked, job, settings, student))


def _noisy(
    counts: npt.NDArray[np.float64], asked: Any, job: Job, settings: VoteSettings, student: Student | None
) -> npt.NDArray[np.int64]:
    if not isinstance(job.aggregator, InteractiveGNMax):
        return job.answer(counts, generator=settings.generator)
    assert student is not None
    learner = student

    def predict(answers: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        if not (answers != NO_ANSWER).any():
            return np.full(counts.shape, 1 / counts.shape[1])
        fitted = learner.fit(asked, answers, classes=counts.shape[1], progress=False)
        return fitted.predict_proba(asked)

    return interactive_answers(
        job.aggregator,
        counts,
        teachers=float(job.teachers),
        predict=predict,
        rounds=settings.rounds,
        generator=settings.generator,
    )


def _public_rows(public: Any) -> Any:
    """Return the public rows, or raise: teachers would refuse them only after the charge."""
    known = rows.check_features(public, what="public")
    if not rows.finite_rows(known).all():
        raise InvalidParameterError("public rows hold missing or infinite numbers. Leave these rows out.")
    return known


def _order(public_rows: int) -> npt.NDArray[np.int64]:
    """Return the public rows in random order, drawn without private data."""
    return np.argsort(uniform_below(2**62, public_rows), kind="stable")


def _check_groups(job: Job, *, grouped: bool) -> None:
    individual = isinstance(job, Labeling) and job.individual is not None
    if individual and not grouped:
        raise InvalidParameterError(
            "the job has individual budgets: pass groups=..., the privacy group of each private row."
        )
    if grouped and not individual:
        raise InvalidParameterError(
            "groups are for individual budgets: pass individual=IndividualBudgets(...) too."
        )


def _check_interaction(job: Job, student: Student | None) -> None:
    if isinstance(job.aggregator, InteractiveGNMax) and student is None:
        raise InvalidParameterError(
            "InteractiveGNMax asks a student between rounds: use pate.train, or pass student=..."
        )


def _teacher_groups(job: Job, groups: Any) -> Any:
    """Return the group of each row, if groups have teachers of their own."""
    return groups if len(job.groups) > 1 else None


def _copies(job: Job, groups: Any) -> Any:
    """Return how many teachers learn from each row; an unknown group is the strictest."""
    if not isinstance(job, Labeling) or job.individual is None or max(job.individual.copies()) == 1:
        return None
    allowed = np.array(job.individual.copies())
    known = np.array([whole_number(value, exact=True) for value in unit_values(groups)], dtype=np.int64)
    return allowed[np.where((known >= 0) & (known < len(allowed)), known, 0)]


def _partition(settings: VoteSettings, job: Job, *, by_unit: bool) -> Partition:
    """Return the partition: the given one, the folder's, or a new one, which the folder then keeps.

    Rows without units are known by their numbers. If one is removed between two jobs, later rows get other
    teachers, and answers of both jobs together would show it: there each job has a key of its own.
    """
    if settings.partition is not None:
        if not by_unit:
            raise InvalidParameterError(
                "a partition is for rows whose units are known: pass units=..., or leave partition=... out."
            )
        return _fitting(settings.partition, job)
    if settings.folder is None or not by_unit:
        return Partition.draw(job.groups)
    place = Path(settings.folder) / _TEACHERS / _KEY
    if place.exists():
        return _fitting(Partition(teachers=job.groups, key=place.read_bytes()), job)
    partition = Partition.draw(job.groups)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = _files.part_of(place)
    part.unlink(missing_ok=True)
    part.touch(mode=0o600, exist_ok=False)  # before it has content that others could read
    _files.write_whole(place, partition.key)
    return partition


def _fitting(partition: Partition, job: Job) -> Partition:
    if partition.teachers != job.groups:
        raise InvalidParameterError(
            f"the partition has {partition.teachers} teachers, but the job needs {job.groups}. Use the job "
            "that it was made for, or another partition."
        )
    return partition


def _student_rows(public: Any, student_public: Any) -> Any:
    if student_public is None:
        return public
    if len(student_public) != rows.row_count(rows.check_features(public, what="public")):
        raise InvalidParameterError("student_public must have the same rows as public, in the same order.")
    return student_public


def _check_evaluation(evaluation: tuple[Any, Any]) -> None:
    if not isinstance(evaluation, tuple) or len(evaluation) != 2:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidParameterError("evaluation must be rows and their labels: evaluation=(X_test, y_test).")
    if rows.row_count(rows.check_features(evaluation[0], what="evaluation")) != len(evaluation[1]):
        raise InvalidParameterError("evaluation must have one label for each row.")


def _accuracy(student: FittedStudent, names: tuple[Hashable, ...], features: Any, labels: Any) -> float:
    truth = rows.class_numbers(labels, names)
    return float((np.asarray(student.predict(features)) == truth).mean())
