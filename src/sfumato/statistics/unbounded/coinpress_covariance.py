# SPDX-License-Identifier: Apache-2.0
"""Private covariance of rows whose scale is known only loosely, by CoinPress.

Rows are scaled by an upper bound on their covariance, at first `stddev` squared, so that all but one in a
hundred fit into a ball whose size depends only on the dimension. The noisy covariance, with room for its
errors, is a better upper bound. Scaled by that, directions in which rows vary little get little noise. The
last step gets three quarters of this share. The assumptions are those of `coinpress_means`; the privacy
guarantee does not depend on them.

Guarantee  A fifth of the budget finds the mean (`coinpress_means`); `steps` noisy sums of products
           (`product_sums`) share the rest. Rhos add up to the budget, whatever the steps find.
Neighbors  Add-or-remove, or replace-one with a `public_size`.
Edge cases The matrix has no negative eigenvalues: those that noise made negative are zero. There is no
           interval, because the error of an entry depends on all others.
Source     Biswas, Dong, Kamath and Ullman 2020, arXiv:2006.06618, Algorithm 4, with an estimated mean in
           place of differences of pairs, all of which one added row would change.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato import _check
from sfumato.accounting.events import DpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.ledger.account import Account
from sfumato.mechanisms import Generator
from sfumato.statistics.arrays import Floats
from sfumato.statistics.columns.columns import Bounds, Rows, rows_of
from sfumato.statistics.gaussian_vectors import (
    Concentrated,
    VectorGaussian,
    for_each_column,
    in_ball,
    row_products,
    whole_rows,
)
from sfumato.statistics.matrices.covariance import matrix_parts, positive
from sfumato.statistics.matrices.product_sums import COARSE, GRAIN, Scatter, added_up
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.release import Release
from sfumato.statistics.unbounded.coinpress_means import BEYOND, LAST_SHARE, CoinPressMeans, tail_length

__all__ = ["CoinPressCovariance", "coinpress_covariance"]


_MEAN_SHARE = 0.2  # of the budget
_NO_INTERVAL = ("no interval: the error of an entry depends on all others.",)


@dataclass(frozen=True, kw_only=True, slots=True)
class CoinPressCovariance(Concentrated):
    """The covariance matrix of rows, scaled step by step.

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
        column: The name of the rows, as releases show it.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> question = CoinPressCovariance(bounds=((-50, 50),) * 2, stddev=(10.0, 10.0), rho=0.5, delta=1e-6)
    >>> question.name
    'covariance of rows by CoinPress'
    """

    bounds: tuple[Bounds, ...]
    stddev: tuple[float, ...]
    steps: int = 4
    column: str = "rows"

    def __post_init__(self) -> None:
        Concentrated.__post_init__(self)
        _check.count(steps=self.steps)
        self.of_mean.event()  # validates bounds and stddev

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"covariance of {self.column} by CoinPress"

    @property
    def of_mean(self) -> CoinPressMeans:
        """The question for the mean, which is estimated first."""
        return CoinPressMeans(
            bounds=self.bounds,
            stddev=self.stddev,
            rho=_MEAN_SHARE * self.budget,
            delta=self.delta,
            relation=self.relation,
            contribution_bound=self.contribution_bound,
            public_size=self.public_size,
        )

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the budget of each step."""
        left = 1 - _MEAN_SHARE
        if self.steps == 1:
            return (left,)
        return (left * (1 - LAST_SHARE) / (self.steps - 1),) * (self.steps - 1) + (left * LAST_SHARE,)

    @property
    def scatter(self) -> Scatter:
        """The layout of the noisy sums."""
        return Scatter(dimension=len(self.bounds), squared_length=1.0, box=False)

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event, which an accountant prices.
        """
        return compose(self.of_mean.event(), *(self._noise(share).event() for share in self.shares))

    def answer(self, data: Rows, *, generator: Generator | None) -> Answer[Floats]:
        """Estimate the mean, then the covariance step by step.

        Args:
            data: The private rows.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The matrix, without an interval.
        """
        ball, size = self.of_mean.located(self.of_mean.sums_of(data), generator)
        shape, found = np.eye(len(self.bounds)), np.eye(len(self.bounds))
        for i, share in enumerate(self.shares):
            found, noise = self._step(data, ball.center, shape, size, share, generator)
            if i < self.steps - 1:
                shape = _shaped(found, noise, size) @ shape
        back = np.linalg.inv(shape)
        scaled = back @ positive(found) @ back.T
        value = scaled * np.outer(self.stddev, self.stddev)
        return Answer(value=value, notes=_NO_INTERVAL, parts=matrix_parts(data.names, value))

    def _step(
        self,
        data: Rows,
        center: Floats,
        shape: Floats,
        size: float,
        share: float,
        generator: Generator | None,
    ) -> tuple[Floats, float]:
        """Return the noisy covariance of rows scaled by `shape`, and the noise on its diagonal."""
        radius = tail_length(len(self.bounds), BEYOND)
        middle, scale, origin = self.of_mean.middle, np.array(self.stddev), np.zeros(len(self.bounds))
        rows = (_scaled(batch, middle, scale) - center for batch in data.batches())
        shaped = (in_ball(row_products(part, shape), origin, radius) for part in rows)
        whole = (whole_rows(part, steps=GRAIN) for part in shaped)
        noise, scatter = self._noise(share), self.scatter
        total = scatter.triangle(added_up(whole, len(self.bounds)))
        unit = radius**2 / size
        return scatter.matrix(noise.add(total, generator=generator)) * unit, (
            noise.stddev * COARSE / GRAIN**2 * unit
        )

    def _noise(self, share: float) -> VectorGaussian:
        return self.noise(share, self.scatter.reach(rows=self.contribution_bound, relation=self.relation))


def _shaped(found: Floats, noise: float, size: float) -> Floats:
    """Return the matrix that scales rows so that their covariance is at most one: an inverse square root.

    `found` may be too small by the largest eigenvalue of the noise, about sqrt(2 d) times the noise with the
    weights of `product_sums`, and by the sampling error, 2 sqrt(d / n) + d / n times itself.
    """
    dimension = len(found)
    sampled = math.sqrt(dimension / size)
    values, vectors = np.linalg.eigh(found)
    upper = (np.maximum(values, 0.0) + noise * (math.sqrt(2 * dimension) + 2)) * (1 + sampled) ** 2
    return (vectors / np.sqrt(np.minimum(upper, 1.0))) @ vectors.T


def coinpress_covariance(
    values: Any,
    *,
    bounds: Bounds | Sequence[Bounds],
    stddev: float | Sequence[float],
    delta: float,
    epsilon: float | None = None,
    rho: float | None = None,
    relation: str | Relation = Relation.ADD_REMOVE,
    public_size: int | None = None,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[Floats]:
    """Release the covariance matrix, [columns, columns], of rows with a spread of at most `stddev`.

    The clipping is tightened in 4 steps. For other `steps`, release a `Query` of `CoinPressCovariance(...)`.

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
        account: The account to charge before any data is read. None means that no account is charged.
        purpose: The purpose that the account records. None means the name of the statistic.
        generator: The source of randomness. None means secure randomness from the operating system.

    Returns:
        The release, with its value and its guarantee.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `values` are not numbers. Nothing is
            charged.
        BudgetExceededError: If the account has too little budget left. Nothing is computed.
        QueryFailedError: If the engine of a table fails. The cost stays charged.

    >>> rows = np.random.default_rng(0).normal(size=(5000, 2)) * [0.1, 1.0]
    >>> release = coinpress_covariance(rows, bounds=(-50, 50), stddev=10.0, rho=0.5, delta=1e-6)
    >>> bool(abs(release.value - np.cov(rows.T)).max() < 0.2)
    True
    """
    rows = rows_of(values)
    question = CoinPressCovariance(
        bounds=for_each_column(bounds, rows),
        stddev=(stddev,) * len(rows.names) if isinstance(stddev, int | float) else tuple(stddev),
        epsilon=epsilon,
        rho=rho,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=rows.contribution_bound,
        public_size=public_size,
        column=f"{len(rows.names)} columns",
    )
    return Query(question, rows).release(account=account, purpose=purpose, generator=generator)


def _scaled(rows: Floats, middle: Floats, scale: Floats) -> Floats:
    with np.errstate(over="ignore"):  # values that overflow are clipped; a warning would reveal them
        return np.clip((np.clip(rows, -1e150, 1e150) - middle) / scale, -1e150, 1e150)
