# SPDX-License-Identifier: Apache-2.0
"""One teacher: trained from its own rows, and asked for its votes. It cannot fail in a way that is seen.

Guarantee  Whether a teacher can be trained, and what happens on the way, depends on private rows; so nothing
           here raises, warns, logs or prints because of them.
Edge cases A teacher without rows abstains. One whose rows have a single class votes for that class, if the
           estimator cannot be fitted to one class. One that cannot be fitted, kept or loaded abstains. One
           whose predictions have another length abstains; one that predicts something that is no class, or
           NaN, abstains on that query. Estimators see the numbers of classes, 0, 1, ..., not their names.
Failure    Wrong settings are found by `rehearse`, on public rows alone, and are errors. A worker process
           that is killed, and a full disk, are errors too.
Not here   Protection of a process that dies (a segmentation fault, `os._exit`) because of a row: the run ends
           with an error, which shows it. Protection of time: how long a teacher learns depends on its rows.
"""

import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import numpy.typing as npt

from sfumato._failures import ordinary
from sfumato.errors import UnsupportedModelError
from sfumato.pate.teaching import files, rows
from sfumato.pate.teaching.estimator_settings import fresh, seed_of
from sfumato.pate.teaching.quiet import quiet, seeded_draws

__all__ = ["ABSTAINS", "Lesson", "Votes", "dumped", "rehearse", "teach", "vote", "votes_of_several"]

Votes = npt.NDArray[np.int16]
ABSTAINS = -1
_ROWS_PER_CLASS = 10  # of a rehearsal: enough for an estimator that cross-validates


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """What all teachers have in common.

    Attributes:
        estimator: The estimator, which is copied for each teacher.
        classes: The number of classes.
        kind: The type of public features, or None.
        settings: A hash of every public setting.
        seeds: The key that seeds are derived from.
        secret: The key of the hashes in files.
    """

    estimator: Any
    classes: int
    kind: Any
    settings: str
    seeds: bytes
    secret: bytes

    def key(self, number: int, features: Any, labels: rows.Numbers) -> bytes:
        """Return what a teacher is trained from, as a hash. What cannot be hashed is never found again."""
        try:
            content = rows.digest(features, labels, self.secret)
        except Exception:
            return os.urandom(32)
        text = f"{self.settings} {number}".encode()
        return hashlib.blake2b(text + content, key=self.secret, digest_size=32).digest()


def teach(lesson: Lesson, number: int, features: Any, labels: rows.Numbers, place: Path) -> tuple[int, bytes]:
    """Train a teacher and write its file, unless the file has it already.

    Args:
        lesson: What all teachers have in common.
        number: The number of the teacher.
        features: Its own rows, and no others.
        labels: The numbers of their classes; -1 for none.
        place: The file.

    Returns:
        The number, and the key of what the teacher was trained from.
    """
    with quiet():
        features, labels = _cleaned(lesson, features, labels)
        key = lesson.key(number, features, labels)
        if files.is_trained(place, key=key, secret=lesson.secret):
            return number, key
        content = _packed(_fitted(lesson, number, features, labels))
    files.write(place, content, key=key, secret=lesson.secret)
    return number, key


def _cleaned(lesson: Lesson, features: Any, labels: rows.Numbers) -> tuple[Any, rows.Numbers]:
    try:
        changed, usable = rows.like_public(features, lesson.kind)
        kept = np.flatnonzero(usable & (labels >= 0))
        return rows.take(changed, kept), labels[kept]
    except Exception:
        return np.zeros((0, 1)), labels[:0]


def _fitted(lesson: Lesson, number: int, features: Any, labels: rows.Numbers) -> Any:
    """Return a fitted estimator, a class that the teacher always votes for, or None if it abstains."""
    if len(labels) == 0:
        return None
    try:
        with seeded_draws(seed_of(lesson.seeds, number, "global")):
            model = fresh(lesson.estimator, lesson.seeds, number)
            ordinary(lambda: model.fit(features, labels))
        return model
    except Exception:
        return int(labels[0]) if bool((labels == labels[0]).all()) else None


def _packed(teacher: Any) -> bytes:
    try:
        return dumped(teacher)
    except Exception:  # one that cannot be kept
        return dumped(None)


