# SPDX-License-Identifier: Apache-2.0
"""The mean without good bounds, by a noisy histogram that says where to clip: Karwa and Vadhan.

Guarantee  The mean costs a histogram with Gaussian noise and a Gaussian sum, and under add-or-remove
           a Gaussian count: their rhos add up to the budget.
Method     The bounds are cut into bins of one `stddev`. The bin with the largest noisy count and its two
           neighbors should hold the mean; values are clipped to those three and room for their own spread,
           sqrt(2 log(2 n / 0.01)) standard deviations, and their sum gets noise for that width.
Assumes    `stddev`, public, is at least the standard deviation, and values are about Gaussian. Where this is
           wrong, or the mean is out of bounds, privacy holds all the same; the mean is off.
Neighbors  A row counts in one bin. A replaced one moves two bins by one each, sqrt(2) in Euclidean norm, and
           the sum by twice its reach; then `public_size` is divided by.
Interval   The noise of the sum and of the count; of the values as they are clipped.
Source     Karwa and Vadhan 2018, arXiv:1711.03908, Algorithm 1, with Gaussian noise in place of Laplace and
           a bounded histogram in place of a stability-based one, as bounds are given.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from sfumato import _check
from sfumato.accounting.events import DpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms import Generator
from sfumato.statistics.columns.columns import STEPS, Bounds, Column, column_of
from sfumato.statistics.gaussian_vectors import Concentrated, VectorGaussian
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.release import Covers, Interval, Release

__all__ = ["KarwaVadhanMean", "karwa_vadhan_mean"]

_COUNT_SHARE = 0.02  # of the budget, for the number of rows
_SUM_SHARE = 0.75  # of the rest, for the sum
_BEYOND = 0.01  # the chance that any value is clipped, if they are Gaussian
_MOST_BINS = 2**14


@dataclass(frozen=True, kw_only=True, slots=True)
class KarwaVadhanMean(Concentrated):
    """The mean of one column whose location is found by a histogram.

    >>> question = KarwaVadhanMean(bounds=(-50, 50), stddev=1.0, rho=0.5, delta=1e-6)
    >>> question.name, question.bins
    ('mean of values by Karwa-Vadhan', 100)
    """

    bounds: Bounds
    stddev: float
    level: float = 0.95
    column: str = "values"

    def __post_init__(self) -> None:
        Concentrated.__post_init__(self)
        _check.squarable(bounds=self.bounds)
        _check.scale(stddev=self.stddev)
        _check.resolvable(self.stddev, within=self.bounds)
        _check.probability(level=self.level)
        if not (self.bounds[1] - self.bounds[0]) / self.stddev <= _MOST_BINS:
            raise InvalidParameterError(
                f"bounds are more than {_MOST_BINS} standard deviations wide, so the histogram is too long. "
                "Use coinpress_mean, which needs none, or a larger stddev."
            )

    @property
    def name(self) -> str:
        """What is asked."""
        return f"mean of {self.column} by Karwa-Vadhan"

    @property
    def bins(self) -> int:
        """Return how many bins of at least one standard deviation the bounds hold."""
        return max(1, math.floor((self.bounds[1] - self.bounds[0]) / self.stddev))

    def event(self) -> DpEvent:
        """Return what asking costs."""
        parts = [self._histogram().event(), self._sum().event()]
        return compose(*parts, *([] if self.public_size is not None else [self._count().event()]))

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[float]:
        """Find the fullest bin, then the mean of values clipped around it."""
        edges = np.linspace(*self.bounds, self.bins + 1)
        counts = data.histogram(edges)
        size = self._size(int(counts.sum()), generator)
        best = int(np.argmax(self._histogram().add(counts, generator=generator)))
        center = float(edges[best] / 2 + edges[best + 1] / 2)
        room = self.stddev * math.sqrt(2 * math.log(2 * size / _BEYOND))
        half = 1.5 * float(edges[1] - edges[0]) + room
        return self._clipped_mean(data, center, half, size, generator)

    def _clipped_mean(
        self, data: Column, center: float, half: float, size: float, generator: Generator | None
    ) -> Answer[float]:
        noise, unit = self._sum(), half / (STEPS * size)
        total = np.array([data.moments((center - half, center + half)).total])
        moved = unit * float(noise.add(total, generator=generator)[0])
        # A wrong number of rows moves the mean towards the center or away from it, to first order by this.
        miscounted = 0.0 if self.public_size is not None else moved * self._count().stddev / size
        mean = center + moved
        reach = -float(ndtri((1 - self.level) / 2)) * math.hypot(unit * noise.stddev, miscounted)
        interval = Interval(lower=mean - reach, upper=mean + reach, level=self.level, covers=(Covers.NOISE,))
        return Answer(value=mean, interval=interval)

    @property
    def _left(self) -> float:
        return 1.0 if self.public_size is not None else 1.0 - _COUNT_SHARE

    def _histogram(self) -> VectorGaussian:
        reach = self.contribution_bound * math.sqrt(self.relation.diameter)
        return self.noise(self._left * (1 - _SUM_SHARE), reach)

    def _sum(self) -> VectorGaussian:
        return self.noise(
            self._left * _SUM_SHARE, float(self.contribution_bound * self.relation.diameter * STEPS)
        )

    def _count(self) -> VectorGaussian:
        return self.noise(_COUNT_SHARE, float(self.contribution_bound))

    def _size(self, count: int, generator: Generator | None) -> float:
        if self.public_size is not None:
            return float(self.public_size)
        return max(1.0, float(self._count().add(np.array([count]), generator=generator)[0]))


def karwa_vadhan_mean(
    values: Any,
    *,
    bounds: Bounds,
    stddev: float,
    delta: float,
    epsilon: float | None = None,
    rho: float | None = None,
    relation: str | Relation = Relation.ADD_REMOVE,
    public_size: int | None = None,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[float]:
    """Return the mean of values that spread by about `stddev`, wherever within loose `bounds` it is.

    >>> values = np.random.default_rng(0).normal(20, 1, size=1000)
    >>> release = karwa_vadhan_mean(values, bounds=(-50, 50), stddev=1.0, rho=0.5, delta=1e-6)
    >>> abs(release.value - 20) < 0.5
    True
    """
    column = column_of(values)
    question = KarwaVadhanMean(
        bounds=bounds,
        stddev=stddev,
        epsilon=epsilon,
        rho=rho,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=column.contribution_bound,
        public_size=public_size,
        level=level,
        column=column.name,
    )
    return Query(question, column).release(account=account, purpose=purpose, generator=generator)
