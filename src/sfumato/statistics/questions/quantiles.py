# SPDX-License-Identifier: Apache-2.0
"""Median and quantiles by the exponential mechanism; many at once by recursive halving.

Guarantee  One quantile costs one exponential mechanism of `epsilon`. Of m quantiles the middle one is drawn
           first; it cuts the rows in two, and each half is asked for its own quantiles, so a row takes part
           in at most floor(log2 m) + 1 draws, each of one share of epsilon. Shares add up to epsilon, or with
           a delta are composed by the accountant.
Neighbors  Add-or-remove: one row moves a score by max(q, 1 - q), q being the quantile within the half that is
           asked. Replace-one: the first draw has sensitivity 1; later the old and the new row may lie in two
           halves, so each is drawn for half of the share. A unit of k rows counts k times.
Interval   With a `level`, two points are drawn in place of one, below the wanted rank and above it, and the
           rows below, between and above them are counted, with noise. An end is kept if the counts show it to
           be on its side; else the bound takes its place, and a note says so. That fails for at most 1 -
           level of all releases whatever the data: ties, gaps and thin tails only make ends fall back more
           often. (What is drawn may be far off there: the exponential mechanism likes wide gaps.) So an
           interval covers at least its level, and clearly more where values lie evenly. The value is the
           middle of the two points. With `population`, the counts must also allow for the spread of a
           sample's rank. Many quantiles at once come without intervals: their errors depend on one another.
Missing    NaN is left out, infinities are clipped. No rows at all, or few for this epsilon: a point of the
           bounds about as likely as any other.
Grid       `resolution` cells over the bounds, 2^32 for values in memory and 2^16 where an engine counts them,
           unless given: it is public.
Source     Smith 2011, Algorithm 2 (one); Kaplan, Schnapp and Stemmer 2022, arXiv:2110.05429 (many); ranks
           and their sensitivity: `statistics.questions.ranks`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting import calibrate
from sfumato.accounting.events import DpEvent, ExponentialDpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms import DiscreteLaplace, Generator, inputs
from sfumato.statistics.columns.columns import Bounds, Column, column_of
from sfumato.statistics.intervals import Law, half_width
from sfumato.statistics.noise import Kind, WholeNoise, l2_of_counts
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.questions.ranks import Grid, Ranks, draw, grid_of, ranks_of, settle
from sfumato.statistics.release import Covers, Interval, Parts, Release

__all__ = ["Quantile", "Quantiles", "median", "quantile", "quantiles"]

Floats = npt.NDArray[np.float64]

_COUNT_SHARE = 0.05  # of epsilon, where the number of rows must be bought
_CHECK_SHARE = 0.35  # of epsilon, for the counts that show on which side the ends are; near the best choice
_KEPT = 0.99  # how likely each end is kept where values lie evenly
_BETWEEN = 1.5  # ranks: a quantile may lie between two values, and noise on counts is whole
_NO_INTERVAL = "no interval: many quantiles at once have errors that depend on one another."
_LEVEL_NONE = "no interval: ask with level=... for one, which is paid for with most of epsilon."
_FELL_BACK = (
    "an end that could not be told from the other side of the quantile is the bound itself: a larger epsilon "
    "or narrower bounds may give a better one."
)
_MIDDLE = "the value is the middle of the two points that were drawn for its interval."


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
            _check.delta(delta=self.delta)
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
        others = _CHECK_SHARE + (_COUNT_SHARE if self._buys_count else 0.0)
        rest = (
            self.epsilon * (1 - others) * (1 - 2**-40)
        )  # so that no rounding makes all shares exceed epsilon
        return _share(2, rest, self.delta, self.relation)

    def event(self) -> DpEvent:
        """Return what asking costs."""
        if self.level is None:
            return ExponentialDpEvent(self.share)
        counted = [self._count().event()] if self._buys_count else []
        return compose(*[ExponentialDpEvent(self.share)] * 2, self._check_noise().event(), *counted)

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[float]:
        """Draw the quantile, or both ends of its interval."""
        grid, q = grid_of(data, self.bounds, self.resolution), settle(self.q)
        ranks = ranks_of(data, grid)
        if self.level is None:
            value = grid.value(self._draw(ranks, q, self.share, generator))
            return Answer(value=value, notes=(_LEVEL_NONE,))
        stddev = self._stddev(ranks, generator)
        needed = [self._needed(side, stddev) for side in self._sides]
        far = max(needed) + self._leeway()
        drawn = sorted(self._draw(ranks, q, self.share, generator, shift=shift) for shift in (-far, far))
        ends = grid.around(drawn[0], drawn[1])
        counts = self._check_noise().add(ranks.parted(*ends), generator=generator)
        below, above = (float(counts @ side) for side in self._sides)
        return self._stated(grid, drawn, ends, (-below >= needed[0], above >= needed[1]))

    def _stated(
        self, grid: Grid, drawn: list[float], ends: tuple[int, int], kept: tuple[bool, bool]
    ) -> Answer[float]:
        """Return the middle of what was drawn, and the interval between the ends that were kept."""
        covers = (Covers.NOISE, Covers.SAMPLING) if self.population else (Covers.NOISE,)
        # One part further out: whether a value on a border is above or below it is a matter of rounding.
        lower = grid.value(ends[0] - 1) if kept[0] else self.bounds[0]
        upper = grid.value(ends[1] + 1) if kept[1] else self.bounds[1]
        interval = Interval(lower=lower, upper=upper, level=cast(float, self.level), covers=covers)
        value = grid.value(drawn[0]) / 2 + grid.value(drawn[1]) / 2
        return Answer(value=value, interval=interval, notes=(_MIDDLE, *([] if all(kept) else [_FELL_BACK])))

    @property
    def _sides(self) -> tuple[Floats, Floats]:
        """How rows below, between and above the ends count: for the rank of each end, less the wanted one."""
        below, above = 1 - self.q, -self.q
        return np.array([below, above, above]), np.array([below, below, above])

    def _needed(self, side: Floats, stddev: float) -> float:
        """Return how many ranks an end must seem to be on its side; only one of the two can be beyond it."""
        miss = 1 - cast(float, self.level)
        if miss >= 0.5:
            return _BETWEEN
        law = self._check_noise().law
        return _BETWEEN + _exceeded(law, miss, tuple(side.tolist()), stddev)

    def _leeway(self) -> float:
        """Return how many ranks further the points are drawn, so that what is drawn passes the check."""
        law = self._check_noise().law
        # The rank of a draw is off by a Laplace variable of this scale where values lie evenly.
        scale = 2 * float(self._reach(settle(self.q), first=True)) / self.share
        drawn = math.sqrt(2) * scale / law.stddev
        return max(_exceeded(law, 1 - _KEPT, (drawn, *side.tolist()), 0.0) for side in self._sides)

    def _stddev(self, ranks: Ranks, generator: Generator | None) -> float:
        """Return the standard deviation of the rank of the population's quantile in the sample."""
        if not self.population:
            return 0.0
        rows = self.public_size or max(1, self._count().release(ranks.rows, generator=generator))
        return math.sqrt(rows * self.q * (1 - self.q))

    def _check_noise(self) -> WholeNoise:
        """Return the noise for the rows below, between and above the ends: a row is in one of these."""
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


@lru_cache(maxsize=256)
def _exceeded(law: Law, chance: float, weights: tuple[float, ...], stddev: float) -> float:
    """Return what weighted noises and a normal error together exceed with this chance."""
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
