# SPDX-License-Identifier: Apache-2.0
"""Owners of the rows of an array, and the bound on the rows of each owner.

Guarantee  `bounded_rows` keeps at most `contribution_bound` rows of each owner. Which rows it keeps depends
           only on that owner's rows (`contribution_bound`).
Edge cases Rows with a missing value, and rows without an owner, are left out first, so they never displace
           other rows.
Failure    Owners that cannot be compared or hashed are refused, and not shown. So are objects that may equal
           nothing but themselves, such as tensors: each row would be an owner of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any, Final
from uuid import UUID

import numpy as np

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.statistics.arrays import Floats, Integers
from sfumato.statistics.columns.input_values import is_missing, objects_of
from sfumato.statistics.contributions.contribution_bound import kept
from sfumato.statistics.contributions.unit_draws import draw_of, whole_draw

__all__ = ["bounded_rows", "numbered_owners"]

_CHUNK = 2**16  # rows at a time: intermediate results stay in the processor's cache
_NAMES: Final = (str, bytes, int, float, Decimal, Fraction, date, time, timedelta, UUID, Enum, np.generic)
_MOST_GAPS = 8  # possible owner numbers for each row, most of them unused: each needs memory


def _any_missing(rows: Floats) -> bool:
    parts = (rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK))
    return any(bool(np.isnan(part).any()) for part in parts)


def bounded_rows(rows: Floats, owners: Any, contribution_bound: int) -> Floats:
    """Leave out rows with a missing value or owner, then rows beyond the bound of each owner."""
    _check.count(contribution_bound=contribution_bound)
    if owners is None:
        if contribution_bound != 1:
            raise InvalidParameterError(
                "a contribution_bound above 1 needs the owners of the rows: pass owners=..."
            )
        return rows[~np.isnan(rows).any(1)] if _any_missing(rows) else rows
    owned = _owners(owners, len(rows))
    present = (owned.numbers >= 0) & ~np.isnan(rows).any(1)
    rows = rows[present] + 0.0  # removes the sign of zero: which of two equal rows counts must not matter
    return rows[kept(rows, owned.numbers[present], draws=owned.draws, bound=contribution_bound)]


@dataclass(frozen=True)
class _Owners:
    """The owner of each row as a number from 0; -1 means none. `draws` maps numbers to their draws."""

    numbers: Integers
    draws: Callable[[Integers], Integers]


def _owners(owners: Any, rows: int) -> _Owners:
    whole = isinstance(owners, np.ndarray) and owners.dtype.kind in "iu" and owners.dtype != np.uint64
    if whole and owners.shape == (rows,):  # already numbers, and possibly many
        return _numbered(owners.astype(np.int64))
    owned = objects_of(owners, what="owners")
    if len(owned) != rows:
        raise InvalidParameterError("owners must have one entry for each row.")
    numbers, names = numbered_owners(owned)
    return _Owners(
        numbers, lambda some: np.array([draw_of(names[number]) for number in some], dtype=np.int64)
    )


def numbered_owners(owned: list[object]) -> tuple[Integers, list[object]]:
    """Return a number for each owner, in order of appearance, and all owners by their number.

    Args:
        owned: The owner of each row.

    Returns:
        The numbers, -1 for a missing owner, and the owners.

    Raises:
        InvalidParameterError: If an owner is neither a name nor a number, nor a tuple of these.

    >>> numbered_owners(["ann", "bob", None, "ann"])
    (array([ 0,  1, -1,  0]), ['ann', 'bob', None])
    """
    numbered = _by_first(owned) or _by_first([None if is_missing(owner) else owner for owner in owned])
    if numbered is None or not all(map(_is_name, numbered[1])):
        raise InvalidParameterError("owners must be names or numbers. Nothing was charged.")
    numbers, names = numbered
    is_nobody = np.array([is_missing(name) for name in names], dtype=bool)
    return np.where(is_nobody[numbers], -1, numbers) if is_nobody.any() else numbers, names


def _is_name(owner: object) -> bool:
    if isinstance(owner, tuple):
        return all(map(_is_name, owner))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return isinstance(owner, _NAMES) or is_missing(owner)


def _by_first(owned: list[object]) -> tuple[Integers, list[object]] | None:
    """Return a number for each owner, in order of appearance, and all owners by their number.

    None if an owner cannot be compared, such as a signaling NaN.
    """
    seen: dict[object, int] = {}
    try:
        numbers = np.array([seen.setdefault(owner, len(seen)) for owner in owned], dtype=np.int64)
    except Exception:  # the message may quote the owner
        return None
    return numbers, list(seen)


def _numbered(owners: Integers) -> _Owners:
    lowest, highest = (int(owners.min()), int(owners.max())) if len(owners) else (0, 0)
    if highest - lowest < _MOST_GAPS * len(owners):
        return _Owners(owners - lowest, lambda some: whole_draw(some + lowest))
    names, numbers = np.unique(owners, return_inverse=True)
    return _Owners(numbers, lambda some: whole_draw(names[some]))
