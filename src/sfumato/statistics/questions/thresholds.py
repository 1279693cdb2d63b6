# SPDX-License-Identifier: Apache-2.0
"""The first ranges of a column that hold at least a given number of rows, by the sparse vector technique.

Guarantee  `FirstAbove` costs one sparse vector run, however many ranges are tested: ranges below the
           threshold are free, and the run ends with the last of `max_answers` above it. Of the budget of the
           comparisons, the threshold gets 1 part and the comparisons get (2 c)^(2/3), or c^(2/3) for counts
           that change in one direction, with c = max_answers: this minimizes the variance of their
           difference. Counts, if `counted`, get a third of epsilon.
Neighbors  A unit of at most k rows changes the count of each range by at most k; all in one direction if it
           is added or removed, which halves the noise of comparisons.
Edge cases The release contains the ranges found above the threshold, in the given order, each with its noisy
           count if `counted`. Ranges may overlap and come in any order, so pass the likeliest first. There is
           one interval for each count, which covers its noise; that noise is independent of the comparison.
Source     Lyu, Su, Li 2017, arXiv:1603.01699, Algorithm 7 and Section 4.2 (the split).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms import inputs
from sfumato.mechanisms.random import Generator
from sfumato.mechanisms.sparse_vector import AboveThreshold, SparseVector
from sfumato.statistics.columns.columns import Bounds, Column, column_of
from sfumato.statistics.intervals import LaplaceLaw, around, half_width
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.release import Parts, Release
from sfumato.statistics.terms import Terms

__all__ = ["FirstAbove", "Found", "first_above"]

_ANSWER_SHARE = 1 / 3  # of epsilon, if counts are requested


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A range [lower, upper) that was found to hold enough rows.

    Attributes:
        lower: The lower end, inside.
        upper: The upper end, outside.
        count: The noisy number of rows; None unless counts were requested.
    """

    lower: float
    upper: float
    count: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstAbove(Terms):
    """The first of these ranges that hold at least `threshold` rows.

    Args:
        epsilon: The privacy budget of this release.
        delta: Must be 0: a sparse vector run is pure.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        level: The confidence level of the interval, between 0 and 1.
        column: The name of the column, as releases show it.
        ranges: The ranges (lower, upper) to test in this order, public. A value equal to `upper` is outside.
        threshold: The number of rows that a range must hold, public.
        max_answers: The number of ranges above the threshold after which the run ends.
        counted: Whether the noisy counts of the ranges are released, too, for a third of epsilon.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> FirstAbove(ranges=((0, 10), (10, 20)), threshold=50, epsilon=1.0).event()
    SparseVectorDpEvent(threshold_epsilon=0.5, comparison_epsilon=0.5, answer_epsilon=0.0)
    """

    ranges: tuple[Bounds, ...]
    threshold: float
    max_answers: int = 1
    counted: bool = False

    def __post_init__(self) -> None:
        Terms.__post_init__(self)
        _check.finite(threshold=self.threshold)
        _check.count(max_answers=self.max_answers)
        for pair in self.ranges:
            _check.summable(range=pair)
        if not self.ranges:
            raise InvalidParameterError("ranges must contain at least one range: [(lower, upper), ...].")
        if self.delta != 0:
            raise InvalidParameterError("a sparse vector run has delta 0: remove delta.")
        known = tuple((inputs.parameter("ranges", a), inputs.parameter("ranges", b)) for a, b in self.ranges)
        object.__setattr__(self, "ranges", known)

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"ranges of {self.column} above {self.threshold:g} rows"

    def event(self) -> DpEvent:
        """Return the event that the whole run is charged with, whatever it finds.

        Returns:
            The event, which an accountant prices.
        """
        return self._run(None).event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[tuple[Found, ...]]:
        """Return the ranges found above the threshold, at most `max_answers` of them.

        Args:
            data: The private column.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The ranges that were found, with counts and intervals if `counted`.
        """
        run, found = self._run(generator), list[Found]()
        for (lower, upper), rows in zip(self.ranges, self._rows(data), strict=True):
            if run.answers_left == 0:
                break
            result = run.ask(float(rows))
            if isinstance(result, bool):
                found += [Found(lower=lower, upper=upper)] if result else []
            elif result is not None:
                found.append(Found(lower=lower, upper=upper, count=result))
        return Answer(value=tuple(found), interval=self._intervals(found), parts=self._parts(found))

    def _parts(self, found: list[Found]) -> Parts:
        labels = {"range_lower": tuple(f.lower for f in found), "range_upper": tuple(f.upper for f in found)}
        return Parts(labels=labels, numbers=tuple(f.count or 0.0 for f in found) if self.counted else None)

    def _intervals(self, found: list[Found]) -> Any:
        if not self.counted:
            return None
        scale = self.max_answers * self.contribution_bound / self._epsilons()[2]
        distance = half_width(LaplaceLaw(scale), level=self.level)
        ends = (0.0, float("inf"))
        return tuple(around(f.count or 0.0, distance, level=self.level, within=ends) for f in found)

    def _rows(self, data: Column) -> list[int]:
        """Count the rows in each range, from one histogram over all their ends."""
        ends = np.unique(np.array(self.ranges, dtype=np.float64))
        # One more bin on each side, for values outside every range.
        edges = np.concatenate([[np.nextafter(ends[0], -np.inf)], ends, [np.nextafter(ends[-1], np.inf)]])
        below = np.concatenate([[0], np.cumsum(data.histogram(edges))])  # rows below each edge
        place = {end: i + 1 for i, end in enumerate(ends.tolist())}
        return [int(below[place[upper]] - below[place[lower]]) for lower, upper in self.ranges]

    def _epsilons(self) -> tuple[float, float, float]:
        answers = self.epsilon * _ANSWER_SHARE if self.counted else 0.0
        weight = (self.max_answers * (2 if self.relation.replaces else 1)) ** (2 / 3)
        threshold = (self.epsilon - answers) / (1 + weight)
        return threshold, self.epsilon - answers - threshold, answers

    def _run(self, generator: Generator | None) -> AboveThreshold | SparseVector:
        threshold, comparison, answers = self._epsilons()
        if self.counted:
            return SparseVector(
                threshold=self.threshold,
                threshold_epsilon=threshold,
                comparison_epsilon=comparison,
                answer_epsilon=answers,
                sensitivity=float(self.contribution_bound),
                max_answers=self.max_answers,
                relation=self.relation,
                monotonic=not self.relation.replaces,
                generator=generator,
            )
        return AboveThreshold(
            threshold=self.threshold,
            threshold_epsilon=threshold,
            comparison_epsilon=comparison,
            sensitivity=float(self.contribution_bound),
            max_answers=self.max_answers,
            relation=self.relation,
            monotonic=not self.relation.replaces,
            generator=generator,
        )


