# SPDX-License-Identifier: Apache-2.0
"""Several private quantiles at once, by recursive halving.

Guarantee  Of m quantiles the middle one is drawn first. It splits the rows in two, and the quantiles of each
           half are drawn from that half. So a row takes part in at most floor(log2 m) + 1 draws, each with
           one share of epsilon. Shares add up to epsilon, or with a delta are composed by the accountant.
Neighbors  Add-or-remove: one row changes a score by max(q, 1 - q), where q is the quantile within the half
           that is drawn from. Replace-one: the first draw has sensitivity 1; in later draws the old and the
           new row may lie in two halves, so each is drawn with half of the share. A unit of k rows counts k
           times.
Edge cases There are no intervals, because the errors of the quantiles depend on one another. Missing values,
           infinities and `resolution`: as in `quantiles`.
Source     Kaplan, Schnapp and Stemmer 2022, arXiv:2110.05429; ranks and their sensitivity: `ranks`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sfumato import _check
from sfumato.accounting.events import DpEvent, ExponentialDpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms import Generator
from sfumato.statistics.columns.columns import Bounds, Column, column_of
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.questions.ranks import Ranks, RankTerms, grid_of, ranks_of, settle, share_of_draws
from sfumato.statistics.release import Parts, Release

__all__ = ["Quantiles", "quantiles"]

_NO_INTERVAL = "no interval: many quantiles at once have errors that depend on one another."


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantiles(RankTerms):
    """Several quantiles at once, by recursive halving.

    Args:
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        resolution: The number of grid cells over the bounds, public. None means 2^32 in memory and 2^16 in an
            engine.
        column: The name of the column, as releases show it.
        qs: The quantiles, each between 0 and 1.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> Quantiles(qs=(0.25, 0.5, 0.75), bounds=(0, 100), epsilon=1.0).event()
    SelfComposedDpEvent(event=ExponentialDpEvent(epsilon=0.5), count=2)
    """

    qs: tuple[float, ...]

    def __post_init__(self) -> None:
        RankTerms.__post_init__(self)
        if not self.qs:
            raise InvalidParameterError("pass at least one quantile, as in qs=(0.25, 0.5, 0.75).")
        for q in self.qs:
            _check.in_range(0, 1, q=q)

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"{len(self.qs)} quantiles of {self.column}"

    @property
    def levels(self) -> int:
        """The largest number of draws that a row takes part in."""
        return len(set(map(settle, self.qs))).bit_length()

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event, which an accountant prices.
        """
        share = share_of_draws(self.levels, self.epsilon, self.delta, self.relation)
        return compose(*[ExponentialDpEvent(share)] * self.levels)

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[tuple[float, ...]]:
        """Draw all quantiles.

        Args:
            data: The private column.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The quantiles in the order of `qs`, without intervals.
        """
        grid = grid_of(data, self.bounds, self.resolution)
        wanted = sorted(set(map(settle, self.qs)))
        points: dict[Fraction, float] = {}
        self._halve(ranks_of(data, grid), wanted, (Fraction(0), Fraction(1)), points, generator)
        ordered = dict(zip(wanted, sorted(grid.value(points[q]) for q in wanted), strict=True))
        found = tuple(ordered[settle(q)] for q in self.qs)
        return Answer(
            value=found, notes=(_NO_INTERVAL,), parts=Parts(labels={"q": tuple(self.qs)}, numbers=found)
        )

    def _halve(
        self,
        ranks: Ranks,
        wanted: Sequence[Fraction],
        within: tuple[Fraction, Fraction],
        points: dict[Fraction, float],
        generator: Generator | None,
    ) -> None:
        """Draw the middle one of the quantiles, then the others from the rows on its two sides."""
        if not wanted:
            return
        (least, most), middle = within, wanted[len(wanted) // 2]
        share = share_of_draws(self.levels, self.epsilon, self.delta, self.relation)
        relative = settle((middle - least) / (most - least)) if most > least else Fraction(1, 2)
        point = self.draw(ranks, relative, share, generator, first=within == (0, 1))
        points[middle] = point
        left, right = ranks.split(min(max(math.floor(point), ranks.low), ranks.high))
        self._halve(left, wanted[: len(wanted) // 2], (least, middle), points, generator)
        self._halve(right, wanted[len(wanted) // 2 + 1 :], (middle, most), points, generator)


def quantiles(
    values: Any,
    qs: Sequence[float],
    *,
    bounds: Bounds,
    epsilon: float,
    delta: float = 0.0,
    relation: str | Relation = Relation.ADD_REMOVE,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[tuple[float, ...]]:
    """Release several quantiles at once, in the order of `qs`.

    For another `resolution`, release a `Query` of `Quantiles(...)`.

    Args:
        values: Numbers in a list, array or series, or a column of a private table. Missing values are left
            out.
        qs: The quantiles, each between 0 and 1.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        account: The account to charge before any data is read. None means that no account is charged.
        purpose: The purpose that the account records. None means the name of the statistic.
        generator: The source of randomness. None means secure randomness from the operating system.

    Returns:
        The release, with its value and its guarantee.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `values` are not numbers. Nothing is
            charged.
        BudgetExceededError: If the account has too little budget left. Nothing is computed.
        QueryFailedError: If the engine of a table fails. The cost stays charged.

    >>> low, high = quantiles(range(100), (0.25, 0.75), bounds=(0, 100), epsilon=50.0).value
    >>> 20 <= low <= 30 and 70 <= high <= 80
    True
    """
    column = column_of(values)
    question = Quantiles(
        column=column.name,
        qs=tuple(qs),
        bounds=bounds,
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=column.contribution_bound,
    )
    return Query(question, column).release(account=account, purpose=purpose, generator=generator)
