# SPDX-License-Identifier: Apache-2.0
"""The mean without good bounds, in one or many dimensions: CoinPress.

Guarantee  The mean costs `steps` Gaussian sums, and under add-or-remove a Gaussian count beside them: their
           rhos add up to the budget, whatever the steps find.
Method     A ball that should hold the mean is given by `bounds`. In each step rows are clipped to it, with
           room for their own spread, and the noisy mean is the center of a smaller ball. The last step has
           three quarters of the budget, and its clipping is as tight as the data allow.
Assumes    `stddev`, public, is at least the standard deviation along every direction, and tails are about
           Gaussian: about one row in a hundred is clipped, more if tails are heavier. Where this is wrong, or
           the mean is out of bounds, privacy holds all the same; the mean is off.
Neighbors  Add-or-remove: a row moves a sum by the radius, and the number of rows is bought with a small
           share. Replace-one: by twice the radius, and `public_size` is divided by; a row with a missing
           value then counts as the center.
Interval   The noise of the last step and of the count; of the rows as that step clips them.
Source     Biswas, Dong, Kamath and Ullman 2020, arXiv:2006.06618, Algorithms 1 and 2.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from sfumato import _check
from sfumato.accounting.events import DpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms import Generator
from sfumato.statistics.columns.columns import STEPS, Bounds, Column, Rows, column_of, rows_of
from sfumato.statistics.gaussian_vectors import (
    Concentrated,
    VectorGaussian,
    ball_reach,
    for_each_column,
    in_ball,
    whole_rows,
)
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.release import Covers, Interval, Parts, Release

__all__ = [
    "Ball",
    "CoinPressMean",
    "CoinPressMeans",
    "Sums",
    "coinpress_mean",
    "coinpress_means",
    "tail_length",
]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

Sums = Callable[[Floats, float], tuple[int, Integers]]  # of a center and a radius, in standard deviations

COUNT_SHARE = 0.08  # of the budget, for the number of rows
LAST_SHARE = 0.75  # of the rest, for the last step
BEYOND = 0.01  # of rows that lie further out than a ball leaves room for
DEVIATIONS = 3.0  # of a row along the direction in which the ball's center is off


def tail_length(dimension: int, beyond: float) -> float:
    """Return how long a standard Gaussian vector is at most, but for a chance of `beyond`.

    Laurent and Massart 2000, Lemma 1.

    >>> round(tail_length(1, 0.01), 2), round(tail_length(50, 0.01), 2)
    (3.81, 9.46)
    """
    far = math.log(1 / beyond)
    return math.sqrt(dimension + 2 * math.sqrt(dimension * far) + 2 * far)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ball:
    """Where the mean should be, in standard deviations from the middle of the bounds."""

    center: Floats
    radius: float
    stddevs: Floats  # of the noise in each coordinate of the center


@dataclass(frozen=True, kw_only=True, slots=True)
class CoinPressMeans(Concentrated):
    """The mean of rows, all columns at once.

    >>> question = CoinPressMeans(bounds=((-50, 50),) * 2, stddev=(1.0, 1.0), rho=0.5, delta=1e-6)
    >>> question.name, question.dimension
    ('mean of rows by CoinPress', 2)
    """

    bounds: tuple[Bounds, ...]
    stddev: tuple[float, ...]
    steps: int = 4
    level: float = 0.95
    column: str = "rows"

    def __post_init__(self) -> None:
        Concentrated.__post_init__(self)
        _check.count(steps=self.steps)
        _check.probability(level=self.level)
        if not self.bounds or len(self.bounds) != len(self.stddev):
            raise InvalidParameterError("bounds and stddev must have one entry for each column.")
        for bounds, stddev in zip(self.bounds, self.stddev, strict=True):
            _check.squarable(bounds=bounds)
            _check.scale(stddev=stddev)
            _check.resolvable(stddev, within=bounds)

    @property
    def name(self) -> str:
        """What is asked."""
        return f"mean of {self.column} by CoinPress"

    @property
    def dimension(self) -> int:
        """Return how many columns there are."""
        return len(self.bounds)

    @property
    def shares(self) -> tuple[float, ...]:
        """Return the share of the budget that each step has."""
        left = 1.0 if self.public_size is not None else 1.0 - COUNT_SHARE
        if self.steps == 1:
            return (left,)
        early = left * (1 - LAST_SHARE) / (self.steps - 1)
        return (early,) * (self.steps - 1) + (left * LAST_SHARE,)

    def event(self) -> DpEvent:
        """Return what asking costs."""
        reach = self._reach()
        sums = [self.noise(share, reach).event() for share in self.shares]
        return compose(*sums, *([] if self.public_size is not None else [self._count().event()]))

    def answer(self, data: Rows, *, generator: Generator | None) -> Answer[Floats]:
        """Find the mean step by step."""
        found = self.found(self.sums_of(data), generator)
        parts = Parts(labels={"column": tuple(data.names)}, numbers=tuple(found.value.tolist()))
        return replace(found, parts=parts)

    def located(self, sums: Sums, generator: Generator | None) -> tuple[Ball, float]:
        """Return the last ball, and the number of rows."""
        size, ball = 0.0, self._start()
        for i, share in enumerate(self.shares):
            ball, size = self._step(sums, ball, share, size, generator, last=i == self.steps - 1)
        return ball, size

    def found(self, sums: Sums, generator: Generator | None) -> Answer[Floats]:
        """Find the mean step by step, of whatever `sums` adds up."""
        ball, _ = self.located(sums, generator)
        scale = np.array(self.stddev)
        mean = self.middle + scale * ball.center
        reach = -float(ndtri((1 - self.level) / 2)) * ball.stddevs * scale
        intervals = tuple(
            Interval(lower=float(m - r), upper=float(m + r), level=self.level, covers=(Covers.NOISE,))
            for m, r in zip(mean, reach, strict=True)
        )
        return Answer(value=mean, interval=intervals)

    def _start(self) -> Ball:
        sides = zip(self.bounds, self.stddev, strict=True)
        halves = [(upper / 2 - lower / 2) / stddev for (lower, upper), stddev in sides]
        zeros = np.zeros(self.dimension)
        return Ball(center=zeros, radius=math.hypot(*halves), stddevs=zeros)

    @property
    def middle(self) -> Floats:
        """Return the middle of the bounds."""
        return np.array([lower / 2 + upper / 2 for lower, upper in self.bounds])

    def _step(
        self,
        sums: Sums,
        ball: Ball,
        share: float,
        size: float,
        generator: Generator | None,
        *,
        last: bool,
    ) -> tuple[Ball, float]:
        """Clip and add up with noise; return a smaller ball, and the number of rows, bought at first."""
        tail = tail_length(self.dimension, BEYOND)
        radius = min(ball.radius + tail, math.sqrt(ball.radius**2 + 2 * DEVIATIONS * ball.radius + tail**2))
        count, total = sums(ball.center, radius)
        if size == 0:
            size = self._size(count, generator)
        noise = self.noise(share, self._reach())
        unit = radius / (STEPS * size)
        moved = unit * noise.add(total, generator=generator)
        if not last:  # the mean is in the ball: what noise moved out of it goes back
            moved *= ball.radius / max(math.hypot(*moved), ball.radius)
        # A wrong number of rows moves the mean towards the center or away from it, to first order by this.
        miscounted = 0.0 if self.public_size is not None else self._count().stddev / size
        stddev = unit * noise.stddev
        smaller = tail * math.hypot(math.sqrt(1 / size), stddev) + ball.radius * miscounted
        stddevs = np.hypot(stddev, moved * miscounted)
        return Ball(center=ball.center + moved, radius=min(smaller, ball.radius), stddevs=stddevs), size

    def sums_of(self, data: Rows) -> Sums:
        """Return what adds up all rows in whole steps of a ball's radius, and counts them."""
        middle, scale = self.middle, np.array(self.stddev)

        def sums(center: Floats, radius: float) -> tuple[int, Integers]:
            count, total = 0, np.zeros(self.dimension, dtype=np.int64)
            for rows in data.batches():
                with np.errstate(all="ignore"):  # what overflows is clipped; a warning would tell of it
                    scaled = (rows - middle) / scale
                whole = whole_rows(in_ball(scaled, center, radius), steps=STEPS)
                count, total = count + len(rows), total + whole.sum(axis=0).astype(np.int64)
            return count, total

        return sums

    def _reach(self) -> float:
        return ball_reach(self.dimension, STEPS, rows=self.contribution_bound, relation=self.relation)

    def _count(self) -> VectorGaussian:
        return self.noise(COUNT_SHARE, float(self.contribution_bound))

    def _size(self, count: int, generator: Generator | None) -> float:
        if self.public_size is not None:
            return float(self.public_size)
        noisy = self._count().add(np.array([count]), generator=generator)
        return max(1.0, float(noisy[0]))


