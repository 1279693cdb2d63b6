# SPDX-License-Identifier: Apache-2.0
"""What a statistic of a workload is, and the first two: numbers of rows and of different values.

Guarantee  Each statistic costs `event(spend, reach)`, for all groups together: its exact totals move by at
           most the norms that its noise is made for (`spending.Reach`). A count moves by one for each row.
           The number of different values of a column moves by at most one for each row too; that of the
           unit's own column by one for each group that the unit is in.
Edge cases Counts are whole numbers: Gaussian noise is rounded. Intervals cover the noise only.
Failure    Parameters are public. They are checked when a statistic is constructed.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.mechanisms.random import Generator
from sfumato.queries.spending import Noise, Reach, Spend
from sfumato.queries.totals import Bins, Found, Total
from sfumato.queries.totals import Kind as TotalKind
from sfumato.statistics.arrays import Integers
from sfumato.statistics.intervals import LaplaceLaw, Law, around, half_width, whole_half_width
from sfumato.statistics.noise import Kind
from sfumato.statistics.release import Interval

__all__ = ["Cell", "Count", "CountDistinct", "Statistic", "check_terms", "noise_for"]

_NOT_NEGATIVE = (0.0, math.inf)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One released number, and its interval if it has one.

    Args:
        value: The number, or None if the mechanism failed, which is part of the release.
        interval: The confidence interval, or None.
    """

    value: float | None
    interval: Interval | None = None


class Statistic(Protocol):
    """One statistic of a workload, stated without data. Make one with `count()`, `sum(...)` and so on."""

    @property
    def share(self) -> float:
        """The share of the budget, relative to the others."""
        ...

    @property
    def error(self) -> float | None:
        """The half width of the interval that is wanted, or None."""
        ...

    @property
    def name(self) -> str:
        """What is asked, such as "sum of amount"."""
        ...

    def totals(self) -> tuple[Total, ...]:
        """Return the exact totals that are needed.

        Returns:
            The totals.
        """
        ...

    def bins(self) -> tuple[Bins, ...]:
        """Return the histograms that are needed.

        Returns:
            The histograms.
        """
        ...

    def event(self, spend: Spend, reach: Reach) -> DpEvent:
        """Return the event that all groups together are charged with.

        Args:
            spend: What the statistic may spend.
            reach: How far one unit reaches.

        Returns:
            The event.
        """
        ...

    def answer(
        self, found: Found, spend: Spend, reach: Reach, *, level: float, generator: Generator | None
    ) -> list[Cell]:
        """Return the number of each group, with noise.

        Args:
            found: The exact totals.
            spend: What the statistic may spend.
            reach: How far one unit reaches.
            level: The confidence level of intervals.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            One cell for each group.
        """
        ...

    def expected_error(self, spend: Spend, reach: Reach, *, level: float, size: int) -> tuple[float, str]:
        """Return how far off the number of a group may be, from public numbers alone.

        Args:
            spend: What the statistic may spend.
            reach: How far one unit reaches.
            level: The confidence level.
            size: An assumed number of rows of a group.

        Returns:
            The half width of the interval, and its unit.
        """
        ...


def check_terms(statistic: Statistic) -> None:
    """Refuse a share or an error that is not above 0."""
    _check.positive(share=statistic.share)
    if statistic.error is not None:
        _check.positive(error=statistic.error)


# --- counts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """The number of rows of each group, or of those with a value in a column."""

    column: str | None = None
    share: float = 1.0
    error: float | None = None

    def __post_init__(self) -> None:
        check_terms(self)

    @property
    def name(self) -> str:
        """What is asked."""
        return "number of rows" if self.column is None else f"number of values of {self.column}"

    def totals(self) -> tuple[Total, ...]:
        """Return the exact totals that are needed."""
        return (Total(TotalKind.ROWS) if self.column is None else Total(TotalKind.KNOWN, self.column),)

    def bins(self) -> tuple[Bins, ...]:
        """Return no histogram."""
        return ()

    def noise(self, spend: Spend, reach: Reach) -> Noise:
        """Return the noise of all groups."""
        return noise_for(spend, reach, l1=reach.l1, l2=reach.l2_of_counts)

    def event(self, spend: Spend, reach: Reach) -> DpEvent:
        """Return the event that all groups together are charged with."""
        return self.noise(spend, reach).event()

    def answer(
        self, found: Found, spend: Spend, reach: Reach, *, level: float, generator: Generator | None
    ) -> list[Cell]:
        """Return the counts with noise, as whole numbers."""
        return _counted(found.totals[self.totals()[0]], self.noise(spend, reach), level, generator)

    def expected_error(self, spend: Spend, reach: Reach, *, level: float, size: int) -> tuple[float, str]:
        """Return the half width of the interval of a count."""
        return float(_whole_distance(self.noise(spend, reach).law, level)), "rows"


@dataclass(frozen=True, kw_only=True, slots=True)
class CountDistinct:
    """The number of different values of a column in each group."""

    column: str
    share: float = 1.0
    error: float | None = None

    def __post_init__(self) -> None:
        _check.text(column=self.column)
        check_terms(self)

    @property
    def name(self) -> str:
        """What is asked."""
        return f"number of different values of {self.column}"

    def totals(self) -> tuple[Total, ...]:
        """Return the exact totals that are needed."""
        return (Total(TotalKind.DISTINCT, self.column),)

    def bins(self) -> tuple[Bins, ...]:
        """Return no histogram."""
        return ()

    def noise(self, spend: Spend, reach: Reach) -> Noise:
        """Return the noise of all groups. A unit is one value of its own column, in each of its groups."""
        if self.column != reach.unit:
            return noise_for(spend, reach, l1=reach.l1, l2=reach.l2_of_counts)
        moved = reach.most_groups * reach.relation.diameter
        return noise_for(spend, reach, l1=moved, l2=math.sqrt(moved))

    def event(self, spend: Spend, reach: Reach) -> DpEvent:
        """Return the event that all groups together are charged with."""
        return self.noise(spend, reach).event()

    def answer(
        self, found: Found, spend: Spend, reach: Reach, *, level: float, generator: Generator | None
    ) -> list[Cell]:
        """Return the counts with noise, as whole numbers."""
        return _counted(found.totals[self.totals()[0]], self.noise(spend, reach), level, generator)

    def expected_error(self, spend: Spend, reach: Reach, *, level: float, size: int) -> tuple[float, str]:
        """Return the half width of the interval of a count."""
        return float(_whole_distance(self.noise(spend, reach).law, level)), "values"


# --- parts


def noise_for(spend: Spend, reach: Reach, *, l1: int, l2: float, kind: Kind = Kind.COUNTS) -> Noise:
    """Return noise for a statistic."""
    return Noise(spend=spend, relation=reach.relation, kind=kind, l1=l1, l2=l2)


def _whole_distance(law: Law, level: float) -> int:
    """Return the half width of an interval of whole numbers."""
    if isinstance(law, LaplaceLaw):
        return whole_half_width(law, level=level)
    return max(0, math.ceil(half_width(law, level=level) - 0.5))  # continuous noise, rounded


def _counted(exact: Integers, noise: Noise, level: float, generator: Generator | None) -> list[Cell]:
    noisy = np.rint(noise.add(exact, generator=generator)) + 0.0  # which has no negative zero
    distance = _whole_distance(noise.law, level)
    return [
        Cell(value=value, interval=around(value, distance, level=level, within=_NOT_NEGATIVE))
        for value in noisy.tolist()
    ]
