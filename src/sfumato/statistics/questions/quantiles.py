# SPDX-License-Identifier: Apache-2.0
"""Private median and quantile, by the exponential mechanism.

Guarantee  One quantile costs one exponential mechanism of `epsilon`. With a `level`, two points are drawn and
           rows are counted, and their shares of epsilon add up, or with a delta are composed by the
           accountant.
Neighbors  Add-or-remove: one row changes a score by max(q, 1 - q). Replace-one: by 1. A unit of k rows counts
           k times.
Edge cases With a `level`, one point is drawn below the wanted rank and one above it, and the rows below,
           between and above them are counted, with noise. An end is kept if the counts show that it is on its
           side; otherwise the bound replaces it, and a note says so. An end on the wrong side is kept in at
           most 1 - level of all releases, whatever the data: ties, gaps and thin tails only make ends fall
           back to the bound more often, as the exponential mechanism prefers wide gaps. So an interval covers
           at least its level, and clearly more if values are spread evenly. The value is the middle of the
           two points. With `population`, the counts must also allow for the spread of a sample's rank.
           NaN is left out, infinities are clipped. Without rows, or with few rows for this epsilon, all
           points within the bounds are about equally likely. `resolution` is the number of cells over the
           bounds, and is public: 2^32 for values in memory and 2^16 if an engine counts them, unless given.
Source     Smith 2011, Algorithm 2; ranks and their sensitivity: `ranks`.
Not here   Several quantiles at once: `many_quantiles`.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np

from sfumato import _check
from sfumato.accounting.events import DpEvent, ExponentialDpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms import DiscreteLaplace, Generator
from sfumato.statistics.arrays import Floats
from sfumato.statistics.columns.columns import Bounds, Column, column_of
from sfumato.statistics.intervals import Law, half_width
from sfumato.statistics.noise import Kind, WholeNoise, l2_of_counts
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.questions.ranks import (
    Grid,
    Ranks,
    RankTerms,
    grid_of,
    ranks_of,
    settle,
    share_of_draws,
)
from sfumato.statistics.release import Covers, Interval, Release

__all__ = ["Quantile", "median", "quantile"]


_COUNT_SHARE = 0.05  # of epsilon, if it pays for the number of rows
_CHECK_SHARE = 0.35  # of epsilon, for the counts that check the ends; close to the best choice
_KEPT = 0.99  # probability that each end is kept if values are spread evenly
_BETWEEN = 1.5  # ranks: a quantile may lie between two values, and noise on counts is whole
_LEVEL_NONE = "no interval: pass level=... for one, which most of epsilon pays for."
_FELL_BACK = (
    "an end of the interval could not be shown to be on its side of the quantile and is the bound itself: a "
    "larger epsilon or narrower bounds may give a better one."
)
_MIDDLE = "the value is the middle of the two points that were drawn for the interval."


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantile(RankTerms):
    """One quantile, and its interval if a `level` is given.

    Args:
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        resolution: The number of grid cells over the bounds, public. None means 2^32 in memory and 2^16 in an
            engine.
        column: The name of the column, as releases show it.
        q: The quantile, between 0 and 1. For 1 every value above all rows is as good as any other, up to the
            upper bound, and for 0 below all rows: take 0.99 or 0.01 to stay near them.
        level: The confidence level of the interval, which most of epsilon pays for. None means no interval.
        population: Whether the interval also covers the sampling error, with rows as independent draws from a
            population.
        public_size: The number of rows, if it is public. None means that it is private.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> question = Quantile(q=0.5, bounds=(0, 100), epsilon=1.0, column="age")
    >>> question.name, question.event()
    ('median of age', ExponentialDpEvent(epsilon=1.0))
    """

    q: float
    level: float | None = None
    population: bool = False
    public_size: int | None = None

    def __post_init__(self) -> None:
        RankTerms.__post_init__(self)
        _check.in_range(0, 1, q=self.q)
        if self.level is not None:
            _check.probability(level=self.level)
        if self.public_size is not None:
            _check.count(public_size=self.public_size)
        if self.population and self.level is None:
            raise InvalidParameterError("population=True needs an interval: pass level=0.95, too.")
        if self._sampled and self.public_size is None and self.relation is Relation.REPLACE_ONE:
            raise InvalidParameterError(
                "under replace-one neighbors the number of rows is public: pass public_size=..., as an "
                "interval for the population depends on it."
            )

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"median of {self.column}" if self.q == 0.5 else f"quantile {self.q:g} of {self.column}"

    @property
    def _sampled(self) -> bool:
        return self.level is not None and self.population

    @property
    def _buys_count(self) -> bool:
        return self._sampled and self.public_size is None

    @property
    def share(self) -> float:
        """The epsilon of one draw."""
        if self.level is None:
            return self.epsilon
        others = _CHECK_SHARE + (_COUNT_SHARE if self._buys_count else 0.0)
        rest = (
            self.epsilon * (1 - others) * (1 - 2**-40)
        )  # so that rounding never makes the shares exceed epsilon
        return share_of_draws(2, rest, self.delta, self.relation)

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event, which an accountant prices.
        """
        if self.level is None:
            return ExponentialDpEvent(self.share)
        counted = [self._count().event()] if self._buys_count else []
        return compose(*[ExponentialDpEvent(self.share)] * 2, self._check_noise().event(), *counted)

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[float]:
        """Draw the quantile, or both ends of its interval.

        Args:
            data: The private column.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The quantile, and its interval if a level is given.
        """
        grid, q = grid_of(data, self.bounds, self.resolution), settle(self.q)
        ranks = ranks_of(data, grid)
        if self.level is None:
            value = grid.value(self.draw(ranks, q, self.share, generator))
            return Answer(value=value, notes=(_LEVEL_NONE,))
        stddev = self._stddev(ranks, generator)
        needed = [self._needed(side, stddev) for side in self._sides]
        far = max(needed) + self._leeway()
        drawn = sorted(self.draw(ranks, q, self.share, generator, shift=shift) for shift in (-far, far))
        ends = grid.around(drawn[0], drawn[1])
        counts = self._check_noise().add(ranks.parted(*ends), generator=generator)
        below, above = (float(counts @ side) for side in self._sides)
        return self._stated(grid, drawn, ends, (-below >= needed[0], above >= needed[1]))

    def _stated(
        self, grid: Grid, drawn: list[float], ends: tuple[int, int], kept: tuple[bool, bool]
    ) -> Answer[float]:
        """Return the middle of the two points, and the interval between the ends that were kept."""
        covers = (Covers.NOISE, Covers.SAMPLING) if self.population else (Covers.NOISE,)
        # One part further out, because rounding decides on which side of a border a value lies.
        lower = grid.value(ends[0] - 1) if kept[0] else self.bounds[0]
        upper = grid.value(ends[1] + 1) if kept[1] else self.bounds[1]
        interval = Interval(lower=lower, upper=upper, level=cast(float, self.level), covers=covers)
        value = grid.value(drawn[0]) / 2 + grid.value(drawn[1]) / 2
        return Answer(value=value, interval=interval, notes=(_MIDDLE, *([] if all(kept) else [_FELL_BACK])))

    @property
    def _sides(self) -> tuple[Floats, Floats]:
        """The weights of rows below, between and above the ends in the error in rank of each end."""
        below, above = 1 - self.q, -self.q
        return np.array([below, above, above]), np.array([below, below, above])

    def _needed(self, side: Floats, stddev: float) -> float:
        """Return the ranks by which an end must be on its side; at most one of the two can be wrong."""
        miss = 1 - cast(float, self.level)
        if miss >= 0.5:
            return _BETWEEN
        law = self._check_noise().law
        return _BETWEEN + _exceeded(law, miss, tuple(side.tolist()), stddev)

    def _leeway(self) -> float:
        """Return the ranks by which the points are drawn further out, so that they pass the check."""
        law = self._check_noise().law
        # If values are spread evenly, the error in rank of a draw is Laplace with this scale.
        scale = 2 * float(self.reach(settle(self.q), first=True)) / self.share
        drawn = math.sqrt(2) * scale / law.stddev
        return max(_exceeded(law, 1 - _KEPT, (drawn, *side.tolist()), 0.0) for side in self._sides)

    def _stddev(self, ranks: Ranks, generator: Generator | None) -> float:
        """Return the standard deviation of the rank of the population's quantile in the sample."""
        if not self.population:
            return 0.0
        rows = self.public_size or max(1, self._count().release(ranks.rows, generator=generator))
        return math.sqrt(rows * self.q * (1 - self.q))

    def _check_noise(self) -> WholeNoise:
        """Return the noise for the numbers of rows below, between and above the ends: a row is in one."""
        return WholeNoise(
            epsilon=self.epsilon * _CHECK_SHARE,
            delta=0.0,
            relation=self.relation,
            kind=Kind.COUNTS,
            l1_sensitivity=self.contribution_bound * self.relation.diameter,
            l2_sensitivity=l2_of_counts(self.contribution_bound, self.relation),
            coordinates=3,
        )

    def _count(self) -> DiscreteLaplace:
        return DiscreteLaplace.calibrated(
            epsilon=self.epsilon * _COUNT_SHARE, sensitivity=self.contribution_bound, relation=self.relation
        )


