# SPDX-License-Identifier: Apache-2.0
"""A line through one feature, from noisy sums: NoisyStats.

The bound of 4 has this reason. Let the other rows be n rows with means (a, b). One more row adds n / (n + 1)
(u - a)(v - b) to the covariance, and (u - a)(v - b) lies in an interval of length at most 4, which holds 0:
so does n / (n + 1) times it, and 4 (1 - 1/n) bounds what a replacement of one of n rows moves.

Under replace-one, the variance, the covariance and the sum get a third of epsilon each. Under add-or-remove,
where the number of rows is private, too, the last third is halved between the sum and a noisy count.

Guarantee  Pure epsilon. With u and v the feature and the target clipped to their bounds and mapped to
           [-1, 1], one row moves the n-fold variance of u and the n-fold covariance of u and v by at most 4,
           and the sum of (v - slope u) / (1 + |slope|), once the slope is public, by 2 (replaced) or 1 (added
           or removed). Each gets Laplace noise, in whole steps of a public grid: no float is rounded before.
Failure    A noisy variance that is not positive: "failed", as a constant feature gives half of the time
           (`linear`, Failure). The budget is spent.
Edge cases A row with a NaN or an infinity contributes nothing. Under replace-one, where the number of rows is
           public, it counts as a row in the middle of both bounds instead.
Source     Alabi, McMillan, Sarathy, Smith, Vadhan 2020, arXiv:2007.05157, Algorithm 1. It is for a public
           number of rows; the version for add-or-remove is ours.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from sfumato.accounting.events import DpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.estimators.base import Floats
from sfumato.estimators.linear import (
    OneFeatureRegressor,
    check_fallback,
    exact_gram,
    finite_rows,
    public_bounds,
)
from sfumato.ledger.account import Account
from sfumato.mechanisms.additive import Laplace
from sfumato.mechanisms.random import Generator
from sfumato.statistics.columns.columns import STEPS, Bounds, in_steps

__all__ = ["NoisyStats"]


class NoisyStats(OneFeatureRegressor):
    """Simple linear regression by noisy variance and covariance, with pure differential privacy.

    Args:
        epsilon: The privacy budget of a fit, from 1e-9 to 1e9.
        feature_bounds: Lower and upper bound of the feature, public. Values outside are clipped.
        target_bounds: Lower and upper bound of the target, public. Values outside are clipped.
        fallback: A public number to predict if the fit fails. None: `predict` raises.
        relation: Which data sets are neighbors: a `Relation` or its name.
        privacy_unit: What one row stands for. An account must protect the same unit.
        account: The account that is charged. None records nothing, and `notes_` says so.
        purpose: What the release is for, as the ledger shows it. None uses a description of the estimator.
        random_state: None for secure noise, a whole number for seeded noise (for study only), or a sfumato
            generator.

    >>> x = np.linspace(0, 10, 5000)
    >>> line = NoisyStats(epsilon=1.0, feature_bounds=(0, 10), target_bounds=(0, 30)).fit(x, 2 * x + 3)
    >>> print(line.guarantee_)
    (1, 0)-differential privacy for one row, add-remove neighbors
    >>> bool(1.5 < line.coef_[0] < 2.5)
    True
    """

    def __init__(
        self,
        *,
        epsilon: float,
        feature_bounds: Bounds,
        target_bounds: Bounds,
        fallback: float | None = None,
        relation: Relation | str = "add-remove",
        privacy_unit: str = "row",
        account: Account | None = None,
        purpose: str | None = None,
        random_state: int | Generator | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            relation=relation,
            privacy_unit=privacy_unit,
            account=account,
            purpose=purpose,
            random_state=random_state,
        )
        self.feature_bounds = feature_bounds
        self.target_bounds = target_bounds
        self.fallback = fallback

    def event(self) -> DpEvent:
        """Return the event of one fit, from the parameters alone.

        Returns:
            The event.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        public_bounds("feature_bounds", self.feature_bounds)
        public_bounds("target_bounds", self.target_bounds)
        check_fallback(self.fallback)
        relation = self._supported_relation()
        shares = [share for share in self._shares(relation) if share]
        # Scale and sensitivity grow together with the grid, so their event is that of sensitivity 1.
        return compose(*(_laplace(self.epsilon * share, 1, relation).event() for share in shares))

    @staticmethod
    def _shares(relation: Relation) -> tuple[float, float, float, float]:
        """Return the parts of epsilon for the variance, the covariance, the sum and the count."""
        third = math.nextafter(1 / 3, 0)
        return (third, third, third, 0.0) if relation.replaces else (third, third, third / 2, third / 2)

    def _learn(self, X: Any, y: Any, *, generator: Generator) -> None:
        x, target = self._rows(X, y)
        relation = self._relation()
        steps = _steps(x[:, 0], target, self._bounds(), keep_all=relation.replaces)
        line = self._line(Sums.of(steps), relation, generator)
        if line is None:
            return self._fail(1, self.fallback)
        slope, middle = line
        (low, high), (bottom, top) = self._bounds()
        self.failed_ = False
        self.coef_ = np.array([slope * ((top - bottom) / (high - low))])
        self.intercept_ = bottom / 2 + top / 2 + middle * (top / 2 - bottom / 2)
        self.intercept_ -= float(self.coef_[0]) * (low / 2 + high / 2)

    def _bounds(self) -> tuple[Bounds, Bounds]:
        return (
            public_bounds("feature_bounds", self.feature_bounds),
            public_bounds("target_bounds", self.target_bounds),
        )

    def _line(self, sums: "Sums", relation: Relation, generator: Generator) -> tuple[float, float] | None:
        """Return the slope and the value at the middle in units of half the bounds; None if it fails."""
        shares = [self.epsilon * share for share in self._shares(relation)]
        bound = sums.sensitivity(relation)
        variance = _laplace(shares[0], bound, relation).release(sums.variance, generator=generator)
        covariance = _laplace(shares[1], bound, relation).release(sums.covariance, generator=generator)
        slope = covariance / variance if variance > 0 else math.inf
        if not math.isfinite(slope):
            return None
        total = _laplace(shares[2], relation.diameter * STEPS, relation).release(
            sums.residual(slope), generator=generator
        )
        count = float(sums.count)
        if not relation.replaces:
            count = _laplace(shares[3], 1, relation).release(count, generator=generator)
        return slope, total / STEPS / max(1.0, count) * (1 + abs(slope))


