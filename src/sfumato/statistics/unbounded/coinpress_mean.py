# SPDX-License-Identifier: Apache-2.0
"""Private mean of one column with loose bounds, by CoinPress.

Guarantee  The cost is that of `CoinPressMeans` in one dimension; the column itself adds up the clipped
           values.
Neighbors  As in `coinpress_means`.
Source     Biswas, Dong, Kamath and Ullman 2020, arXiv:2006.06618, Algorithms 1 and 2.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms import Generator
from sfumato.statistics.arrays import Floats, Integers
from sfumato.statistics.columns.columns import Bounds, Column, column_of
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.release import Release
from sfumato.statistics.unbounded.coinpress_means import CoinPressMeans

__all__ = ["CoinPressMean", "coinpress_mean"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CoinPressMean:
    """The mean of one column: `CoinPressMeans` in one dimension, added up by the column itself.

    Args:
        terms: The parameters, for one column.

    Raises:
        InvalidParameterError: If the parameters are for more than one column.

    >>> terms = CoinPressMeans(bounds=((-50, 50),), stddev=(1.0,), rho=0.5, delta=1e-6, column="age")
    >>> CoinPressMean(terms=terms).name
    'mean of age by CoinPress'
    """

    terms: CoinPressMeans

    def __post_init__(self) -> None:
        if self.terms.dimension != 1:
            raise InvalidParameterError(
                "bounds and stddev must have one entry. Use CoinPressMeans for several columns."
            )

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return self.terms.name

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbors."""
        return self.terms.relation

    @property
    def delta(self) -> float:
        """The delta of the guarantee."""
        return self.terms.delta

    @property
    def contribution_bound(self) -> int:
        """The most rows of one unit that the noise is calibrated to."""
        return self.terms.contribution_bound

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event, which an accountant prices.
        """
        return self.terms.event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[float]:
        """Estimate the mean step by step.

        Args:
            data: The private column.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The mean and its interval.
        """
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
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[float]:
    """Release the mean of values with a spread of about `stddev`, with only loose bounds, by CoinPress.

    The clipping is tightened in 4 steps. For other `steps`, release a `Query` of `CoinPressMean(terms=...)`.

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
        level=level,
        column=column.name,
    )
    query = Query(CoinPressMean(terms=terms), column)
    return query.release(account=account, purpose=purpose, generator=generator)
