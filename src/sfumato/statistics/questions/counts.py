# SPDX-License-Identifier: Apache-2.0
"""Private counts and sums.

Guarantee  `Count` and `Sum` cost their event for one unit of at most `contribution_bound` rows. The noise is
           exact and is added to whole numbers: rows, or steps of a grid that is finer than a millionth of the
           change that one unit can cause. For a sum each value is clipped to `bounds` and rounded to 2^-20 of
           half their width. One row changes the sum by at most max(|lower|, |upper|); the noise is calibrated
           to that, not to the width of the bounds.
Neighbors  Replacing a unit changes a count by at most its rows, and a sum by at most the distance between the
           largest and the smallest contribution; a unit without rows contributes zero.
Edge cases Nulls and NaN are not counted and not summed. The interval covers the noise: it holds the count, or
           the sum of the clipped values. It does not cover the clipping, as nothing is known about values
           outside the bounds.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.ledger.account import Account
from sfumato.mechanisms import inputs
from sfumato.mechanisms.random import Generator
from sfumato.statistics.columns.columns import STEPS, Bounds, Column, Moments, column_of
from sfumato.statistics.intervals import around, half_width, whole_half_width
from sfumato.statistics.noise import Kind, WholeNoise
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.release import Release
from sfumato.statistics.terms import Terms

__all__ = ["Count", "Sum", "count", "sum"]

_ONE_BIN = np.array([0.0, 1.0])  # values outside count in it, too
_FINE = 2**20  # parts of a step, the unit of the middle of the bounds
_MOVE_BITS = 20  # of the steps by which one row changes a sum: 2^32 such rows fit float64


@dataclass(frozen=True, kw_only=True, slots=True)
class Count(Terms):
    """The number of rows that have a value.

    Args:
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        level: The confidence level of the interval, between 0 and 1.
        column: The name of the column, as releases show it.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> Count(epsilon=0.5).event()
    DiscreteLaplaceDpEvent(noise_parameter=0.5, sensitivity=1)
    """

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"count of {self.column}"

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event, which an accountant prices.
        """
        return self._noise().event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[int]:
        """Return the count with noise. It may be negative, so that averages of many counts are unbiased.

        Args:
            data: The private column.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The noisy count and its interval.
        """
        noise = self._noise()
        noisy = int(noise.add([int(data.histogram(_ONE_BIN).sum())], generator=generator)[0])
        distance = whole_half_width(noise.law, level=self.level)
        return Answer(value=noisy, interval=around(noisy, distance, level=self.level, within=(0.0, math.inf)))

    def _noise(self) -> WholeNoise:
        return WholeNoise(
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            kind=Kind.COUNTS,
            l1_sensitivity=self.contribution_bound,
            l2_sensitivity=float(self.contribution_bound),
            coordinates=1,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sum(Terms):
    """The sum of the values, clipped to `bounds`.

    Args:
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        level: The confidence level of the interval, between 0 and 1.
        column: The name of the column, as releases show it.
        bounds: Lower and upper bound, public. Values outside are clipped to them.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> Sum(bounds=(0.0, 10.0), epsilon=0.5).step * 2**20
    10.0
    """

    bounds: Bounds

    def __post_init__(self) -> None:
        Terms.__post_init__(self)
        inputs.settle_bounds(self, self.bounds)
        _check.summable(bounds=self.bounds)

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"sum of {self.column}"

    @property
    def step(self) -> float:
        """The size of one step of the grid of the noise."""
        half = self.bounds[1] / 2 - self.bounds[0] / 2
        return half / STEPS / _FINE * self._coarse()

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event, which an accountant prices.
        """
        return self._noise().event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[float]:
        """Return the sum with noise.

        Args:
            data: The private column.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The noisy sum and its interval.
        """
        noise = self._noise()
        noisy = float(
            noise.add([self._whole(data.moments(self.bounds, squares=False))], generator=generator)[0]
        )
        distance = half_width(noise.law, level=self.level) * self.step
        within = (0.0 if self.bounds[0] >= 0 else -math.inf, 0.0 if self.bounds[1] <= 0 else math.inf)
        value = noisy * self.step
        return Answer(value=value, interval=around(value, distance, level=self.level, within=within))

    def _whole(self, moments: Moments) -> int:
        """Return the sum in steps, rounded down: sums s apart are then at most ceil(s) apart."""
        return (moments.total * _FINE + moments.count * self._middle()) // self._coarse()

    def _middle(self) -> int:
        """Return the middle of the bounds in parts of a step, which every row adds."""
        lower, upper = (Fraction(bound) for bound in self.bounds)
        return round((lower + upper) / (upper - lower) * STEPS * _FINE)

    def _ends(self) -> tuple[int, int]:
        """Return the smallest and the largest contribution of a row, in parts of a step; 0 without a row."""
        ends = (self._middle() - STEPS * _FINE, self._middle() + STEPS * _FINE)
        return min(0, ends[0]), max(0, ends[1])

    def _coarse(self) -> int:
        """Return the number of parts in one step of the grid of the noise: a power of two."""
        least, most = self._ends()
        return 1 << max(0, max(-least, most).bit_length() - 1 - _MOVE_BITS)

    def _sensitivity(self) -> int:
        least, most = self._ends()
        reach = most - least if self.relation.replaces else max(-least, most)
        return -(-self.contribution_bound * reach // self._coarse())

    def _noise(self) -> WholeNoise:
        return WholeNoise(
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            kind=Kind.STEPS,
            l1_sensitivity=self._sensitivity(),
            l2_sensitivity=float(self._sensitivity()),
            coordinates=1,
        )


def count(
    values: Any,
    *,
    epsilon: float,
    delta: float = 0.0,
    relation: Relation | str = Relation.ADD_REMOVE,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[int]:
    """Release the number of values, with discrete Laplace noise; discrete Gaussian if delta is above 0.

    Args:
        values: Numbers in a list, array or series, or a column of a private table. Missing values are left
            out.
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
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

    >>> from sfumato.testing import seeded
    >>> print(count([3.0, 1.0, None, 2.0] * 100, epsilon=1.0, generator=seeded(0)))  # doctest: +ELLIPSIS
    count of values: 30...
      interval: ... (95%, noise)
      (1, 0)-differential privacy for one row, add-remove neighbors
      for study only: the noise was seeded
      not recorded in a ledger: nothing adds its cost to that of other releases
    """
    data = column_of(values)
    question = Count(
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=data.contribution_bound,
        level=level,
        column=data.name,
    )
    return Query(question, data).release(account=account, purpose=purpose, generator=generator)


def sum(
    values: Any,
    *,
    bounds: Bounds,
    epsilon: float,
    delta: float = 0.0,
    relation: Relation | str = Relation.ADD_REMOVE,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[float]:
    """Release the sum of values clipped to `bounds`, with Laplace noise; Gaussian if delta is above 0.

    Args:
        values: Numbers in a list, array or series, or a column of a private table. Missing values are left
            out.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
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

    >>> release = sum([20.0, 30.0, 1000.0], bounds=(0, 100), epsilon=1.0)
    >>> release.guarantee.epsilon, release.interval.level
    (1.0, 0.95)
    """
    data = column_of(values)
    question = Sum(
        bounds=bounds,
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=data.contribution_bound,
        level=level,
        column=data.name,
    )
    return Query(question, data).release(account=account, purpose=purpose, generator=generator)