@dataclass(frozen=True, kw_only=True, slots=True)
class Sums:
    """Exact sums over the rows, in steps of the grid: private."""

    count: int
    x: int
    y: int
    xx: int
    xy: int

    @classmethod
    def of(cls, steps: Floats) -> "Sums":
        """Add up rows of (x, y) in steps."""
        with_one = np.column_stack([np.ones(len(steps)), steps])
        gram = exact_gram(with_one)
        return cls(count=len(steps), x=gram[0, 1], y=gram[0, 2], xx=gram[1, 1], xy=gram[1, 2])

    @property
    def variance(self) -> int:
        """The sum of (u - mean)^2, in steps, rounded down."""
        return self._centered(self.xx, self.x)

    @property
    def covariance(self) -> int:
        """The sum of (u - mean)(v - mean), in steps, rounded down."""
        return self._centered(self.xy, self.y)

    def _centered(self, products: int, other: int) -> int:
        if self.count == 0:
            return 0
        return (self.count * products - self.x * other) // (self.count * STEPS)

    def sensitivity(self, relation: Relation) -> int:
        """Return how many steps one row moves the variance, or the covariance. Public: it needs n only where
        n is. Rounding down moves two numbers apart by less than one step, to the next whole one at most."""
        if not relation.replaces:
            return 4 * STEPS
        return max(1, -(-4 * STEPS * (self.count - 1) // max(1, self.count)))

    def residual(self, slope: float) -> int:
        """Return the sum of (v - slope u) / (1 + |slope|), each in [-1, 1], in steps, rounded down."""
        exact = Fraction(slope)
        return math.floor((self.y - exact * self.x) / (1 + abs(exact)))


def _laplace(epsilon: float, sensitivity: int, relation: Relation) -> Laplace:
    return Laplace.calibrated(epsilon=epsilon, sensitivity=float(sensitivity), relation=relation)


def _steps(x: Floats, y: Floats, bounds: tuple[Bounds, Bounds], *, keep_all: bool) -> Floats:
    """Return rows of (x, y) in steps from the middle; what is not finite is left out, or in the middle."""
    known = finite_rows(x, y)
    if not keep_all:
        x, y = x[known], y[known]
        return np.column_stack([in_steps(x, bounds[0]), in_steps(y, bounds[1])])
    x, y = np.where(known, x, 0.0), np.where(known, y, 0.0)
    return np.column_stack([in_steps(x, bounds[0]), in_steps(y, bounds[1])]) * known[:, None]
