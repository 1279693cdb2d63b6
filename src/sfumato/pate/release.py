# SPDX-License-Identifier: Apache-2.0
"""The private half of PATE: teachers learn, vote and answer, for one charge.

Guarantee  The labeling job is one release. It is charged before a private row is read, and nothing of the
           private rows leaves but its answers. Which public rows are asked about, and in which order, is
           drawn without looking at votes.
Edge cases A student of `InteractiveGNMax` that cannot learn from the answers so far, as from too few, knows
           nothing in that round: all classes are equally likely. The job goes on.
Failure    Answers are written to the folder before the charge is committed. An error once there are answers
           has them in its attribute `answers`.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidParameterError
from sfumato.ledger.recorded import record_note
from sfumato.mechanisms.random import study_note, uniform_below
from sfumato.pate.job_folder import TEACHERS, job_folder, kept_partition
from sfumato.pate.payment import carried_by_errors, paid, unit_of
from sfumato.pate.planning import Job
from sfumato.pate.private_rows import DeferredRows, PrivateRows
from sfumato.pate.public_inputs import PublicInputs, taken_rows
from sfumato.pate.run import ReleasedAnswers, Verdict, facts_of
from sfumato.pate.settings import VoteSettings
from sfumato.pate.students.supervised import Student
from sfumato.pate.teaching import ranks, rows
from sfumato.pate.teaching.classifier import Classifier
from sfumato.pate.teaching.partition import Partition, whole_number
from sfumato.pate.teaching.teachers import Ensemble, check_teacher, train_teachers
from sfumato.pate.teaching.unit_bytes import unit_values
from sfumato.pate.votes.aggregators import NO_ANSWER
from sfumato.pate.votes.interaction import InteractiveGNMax, Predict, interactive_answers
from sfumato.pate.votes.labeling import Labeling

__all__ = ["released_answers"]

_ROUNDS = 4  # of InteractiveGNMax


def released_answers(
    teacher: Classifier,
    private: PrivateRows | DeferredRows,
    inputs: PublicInputs,
    job: Job,
    settings: VoteSettings,
    student: Student | None,
) -> ReleasedAnswers:
    """Check what can be checked, charge the job, and let teachers answer.

    Args:
        teacher: The estimator of each teacher.
        private: The private rows.
        inputs: What is public.
        job: The job.
        settings: Who pays, and where and how teachers learn.
        student: A student that was rehearsed, or None.

    Returns:
        The answers.
    """
    accounts = settings.accounts(job)
    unit = unit_of(accounts, settings.privacy_unit, by_unit=private.by_unit)
    _check_groups(job, grouped=private.grouped)
    _check_interaction(job, student, settings)
    promises = job.guarantees(unit)  # what cannot be priced is refused before anything is paid
    folder = None if settings.folder is None else Path(settings.folder)
    with ExitStack() as stack:
        stack.enter_context(job_folder(folder))
        partition = ranks.first_decides(lambda: _partition(settings, job, by_unit=private.by_unit))
        check_teacher(
            teacher,
            partition=partition,
            classes=inputs.names,
            public=inputs.public,
            features=private.blank,
        )
        order = ranks.first_decides(lambda: _order(rows.row_count(inputs.public))[: job.queries])
        verdict = _audited(job, settings, unit)
        payment = paid(job, accounts, purpose=settings.purpose or "", generator=settings.generator)
        # One release, also where several processes train: the first one pays, and a refusal stops all.
        ranks.first_decides(lambda: stack.enter_context(payment))
        ensemble = stack.enter_context(_taught(teacher, private, inputs, job, settings, partition))
        found = _answers(ensemble, inputs, order, job, settings, student)
        released = ReleasedAnswers(
            classes=_in_place(found, order, rows.row_count(inputs.public)),
            guarantee=job.guarantee(unit),
            guarantees=promises,
            facts=facts_of(job, expected=settings.agreement is not None),
            account=", ".join(repr(each.name) for each in accounts) or None,
            record_note=next((note for note in map(record_note, accounts or (None,)) if note), None),
            study_note=study_note(settings.generator),
            audit=verdict,
            job=job,
            names=inputs.names,
        )
        with carried_by_errors(released):
            if folder is not None:
                ranks.first_decides(lambda: released.save(folder))  # all ranks have the same answers
            stack.close()
    return released


def _in_place(
    found: npt.NDArray[np.int64], order: npt.NDArray[np.int64], public_rows: int
) -> npt.NDArray[np.int64]:
    answers = np.full(public_rows, NO_ANSWER, dtype=np.int64)
    answers[order] = found
    return answers


def _audited(job: Job, settings: VoteSettings, unit: str) -> Verdict | None:
    if settings.audit is None:
        return None
    return settings.audit.attack(job, privacy_unit=unit, generator=settings.generator)


def _taught(
    teacher: Classifier,
    private: PrivateRows | DeferredRows,
    inputs: PublicInputs,
    job: Job,
    settings: VoteSettings,
    partition: Partition,
) -> Ensemble:
    """Read the private rows, and let teachers learn from them. The job is charged before."""
    # One process reads for all: a source may return its rows in another order each time.
    read = ranks.first_decides(private.read) if isinstance(private, DeferredRows) else private
    return train_teachers(
        teacher,
        read.features,
        read.labels,
        partition=partition,
        classes=inputs.names,
        units=read.units,
        groups=_teacher_groups(job, read.groups),
        copies=_copies(job, read.groups),
        workers=settings.workers,
        folder=None if settings.folder is None else Path(settings.folder) / TEACHERS,
        progress=settings.progress,
        rehearsal=inputs.public,
    )


def _answers(
    ensemble: Ensemble,
    inputs: PublicInputs,
    order: npt.NDArray[np.int64],
    job: Job,
    settings: VoteSettings,
    student: Student | None,
) -> npt.NDArray[np.int64]:
    """Let teachers vote, and return the answers; counts do not leave this function."""
    counts = ensemble.counts(rows.take(inputs.public, order), weights=job.ballots())

    def noisy() -> npt.NDArray[np.int64]:
        if not isinstance(job.aggregator, InteractiveGNMax):
            return job.answer(counts, generator=settings.generator)
        assert student is not None
        return interactive_answers(
            job.aggregator,
            counts,
            teachers=float(job.teachers),
            predict=_learner(student, taken_rows(inputs.seen, order), len(inputs.names)),
            rounds=_ROUNDS if settings.rounds is None else settings.rounds,
            generator=settings.generator,
        )

    return ranks.first_decides(noisy)


def _learner(student: Student, asked: Any, classes: int) -> Predict:
    """Return what a student predicts from the answers so far; one that cannot learn knows nothing."""

    def predict(answers: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        nothing = np.full((len(answers), classes), 1 / classes)
        if not (answers != NO_ANSWER).any():
            return nothing
        try:
            fitted = student.fit(asked, answers, classes=classes, progress=False)
            found = np.asarray(fitted.predict_proba(asked), dtype=np.float64)
        except Exception:  # such as too few answers: the job is paid for, and goes on
            return nothing
        return found if found.shape == nothing.shape and bool(np.isfinite(found).all()) else nothing

    return predict


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


def _check_interaction(job: Job, student: Student | None, settings: VoteSettings) -> None:
    interactive = isinstance(job.aggregator, InteractiveGNMax)
    if interactive and student is None:
        raise InvalidParameterError(
            "InteractiveGNMax asks a student between rounds: use pate.train, or pass student=..."
        )
    if settings.rounds is not None and not interactive:
        raise InvalidParameterError("rounds are for InteractiveGNMax: leave rounds=... out.")


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
    return _fitting(kept_partition(Path(settings.folder), job.groups), job)


def _fitting(partition: Partition, job: Job) -> Partition:
    if partition.teachers != job.groups:
        raise InvalidParameterError(
            f"the partition has {partition.teachers} teachers, but the job needs {job.groups}. Use the job "
            "that it was made for, or another partition."
        )
    return partition
