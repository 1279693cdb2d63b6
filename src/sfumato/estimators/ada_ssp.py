# SPDX-License-Identifier: Apache-2.0
"""Linear regression over several features, from noisy sums: AdaSSP.

Rows are put on a public grid, and their sums are whole numbers, added without rounding. They are rounded down
once, which adds a step for each entry to the sensitivities. The eigenvalue is computed in float64; its
sensitivity leaves room for a relative 2^-10 of one row's contribution, which covers up to 2^37 rows times
features.

The ridge is lambda = max(0, bound on the norm of the noise - a lower bound on the least eigenvalue), from
noisy numbers alone. It is raised if the noisy matrix would still not be positive.

Guarantee  (epsilon, delta). With z a row's features, scaled by `clip_norm` to norm at most 1, and a constant
           1 where there is an intercept, and v its target, clipped and mapped to [-1, 1], Gaussian noise is
           added to the sum of z z', to the sum of z v, and to the least eigenvalue of the first. Their events
           compose to one Gaussian mechanism, whose noise is the least for (epsilon, delta): no split by
           thirds. Noise on z z' is symmetric and smaller by sqrt(2) off the diagonal, where an entry counts
           twice.
Neighbors  With |z|^2 <= N (1, or 2 with an intercept). Add or remove: z z' has Frobenius norm N, z v norm
           sqrt(N), and the least eigenvalue moves by at most N (Weyl). Replace-one: z z' - y y' has norm at
           most sqrt(2) N, as both have a nonnegative product; z v twice its norm; the eigenvalue N still, as
           what is added and what is taken away move it in opposite directions.
Edge cases A row with a NaN or an infinity contributes nothing.
Source     Wang 2018, arXiv:1803.02596, Algorithm 2 (AdaSSP). The size of symmetric Gaussian noise: Boucheron,
           Lugosi, Massart 2013, Theorem 5.8 and Section 13.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from sfumato import _check
from sfumato.accounting.events import DpEvent, compose
from sfumato.accounting.gaussian import stddev_for
from sfumato.accounting.guarantee import Relation
from sfumato.estimators.base import Floats
from sfumato.estimators.linear import LinearRegressor, exact_gram, finite_rows, public_bounds
from sfumato.estimators.rows import clipped_steps
from sfumato.ledger.account import Account
from sfumato.mechanisms.additive import Gaussian
from sfumato.mechanisms.random import Generator
from sfumato.statistics.columns.columns import STEPS, Bounds, in_steps

__all__ = ["AdaSSP"]

_SHARES = (0.1, 0.45, 0.45)  # of the squared signal-to-noise: eigenvalue, matrix, vector
_FAILURE = 0.05  # how often the ridge may be too small for the noise: Wang's rho
_EIGENVALUE_SLACK = 1 + 2.0**-10
_ROUNDING = 1 + 1e-12  # a stddev of so much more covers the rounding of a product


class AdaSSP(LinearRegressor):
    """Linear regression by noisy sufficient statistics with an adaptive ridge.

    Args:
        epsilon: The privacy budget of a fit, from 1e-9 to 1e9.
        delta: The delta of the guarantee, above 0.
        clip_norm: The L2 norm to which each row of features is clipped, public.
        target_bounds: Lower and upper bound of the target, public. Targets outside are clipped. Predictions
            start from their middle.
        fit_intercept: Whether to fit an intercept.
        relation: Which data sets are neighbors: a `Relation` or its name.
        privacy_unit: What one row stands for. An account must protect the same unit.
        account: The account that is charged. None records nothing, and `notes_` says so.
        purpose: What the release is for, as the ledger shows it. None uses a description of the estimator.
        random_state: None for secure noise, a whole number for seeded noise (for study only), or a sfumato
            generator.

    >>> x = np.linspace(-1, 1, 4000)[:, None]
    >>> model = AdaSSP(epsilon=1.0, delta=1e-6, clip_norm=1.0, target_bounds=(-3, 3)).fit(x, 2 * x[:, 0])
    >>> print(model.guarantee_)
    (1, 1e-06)-differential privacy for one row, add-remove neighbors
    >>> bool(1.5 < model.coef_[0] < 2.5)
    True
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        clip_norm: float,
        target_bounds: Bounds,
        fit_intercept: bool = True,
        relation: Relation | str = "add-remove",
        privacy_unit: str = "row",
        account: Account | None = None,
        purpose: str | None = None,
        random_state: int | Generator | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            privacy_unit=privacy_unit,
            account=account,
            purpose=purpose,
            random_state=random_state,
        )
        self.clip_norm = clip_norm
        self.target_bounds = target_bounds
        self.fit_intercept = fit_intercept

    def event(self) -> DpEvent:
        """Return the event of one fit, from the parameters alone.

        Returns:
            The event.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        _check.scale(clip_norm=self.clip_norm)
        public_bounds("target_bounds", self.target_bounds)
        relation = self._supported_relation()
        ones = [Gaussian(stddev=s, sensitivity=1.0, relation=relation) for s in self._noise()]
        return compose(*(one.event() for one in ones))

    def _noise(self) -> list[float]:
        """Return the stddevs, in sensitivities, of the noise on eigenvalue, matrix and vector.

        Gaussians of stddevs s_i compose to one with 1 / s^2 = sum of 1 / s_i^2.
        """
        _check.probability(delta=self.delta)
        whole = stddev_for(self.epsilon, self.delta, 1.0) * _ROUNDING
        return [whole / math.sqrt(share) for share in _SHARES]

    def _learn(self, X: Any, y: Any, *, generator: Generator) -> None:
        rows, target = self._rows(X, y)
        bounds = public_bounds("target_bounds", self.target_bounds)
        sums = Sums.of(
            rows, target, clip_norm=self.clip_norm, bounds=bounds, intercept=bool(self.fit_intercept)
        )
        noisy = self._released(sums, generator)
        solved = noisy.solution() * (bounds[1] / 2 - bounds[0] / 2)
        features = rows.shape[1]
        self.coef_ = solved[:features] / self.clip_norm
        self.intercept_ = bounds[0] / 2 + bounds[1] / 2 + (float(solved[-1]) if self.fit_intercept else 0.0)

    def _released(self, sums: "Sums", generator: Generator) -> "NoisySums":
        relation, noise = self._relation(), self._noise()
        limits = sums.sensitivities(relation)
        least, matrix, vector = (
            Gaussian(stddev=s * limit * _ROUNDING, sensitivity=limit, relation=relation)
            for s, limit in zip(noise, limits, strict=True)
        )
        return NoisySums(
            least=least.release(sums.least_eigenvalue(), generator=generator),
            matrix=_noised_symmetric(sums.matrix, matrix, generator),
            vector=np.array([vector.release(value, generator=generator) for value in sums.vector]),
            least_stddev=least.stddev,
            matrix_stddev=matrix.stddev,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sums:
    """The sums of z z' and z v, in whole steps: private."""

    matrix: Floats
    vector: Floats
    squared_norm: int

    @classmethod
    def of(cls, rows: Floats, target: Floats, *, clip_norm: float, bounds: Bounds, intercept: bool) -> "Sums":
        """Clip the rows and add them up."""
        known = finite_rows(rows, target)
        parts = [clipped_steps(rows[known], clip_norm=clip_norm), in_steps(target[known], bounds)[:, None]]
        if intercept:
            parts.insert(1, np.full((len(parts[0]), 1), float(STEPS)))
        gram = (exact_gram(np.concatenate(parts, axis=1)) // STEPS).astype(np.float64)
        return cls(matrix=gram[:-1, :-1], vector=gram[:-1, -1], squared_norm=2 if intercept else 1)

    def sensitivities(self, relation: Relation) -> tuple[float, float, float]:
        """Return how many steps one row moves the least eigenvalue, the matrix and the vector in L2 norm.

        For the matrix, every entry counts; rounding down adds less than a step in each.
        """
        size = len(self.vector)
        both = math.sqrt(2) if relation.replaces else 1.0
        matrix = (both * self.squared_norm * STEPS + size) * _ROUNDING
        vector = (relation.diameter * math.sqrt(self.squared_norm) * STEPS + math.sqrt(size)) * _ROUNDING
        return self.squared_norm * STEPS * _EIGENVALUE_SLACK + size, matrix, vector

    def least_eigenvalue(self) -> float:
        """Return the least eigenvalue of the sum of z z', in steps."""
        return float(np.linalg.eigvalsh(self.matrix)[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class NoisySums:
    """What left the private side, and how noisy it is: from here on, everything is post-processing."""

    least: float
    matrix: Floats
    vector: Floats
    least_stddev: float
    matrix_stddev: float

    def solution(self) -> Floats:
        """Return (matrix + ridge)^-1 vector."""
        values, vectors = np.linalg.eigh(self.matrix)
        ridge = max(self.ridge(), self.matrix_stddev - float(values[0]))
        return vectors @ ((vectors.T @ self.vector) / (values + ridge))

    def ridge(self) -> float:
        """Return Wang's lambda: what the noise may take from the least eigenvalue, unless that is large."""
        lower = max(0.0, self.least + float(ndtri(_FAILURE / 2)) * self.least_stddev)
        return max(0.0, self.matrix_stddev * _noise_norm(len(self.vector)) - lower)


def _noise_norm(size: int) -> float:
    """Return how large a symmetric noise matrix may be, in stddevs of its diagonal: the less of two bounds.

    Wang's, by a union bound; and the mean sqrt(2 size) of the largest eigenvalue plus a Gaussian's tail.
    """
    tail = math.sqrt(2 * math.log(2 / _FAILURE))
    return min(math.sqrt(size * math.log(2 * size**2 / _FAILURE)), math.sqrt(2 * size) + tail)


def _noised_symmetric(matrix: Floats, gaussian: Gaussian, generator: Generator) -> Floats:
    """Return the matrix with noise of `gaussian` on the diagonal, and smaller by sqrt(2) off it.

    One entry off the diagonal stands for two of the Frobenius norm: x at stddev s / sqrt(2) is as far from
    0, in stddevs, as (x, x) at s.
    """
    half = math.sqrt(0.5) * _ROUNDING
    off = Gaussian(
        stddev=gaussian.stddev * half, sensitivity=gaussian.sensitivity * half, relation=gaussian.relation
    )
    noisy = np.zeros_like(matrix)
    for i in range(len(matrix)):
        noisy[i, i] = gaussian.release(float(matrix[i, i]), generator=generator)
        for j in range(i):
            noisy[i, j] = noisy[j, i] = off.release(float(matrix[i, j]), generator=generator)
    return noisy
