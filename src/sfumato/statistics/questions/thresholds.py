# SPDX-License-Identifier: Apache-2.0
"""Many counts asked about, few answered: which ranges of a column hold at least so many rows?

Guarantee  `FirstAbove` costs one sparse vector run, however many ranges are asked about: those below the
           threshold are free, and the run ends with the last of `max_answers` above it.
Neighbors  A unit of at most k rows moves each range's count by at most k; all in one direction if it is added
           or removed, which halves the noise of comparisons.
Split      Of what the comparisons get, the threshold takes 1 part and they (2 c)^(2/3), c^(2/3) for counts
           that move in one direction, with c = max_answers: the least variance of their difference. Counts,
           if they are asked for, get a third of epsilon.
Answer     The ranges found above, in the order asked, each with its noisy count if `counted`. Ranges may
           overlap and come in any order: ask about the likeliest first.
Interval   One for each count, covering its noise, which is fresh: it had no part in the comparison.
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

_ANSWER_SHARE = 1 / 3  # of epsilon, where counts are asked for


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A range [lower, upper) that was found to hold enough rows, and its noisy count if that was bought."""

    lower: float
    upper: float
    count: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstAbove(Terms):
    """Which of these ranges are the first to hold at least `threshold` rows?

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
            raise InvalidParameterError("ranges must name at least one range: [(lower, upper), ...].")
        if self.delta != 0:
            raise InvalidParameterError("a sparse vector run is pure: leave delta out.")
        known = tuple((inputs.parameter("ranges", a), inputs.parameter("ranges", b)) for a, b in self.ranges)
        object.__setattr__(self, "ranges", known)

    @property
    def name(self) -> str:
        """What is asked."""
        return f"ranges of {self.column} above {self.threshold:g} rows"

    def event(self) -> DpEvent:
        """Return what the whole run costs, whatever it finds."""
        return self._run(None).event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[tuple[Found, ...]]:
        """Return the ranges found above the threshold until there were enough of them."""
        run, found = self._run(generator), list[Found]()
        for (lower, upper), rows in zip(self.ranges, self._rows(data), strict=True):
            if run.answers_left == 0:
                break
            said = run.ask(float(rows))
            if isinstance(said, bool):
                found += [Found(lower=lower, upper=upper)] if said else []
            elif said is not None:
                found.append(Found(lower=lower, upper=upper, count=said))
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
        # One bin more on either side, for what lies outside every range.
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
    """Release the first ranges [lower, upper) that hold at least `threshold` values, at the cost of one run.

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
