# SPDX-License-Identifier: Apache-2.0
"""Private mean of a column with loose bounds, by the histogram method of Karwa and Vadhan.

The bounds are divided into bins of one `stddev`. The bin with the largest noisy count and its two neighbors
should contain the mean. Values are clipped to these three bins and room for their own spread, sqrt(2 log(2 n
/ 0.01)) standard deviations, and their sum gets noise for that width.

The method assumes that `stddev`, which is public, is at least the standard deviation, and that values are
about Gaussian. If this is wrong, or the mean is outside the bounds, the privacy guarantee still holds, but
the mean is inaccurate.

Guarantee  The mean costs a histogram with Gaussian noise and a Gaussian sum, and under add-or-remove also a
           Gaussian count: their rhos add up to the budget.
Neighbors  A row counts in one bin. A replaced row changes two bins by one each, sqrt(2) in Euclidean norm,
           and the sum by twice its sensitivity; `public_size` is then the divisor.
Edge cases The interval covers the noise of the sum and of the count, for the values as they are clipped.
Source     Karwa and Vadhan 2018, arXiv:1711.03908, Algorithm 1, with Gaussian noise in place of Laplace and a
           bounded histogram in place of a stability-based one, as bounds are given.
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
_BEYOND = 0.01  # the probability that any value is clipped, if they are Gaussian
_MOST_BINS = 2**14


@dataclass(frozen=True, kw_only=True, slots=True)
class KarwaVadhanMean(Concentrated):
    """The mean of one column whose location is found by a noisy histogram.

    Args:
        delta: The delta of the guarantee, above 0.
        epsilon: The privacy budget of this release at `delta`. Pass `epsilon` or `rho`, not both.
        rho: The privacy budget as zero-concentrated differential privacy. Pass `epsilon` or `rho`, not both.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        public_size: The number of rows, if it is public. None means that it is private.
        bounds: Lower and upper bound of the mean, public. They may be loose.
        stddev: A public upper bound on the standard deviation. A wrong one costs accuracy, not privacy.
        level: The confidence level of the interval, between 0 and 1.
        column: The name of the column, as releases show it.

    Raises:
        InvalidParameterError: If a parameter is out of range.

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
                f"bounds are more than {_MOST_BINS} standard deviations wide, so the histogram has too many "
                "bins. Use coinpress_mean, which needs no histogram, or a larger stddev."
            )

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"mean of {self.column} by Karwa-Vadhan"

    @property
    def bins(self) -> int:
        """The number of bins, each at least one standard deviation wide."""
        return max(1, math.floor((self.bounds[1] - self.bounds[0]) / self.stddev))

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event, which an accountant prices.
        """
        parts = [self._histogram().event(), self._sum().event()]
        return compose(*parts, *([] if self.public_size is not None else [self._count().event()]))

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[float]:
        """Find the fullest bin, then the mean of values clipped around it.

        Args:
            data: The private column.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The mean and its interval.
        """
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
        # The error of the number of rows moves the mean along the line to the center, to first order by this.
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
    """Release the mean of values with a spread of about `stddev`, with only loose bounds, by a noisy
    histogram.

    Args:
        values: Numbers in a list, array or series, or a column of a private table. Missing values are left
            out.
        bounds: Lower and upper bound of the mean, public. They may be loose.
        stddev: A public upper bound on the standard deviation. A wrong one costs accuracy, not privacy.
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
