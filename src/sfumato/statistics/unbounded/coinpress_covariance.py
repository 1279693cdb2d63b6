# SPDX-License-Identifier: Apache-2.0
"""The covariance of rows whose scale is known only loosely: CoinPress.

Guarantee  A fifth of the budget finds the mean (`coinpress_mean`); the rest is shared by `steps` noisy
           sums of products (`product_sums`). Rhos add up to the budget, whatever the steps find.
Method     Rows are scaled by an upper bound on their covariance, at first `stddev` squared, so that all but
           one in a hundred fit a ball whose size depends on the dimension only. The noisy covariance, with
           room for its errors, is a better upper bound; scaled by that, directions in which rows vary little
           get little noise. The last step has three quarters of this share.
Assumes    As `coinpress_mean`: `stddev`, public, is at least the standard deviation along every
           direction, and tails are about Gaussian. Privacy does not depend on it.
Neighbors  Add-or-remove, or replace-one with a `public_size`.
Edges      The matrix has no negative eigenvalues: what noise made negative is zero.
Interval   None: the error of an entry depends on all others.
Source     Biswas, Dong, Kamath and Ullman 2020, arXiv:2006.06618, Algorithm 4, with a found mean in place of
           differences of pairs, which adding one row would all change.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.events import DpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.ledger.account import Account
from sfumato.mechanisms import Generator
from sfumato.statistics.columns.columns import Bounds, Rows, rows_of
from sfumato.statistics.gaussian_vectors import (
    Concentrated,
    VectorGaussian,
    for_each_column,
    in_ball,
    row_products,
    whole_rows,
)
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.questions.covariance import matrix_parts, positive
from sfumato.statistics.questions.product_sums import COARSE, GRAIN, Scatter, added_up
from sfumato.statistics.release import Release
from sfumato.statistics.unbounded.coinpress_mean import BEYOND, LAST_SHARE, CoinPressMeans, tail_length

__all__ = ["CoinPressCovariance", "coinpress_covariance"]

Floats = npt.NDArray[np.float64]

_MEAN_SHARE = 0.2  # of the budget
_NO_INTERVAL = ("no interval: the error of an entry depends on all others.",)


@dataclass(frozen=True, kw_only=True, slots=True)
class CoinPressCovariance(Concentrated):
    """The covariance matrix of rows, scaled step by step.

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
        self.of_mean.event()  # checks bounds and stddev

    @property
    def name(self) -> str:
        """What is asked."""
        return f"covariance of {self.column} by CoinPress"

    @property
    def of_mean(self) -> CoinPressMeans:
        """Return the question about the mean that comes first."""
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
        """Return the share of the budget that each step has."""
        left = 1 - _MEAN_SHARE
        if self.steps == 1:
            return (left,)
        return (left * (1 - LAST_SHARE) / (self.steps - 1),) * (self.steps - 1) + (left * LAST_SHARE,)

    @property
    def scatter(self) -> Scatter:
        """Return the layout of the noisy sums."""
        return Scatter(dimension=len(self.bounds), squared_length=1.0, box=False)

    def event(self) -> DpEvent:
        """Return what asking costs."""
        return compose(self.of_mean.event(), *(self._noise(share).event() for share in self.shares))

    def answer(self, data: Rows, *, generator: Generator | None) -> Answer[Floats]:
        """Find the mean, then the covariance step by step."""
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
        """Return the noisy covariance of rows that `shape` has scaled, and the noise on its diagonal."""
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
    """Return what scales rows so that their covariance is again at most one: an inverse square root.

    `found` may be too small by the largest eigenvalue of the noise, about sqrt(2 d) of it with the weights of
    `scatter`, and by the error of sampling, 2 sqrt(d / n) + d / n of itself.
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
    steps: int = 4,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[Floats]:
    """Return the covariance matrix, [columns, columns], of rows that spread by at most `stddev`.

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
        steps=steps,
        column=f"{len(rows.names)} columns",
    )
    return Query(question, rows).release(account=account, purpose=purpose, generator=generator)


def _scaled(rows: Floats, middle: Floats, scale: Floats) -> Floats:
    with np.errstate(over="ignore"):  # what overflows is clipped; a warning would tell of it
        return np.clip((np.clip(rows, -1e150, 1e150) - middle) / scale, -1e150, 1e150)