def first_above(
    values: Any,
    *,
    ranges: Sequence[Bounds],
    threshold: float,
    epsilon: float,
    max_answers: int = 1,
    counted: bool = False,
    relation: Relation | str = Relation.ADD_REMOVE,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[tuple[Found, ...]]:
    """Release the first ranges [lower, upper) that hold at least `threshold` values, for the cost of one run.

    Args:
        values: Numbers in a list, array or series, or a column of a private table. Missing values are left
            out.
        ranges: The ranges (lower, upper) to test in this order, public. A value equal to `upper` is outside.
        threshold: The number of rows that a range must hold, public.
        epsilon: The privacy budget of this release.
        max_answers: The number of ranges above the threshold after which the run ends.
        counted: Whether the noisy counts of the ranges are released, too, for a third of epsilon.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        level: The confidence level of the interval, between 0 and 1.
        account: The account to charge before any data is read. None means that no account is charged.
        purpose: The purpose that the account records. None means the name of the statistic.
        generator: The source of randomness. None means secure randomness from the operating system.

    Returns:
        The release, with the ranges that were found, intervals of their counts and its guarantee.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `values` are not numbers. Nothing is
            charged.
        BudgetExceededError: If the account has too little budget left. Nothing is computed.
        QueryFailedError: If the engine of a table fails. The cost stays charged.

    >>> ages = [15.0] * 10 + [25.0] * 300
    >>> first_above(ages, ranges=[(0, 20), (20, 40), (40, 60)], threshold=100, epsilon=1.0).value
    (Found(lower=20.0, upper=40.0, count=None),)
    """
    data = column_of(values)
    question = FirstAbove(
        ranges=tuple(ranges),
        threshold=threshold,
        max_answers=max_answers,
        counted=counted,
        epsilon=epsilon,
        relation=Relation.parse(relation),
        contribution_bound=data.contribution_bound,
        level=level,
        column=data.name,
    )
    return Query(question, data).release(account=account, purpose=purpose, generator=generator)
