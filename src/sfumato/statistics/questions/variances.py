# SPDX-License-Identifier: Apache-2.0
"""Private variance and standard deviation of a column with public bounds.

Guarantee  `Variance` and `StandardDeviation` cost their event for one unit of at most `contribution_bound`
           rows. Each row is divided among three sums, and all of them get noise for the whole epsilon
           (`row_split`).
Neighbors  Replacing a row changes the sums by 2 in L1 norm, and by sqrt(2) in L2 norm. `public_size` declares
           the number of rows. A row with a missing value then counts as the middle of the bounds, so do not
           pass it if values may be missing.
Edge cases The interval covers the noise, to first order, and the rounding to the grid, but not the clipping.
           A variance is divided by the count, not by the count minus one; one that noise made negative is 0.
           Nulls and NaN are left out, infinities are clipped. If the noisy count is below 1, the value is
           None ("failed"), which is private and charged.
"""

import math
from dataclasses import dataclass
from typing import Any

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator
from sfumato.statistics.columns.columns import Bounds, Column, column_of
from sfumato.statistics.intervals import half_width
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.questions.bounded_terms import FAILED, GRID, BoundedTerms
from sfumato.statistics.questions.row_split import NoisyShares, Shares
from sfumato.statistics.release import Covers, Interval, Release

