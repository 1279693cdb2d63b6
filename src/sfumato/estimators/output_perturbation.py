# SPDX-License-Identifier: Apache-2.0
"""Output perturbation: minimize, then add noise to the minimum.

At delta 0 the noise is `spherical_laplace`; otherwise it is Gaussian, calibrated analytically.

Guarantee  The exact minimum of sum_i f_i(w) + r |w|^2 / 2 moves by at most G / r in L2 norm, where G is how
           far neighbors move the gradient of the sum: X under add-remove, 2 X under replace-one, for rows of
           norm at most X and slopes in [-1, 1] (Chaudhuri et al. 2011, Lemma 7 and Corollary 8: there it is
           2 / (n lambda), with r = n lambda and X = 1). A solver stops within tolerance / r of the minimum
           (`minimum`), for each neighbor: so 2 tolerance / r is added.
           Nothing is divided by the number of rows: r is a public number. One that is too small for the
           solver is refused before anything is spent.
Source     R2, Algorithm 1; Chaudhuri, Monteleoni, Sarwate 2011, arXiv:0912.0071, Algorithm 1.
"""

import math
from dataclasses import dataclass

import numpy as np

from sfumato import _check
from sfumato.accounting.events import DpEvent, PureDpEvent, UnsampledDpEvent
from sfumato.accounting.gaussian import stddev_for
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import dp_event as dp
from sfumato.estimators.base import Floats
from sfumato.estimators.minimum import minimize, require_solvable
from sfumato.estimators.spherical import gaussian_vector, on_grid, spherical_laplace
from sfumato.mechanisms.random import Generator

__all__ = ["SOLVER_TOLERANCE", "OutputPerturbation"]

SOLVER_TOLERANCE = 1e-5  # of the most that one row moves a minimum: how near to it solvers stop


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputPerturbation:
    """The minimum of a logistic objective, with noise.

    `runs` releases cost (epsilon, delta) together: one for each class.

    >>> pure = OutputPerturbation(
    ...     epsilon=1.0, row_norm=1.0, regularization=10.0, relation=Relation.REPLACE_ONE
    ... )
    >>> round(pure.size, 6), pure.event()
    (0.200002, PureDpEvent(epsilon=1.0))
    """

    epsilon: float
    delta: float = 0.0
    runs: int = 1
    row_norm: float  # bound on the norm of a row, intercept included
    regularization: float
    relation: Relation

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon, row_norm=self.row_norm, regularization=self.regularization)
        _check.in_range(0, 1, delta=self.delta)
        _check.count(runs=self.runs)
        require_solvable(self.regularization, row_norm=self.row_norm)

    @property
    def tolerance(self) -> float:
        """How near to the minimum the solver stops, times the regularization."""
        return SOLVER_TOLERANCE * self.row_norm

    @property
    def sensitivity(self) -> float:
        """The most that neighbors move what the solver returns, in L2 norm."""
        moved = self.relation.diameter * self.row_norm
        return (moved + 2 * self.tolerance) / self.regularization

    @property
    def size(self) -> float:
        """The scale of the noise, or its standard deviation where delta is above 0."""
        if self.delta == 0:
            return self.runs * self.sensitivity / self.epsilon
        return stddev_for(self.epsilon, self.delta, math.sqrt(self.runs) * self.sensitivity)

    def event(self) -> DpEvent:
        """Return what one release costs."""
        if self.delta == 0:
            return PureDpEvent(self.epsilon / self.runs)
        gaussian = dp.GaussianDpEvent(self.relation.diameter * self.size / self.sensitivity)
        return UnsampledDpEvent(gaussian) if self.relation.replaces else gaussian

    def release(self, rows: Floats, signs: Floats, *, generator: Generator | None = None) -> Floats:
        """Return the noisy minimum for rows of norm at most `row_norm` and labels -1 or 1."""
        dimension = rows.shape[1]
        nothing = np.zeros(dimension)
        best = minimize(
            rows,
            signs,
            row_norm=self.row_norm,
            regularization=self.regularization,
            tilt=nothing,
            tolerance=self.tolerance,
        )
        if self.delta == 0:
            noise = spherical_laplace(dimension, scale=self.size, generator=generator)
        else:
            noise = gaussian_vector(dimension, stddev=self.size, generator=generator)
        return on_grid(best + noise, noise=self.size)
