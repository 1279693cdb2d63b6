# SPDX-License-Identifier: Apache-2.0
"""Teachers: classifiers that each learn from their own part of the private rows, and vote on public queries.

Each trained teacher is written to a file of its own and loaded alone to vote, so memory does not grow with
the number of teachers. The same partition, rows and settings give the same votes with any number of workers:
seeds (`random_state`, `seed` and global generators) are derived from the partition's key and the teacher's
number, and numerical libraries use one thread in each worker.

Guarantee  A unit changes the votes of the teachers that `Partition.assign` gives it, and nothing else.
           Whether or how a teacher fails is never visible: it votes or it abstains (`teaching.lesson`).
Unit       As in `partition`.
Edge cases Rows with a label that is no class, or with missing or infinite numbers, are left out. Several
           processes of torch.distributed share the teachers: rank r trains teachers r, r + size, ... and
           `counts` adds up the votes of all ranks.
Failure    Types, shapes and settings are errors before a private row is used. With `rehearsal`, so are
           estimators that do not work. A killed worker and a full disk are errors; training again with the
           same partition and folder continues from the files that are there.
Not here   Protection: votes and counts are private. Noise and accounting are added by aggregators.
"""

import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import joblib
import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidParameterError, UnsupportedModelError
from sfumato.pate.teaching import ranks, rows
from sfumato.pate.teaching.bar import bar
from sfumato.pate.teaching.classifier import Classifier
from sfumato.pate.teaching.estimator_settings import fresh, settings_digest
from sfumato.pate.teaching.files import TeacherFolder
from sfumato.pate.teaching.lesson import ABSTAINS, Lesson, Votes, dumped, rehearse, teach, votes_of_several
from sfumato.pate.teaching.partition import Partition
from sfumato.pate.teaching.processes import check_workers, done_in_processes

__all__ = ["Ensemble", "check_teacher", "train_teachers"]

_TOGETHER = 16  # teachers that one task asks: queries are loaded once for all of them


