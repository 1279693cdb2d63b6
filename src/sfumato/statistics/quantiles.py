# SPDX-License-Identifier: Apache-2.0
"""Median and quantiles by the exponential mechanism; many at once by recursive halving.

Guarantee  One quantile costs one exponential mechanism of `epsilon`. Of m quantiles the middle one is drawn
           first; it cuts the rows in two, and each half is asked for its own quantiles, so a row takes part
           in at most floor(log2 m) + 1 draws, each of one share of epsilon. Shares add up to epsilon, or with
           a delta are composed by the accountant.
Neighbors  Add-or-remove: one row moves a score by max(q, 1 - q), q being the quantile within the half that is
           asked. Replace-one: the first draw has sensitivity 1; later the old and the new row may lie in two
           halves, so each is drawn for half of the share. A unit of k rows counts k times.
Interval   With a `level`, two points are drawn in place of one, each with half of epsilon: near a rank below
           the wanted one and near a rank above it, so far off that each lies on its side with the chance that
           the level asks for. The value is the middle of the two. How far: the rank of a draw is off by a
           Laplace variable where values lie evenly around it, which is an approximation, good where the
           density changes little over 8 / epsilon rows. With `population`, the spread of a sample's rank is
           added. Many quantiles at once come without intervals: their errors depend on one another.
Missing    NaN is left out, infinities are clipped. No rows at all, or few for this epsilon: a point of the
           bounds about as likely as any other.
Grid       `resolution` cells over the bounds, 2^32 for values in memory and 2^16 where an engine counts them,
           unless given: it is public.
Source     Smith 2011, Algorithm 2 (one); Kaplan, Schnapp and Stemmer 2022, arXiv:2110.05429 (many); ranks
           and their sensitivity: `statistics.ranks`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, cast

from dp_accounting import dp_event as dp
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from sfumato import _check
from sfumato.accounting import calibrate
from sfumato.accounting.events import DpEvent, ExponentialDpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms import DiscreteLaplace, Generator, inputs
from sfumato.statistics.asking import Answer, Query
from sfumato.statistics.columns import Bounds, Column, column_of
from sfumato.statistics.ranks import Ranks, draw, grid_of, ranks_of, settle
from sfumato.statistics.release import Covers, Interval, Release

__all__ = ["Quantile", "Quantiles", "median", "quantile", "quantiles"]

_COUNT_SHARE = 0.05  # of epsilon, where the number of rows must be bought
_NO_INTERVAL = "no interval: many quantiles at once have errors that depend on one another."
_LEVEL_NONE = (
    "no interval: ask with level=... for one, which is paid with half of epsilon for each of its ends."
)
_MIDDLE = "the value is the middle of its interval."


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ranked:
    """What every question about ranks has."""

    bounds: Bounds
    epsilon: float
    delta: float = 0.0
    relation: Relation = Relation.ADD_REMOVE
    contribution_bound: int = 1
    resolution: int | None = None
    column: str = "values"

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        if self.delta != 0:
            _check.probability(delta=self.delta)
        _check.count(contribution_bound=self.contribution_bound)
        _check.text(column=self.column)
        object.__setattr__(self, "relation", Relation.parse(self.relation))
        if self.relation not in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
            raise InvalidParameterError(
                f"quantiles are made for add-remove and replace-one neighbors, not {self.relation.value}."
            )
        inputs.settle(self, "epsilon", "delta")
        inputs.settle_bounds(self, self.bounds)

    def _reach(self, q: Fraction, *, first: bool) -> Fraction:
        """Return how far one unit moves a score; after the first draw a replaced row may touch two halves."""
        one_more = max(q, 1 - q)
        if self.relation is Relation.REPLACE_ONE:
            one_more = Fraction(1) if first else 2 * one_more
        return self.contribution_bound * one_more

    def _draw(
        self, ranks: Ranks, q: Fraction, epsilon: float, generator: Generator | None, *, first: bool = True,
        shift: float = 0.0,
    ) -> float:  # fmt: skip
        reach = self._reach(q, first=first)
        return draw(
            ranks, q, epsilon=epsilon, sensitivity=reach, relation=self.relation, shift=shift,
            generator=generator,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantile(_Ranked):
    """One quantile; with a `level`, its interval too.

    >>> question = Quantile(q=0.5, bounds=(0, 100), epsilon=1.0, column="age")
    >>> question.name, question.event()
    ('median of age', ExponentialDpEvent(epsilon=1.0))
    """

    q: float
    level: float | None = None
    population: bool = False
    public_size: int | None = None

    def __post_init__(self) -> None:
        _Ranked.__post_init__(self)
        _check.in_range(0, 1, q=self.q)
        if self.level is not None:
            _check.probability(level=self.level)
        if self.public_size is not None:
            _check.count(public_size=self.public_size)
        if self.population and self.level is None:
            raise InvalidParameterError("population=True is about the interval: say its level=0.95, too.")
        if self._sampled and self.public_size is None and self.relation is Relation.REPLACE_ONE:
            raise InvalidParameterError(
                "under replace-one neighbors the number of rows is public: say it with public_size=..., "
                "as an interval for the population depends on it."
            )

    @property
    def name(self) -> str:
        """What is asked."""
        return f"median of {self.column}" if self.q == 0.5 else f"quantile {self.q:g} of {self.column}"

    @property
    def _sampled(self) -> bool:
        return self.level is not None and self.population

    @property
    def _buys_count(self) -> bool:
        return self._sampled and self.public_size is None

    @property
    def share(self) -> float:
        """Return the epsilon of one draw."""
        if self.level is None:
            return self.epsilon
        draws = self.epsilon * (1 - _COUNT_SHARE) if self._buys_count else self.epsilon
        return _share(2, draws, self.delta, self.relation)

    def event(self) -> DpEvent:
        """Return what asking costs."""
        drawn = [ExponentialDpEvent(self.share)] * (1 if self.level is None else 2)
        return compose(*drawn, *([self._count().event()] if self._buys_count else []))

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[float]:
        """Draw the quantile, or both ends of its interval."""
        grid, q = grid_of(data, self.bounds, self.resolution), settle(self.q)
        ranks = ranks_of(data, grid)
        if self.level is None:
            value = grid.value(self._draw(ranks, q, self.share, generator))
            return Answer(value=value, notes=(_LEVEL_NONE,))
        far = self._distance(ranks, generator)
        ends = [grid.value(self._draw(ranks, q, self.share, generator, shift=s)) for s in (-far, far)]
        covers = (Covers.NOISE, Covers.SAMPLING) if self.population else (Covers.NOISE,)
        interval = Interval(lower=min(ends), upper=max(ends), level=self.level, covers=covers)
        return Answer(value=ends[0] / 2 + ends[1] / 2, interval=interval, notes=(_MIDDLE,))

    def _distance(self, ranks: Ranks, generator: Generator | None) -> float:
        """Return how many ranks below and above the wanted one the two ends are asked for."""
        scale = 2 * float(self._reach(settle(self.q), first=True)) / self.share
        # Gaps between values are as random as the values: of exponential ones, to first order.
        miss = (1 - cast(float, self.level)) / 2 / (1 + 1 / (4 * scale))
        if not self.population:
            return -scale * math.log(2 * miss)
        rows = self.public_size or max(1, self._count().release(ranks.rows, generator=generator))
        stddev = math.sqrt(rows * self.q * (1 - self.q))
        return _distance(miss, scale, stddev)

    def _count(self) -> DiscreteLaplace:
        return DiscreteLaplace.calibrated(
            epsilon=self.epsilon * _COUNT_SHARE, sensitivity=self.contribution_bound, relation=self.relation
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantiles(_Ranked):
    """Several quantiles at once, by recursive halving.

    >>> Quantiles(qs=(0.25, 0.5, 0.75), bounds=(0, 100), epsilon=1.0).event()
    SelfComposedDpEvent(event=ExponentialDpEvent(epsilon=0.5), count=2)
    """

    qs: tuple[float, ...]

    def __post_init__(self) -> None:
        _Ranked.__post_init__(self)
        if not self.qs:
            raise InvalidParameterError("name at least one quantile, as in qs=(0.25, 0.5, 0.75).")
        for q in self.qs:
            _check.in_range(0, 1, q=q)

    @property
    def name(self) -> str:
        """What is asked."""
        return f"{len(self.qs)} quantiles of {self.column}"

    @property
    def levels(self) -> int:
        """Return how many draws a row takes part in at most."""
        return len(set(map(settle, self.qs))).bit_length()

    def event(self) -> DpEvent:
        """Return what asking costs."""
        share = _share(self.levels, self.epsilon, self.delta, self.relation)
        return compose(*[ExponentialDpEvent(share)] * self.levels)

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[tuple[float, ...]]:
        """Draw all quantiles."""
        grid = grid_of(data, self.bounds, self.resolution)
        wanted = sorted(set(map(settle, self.qs)))
        points: dict[Fraction, float] = {}
        self._halve(ranks_of(data, grid), wanted, (Fraction(0), Fraction(1)), points, generator)
        ordered = dict(zip(wanted, sorted(grid.value(points[q]) for q in wanted), strict=True))
        return Answer(value=tuple(ordered[settle(q)] for q in self.qs), notes=(_NO_INTERVAL,))

    def _halve(
        self,
        ranks: Ranks,
        wanted: Sequence[Fraction],
        within: tuple[Fraction, Fraction],
        points: dict[Fraction, float],
        generator: Generator | None,
    ) -> None:
        """Draw the middle one of the wanted quantiles, then the others from the rows on its two sides."""
        if not wanted:
            return
        (least, most), middle = within, wanted[len(wanted) // 2]
        share = _share(self.levels, self.epsilon, self.delta, self.relation)
        relative = settle((middle - least) / (most - least)) if most > least else Fraction(1, 2)
        point = self._draw(ranks, relative, share, generator, first=within == (0, 1))
        points[middle] = point
        left, right = ranks.split(min(max(math.floor(point), ranks.low), ranks.high))
        self._halve(left, wanted[: len(wanted) // 2], (least, middle), points, generator)
        self._halve(right, wanted[len(wanted) // 2 + 1 :], (middle, most), points, generator)


@lru_cache(maxsize=256)
def _share(draws: int, epsilon: float, delta: float, relation: Relation) -> float:
    """Return the epsilon of each of so many draws that together meet the budget."""
    share = epsilon / draws
    while draws * share > epsilon:
        share = math.nextafter(share, 0.0)
    if delta == 0 or draws == 1:
        return share

    def event(each: float) -> DpEvent:
        return dp.SelfComposedDpEvent(ExponentialDpEvent(each), draws)

    bracket = (share, 64 * share)
    return calibrate(event, epsilon=epsilon, delta=delta, relation=relation, bracket=bracket, cost_rises=True)


def _distance(miss: float, scale: float, stddev: float) -> float:
    """Return the distance that a Laplace plus a Gaussian variable exceeds with probability `miss`."""
    if stddev == 0:
        return -scale * math.log(2 * miss)

    def excess(far: float) -> float:
        z, ratio = far / stddev, stddev / scale
        near = math.exp(ratio * ratio / 2 - far / scale + float(log_ndtr(z - ratio)))
        beyond = math.exp(ratio * ratio / 2 + far / scale + float(log_ndtr(-z - ratio)))
        return float(ndtr(-z)) + (near - beyond) / 2 - miss

    farthest = -(scale + stddev) * math.log(miss) * 2 + stddev
    return cast(float, brentq(excess, 0.0, farthest))


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
    resolution: int | None = None,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[float]:
    """Return the value below which a share `q` of the rows lies.

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
        resolution=resolution,
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
    resolution: int | None = None,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[float]:
    """Return the value in the middle of the rows.

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
        resolution=resolution,
        account=account,
        purpose=purpose,
        generator=generator,
    )


def quantiles(
    values: Any,
    qs: Sequence[float],
    *,
    bounds: Bounds,
    epsilon: float,
    delta: float = 0.0,
    relation: str | Relation = Relation.ADD_REMOVE,
    resolution: int | None = None,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[tuple[float, ...]]:
    """Return several quantiles at once, in the order of `qs`.

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
        resolution=resolution,
    )
    return Query(question, column).release(account=account, purpose=purpose, generator=generator)
