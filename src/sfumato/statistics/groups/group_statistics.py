# SPDX-License-Identifier: Apache-2.0
"""Counts, sums and means of groups of rows, released as one noisy vector.

Guarantee  One unit has at most k rows (`owned_rows`), in one group or spread over several. In both cases it
           changes a vector of counts by at most k in L1 norm, and a vector of sums by at most k times the
           largest value; the noise is calibrated to that (`noise`). Sums are exact whole numbers: values are
           clipped to the bounds and rounded to a grid whose step is a power of two, at most 2^-19 of the
           largest value, so whole numbers up to 2^20 are on it exactly. For means, the sums around the middle
           of the bounds and the numbers of rows, the latter in half STEPS, get noise as one vector; their
           ratio is clipped to the bounds. Half STEPS for a row give the sum, whose noise matters more, two
           thirds of a pure epsilon.
Edge cases Intervals cover the noise. Each is for its own key (95% of them hold, not all at once), for up to
           `MOST_INTERVALS` keys.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.mechanisms.random import Generator
from sfumato.statistics.arrays import Floats, Integers
from sfumato.statistics.columns.columns import STEPS, Bounds
from sfumato.statistics.columns.table_columns import clipped, stepped, whole
from sfumato.statistics.contributions.owned_rows import Expression, OwnedRows, number
from sfumato.statistics.intervals import Law, accepted, around, half_width, whole_half_width
from sfumato.statistics.noise import Kind, WholeNoise, l2_of_counts
from sfumato.statistics.query import Answer
from sfumato.statistics.release import Covers, Interval, Parts, key_labels
from sfumato.statistics.terms import Terms

__all__ = [
    "MOST_INTERVALS",
    "GroupCount",
    "GroupMean",
    "GroupSum",
    "RowCount",
    "Totals",
    "in_grid",
    "step_of",
]

MOST_INTERVALS = 1000
_HALF = STEPS // 2  # the weight of a row in the count of a mean
_NOT_NEGATIVE = (0.0, math.inf)

Key = tuple[Hashable, ...]
Value = Callable[[Expression], Expression]


class Totals(Protocol):
    """The data that the questions of this module need."""

    @property
    def owned(self) -> OwnedRows:
        """The rows, their engine and the units that own them."""
        ...

    def totals(self, column: str | None, value: Value | None) -> Expression:
        """Return the query for counts, and for sums of a value of a column."""
        ...

    def compute(self, column: str | None, value: Value | None) -> tuple[Integers, Integers]:
        """Return counts and sums in the order of the keys."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RowCount(Terms):
    """The number of rows of a table, at most `contribution_bound` of each unit."""

    unit: str | None = None

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        if self.unit is not None and self.contribution_bound == 1:
            return f"number of units ({self.unit})"
        return "number of rows" + _of_each(self.unit, self.contribution_bound)

    def event(self) -> DpEvent:
        """Return the event that a release is charged with."""
        return _count_noise(self, 1).event()

    def answer(self, data: OwnedRows, *, generator: Generator | None) -> Answer[float]:
        """Return the counts with noise."""
        noise = _count_noise(self, 1)
        noisy = noise.add(data.counts(self.contribution_bound), generator=generator)
        return Answer(value=float(noisy[0]), interval=_whole_intervals(noisy, noise.law, self.level)[0])

    def plan(self, data: OwnedRows) -> str:
        """Return the SQL that the engine would run."""
        return data.sql(data.count(self.contribution_bound))


