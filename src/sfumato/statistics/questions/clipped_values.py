# SPDX-License-Identifier: Apache-2.0
"""Private share of the values of a column that lie outside public bounds, so that clipping changes them.

Guarantee  `ClippedShare` costs its event for one unit of at most `contribution_bound` rows: noise on the
           number of rows inside the bounds and on the number of rows outside.
Neighbors  Replacing a row changes the two counts by 2 in L1 norm, and by sqrt(2) in L2 norm.
Edge cases A value that equals a bound is inside. If the noisy number of rows is below 1, the value is None
           ("failed"), which is private and charged.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator
from sfumato.statistics.columns.columns import Bounds, Column, column_of
from sfumato.statistics.noise import Kind, WholeNoise, l2_of_counts
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.questions.bounded_terms import FAILED, BoundedTerms
from sfumato.statistics.questions.row_split import NoisyShares
from sfumato.statistics.release import Covers, Interval, Release

__all__ = ["ClippedShare", "clipped_share"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClippedShare(BoundedTerms):
    """The share of the rows that lie outside `bounds`, so that clipping changes them.

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

    >>> ClippedShare(bounds=(0, 100), epsilon=0.5).event()
    DiscreteLaplaceDpEvent(noise_parameter=0.5, sensitivity=1)
    """

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"share of {self.column} out of bounds"

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event, which an accountant prices.
        """
        return self._noise().event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[float | None]:
        """Return the share with noise, or None if the noisy number of rows is below 1.

        Args:
            data: The private column.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The noisy share and its interval; the value is None if there are too few rows.
        """
        lower, upper = self.bounds
        inside = (lower, math.nextafter(upper, math.inf))  # the upper bound itself is not clipped
        edges = np.array([math.nextafter(lower, -math.inf), *inside, math.nextafter(inside[1], math.inf)])
        below, within, above = (int(part) for part in data.histogram(edges))
        noisy = NoisyShares.of([within, below + above], self._noise(), 1, self.public_size, generator)
        if noisy.size < 1:
            return Answer(value=None, notes=FAILED)
        places = np.array([0.0, 1.0])
        ends = noisy.interval(places, level=self.level)
        interval = Interval(lower=ends[0], upper=ends[1], level=self.level, covers=(Covers.NOISE,))
        return Answer(value=min(max(noisy.average(places), 0.0), 1.0), interval=interval)

    def _noise(self) -> WholeNoise:
        return WholeNoise(
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            kind=Kind.COUNTS,
            l1_sensitivity=self.contribution_bound * self.relation.diameter,
            l2_sensitivity=l2_of_counts(self.contribution_bound, self.relation),
            coordinates=min(2, self.contribution_bound * self.relation.diameter),
        )


def clipped_share(
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
    """Release the share of the values outside `bounds`, which intervals of clipped values do not cover.

    Args:
        values: Numbers in a list, array or series, or a column of a private table. Missing values are left
            out.
        bounds: Lower and upper bound, public. Values outside are counted.
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

    >>> release = clipped_share([1.0, 2.0, 3.0, 99.0] * 1000, bounds=(0, 4), epsilon=1.0)
    >>> abs(release.value - 0.25) < 0.1
    True
    """
    data = column_of(values)
    question = ClippedShare(
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
