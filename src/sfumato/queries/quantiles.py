# SPDX-License-Identifier: Apache-2.0
"""Quantiles of groups: one exponential mechanism in each group, on the histogram of the group.

Guarantee  All groups together cost `event`. In one group the question `statistics.Quantile` is made for a
           unit of r rows (`Reach.rows`). A unit with n of them moves the scores of that group by n / r of
           their sensitivity, so its draw there has a range of privacy losses of n / r epsilon. Ranges add up:
           over all groups, n / r is at most `Reach.groups`, so the draws together are bounded in range by
           that many epsilons. Counts that check the ends of an interval move by one for each row.
Neighbors  Replacing a unit removes its rows and adds others, so ranges and counts move twice as far. Each
           group gets a mechanism for added rows at half of the epsilon, and the event states both.
Edge cases Without `interval`, the number has no interval. The grid has `resolution` cells over the bounds.
           A group without rows gets a number that is spread evenly over the bounds.
Source     Durfee and Rogers 2019, arXiv:1905.04273 (bounded range); `statistics.questions.quantiles`.
"""

import math
from dataclasses import dataclass
from typing import Any, cast

from sfumato import _check
from sfumato.accounting import events
from sfumato.accounting.events import DpEvent, ExponentialDpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator
from sfumato.queries.counts import Cell, check_terms
from sfumato.queries.spending import Reach, Spend
from sfumato.queries.totals import Bins, Found, Total
from sfumato.statistics.columns.columns import Bounds
from sfumato.statistics.questions import quantiles
from sfumato.statistics.release import Interval

__all__ = ["CELLS", "Quantile"]

CELLS = 2**12


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantile:
    """A quantile of a column in each group, with values clipped to bounds."""

    column: str
    q: float
    bounds: Bounds
    interval: bool = False
    resolution: int = CELLS
    share: float = 1.0
    error: float | None = None

    def __post_init__(self) -> None:
        _check.text(column=self.column)
        _check.bounds(bounds=self.bounds)
        _check.in_range(0, 1, q=self.q)
        _check.count(resolution=self.resolution)
        _check.in_range(1, 2**16, resolution=self.resolution)
        object.__setattr__(self, "bounds", (float(self.bounds[0]), float(self.bounds[1])))
        check_terms(self)
        if self.error is not None:
            raise InvalidParameterError(
                "the error of a quantile depends on the values, which are private: pass share=... for it."
            )

    @property
    def name(self) -> str:
        """What is asked."""
        return f"median of {self.column}" if self.q == 0.5 else f"quantile {self.q:g} of {self.column}"

    def totals(self) -> tuple[Total, ...]:
        """Return no total."""
        return ()

    def bins(self) -> tuple[Bins, ...]:
        """Return the histogram that is needed."""
        return (Bins(self.column, self.bounds, self.resolution),)

    def event(self, spend: Spend, reach: Reach) -> DpEvent:
        """Return the event that all groups together are charged with."""
        counted = events.leaves(self._in_one_group(spend, reach, level=0.95).event())
        parts = [_for_relation(part, reach.relation) for part, times in counted.items() for _ in range(times)]
        return compose(*parts * reach.groups)

    def answer(
        self, found: Found, spend: Spend, reach: Reach, *, level: float, generator: Generator | None
    ) -> list[Cell]:
        """Draw the quantile of each group."""
        question = self._in_one_group(spend, reach, level=level)
        cells: list[Cell] = []
        for group in found.bins[self.bins()[0]]:
            answer = question.answer(cast(Any, group), generator=generator)
            known = answer.interval if isinstance(answer.interval, Interval) else None
            cells.append(Cell(value=answer.value, interval=known))
        return cells

    def expected_error(self, spend: Spend, reach: Reach, *, level: float, size: int) -> tuple[float, str]:
        """Return by how many ranks the number may be off, if values are spread evenly."""
        share = self._in_one_group(spend, reach, level=level).share
        scale = 2 * reach.rows * max(self.q, 1 - self.q) / share
        return scale * math.log(1 / (1 - level)), "ranks"

    def _in_one_group(self, spend: Spend, reach: Reach, *, level: float) -> quantiles.Quantile:
        groups = math.sqrt(reach.groups) if spend.gaussian else reach.groups  # rho adds up, as squares do
        parts = reach.relation.diameter * groups * (1 + 2**-40)  # so that rounding never adds up to more
        return quantiles.Quantile(
            q=self.q,
            bounds=self.bounds,
            epsilon=spend.epsilon / parts,
            relation=Relation.ADD_REMOVE,
            contribution_bound=reach.rows,
            resolution=self.resolution,
            level=level if self.interval else None,
            column=self.column,
        )


def _for_relation(event: DpEvent, relation: Relation) -> DpEvent:
    """Return the event of a mechanism for added rows, if a unit may be replaced.

    An exponential mechanism states its own range, which doubles. Events of counts are relative to one
    contribution, and the accountant doubles it.
    """
    if isinstance(event, ExponentialDpEvent):
        return ExponentialDpEvent(event.epsilon * relation.diameter)
    return event
