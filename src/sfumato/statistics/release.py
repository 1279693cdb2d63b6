# SPDX-License-Identifier: Apache-2.0
"""Releases: a published value, its guarantee and its confidence interval.

A release holds its guarantee (epsilon, delta, relation and privacy unit) and the event that was charged.
`Interval.covers` lists the errors that an interval accounts for: the noise; the sampling error, if the rows
are a sample of a larger population; the clipping to bounds. Errors that are not listed are not covered,
because estimating them would cost more budget.

`to_json`, `to_csv` and `to_pandas` export numbers, intervals, guarantee and notes (`export`). They read the
release only, so they cost nothing.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from sfumato import _check
from sfumato.accounting.event_words import proved_by, told
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee
from sfumato.errors import InvalidParameterError
from sfumato.ledger.recorded import UNRECORDED
from sfumato.report.cards import words
from sfumato.report.cards.card import PrivacyCard
from sfumato.statistics import export

__all__ = ["Covers", "Interval", "Parts", "Release", "key_labels"]

Value = TypeVar("Value")


class Covers(Enum):
    """The errors that separate a released number from the truth."""

    NOISE = "noise"
    SAMPLING = "sampling"
    CLIPPING = "clipping"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A confidence interval: the truth lies in it with probability `level`, for the errors in `covers`.

    Args:
        lower: The lower end.
        upper: The upper end.
        level: The confidence level of the interval, between 0 and 1.
        covers: The errors that the interval accounts for.

    Raises:
        InvalidParameterError: If `lower` is above `upper`, or `level` is not between 0 and 1.

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
            raise InvalidParameterError("the lower end of an interval must not be above its upper end.")

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    def __str__(self) -> str:
        covered = ", ".join(part.value for part in self.covers)
        return f"{self.lower:g} to {self.upper:g} ({100 * self.level:g}%, {covered})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The labels and numbers of a value that is not a single number.

    Args:
        labels: Columns of labels by name, each with one entry for each part.
        numbers: One number for each part; None if the parts are names, such as keys.

    Raises:
        InvalidParameterError: If the columns differ in length.

    >>> Parts(labels={"q": (0.25, 0.75)}, numbers=(31.0, 52.5)).count
    2
    """

    labels: Mapping[str, tuple[Any, ...]]
    numbers: tuple[float, ...] | None

    def __post_init__(self) -> None:
        columns = [*self.labels.values(), *([] if self.numbers is None else [self.numbers])]
        if len({len(column) for column in columns}) != 1:
            raise InvalidParameterError("every part must have one entry of each label, and one number.")

    @property
    def count(self) -> int:
        """How many parts there are."""
        return len(next(iter(self.labels.values()), self.numbers or ()))


def key_labels(columns: Sequence[str], keys: Sequence[tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Return the labels of parts that have keys: one column for each column of the keys.

    Their names begin with "key_", to distinguish them from our own columns.

    >>> key_labels(("city", "year"), [("Rome", 2020), ("Oslo", 2021)])
    {'key_city': ('Rome', 'Oslo'), 'key_year': (2020, 2021)}
    """
    return {f"key_{name}": tuple(key[i] for key in keys) for i, name in enumerate(columns)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Release(Generic[Value]):
    """A published value with its guarantee and its confidence interval.

    Attributes:
        name: The name of the statistic.
        value: The published value; None if the mechanism failed, which is private and charged, too.
        interval: The confidence interval, one for each number, or None.
        guarantee: Epsilon, delta, relation and privacy unit.
        event: The event that was charged.
        notes: Sentences about the release that belong beside the value.
        parts: The labels and numbers of a value that is not a single number.
        account: The name of the account that was charged, or None.
        recorded: Whether a ledger records the charge.
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
        """Return the release as JSON, and write it to a file if a path is given.

        Args:
            path: The file to write. None writes no file.

        Returns:
            The JSON text.

        Raises:
            InvalidParameterError: If the file cannot be written.
        """
        return export.written(export.to_json(self), path)

    def card(self, *, title: str | None = None) -> PrivacyCard:
        """Return the privacy card of the release, for those who read its numbers.

        Args:
            title: The title of the card. Default: the name of the statistic.

        Returns:
            The card. The numbers are not on it, because they have pages of their own (`to_json`).
        """
        accountant, theorem = proved_by(self.event, self.guarantee)
        study = next((note for note in self.notes if note.startswith(words.STUDY)), None)
        return PrivacyCard(
            title=self.name if title is None else title,
            released=self.name,
            data="the data",
            covers="this release alone",
            guarantee=self.guarantee,
            theorem=theorem,
            accountant=accountant,
            mechanism=(f"Charged: {told(self.event)}.",),
            numerics=(words.noise_source(study), words.WHOLE_NUMBERS, words.COST_IN_FLOATS),
            study_note=study,
            account=self.account,
            record_note=next((note for note in self.notes if note.startswith(UNRECORDED)), None),
            facts={"statistic": self.name} | {f"note {i}": n for i, n in enumerate(self._remarks(), start=1)},
            code_version=words.code_version(),
        )

    def _remarks(self) -> list[str]:
        """Return the notes that are neither about the noise nor about the ledger."""
        return [note for note in self.notes if not note.startswith((words.STUDY, UNRECORDED))]

    def to_csv(self, path: str | os.PathLike[str] | None = None, *, escape_formulas: bool = True) -> str:
        """Return the release as CSV, one row for each number, and write it to a file if a path is given.

        Args:
            path: The file to write. None writes no file.
            escape_formulas: Whether text that a spreadsheet would run as a formula (it begins with =, +, -,
                @, a tab or a line break) is prefixed with an apostrophe.

        Returns:
            The CSV text, with a header.

        Raises:
            InvalidParameterError: If the file cannot be written.
        """
        return export.written(export.to_csv(self, escape_formulas=escape_formulas), path)

    def to_pandas(self) -> Any:
        """Return the release as a pandas frame with the rows and columns of `to_csv`, without escaping.

        Returns:
            The pandas frame.

        Raises:
            InvalidParameterError: If pandas is not installed.
        """
        return export.to_pandas(self)

    def _repr_html_(self) -> str:
        from sfumato.statistics.views import release_view  # only notebooks need it

        return release_view(self)

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
