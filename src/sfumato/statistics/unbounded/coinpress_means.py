# SPDX-License-Identifier: Apache-2.0
"""Private mean of rows with loose bounds, in many dimensions, by CoinPress.

A ball that should contain the mean is given by `bounds`. In each step rows are clipped to it, with room for
their own spread, and the noisy mean is the center of a smaller ball. The last step gets three quarters of the
budget, and its clipping is as tight as the data allow.

The method assumes that `stddev`, which is public, is at least the standard deviation in every direction, and
that tails are about Gaussian: about one row in a hundred is clipped, more if tails are heavier. If this is
wrong, or the mean is outside the bounds, the privacy guarantee still holds, but the mean is inaccurate.

Guarantee  The mean costs `steps` Gaussian sums, and under add-or-remove also a Gaussian count: their rhos add
           up to the budget, whatever the steps find.
Neighbors  Add-or-remove: a row changes a sum by the radius, and a small share of the budget pays for the
           number of rows. Replace-one: a row changes it by twice the radius, and `public_size` is the
           divisor; a row with a missing value then counts as the center.
Edge cases The interval covers the noise of the last step and of the count, for the rows as that step clips
           them.
Source     Biswas, Dong, Kamath and Ullman 2020, arXiv:2006.06618, Algorithms 1 and 2.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from sfumato import _check
from sfumato.accounting.events import DpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms import Generator
from sfumato.statistics.arrays import Floats, Integers
from sfumato.statistics.columns.columns import STEPS, Bounds, Rows, rows_of
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

__all__ = ["BEYOND", "LAST_SHARE", "Ball", "CoinPressMeans", "Sums", "coinpress_means", "tail_length"]


Sums = Callable[[Floats, float], tuple[int, Integers]]  # from a center and a radius, in standard deviations

COUNT_SHARE = 0.08  # of the budget, for the number of rows
LAST_SHARE = 0.75  # of the rest, for the last step
BEYOND = 0.01  # share of rows beyond the room that a ball leaves
DEVIATIONS = 3.0  # of a row in the direction of the error of the center


def tail_length(dimension: int, beyond: float) -> float:
    """Return the length that a standard Gaussian vector exceeds with probability at most `beyond`.

    Laurent and Massart 2000, Lemma 1.

    >>> round(tail_length(1, 0.01), 2), round(tail_length(50, 0.01), 2)
    (3.81, 9.46)
    """
    far = math.log(1 / beyond)
    return math.sqrt(dimension + 2 * math.sqrt(dimension * far) + 2 * far)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ball:
    """The ball that should contain the mean, in standard deviations from the middle of the bounds."""

    center: Floats
    radius: float
    stddevs: Floats  # of the noise on each coordinate of the center


@dataclass(frozen=True, kw_only=True, slots=True)
class CoinPressMeans(Concentrated):
    """The mean of rows, all columns at once.

    Args:
        delta: The delta of the guarantee, above 0.
        epsilon: The privacy budget of this release at `delta`. Pass `epsilon` or `rho`, not both.
        rho: The privacy budget as zero-concentrated differential privacy. Pass `epsilon` or `rho`, not both.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        public_size: The number of rows, if it is public. None means that it is private.
        bounds: Loose public bounds of the mean, one pair for each column.
        stddev: Public upper bounds on the standard deviation, one for each column. Wrong ones cost accuracy,
            not privacy.
        steps: The number of steps in which the clipping is tightened.
        level: The confidence level of the interval, between 0 and 1.
        column: The name of the rows, as releases show it.

    Raises:
        InvalidParameterError: If a parameter is out of range.

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
        """The name of the statistic, as releases show it."""
        return f"mean of {self.column} by CoinPress"

    @property
    def dimension(self) -> int:
        """The number of columns."""
        return len(self.bounds)

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the budget of each step."""
        left = 1.0 if self.public_size is not None else 1.0 - COUNT_SHARE
        if self.steps == 1:
            return (left,)
        early = left * (1 - LAST_SHARE) / (self.steps - 1)
        return (early,) * (self.steps - 1) + (left * LAST_SHARE,)

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event, which an accountant prices.
        """
        reach = self._reach()
        sums = [self.noise(share, reach).event() for share in self.shares]
        return compose(*sums, *([] if self.public_size is not None else [self._count().event()]))

    def answer(self, data: Rows, *, generator: Generator | None) -> Answer[Floats]:
        """Estimate the mean step by step.

        Args:
            data: The private rows.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The mean, [columns], and one interval for each column.
        """
        found = self.found(self.sums_of(data), generator)
        parts = Parts(labels={"column": tuple(data.names)}, numbers=tuple(found.value.tolist()))
        return replace(found, parts=parts)

    def located(self, sums: Sums, generator: Generator | None) -> tuple[Ball, float]:
        """Return the last ball and the number of rows.

        Args:
            sums: A function from a center and a radius to the number of rows and the sum of the clipped rows.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The ball around the mean, in standard deviations, and the number of rows, public or noisy.
        """
        size, ball = 0.0, self._start()
        for i, share in enumerate(self.shares):
            ball, size = self._step(sums, ball, share, size, generator, last=i == self.steps - 1)
        return ball, size

    def found(self, sums: Sums, generator: Generator | None) -> Answer[Floats]:
        """Estimate the mean step by step from the sums of clipped rows.

        Args:
            sums: A function from a center and a radius to the number of rows and the sum of the clipped rows.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The mean, [columns], and one interval for each column.
        """
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
        """The middle of the bounds."""
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
        """Clip and add up with noise; return a smaller ball, and the number of rows from the first step."""
        tail = tail_length(self.dimension, BEYOND)
        radius = min(ball.radius + tail, math.sqrt(ball.radius**2 + 2 * DEVIATIONS * ball.radius + tail**2))
        count, total = sums(ball.center, radius)
        if size == 0:
            size = self._size(count, generator)
        noise = self.noise(share, self._reach())
        unit = radius / (STEPS * size)
        moved = unit * noise.add(total, generator=generator)
        if not last:  # the mean is in the ball, so a noisy mean outside is moved back
            moved *= ball.radius / max(math.hypot(*moved), ball.radius)
        # The error of the number of rows moves the mean along the line to the center, to first order by this.
        miscounted = 0.0 if self.public_size is not None else self._count().stddev / size
        stddev = unit * noise.stddev
        smaller = tail * math.hypot(math.sqrt(1 / size), stddev) + ball.radius * miscounted
        stddevs = np.hypot(stddev, moved * miscounted)
        return Ball(center=ball.center + moved, radius=min(smaller, ball.radius), stddevs=stddevs), size

    def sums_of(self, data: Rows) -> Sums:
        """Return a function that counts rows and adds up the clipped rows, in whole steps of a ball's radius.

        Args:
            data: The private rows.

        Returns:
            The function, which takes a center and a radius. Its results are exact: they are not a release.
        """
        middle, scale = self.middle, np.array(self.stddev)

        def sums(center: Floats, radius: float) -> tuple[int, Integers]:
            count, total = 0, np.zeros(self.dimension, dtype=np.int64)
            for rows in data.batches():
                with np.errstate(
                    all="ignore"
                ):  # values that overflow are clipped; a warning would reveal them
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
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[Floats]:
    """Release the mean of rows, [columns], with only loose bounds.

    The clipping is tightened in 4 steps. For other `steps`, release a `Query` of `CoinPressMeans(...)`.

    Args:
        values: Rows of numbers, [rows, columns], in an array, or `table.rows(...)`. Rows with a missing value
            are left out.
        bounds: Loose public bounds of the mean: one pair for all columns, or one pair for each.
        stddev: A public upper bound on the standard deviation, for all columns or for each. A wrong one costs
            accuracy, not privacy.
        delta: The delta of the guarantee, above 0.
        epsilon: The privacy budget of this release at `delta`. Pass `epsilon` or `rho`, not both.
        rho: The privacy budget as zero-concentrated differential privacy. Pass `epsilon` or `rho`, not both.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        public_size: The number of rows, if it is public. None means that it is private.
        level: The confidence level of the interval, between 0 and 1.
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
        level=level,
        column=f"{len(rows.names)} columns",
    )
    return Query(question, rows).release(account=account, purpose=purpose, generator=generator)