@lru_cache(maxsize=256)
def _exceeded(law: Law, chance: float, weights: tuple[float, ...], stddev: float) -> float:
    """Return the value that weighted noises and a normal error together exceed with this probability."""
    return half_width(law, level=1 - 2 * chance, weights=weights, stddev=stddev)


def quantile(
    values: Any,
    q: float,
    *,
    bounds: Bounds,
    epsilon: float,
    delta: float = 0.0,
    relation: str | Relation = Relation.ADD_REMOVE,
    level: float | None = None,
    population: bool = False,
    public_size: int | None = None,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[float]:
    """Release the value below which a share `q` of the rows lies.

    For another `resolution`, release a `Query` of `Quantile(...)`.

    Args:
        values: Numbers in a list, array or series, or a column of a private table. Missing values are left
            out.
        q: The quantile, between 0 and 1. For 1 every value above all rows is as good as any other, up to the
            upper bound, and for 0 below all rows: take 0.99 or 0.01 to stay near them.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        level: The confidence level of the interval, which most of epsilon pays for. None means no interval.
        population: Whether the interval also covers the sampling error, with rows as independent draws from a
            population.
        public_size: The number of rows, if it is public. None means that it is private.
        account: The account to charge before any data is read. None means that no account is charged.
        purpose: The purpose that the account records. None means the name of the statistic.
        generator: The source of randomness. None means secure randomness from the operating system.

    Returns:
        The release, with its value, its confidence interval and its guarantee.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `values` are not numbers. Nothing is
            charged.
        BudgetExceededError: If the account has too little budget left. Nothing is computed.
        QueryFailedError: If the engine of a table fails. The cost stays charged.

    >>> 70 <= quantile(range(100), 0.75, bounds=(0, 100), epsilon=50.0).value <= 80
    True
    """
    column = column_of(values)
    question = Quantile(
        column=column.name,
        q=q,
        bounds=bounds,
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=column.contribution_bound,
        level=level,
        population=population,
        public_size=public_size,
    )
    return Query(question, column).release(account=account, purpose=purpose, generator=generator)


def median(
    values: Any,
    *,
    bounds: Bounds,
    epsilon: float,
    delta: float = 0.0,
    relation: str | Relation = Relation.ADD_REMOVE,
    level: float | None = None,
    population: bool = False,
    public_size: int | None = None,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[float]:
    """Release the median: the value in the middle of the rows.

    For another `resolution`, release a `Query` of `Quantile(q=0.5, ...)`.

    Args:
        values: Numbers in a list, array or series, or a column of a private table. Missing values are left
            out.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        level: The confidence level of the interval, which most of epsilon pays for. None means no interval.
        population: Whether the interval also covers the sampling error, with rows as independent draws from a
            population.
        public_size: The number of rows, if it is public. None means that it is private.
        account: The account to charge before any data is read. None means that no account is charged.
        purpose: The purpose that the account records. None means the name of the statistic.
        generator: The source of randomness. None means secure randomness from the operating system.

    Returns:
        The release, with its value, its confidence interval and its guarantee.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `values` are not numbers. Nothing is
            charged.
        BudgetExceededError: If the account has too little budget left. Nothing is computed.
        QueryFailedError: If the engine of a table fails. The cost stays charged.

    >>> release = median(range(100), bounds=(0, 100), epsilon=50.0)
    >>> 45 <= release.value <= 55, release.name
    (True, 'median of values')
    """
    return quantile(
        values,
        0.5,
        bounds=bounds,
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        level=level,
        population=population,
        public_size=public_size,
        account=account,
        purpose=purpose,
        generator=generator,
    )