__all__ = [
    "StandardDeviation",
    "Variance",
    "standard_deviation",
    "stated_deviation",
    "stated_variance",
    "variance",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Variance(BoundedTerms):
    """The variance of the values, clipped to `bounds`.

    Args:
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        level: The confidence level of the interval, between 0 and 1.
        column: The name of the column, as releases show it.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        public_size: The number of rows, if it is public. None means that it is private.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> Variance(bounds=(0, 100), epsilon=0.5).name
    'variance of values'
    """

    def __post_init__(self) -> None:
        BoundedTerms.__post_init__(self)
        _check.squarable(bounds=self.bounds)

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"variance of {self.column}"

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event, which an accountant prices.
        """
        return Shares(2).noise(self).event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[float | None]:
        """Return the variance with noise, or None if the noisy number of rows is below 1.

        Args:
            data: The private column.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The noisy variance and its interval; the value is None if there are too few rows.
        """
        shares = Shares(2)
        exact = shares.of(data.moments(self.bounds))
        noisy = NoisyShares.of(exact, shares.noise(self), shares.parts, self.public_size, generator)
        return stated_variance(noisy, shares, width=self.width, level=self.level)


def stated_variance(
    noisy: NoisyShares, shares: Shares, *, width: float, level: float
) -> Answer[float | None]:
    """Return the variance that noisy shares state, for bounds that are `width` apart, and its interval."""
    if noisy.size < 1:
        return Answer(value=None, notes=FAILED)
    found, moves = noisy.variance(shares)
    distance = half_width(noisy.law, level=level, weights=moves)
    square, most = width**2, width**2 / 4
    # The derivative of the square is at most 2 widths for values within one width.
    ends = (found + sign * (distance + 2 * GRID) for sign in (-1, 0, 1))
    lower, value, upper = (min(max(end * square, 0.0), most) for end in ends)
    interval = Interval(lower=lower, upper=upper, level=level, covers=(Covers.NOISE,))
    return Answer(value=value, interval=interval)


def stated_deviation(found: Answer[float | None]) -> Answer[float | None]:
    """Return the standard deviation that a variance states, and its interval."""
    if found.value is None or not isinstance(found.interval, Interval):
        return found
    lower, upper = math.sqrt(found.interval.lower), math.sqrt(found.interval.upper)
    interval = Interval(lower=lower, upper=upper, level=found.interval.level, covers=found.interval.covers)
    return Answer(value=math.sqrt(found.value), interval=interval, notes=found.notes)


@dataclass(frozen=True, kw_only=True, slots=True)
class StandardDeviation(BoundedTerms):
    """The standard deviation of the values, clipped to `bounds`.

    Args:
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        level: The confidence level of the interval, between 0 and 1.
        column: The name of the column, as releases show it.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        public_size: The number of rows, if it is public. None means that it is private.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> StandardDeviation(bounds=(0, 100), epsilon=0.5).name
    'standard deviation of values'
    """

    def __post_init__(self) -> None:
        BoundedTerms.__post_init__(self)
        _check.squarable(bounds=self.bounds)

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"standard deviation of {self.column}"

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event, which an accountant prices.
        """
        return self._variance().event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[float | None]:
        """Return the standard deviation with noise, or None if the noisy number of rows is below 1.

        Args:
            data: The private column.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The noisy standard deviation and its interval; the value is None if there are too few rows.
        """
        return stated_deviation(self._variance().answer(data, generator=generator))

    def _variance(self) -> Variance:
        return Variance(
            bounds=self.bounds,
            public_size=self.public_size,
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            contribution_bound=self.contribution_bound,
            level=self.level,
            column=self.column,
        )


def variance(
    values: Any,
    *,
    bounds: Bounds,
    epsilon: float,
    delta: float = 0.0,
    relation: Relation | str = Relation.ADD_REMOVE,
    public_size: int | None = None,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[float | None]:
    """Release the variance of values clipped to `bounds`, with the number of rows as divisor.

    Args:
        values: Numbers in a list, array or series, or a column of a private table. Missing values are left
            out.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        public_size: The number of rows, if it is public. None means that it is private.
        level: The confidence level of the interval, between 0 and 1.
        account: The account to charge before any data is read. None means that no account is charged.
        purpose: The purpose that the account records. None means the name of the statistic.
        generator: The source of randomness. None means secure randomness from the operating system.

    Returns:
        The release, with its value, its confidence interval and its guarantee. The value is None if there are
        too few rows.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `values` are not numbers. Nothing is
            charged.
        BudgetExceededError: If the account has too little budget left. Nothing is computed.
        QueryFailedError: If the engine of a table fails. The cost stays charged.

    >>> release = variance([1.0, 3.0] * 2000, bounds=(0, 4), epsilon=1.0)
    >>> abs(release.value - 1.0) < 0.5
    True
    """
    data = column_of(values)
    question = Variance(
        bounds=bounds,
        public_size=public_size,
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=data.contribution_bound,
        level=level,
        column=data.name,
    )
    return Query(question, data).release(account=account, purpose=purpose, generator=generator)


def standard_deviation(
    values: Any,
    *,
    bounds: Bounds,
    epsilon: float,
    delta: float = 0.0,
    relation: Relation | str = Relation.ADD_REMOVE,
    public_size: int | None = None,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[float | None]:
    """Release the standard deviation of values clipped to `bounds`, with the number of rows as divisor.

    Args:
        values: Numbers in a list, array or series, or a column of a private table. Missing values are left
            out.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        public_size: The number of rows, if it is public. None means that it is private.
        level: The confidence level of the interval, between 0 and 1.
        account: The account to charge before any data is read. None means that no account is charged.
        purpose: The purpose that the account records. None means the name of the statistic.
        generator: The source of randomness. None means secure randomness from the operating system.

    Returns:
        The release, with its value, its confidence interval and its guarantee. The value is None if there are
        too few rows.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `values` are not numbers. Nothing is
            charged.
        BudgetExceededError: If the account has too little budget left. Nothing is computed.
        QueryFailedError: If the engine of a table fails. The cost stays charged.

    >>> release = standard_deviation([1.0, 3.0] * 2000, bounds=(0, 4), epsilon=1.0)
    >>> abs(release.value - 1.0) < 0.5
    True
    """
    data = column_of(values)
    question = StandardDeviation(
        bounds=bounds,
        public_size=public_size,
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=data.contribution_bound,
        level=level,
        column=data.name,
    )
    return Query(question, data).release(account=account, purpose=purpose, generator=generator)
