# SPDX-License-Identifier: Apache-2.0
"""A value that left the private side, with what it promises and how far it may be off.

Promise    A release carries its guarantee (epsilon, delta, relation and unit) and the event that was charged.
Interval   What it covers is said, never implied: the noise; the sampling, if the rows are a sample of a
           larger population; the clipping to bounds. What cannot be known without spending more is
           left out, and so is not in `covers`.
Kept       `to_json`, `to_csv` and `to_pandas` keep all of it (`keeping`): numbers, intervals, guarantee and
           notes. They read the release alone, so they cost nothing.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee
from sfumato.errors import InvalidParameterError
from sfumato.statistics import export

__all__ = ["Covers", "Interval", "Parts", "Release", "key_labels"]

Value = TypeVar("Value")


class Covers(Enum):
    """What may move a released number away from the truth."""

    NOISE = "noise"
    SAMPLING = "sampling"
    CLIPPING = "clipping"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Numbers between which the truth lies with probability `level`, as far as `covers` says.

    >>> print(Interval(lower=35.2, upper=35.6, level=0.95, covers=(Covers.NOISE,)))
    35.2 to 35.6 (95%, noise)
    """

    lower: float
    upper: float
    level: float
    covers: tuple[Covers, ...]

    def __post_init__(self) -> None:
        _check.probability(level=self.level)
        if not self.lower <= self.upper:
            raise InvalidParameterError("an interval's lower end must not be above its upper end.")

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    def __str__(self) -> str:
        covered = ", ".join(part.value for part in self.covers)
        return f"{self.lower:g} to {self.upper:g} ({100 * self.level:g}%, {covered})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What a value of many parts consists of: what each is called, and its number.

    Each label is a column with one entry for each part. `numbers` is None where the parts are names, such as
    keys, and the labels are all that there is.

    >>> Parts(labels={"q": (0.25, 0.75)}, numbers=(31.0, 52.5)).count
    2
    """

    labels: Mapping[str, tuple[Any, ...]]
    numbers: tuple[float, ...] | None

    def __post_init__(self) -> None:
        columns = [*self.labels.values(), *([] if self.numbers is None else [self.numbers])]
        if len({len(column) for column in columns}) != 1:
            raise InvalidParameterError("every part of a value must have one of each label, and one number.")

    @property
    def count(self) -> int:
        """How many parts there are."""
        return len(next(iter(self.labels.values()), self.numbers or ()))


def key_labels(columns: Sequence[str], keys: Sequence[tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Return the labels of parts that have keys: a column for each column of the keys.

    Their names begin with "key_", so that no column of a table is mistaken for one of ours.

    >>> key_labels(("city", "year"), [("Rome", 2020), ("Oslo", 2021)])
    {'key_city': ('Rome', 'Oslo'), 'key_year': (2020, 2021)}
    """
    return {f"key_{name}": tuple(key[i] for key in keys) for i, name in enumerate(columns)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Release(Generic[Value]):
    """One output, what it cost, and how sure it is; `interval` is one, one for each number, or None.

    `value` is None where the mechanism answered that it failed: that answer is private, too, and paid for.
    `parts` says what a value that is no single number consists of. `account` names what was charged, and
    `recorded` says whether a ledger keeps that charge.
    """

    name: str
    value: Value
    interval: Interval | tuple[Interval, ...] | None = None
    guarantee: Guarantee
    event: DpEvent = field(repr=False)
    notes: tuple[str, ...] = ()
    parts: Parts | None = field(default=None, repr=False)
    account: str | None = None
    recorded: bool = False

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the release as JSON, and write it to `path` if one is given.

        Raises `InvalidParameterError` where the file cannot be written.
        """
        return export.written(export.to_json(self), path)

    def to_csv(self, path: str | os.PathLike[str] | None = None, *, escape_formulas: bool = True) -> str:
        """Return the release as CSV, one row for each number, and write it to `path` if one is given.

        Text that a spreadsheet would run as a formula (it begins with =, +, -, @, a tab or a line break)
        gets an apostrophe before it; `escape_formulas=False` leaves it as it is. Raises
        `InvalidParameterError` where the file cannot be written.
        """
        return export.written(export.to_csv(self, escape_formulas=escape_formulas), path)

    def to_pandas(self) -> Any:
        """Return the release as a pandas frame with the rows and columns of `to_csv`, nothing escaped."""
        return export.to_pandas(self)

    def __str__(self) -> str:
        lines = [f"{self.name}: {_shown(self.value)}"]
        if isinstance(self.interval, Interval):
            lines.append(f"  interval: {self.interval}")
        lines += [f"  {self.guarantee}", *(f"  {note}" for note in self.notes)]
        return "\n".join(lines)


def _shown(value: object) -> str:
    if value is None:
        return "failed"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