def _of_each(unit: str | None, bound: int) -> str:
    return "" if unit is None else f", at most {bound} of each {unit}"


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupCount(Terms):
    """The number of rows of each key, at most `contribution_bound` of each unit in all."""

    columns: tuple[str, ...]
    keys: tuple[Key, ...]
    unit: str | None = None

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"number of rows by {', '.join(self.columns)}" + _of_each(self.unit, self.contribution_bound)

    def event(self) -> DpEvent:
        """Return the event that a release is charged with."""
        return _count_noise(self, len(self.keys)).event()

    def answer(self, data: Totals, *, generator: Generator | None) -> Answer[dict[Any, float]]:
        """Return the counts with noise."""
        noise = _count_noise(self, len(self.keys))
        noisy = noise.add(data.compute(None, None)[0], generator=generator)
        if len(noisy) > MOST_INTERVALS:
            return _answer(self, noisy, None)
        return _answer(self, noisy, _whole_intervals(noisy, noise.law, self.level))

    def plan(self, data: Totals) -> str:
        """Return the SQL that the engine would run."""
        return data.owned.sql(data.totals(None, None))


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSum(Terms):
    """The sum of a column for each key."""

    columns: tuple[str, ...]
    keys: tuple[Key, ...]
    bounds: Bounds

    def __post_init__(self) -> None:
        Terms.__post_init__(self)
        _check.summable(bounds=self.bounds)

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"sum of {self.column} by {', '.join(self.columns)}"

    @property
    def step(self) -> float:
        """The step of the grid: a power of two; the largest value has at most 2^20 steps."""
        return step_of(self.bounds)

    @property
    def _largest(self) -> float:
        return max(abs(bound) for bound in self.bounds)

    def _noise(self) -> WholeNoise:
        most = math.ceil(self._largest / self.step)
        return _sum_noise(self, most, most, len(self.keys))

    def event(self) -> DpEvent:
        """Return the event that a release is charged with."""
        return self._noise().event()

    def answer(self, data: Totals, *, generator: Generator | None) -> Answer[dict[Any, float]]:
        """Return the sums with noise."""
        noise = self._noise()
        noisy = noise.add(data.compute(self.column, self._steps)[1], generator=generator) * self.step
        if len(noisy) > MOST_INTERVALS:
            return _answer(self, noisy, None)
        distance = half_width(noise.law, level=self.level) * self.step
        within = (-math.inf if self.bounds[0] < 0 else 0.0, math.inf if self.bounds[1] > 0 else 0.0)
        return _answer(
            self,
            noisy,
            [around(value, distance, level=self.level, within=within) for value in noisy.tolist()],
        )

    def _steps(self, value: Expression) -> Expression:
        return in_grid(value, self.bounds)

    def plan(self, data: Totals) -> str:
        """Return the SQL that the engine would run."""
        return data.owned.sql(data.totals(self.column, self._steps))


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupMean(Terms):
    """The mean of a column for each key."""

    columns: tuple[str, ...]
    keys: tuple[Key, ...]
    bounds: Bounds

    def __post_init__(self) -> None:
        Terms.__post_init__(self)
        _check.bounds(bounds=self.bounds)

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"mean of {self.column} by {', '.join(self.columns)}"

    def _noise(self) -> WholeNoise:
        return _sum_noise(self, STEPS + _HALF, math.hypot(STEPS, _HALF), 2 * len(self.keys))

    def event(self) -> DpEvent:
        """Return the event that a release is charged with."""
        return self._noise().event()

    def answer(self, data: Totals, *, generator: Generator | None) -> Answer[dict[Any, float]]:
        """Return the ratios of noisy sums, around the middle of the bounds, and noisy counts."""
        noise = self._noise()
        counts, totals = data.compute(self.column, self._steps)
        noisy = noise.add(np.concatenate([counts * _HALF, totals]), generator=generator)
        counted, added = noisy[: len(self.keys)] / _HALF, noisy[len(self.keys) :] / STEPS
        shares = np.clip(added / np.maximum(counted, 1.0), -1.0, 1.0)
        if len(shares) > MOST_INTERVALS:
            return _answer(self, self._means(shares), None)
        intervals = [
            self._interval(*of_group, noise.law)
            for of_group in zip(shares.tolist(), added.tolist(), counted.tolist(), strict=True)
        ]
        return _answer(self, self._means(shares), intervals)

    def _steps(self, value: Expression) -> Expression:
        return stepped(value, self.bounds)

    def _means(self, shares: Floats) -> Floats:
        lower, upper = self.bounds
        return np.clip(lower / 2 + upper / 2 + (upper / 2 - lower / 2) * shares, lower, upper)

    def _interval(self, center: float, added: float, counted: float, law: Law) -> Interval:
        """Return the interval of means, around the one released, that these noisy sums do not reject."""

        def p_value(share: float) -> float:
            return law.tail(abs(added - share * counted) * STEPS, weights=(1.0, share * STEPS / _HALF))

        ends = accepted(p_value, center=center, within=(-1.0, 1.0), level=self.level)
        lower, upper = self._means(np.array(ends)).tolist()
        return Interval(lower=lower, upper=upper, level=self.level, covers=(Covers.NOISE,))

    def plan(self, data: Totals) -> str:
        """Return the SQL that the engine would run."""
        return data.owned.sql(data.totals(self.column, self._steps))


def step_of(bounds: Bounds) -> float:
    """Return the step of the grid for sums: a power of two; the largest value has at most 2^20 steps.

    >>> step_of((0, 1000)) == 2.0**-10
    True
    """
    return math.ldexp(1.0, math.frexp(max(abs(bound) for bound in bounds))[1] - 20)


def in_grid(value: Expression, bounds: Bounds) -> Expression:
    """Return values in whole steps of the grid for sums, clipped to the bounds."""
    return whole(clipped(value, bounds) * number(1 / step_of(bounds)))


def _count_noise(terms: Terms, keys: int) -> WholeNoise:
    rows, diameter = terms.contribution_bound, terms.relation.diameter
    return WholeNoise(
        epsilon=terms.epsilon,
        delta=terms.delta,
        relation=terms.relation,
        kind=Kind.COUNTS,
        l1_sensitivity=rows * diameter,
        l2_sensitivity=l2_of_counts(rows, terms.relation),
        coordinates=min(keys, rows * diameter),
    )


def _sum_noise(terms: Terms, l1_of_row: int, l2_of_row: float, numbers: int) -> WholeNoise:
    """Return noise for sums, given the norms of one row; all rows of a unit may be in one group."""
    rows = terms.contribution_bound * terms.relation.diameter
    return WholeNoise(
        epsilon=terms.epsilon,
        delta=terms.delta,
        relation=terms.relation,
        kind=Kind.STEPS,
        l1_sensitivity=rows * l1_of_row,
        l2_sensitivity=rows * l2_of_row,
        coordinates=min(numbers, 2 * rows),
    )


def _answer(
    question: GroupCount | GroupSum | GroupMean, values: Floats, intervals: list[Interval] | None
) -> Answer[dict[Any, float]]:
    labels = [key[0] if len(key) == 1 else key for key in question.keys]
    return Answer(
        value=dict(zip(labels, values.tolist(), strict=True)),
        parts=Parts(labels=key_labels(question.columns, question.keys), numbers=tuple(values.tolist())),
        interval=None if intervals is None else tuple(intervals),
        notes=() if intervals else (f"intervals are given for up to {MOST_INTERVALS} keys",),
    )


def _whole_intervals(noisy: Floats, law: Law, level: float) -> list[Interval]:
    distance = whole_half_width(law, level=level)
    return [around(value, distance, level=level, within=_NOT_NEGATIVE) for value in noisy.tolist()]
