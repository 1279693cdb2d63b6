# SPDX-License-Identifier: Apache-2.0
"""Which teacher learns from which privacy unit: decided once by a secret key, and never drawn again.

A keyed hash (BLAKE2b) of the unit's bytes chooses its teacher, each with the same probability.

Guarantee  All rows of a unit go to the same teacher, or to exactly as many different ones as its copies. The
           choice depends on the key, the unit, its group and its copies, and on no other row: adding or
           removing a unit never moves another one. So one unit changes the votes of at most as many teachers
           as it has copies. With `units` this holds for every key, also for one that is known.
Unit       What `units` identifies (`teaching.unit_bytes`): missing values are one unit together. Without
           `units` each row is one, identified by its number; a row that is removed then renumbers the later
           ones, which changes where they go but not the probability of anything, for a key that is secret
           and used for one job alone. Two jobs with one key would show whether rows were renumbered between.
Edge cases Groups are numbered by budget, the smallest first. Where the rows of a unit disagree, the smallest
           group number and the smallest number of copies count. A group number that does not exist, or is
           missing, is group 0. Copies of a unit are rounded down and limited to the teachers of its group;
           missing and negative ones are 0, and a unit with 0 copies is in no teacher.
Failure    Only types, shapes and settings raise an error, never the value of a row.
Not here   What the copies cost (accounting), and training (`teachers`).
"""

import hashlib
import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator, resolve
from sfumato.pate.teaching.unit_bytes import unit_bytes, unit_values

__all__ = ["Partition", "whole_number"]

Whole = npt.NDArray[np.int64]