def dumped(thing: Any) -> bytes:
    """Return a teacher or queries as joblib writes them."""
    content = io.BytesIO()
    joblib.dump(thing, content)
    return content.getvalue()


def vote(lesson: Lesson, number: int, place: Path, key: bytes, queries: Any) -> Votes:
    """Return the votes of one teacher.

    Args:
        lesson: What all teachers have in common.
        number: The number of the teacher.
        place: Its file.
        key: What it was trained from.
        queries: Public rows.

    Returns:
        A class number for each query, or -1 where the teacher abstains.

    Raises:
        QueryFailedError: If the file is missing or was changed.
    """
    content = files.read(place, key=key, secret=lesson.secret)
    silent = np.full(rows.row_count(queries), ABSTAINS, dtype=np.int16)
    if not silent.size:
        return silent
    with quiet():
        try:
            with seeded_draws(seed_of(lesson.seeds, number, "votes")):
                teacher = joblib.load(io.BytesIO(content))
                return (
                    silent
                    if teacher is None
                    else ordinary(lambda: _votes_of(teacher, queries, lesson.classes))
                )
        except Exception:
            return silent


def votes_of_several(
    lesson: Lesson, members: Sequence[tuple[int, Path, bytes]], queries: tuple[Path, bytes]
) -> list[Votes]:
    """Return the votes of some teachers, of which one is in memory at a time.

    Args:
        lesson: What all teachers have in common.
        members: Number, file and key of each.
        queries: File and key of the public rows.

    Returns:
        The votes of each.

    Raises:
        QueryFailedError: If a file is missing or was changed.
    """
    place_of_rows, key_of_rows = queries
    public = joblib.load(io.BytesIO(files.read(place_of_rows, key=key_of_rows, secret=lesson.secret)))
    return [vote(lesson, number, place, key, public) for number, place, key in members]


def _votes_of(teacher: Any, queries: Any, classes: int) -> Votes:
    if isinstance(teacher, int):
        return np.full(rows.row_count(queries), teacher, dtype=np.int16)
    return as_votes(teacher.predict(queries), queries=rows.row_count(queries), classes=classes)


def as_votes(predicted: Any, *, queries: int, classes: int) -> Votes:
    """Return predictions as class numbers; what is no class is -1.

    Args:
        predicted: What an estimator predicted.
        queries: The number of queries.
        classes: The number of classes.

    Returns:
        The votes.

    >>> as_votes([0.0, 1.5, float("nan"), 7, 2], queries=5, classes=3).tolist()
    [0, -1, -1, -1, 2]
    """
    votes = np.full(queries, ABSTAINS, dtype=np.int16)
    found = np.asarray(predicted)
    if (
        found.size != queries
        or found.shape not in ((queries,), (queries, 1))
        or found.dtype.kind not in "biufO"
    ):
        return votes
    numbers = found.reshape(-1).astype(np.float64)
    known = (numbers >= 0) & (numbers < classes) & (numbers == np.floor(numbers))
    votes[known] = numbers[known]
    return votes


def rehearse(lesson: Lesson, public: Any) -> None:
    """Try an estimator on public rows with made-up labels of all classes.

    Args:
        lesson: What all teachers have in common.
        public: Public features, of which the first rows are used.

    Raises:
        UnsupportedModelError: If the estimator cannot be copied, fitted, kept, loaded or asked. The reason
            is quoted, as it depends on public rows only.
    """
    count = _ROWS_PER_CLASS * lesson.classes
    features = rows.take(public, np.arange(count) % min(rows.row_count(public), count))
    try:
        with quiet(), seeded_draws(0):
            model = fresh(lesson.estimator, lesson.seeds, -1)
            model.fit(features, np.arange(count, dtype=np.int64) % lesson.classes)
            predicted = joblib.load(io.BytesIO(dumped(model))).predict(features)
            votes = as_votes(predicted, queries=count, classes=lesson.classes)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise UnsupportedModelError(
            f"the estimator fails on the public rows of the rehearsal; no private row was used. "
            f"{type(error).__name__}: {reason}"
        ) from error
    if (votes == ABSTAINS).any():
        raise UnsupportedModelError(
            "the estimator must predict a class number for each row, but on the public rows of the "
            "rehearsal some predictions are something else; no private row was used."
        )