class Ensemble:
    """Trained teachers. Made by `train_teachers`; close it, or use it in a `with` statement.

    A temporary folder is removed when the ensemble is closed or no longer used.

    Args:
        partition: Which units each teacher learned from.
        classes: The labels, in the order of class numbers.
        lesson: What all teachers have in common.
        folder: Where the files of the teachers are. They are NOT protected.
        keys: What each teacher of this process was trained from.
        row_shape: The shape of one row.
        workers: The number of processes that load teachers and vote.

    Attributes:
        numbers: The numbers of this process's teachers: all of them, unless several processes share them.
    """

    def __init__(
        self,
        *,
        partition: Partition,
        classes: tuple[Hashable, ...],
        lesson: Lesson,
        folder: TeacherFolder,
        keys: Mapping[int, bytes],
        row_shape: tuple[int, ...],
        workers: int,
    ) -> None:
        self.partition, self.classes = partition, classes
        self.folder: Path = folder.path
        self.numbers = tuple(sorted(keys))
        self._lesson, self._keys, self._row_shape = lesson, dict(keys), row_shape
        self._files: TeacherFolder | None = folder
        self._workers = workers

    def __len__(self) -> int:
        return self.partition.total

    def __repr__(self) -> str:
        return f"Ensemble(teachers={self.partition.teachers}, classes={len(self.classes)})"

    def __enter__(self) -> "Ensemble":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the temporary folder, if there is one. The ensemble cannot vote any more."""
        if self._files is not None:
            self._files.close()
        self._files = None

    def predictions(self, queries: Any) -> Iterator[Votes]:
        """Return the votes of one teacher after the other, in the order of `numbers`. They are private.

        Args:
            queries: Public rows, of the same type and width as the private ones.

        Returns:
            For each teacher an int16 class number for each query; -1 where it abstains.

        Raises:
            InvalidParameterError: If the ensemble is closed, or queries have another shape or are not finite.
            QueryFailedError: If the file of a teacher is missing or was changed.
        """
        checked = self._checked(queries)
        return self._predictions(checked, self._open())

    def _predictions(self, queries: Any, folder: TeacherFolder) -> Iterator[Votes]:
        size = _TOGETHER if len(self.numbers) >= 4 * _TOGETHER else 1 + len(self.numbers) // 8
        with folder.queries(dumped(queries), secret=self._lesson.secret) as file:
            tasks = (
                joblib.delayed(votes_of_several)(
                    self._lesson,
                    [(n, folder.place(n), self._keys[n]) for n in self.numbers[i : i + size]],
                    file,
                )
                for i in range(0, len(self.numbers), size)
            )
            for votes in done_in_processes(tasks, workers=self._workers, ordered=True):
                yield from votes

    def counts(self, queries: Any, weights: npt.ArrayLike | None = None) -> npt.NDArray[np.float64]:
        """Return how many teachers vote for each class. The numbers are private.

        Args:
            queries: Public rows, of the same type and width as the private ones.
            weights: The weight of each teacher, or of each teacher at each query [teachers, queries]; None
                counts each as 1.

        Returns:
            Float64 [queries, classes], the same on all ranks.

        Raises:
            InvalidParameterError: If the ensemble is closed, queries have another shape or are not finite,
                weights have another shape or are not finite, or ranks have different queries.
            QueryFailedError: If the file of a teacher is missing or was changed.
        """
        total = np.zeros((rows.row_count(self._checked(queries)), len(self.classes)))

        def compute() -> object:
            known = self._weights(weights, len(total))
            for number, votes in zip(self.numbers, self.predictions(queries), strict=True):
                voting = np.flatnonzero(votes != ABSTAINS)
                total[voting, votes[voting]] += np.broadcast_to(known[number], len(total))[voting]
            return None if ranks.size() == 1 else joblib.hash((queries, known))

        ranks.require_alike(compute, what="queries or weights")
        return ranks.add_up(total)

    def _open(self) -> TeacherFolder:
        if self._files is None:
            raise InvalidParameterError(
                "this ensemble is closed: train again, or ask it before it is closed."
            )
        return self._files

    def _checked(self, queries: Any) -> Any:
        known = rows.check_features(queries, what="queries")
        if rows.row_shape(known) != self._row_shape:
            raise InvalidParameterError(
                f"queries must have rows of shape {list(self._row_shape)}, as the teachers' rows have, but "
                f"theirs is {list(rows.row_shape(known))}."
            )
        if not rows.finite_rows(known).all():
            raise InvalidParameterError("queries hold missing or infinite numbers. Leave these rows out.")
        return known

    def _weights(self, weights: npt.ArrayLike | None, queries: int) -> npt.NDArray[np.float64]:
        if weights is None:
            return np.ones(len(self))
        known = np.asarray(weights, dtype=np.float64)
        if known.shape not in ((len(self),), (len(self), queries)) or not np.isfinite(known).all():
            raise InvalidParameterError(
                f"weights must be finite numbers, one for each of {len(self)} teachers, or one for each "
                f"teacher at each of {queries} queries."
            )
        return known


def train_teachers(
    estimator: Classifier,
    features: Any,
    labels: Any,
    *,
    partition: Partition,
    classes: int | Sequence[Hashable],
    units: Iterable[Any] | None = None,
    groups: Iterable[Any] | None = None,
    copies: int | Iterable[Any] | None = None,
    workers: int = 1,
    folder: str | os.PathLike[str] | None = None,
    progress: bool = True,
    rehearsal: Any = None,
) -> Ensemble:
    """Train each teacher of a partition on its own rows.

    Args:
        estimator: A classifier of scikit-learn, a pipeline, or a `TorchClassifier`. It is copied for each
            teacher, and gets class numbers 0, 1, ... as labels.
        features: The private rows: an array, a tensor, a DataFrame or a sparse matrix.
        labels: The private label of each row.
        partition: Which teacher learns from which unit.
        classes: The public list of labels, or their number if they are 0, 1, ...
        units: What identifies the unit of each row, or None if each row is a unit.
        groups: The privacy group of each row, or None for group 0.
        copies: How many teachers learn from a unit: one number, or one for each row. None is 1.
        workers: The number of processes; -1 is one for each processor. A backend that was set with
            `joblib.parallel_config` is used.
        folder: Where teachers are kept, to use them again for the same rows and settings; workers must be
            able to write there. None is a private temporary folder.
        progress: Whether to show how many teachers are done.
        rehearsal: Public rows, such as the queries: the estimator is tried on them before a private row is
            used, and private rows are converted to their type. None skips this, and then an estimator that
            does not work gives teachers that abstain.

    Returns:
        The ensemble.

    Raises:
        InvalidParameterError: If types, shapes or settings are wrong, or another process uses the folder.
        UnsupportedModelError: If the estimator cannot be copied, or fails on the public rows.

    >>> from sklearn.tree import DecisionTreeClassifier
    >>> x = np.arange(40.0).reshape(-1, 1)
    >>> partition = Partition(teachers=(3,), key=bytes(32))
    >>> with train_teachers(DecisionTreeClassifier(), x, x[:, 0] >= 20, partition=partition,
    ...                     classes=[False, True], rehearsal=x[:5]) as ensemble:
    ...     print(ensemble.counts(np.array([[0.0], [39.0]])))
    [[3. 0.]
     [0. 3.]]
    """
    names, features = rows.class_list(classes), rows.check_features(features)
    public = _checked_rehearsal(rehearsal, features)
    lesson = _lesson(estimator, partition, names, public)
    check_workers(workers)
    if public is not None:
        rehearse(lesson, public)
    own_numbers = range(ranks.rank(), partition.total, ranks.size())
    assigned = _assigned(
        partition, row_count=rows.row_count(features), units=units, groups=groups, copies=copies
    )
    known = _class_of_rows(labels, names, rows.row_count(features))
    ranks.require_alike(lambda: _data_digest(lesson, features, known, assigned), what="private rows")
    kept = TeacherFolder(folder)
    tasks = (
        joblib.delayed(teach)(lesson, number, rows.take(features, own), known[own], kept.place(number))
        for number, own in _parts(assigned, own_numbers)
    )
    keys: dict[int, bytes] = {}

    def train() -> None:
        with (
            kept.locked(ranks.rank()),
            bar(len(own_numbers), shown=progress and ranks.rank() == 0) as advance,
        ):
            for number, key in done_in_processes(tasks, workers=workers, ordered=False):
                keys[number] = key
                advance()

    ranks.require_alike(train, what="outcomes")
    return Ensemble(
        partition=partition,
        classes=names,
        lesson=lesson,
        folder=kept,
        keys=keys,
        row_shape=rows.row_shape(features),
        workers=workers,
    )


def check_teacher(
    estimator: Classifier,
    *,
    partition: Partition,
    classes: int | Sequence[Hashable],
    public: Any,
    features: Any,
) -> None:
    """Raise if an estimator cannot be a teacher; public rows alone are used, and the shape of private ones.

    Args:
        estimator: The estimator.
        partition: Which teacher learns from which unit.
        classes: The public list of labels, or their number.
        public: Public rows, at least 2.
        features: The private rows, of which only type and shape are looked at.

    Raises:
        InvalidParameterError: If types, shapes or classes are wrong.
        UnsupportedModelError: If the estimator cannot be copied, or fails on the public rows.
    """
    known = _checked_rehearsal(public, rows.check_features(features), what="public")
    rehearse(_lesson(estimator, partition, rows.class_list(classes), known), known)


def _checked_rehearsal(rehearsal: Any, features: Any, *, what: str = "rehearsal") -> Any:
    if rehearsal is None:
        return None
    public = rows.check_features(rehearsal, what=what)
    if rows.row_count(public) < 2 or rows.row_shape(public) != rows.row_shape(features):
        raise InvalidParameterError(
            f"{what} must be at least 2 public rows of shape {list(rows.row_shape(features))}, as the "
            f"private ones have, but its shape is {list(public.shape)}."
        )
    return public


def _lesson(estimator: Any, partition: Partition, names: tuple[Hashable, ...], public: Any) -> Lesson:
    """Return what all teachers have in common; raise if the estimator cannot be one."""
    seeds, kind = partition.derived("seeds"), None if public is None else rows.public_type(public)
    try:
        copy = fresh(estimator, seeds, 0)
        used = settings_digest(copy)
        usable = callable(copy.fit) and callable(copy.predict)
    except Exception as error:
        raise UnsupportedModelError(
            "a teacher must be a classifier with `get_params`, `fit` and `predict` whose settings can be "
            f"copied and pickled. {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        ) from error
    if not usable:
        raise UnsupportedModelError("a teacher must be a classifier: its `fit` or `predict` is no function.")
    settings = repr((used, partition.fingerprint, names, kind))
    secret = partition.derived("teacher files")
    return Lesson(
        estimator=copy, classes=len(names), kind=kind, settings=settings, seeds=seeds, secret=secret
    )


def _assigned(
    partition: Partition, *, row_count: int, units: Any, groups: Any, copies: Any
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    if units is not None and len(units) != row_count:
        raise InvalidParameterError("units must have one entry for each row of features.")
    rows_if_units = row_count if units is None else None
    return partition.assign(units, rows=rows_if_units, groups=groups, copies=copies)


def _class_of_rows(labels: Any, names: tuple[Hashable, ...], row_count: int) -> npt.NDArray[np.int64]:
    known = rows.class_numbers(labels, names)
    if len(known) != row_count:
        raise InvalidParameterError("labels must have one entry for each row of features.")
    return known


def _parts(
    assigned: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]], numbers: Iterable[int]
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield the rows of each teacher; they are sorted by teacher."""
    chosen, teachers = assigned
    for number in numbers:
        begin, end = np.searchsorted(teachers, [number, number + 1])
        yield number, chosen[begin:end]


def _data_digest(lesson: Lesson, features: Any, labels: Any, assigned: Any) -> object:
    """Return what ranks compare; a process that is alone has nothing to compare with."""
    if ranks.size() == 1:
        return None
    return lesson.settings, rows.digest(features, labels, lesson.secret), joblib.hash(assigned)