_KEY_BYTES = 32
_DRAW_BYTES = 16  # a remainder of 128 bits is uniform up to 2^-100


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """A fixed assignment of privacy units to teachers.

    Args:
        teachers: The number of teachers of each privacy group. Plain PATE has one group.
        key: The secret key, 32 bytes. Keep it with the run: the same key gives the same assignment.

    Raises:
        InvalidParameterError: If a group has no teacher, or the key has another length.

    >>> partition = Partition(teachers=(3,), key=bytes(32))
    >>> rows, teachers = partition.assign(["ann", "bob", "ann", "eve"])
    >>> rows.tolist(), teachers.tolist()
    ([1, 3, 0, 2], [0, 0, 2, 2])
    """

    teachers: tuple[int, ...]
    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.teachers, tuple) or not self.teachers:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            raise InvalidParameterError(
                "teachers must be a tuple: the number of teachers of each privacy group, such as (250,)."
            )
        for number in self.teachers:
            _check.count(teachers=number)
        if not isinstance(self.key, bytes) or len(self.key) != _KEY_BYTES:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            raise InvalidParameterError(
                f"key must be {_KEY_BYTES} secret bytes. Use Partition.draw(...) for a new one."
            )

    @classmethod
    def draw(cls, teachers: int | Sequence[int], generator: Generator | None = None) -> "Partition":
        """Return a partition with a new key.

        Args:
            teachers: The number of teachers, or the number of each privacy group, smallest budget first.
            generator: Source of randomness. None uses the secure generator.

        Returns:
            The partition.

        Raises:
            InvalidParameterError: If a number of teachers is not a whole number above 0.

        >>> Partition.draw([100, 150])
        Partition(teachers=(100, 150))
        """
        groups = tuple(teachers) if isinstance(teachers, Iterable) else (teachers,)
        key = bytearray(_KEY_BYTES)
        resolve(generator).fill(memoryview(key))
        return cls(teachers=groups, key=bytes(key))

    @property
    def total(self) -> int:
        """The number of teachers of all groups."""
        return sum(self.teachers)

    @property
    def group_of(self) -> Whole:
        """The group number of each teacher: teachers are numbered group after group."""
        return np.repeat(np.arange(len(self.teachers)), self.teachers)

    @property
    def fingerprint(self) -> str:
        """A hex digest that identifies the partition and does not reveal the key."""
        return self.derived(f"fingerprint {self.teachers!r}").hex()

    def derived(self, purpose: str) -> bytes:
        """Return a key for another purpose, from which the key of the partition cannot be computed.

        Args:
            purpose: The purpose.

        Returns:
            32 bytes.
        """
        return hashlib.blake2b(
            purpose.encode(), key=self.key, digest_size=_KEY_BYTES, person=b"pate purpose"
        ).digest()

    def assign(
        self,
        units: Iterable[Any] | None = None,
        *,
        rows: int | None = None,
        groups: Iterable[Any] | None = None,
        copies: int | Iterable[Any] | None = None,
    ) -> tuple[Whole, Whole]:
        """Return the rows of each teacher.

        Args:
            units: What identifies the unit of each row, or None if each row is a unit of its own.
            rows: The number of rows, where `units` is None.
            groups: The privacy group of each row, or None for group 0.
            copies: How many different teachers of its group learn from a unit: a public number for all, or
                one for each row. None is 1.

        Returns:
            Two arrays of equal length: row numbers, and the teacher that learns from the row. They are sorted
            by teacher, then by row.

        Raises:
            InvalidParameterError: If lengths disagree, or a number of copies for all units is above the
                number of teachers of a group.
        """
        tokens = self._tokens(units, rows)
        places: dict[bytes, int] = {}
        ids = np.fromiter((places.setdefault(token, len(places)) for token in tokens), np.int64, len(tokens))
        group = self._groups(groups, ids, len(places))
        count = self._copies(copies, ids, group)
        chosen = [self._chosen(*unit) for unit in zip(places, group.tolist(), count.tolist(), strict=True)]
        return _of_rows(ids, count, np.array([t for unit in chosen for t in unit], dtype=np.int64))

    def _tokens(self, units: Iterable[Any] | None, rows: int | None) -> list[bytes]:
        if (units is None) == (rows is None):
            raise InvalidParameterError("pass units=..., or rows=... if each row is a unit of its own.")
        return [unit_bytes(value) for value in (range(rows or 0) if units is None else unit_values(units))]

    def _groups(self, groups: Iterable[Any] | None, ids: Whole, units: int) -> Whole:
        found = np.full(units, len(self.teachers) - 1 if groups is not None else 0, dtype=np.int64)
        if groups is not None:
            given = [whole_number(value, exact=True) for value in _one_each(groups, len(ids), "groups")]
            known = [number if 0 <= number < len(self.teachers) else 0 for number in given]
            np.minimum.at(found, ids, np.array(known, dtype=np.int64))
        return found

    def _copies(self, copies: int | Iterable[Any] | None, ids: Whole, group: Whole) -> Whole:
        if copies is None or isinstance(copies, numbers.Integral):
            return np.full(len(group), self._public_copies(1 if copies is None else copies), dtype=np.int64)  # pyright: ignore[reportArgumentType] - a whole number
        most = np.array(self.teachers)[group]
        given = [whole_number(value, exact=False) for value in _one_each(copies, len(ids), "copies")]  # pyright: ignore[reportArgumentType] - not a number
        np.minimum.at(most, ids, np.array(given, dtype=np.int64))
        return most.clip(0)

    def _public_copies(self, copies: int) -> int:
        _check.count(copies=copies)
        if copies > min(self.teachers):
            raise InvalidParameterError(
                f"copies must be at most {min(self.teachers)}, the number of teachers of the smallest group, "
                f"but {copies} was given: a unit is in different teachers."
            )
        return int(copies)

    def _chosen(self, token: bytes, group: int, copies: int) -> list[int]:
        """Return the teachers of one unit: the first cards of a deck that the hash shuffles."""
        first, deck = sum(self.teachers[:group]), self.teachers[group]
        moved: dict[int, int] = {}
        chosen: list[int] = []
        for place in range(copies):
            other = place + self._number(token, place) % (deck - place)
            chosen.append(first + moved.get(other, other))
            moved[other] = moved.get(place, place)
        return chosen

    def _number(self, token: bytes, place: int) -> int:
        drawn = hashlib.blake2b(
            token,
            key=self.key,
            digest_size=_DRAW_BYTES,
            salt=place.to_bytes(16, "big"),
            person=b"pate teacher",
        )
        return int.from_bytes(drawn.digest(), "big")


def _of_rows(ids: Whole, copies: Whole, chosen: Whole) -> tuple[Whole, Whole]:
    """Return rows and teachers, from the unit of each row and the teachers of all units in one list."""
    begins = np.cumsum(copies) - copies  # of each unit, in `chosen`
    each = copies[ids]
    rows = np.repeat(np.arange(len(ids)), each)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(each) - each, each)
    teachers = chosen[begins[ids[rows]] + within]
    order = np.lexsort((rows, teachers))
    return rows[order], teachers[order]


def _one_each(values: Iterable[Any], rows: int, what: str) -> list[Any]:
    listed = unit_values(values)
    if len(listed) != rows:
        raise InvalidParameterError(f"{what} must have one entry for each row, as units do.")
    return listed


_LARGEST = 2**62


def whole_number(value: Any, *, exact: bool) -> int:
    """Return a whole number, rounded down unless it must be `exact`; -1 for what is none."""
    try:
        if not isinstance(value, numbers.Real):
            return -1
        number = math.floor(float(value))
        return -1 if exact and number != float(value) else max(-1, min(number, _LARGEST))
    except Exception:  # such as NaN: no value may be noticed
        return -1