@dataclass(frozen=True, kw_only=True, slots=True)
class CoinPressMean:
    """The mean of one column: `CoinPressMeans` in one dimension, added up by the column itself.

    >>> terms = CoinPressMeans(bounds=((-50, 50),), stddev=(1.0,), rho=0.5, delta=1e-6, column="age")
    >>> CoinPressMean(terms=terms).name
    'mean of age by CoinPress'
    """

    terms: CoinPressMeans

    def __post_init__(self) -> None:
        if self.terms.dimension != 1:
            raise InvalidParameterError("bounds and stddev must have one entry: for the one column.")

    @property
    def name(self) -> str:
        """What is asked."""
        return self.terms.name

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbors."""
        return self.terms.relation

    @property
    def delta(self) -> float:
        """The delta that the price is stated at."""
        return self.terms.delta

    @property
    def contribution_bound(self) -> int:
        """The most rows of one unit that the noise is made for."""
        return self.terms.contribution_bound

    def event(self) -> DpEvent:
        """Return what asking costs."""
        return self.terms.event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[float]:
        """Find the mean step by step."""
        (lower, upper), scale = self.terms.bounds[0], self.terms.stddev[0]
        middle = lower / 2 + upper / 2

        def sums(center: Floats, radius: float) -> tuple[int, Integers]:
            ends = [middle + scale * (float(center[0]) + side * radius) for side in (-1, 1)]
            moments = data.moments((ends[0], ends[1]))
            return moments.count, np.array([moments.total])

        found = self.terms.found(sums, generator)
        interval = found.interval[0] if isinstance(found.interval, tuple) else found.interval
        return Answer(value=float(found.value[0]), interval=interval, notes=found.notes)


def coinpress_mean(
    values: Any,
    *,
    bounds: Bounds,
    stddev: float,
    delta: float,
    epsilon: float | None = None,
    rho: float | None = None,
    relation: str | Relation = Relation.ADD_REMOVE,
    public_size: int | None = None,
    steps: int = 4,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[float]:
    """Return the mean of values that spread by about `stddev`, wherever within loose `bounds` it is.

    >>> values = np.random.default_rng(0).normal(20, 1, size=1000)
    >>> release = coinpress_mean(values, bounds=(-50, 50), stddev=1.0, rho=0.5, delta=1e-6)
    >>> abs(release.value - 20) < 0.5
    True
    """
    column = column_of(values)
    terms = CoinPressMeans(
        bounds=(bounds,),
        stddev=(stddev,),
        epsilon=epsilon,
        rho=rho,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=column.contribution_bound,
        public_size=public_size,
        steps=steps,
        level=level,
        column=column.name,
    )
    query = Query(CoinPressMean(terms=terms), column)
    return query.release(account=account, purpose=purpose, generator=generator)


def coinpress_means(
    values: Any,
    *,
    bounds: Bounds | Sequence[Bounds],
    stddev: float | Sequence[float],
    delta: float,
    epsilon: float | None = None,
    rho: float | None = None,
    relation: str | Relation = Relation.ADD_REMOVE,
    public_size: int | None = None,
    steps: int = 4,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[Floats]:
    """Return the mean of rows, [columns]; `bounds` and `stddev` are one for all columns, or one for each.

    >>> rows = np.random.default_rng(0).normal(20, 1, size=(1000, 3))
    >>> release = coinpress_means(rows, bounds=(-50, 50), stddev=1.0, rho=0.5, delta=1e-6)
    >>> bool((abs(release.value - 20) < 0.5).all())
    True
    """
    rows = rows_of(values)
    question = CoinPressMeans(
        bounds=for_each_column(bounds, rows),
        stddev=(stddev,) * len(rows.names) if isinstance(stddev, int | float) else tuple(stddev),
        epsilon=epsilon,
        rho=rho,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=rows.contribution_bound,
        public_size=public_size,
        steps=steps,
        level=level,
        column=f"{len(rows.names)} columns",
    )
    return Query(question, rows).release(account=account, purpose=purpose, generator=generator)
