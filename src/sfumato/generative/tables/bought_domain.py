# SPDX-License-Identifier: Apache-2.0
"""Columns whose values nobody declared: they are bought with a share of the budget of the same release.

Categories are found by the thresholded key discovery of `sfumato.statistics`: a category is listed if enough
units have it. Bins of numbers follow a noisy histogram whose cells grow with the size (`bought_bins`).
Whether a column holds the one or the other can be bought, too (`bought_kinds`).

Guarantee  Everything is charged by events that were fixed before a row was read: `(epsilon, delta)` for all
           bought columns together, divided evenly. Categories and bins are outputs of these mechanisms, and
           what is not listed counts as missing.
Neighbors  Add-or-remove; a unit has at most `rows_per_unit` rows, so at most as many categories.
Edge cases If no category is listed, every cell is missing. If there are too few rows for bins, these cover
           all sizes up to `largest`. A category is known by its text, so that 1 and "1" are one.
Source     `statistics.groups.key_discovery`, `bought_bins`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sfumato import _check
from sfumato.accounting.events import DpEvent, compose
from sfumato.generative.tables.bought_bins import BinsQuestion
from sfumato.generative.tables.bought_kinds import KindQuestion, UntypedQuestion
from sfumato.generative.tables.cells import Cells, numbers_of, text_of
from sfumato.generative.tables.domain import Category, Domain, Field, Number
from sfumato.generative.tables.private_table import PrivateColumns
from sfumato.mechanisms.random import Generator
from sfumato.statistics.groups.key_discovery import KeyDiscovery

__all__ = ["DomainPurchase", "UnknownCategory", "UnknownColumn", "UnknownNumber"]

_KIND_SHARE = 0.25  # of the epsilon of a column of unknown type, for its type


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownCategory:
    """A column of categories that the release must find.

    Args:
        most: The most categories to keep. If more are found, the first in the order of their text are kept.

    Raises:
        InvalidParameterError: If `most` is not a whole number above 0.
    """

    most: int = 200

    def __post_init__(self) -> None:
        _check.count(most=self.most)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownNumber:
    """A column of numbers whose bins the release must find: narrow where the rows are, and zero by itself.

    Args:
        bins: The most bins.
        whole: Whether the numbers are whole.
        smallest: The smallest size that is distinguished from zero, public; of whole numbers at least 1.
        largest: The largest size of a number, public. Larger ones count in the outermost bins.

    Raises:
        InvalidParameterError: If a parameter is out of range.
    """

    bins: int = 32
    whole: bool = False
    smallest: float = 2.0**-20
    largest: float = 2.0**40

    def __post_init__(self) -> None:
        self.question(epsilon=1.0)  # checks all of them

    def question(self, *, epsilon: float, rows_per_unit: int = 1) -> BinsQuestion:
        """Return what is asked about the column.

        Args:
            epsilon: The epsilon of the question.
            rows_per_unit: The most rows of one unit.

        Returns:
            The question.
        """
        return BinsQuestion(
            epsilon=epsilon,
            bins=self.bins,
            whole=self.whole,
            smallest=self.smallest,
            largest=self.largest,
            rows_per_unit=rows_per_unit,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownColumn:
    """A column of which not even the type is known: the release finds whether it holds numbers or categories.

    A fourth of what the column costs is for that. Text among numbers becomes missing.

    Args:
        most: The most categories to keep, as of `UnknownCategory`.
        bins: The most bins, as of `UnknownNumber`.

    Raises:
        InvalidParameterError: If a parameter is out of range.
    """

    most: int = 200
    bins: int = 32

    def __post_init__(self) -> None:
        _check.count(most=self.most, bins=self.bins)

    def question(self, name: str, *, epsilon: float, delta: float, rows_per_unit: int) -> UntypedQuestion:
        """Return what is asked about the column.

        Args:
            name: The name of the column.
            epsilon: The epsilon of everything that is asked.
            delta: The delta of it.
            rows_per_unit: The most rows of one unit.

        Returns:
            The questions.
        """
        rest = (1 - _KIND_SHARE) * epsilon
        numbers, whole = (
            UnknownNumber(bins=self.bins, whole=known).question(epsilon=rest, rows_per_unit=rows_per_unit)
            for known in (False, True)
        )
        return UntypedQuestion(
            kind=KindQuestion(epsilon=_KIND_SHARE * epsilon, rows_per_unit=rows_per_unit),
            categories=KeyDiscovery(
                columns=(name,), epsilon=rest, delta=delta, contribution_bound=rows_per_unit
            ),
            numbers=numbers,
            whole=whole,
        )


_UNKNOWN = (UnknownCategory, UnknownColumn, UnknownNumber)
Column = Field | UnknownCategory | UnknownColumn | UnknownNumber
Question = KeyDiscovery | BinsQuestion | UntypedQuestion


@dataclass(frozen=True, kw_only=True)
class DomainPurchase:
    """What is declared and what is bought, with its price.

    Args:
        columns: The declaration of each column, known or unknown.
        epsilon: The epsilon for all unknown columns together.
        delta: The delta for all unknown columns together.
        rows_per_unit: The most rows of one unit.

    Raises:
        UnknownDomainError: If a column is neither declared nor to be bought.
        InvalidParameterError: If a number is out of range.

    >>> DomainPurchase(columns={"a": Category(values=["x"])}, epsilon=0.1, delta=1e-7).event()
    NoOpDpEvent()
    """

    columns: Mapping[str, Column]
    epsilon: float
    delta: float
    rows_per_unit: int = 1

    def __post_init__(self) -> None:
        declared = {
            name: Category(values=()) if isinstance(column, _UNKNOWN) else column
            for name, column in self.columns.items()
        }
        Domain(declared)  # checks names and kinds
        _check.count(rows_per_unit=self.rows_per_unit)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names of the columns that are bought."""
        return tuple(name for name, column in self.columns.items() if isinstance(column, _UNKNOWN))

    def questions(self) -> dict[str, Question]:
        """Return what is asked about each unknown column.

        Returns:
            The questions, by column.
        """
        return {name: self._question(name) for name in self.unknown}

    def _question(self, name: str) -> Question:
        column, share = self.columns[name], self.epsilon / len(self.unknown)
        delta, bound = self.delta / len(self.unknown), self.rows_per_unit
        if isinstance(column, UnknownColumn):
            return column.question(name, epsilon=share, delta=delta, rows_per_unit=bound)
        if isinstance(column, UnknownCategory):
            return KeyDiscovery(columns=(name,), epsilon=share, delta=delta, contribution_bound=bound)
        assert isinstance(column, UnknownNumber)
        return column.question(epsilon=share, rows_per_unit=self.rows_per_unit)

    def event(self) -> DpEvent:
        """Return the event of all purchases.

        Returns:
            The event, which an accountant prices.
        """
        return compose(*(question.event() for question in self.questions().values()))

    def buy(self, data: PrivateColumns, *, generator: Generator | None) -> Domain:
        """Return the domain: what was declared, and what the mechanisms found.

        Args:
            data: The private columns.
            generator: Source of randomness. None is secure.

        Returns:
            The domain.
        """
        found: dict[str, Field] = {
            name: column for name, column in self.columns.items() if isinstance(column, Category | Number)
        }
        for name, question in self.questions().items():
            cells = data.cells[name]
            if isinstance(question, UntypedQuestion):
                question = question.next(cells, generator=generator)
            if isinstance(question, KeyDiscovery):
                found[name] = self._categories(name, question, cells, generator)
            else:
                found[name] = question.buy(numbers_of(cells), generator=generator)
        return Domain({name: found[name] for name in self.columns})

    def _categories(
        self, name: str, question: KeyDiscovery, cells: Cells, generator: Generator | None
    ) -> Category:
        counted = Counter(text for text in map(text_of, cells) if text is not None)
        keys = sorted(counted)
        # A unit of k rows changes the counts of at most k keys, but one of them by up to k: the discovery
        # counts units, so each count is divided by k and rounded up, which one unit moves by at most 1.
        bound = self.rows_per_unit
        counts = np.array([-(-counted[key] // bound) for key in keys], dtype=np.int64)
        kept = question.mechanism().release(counts, generator=generator) if keys else np.zeros(0, bool)
        column = self.columns[name]
        most = column.most if isinstance(column, UnknownCategory | UnknownColumn) else 0
        return Category(values=tuple(key for key, keep in zip(keys, kept, strict=True) if keep)[:most])
