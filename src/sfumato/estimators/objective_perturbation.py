# SPDX-License-Identifier: Apache-2.0
"""Objective perturbation: add a random linear term to the objective, then minimize.

Both bounds hold for the exact minimum w*. The solver's w is within tolerance / r of it. Given w*, the
difference w - w* is a function of the data that neighbors move by at most 2 tolerance / r, so w + noise is
the adaptive composition of w* and a release of that difference (Iyengar et al. 2019, "approximate minima").
Its cost is part of the event.

The determinant may take at most half of epsilon: a smaller regularization is raised to X^2 / (4 (e^{epsilon /
2} - 1)). (Chaudhuri et al. raise theirs if nothing would be left.) A regularization below what the solver
needs is raised, too (`minimum`).

Guarantee  delta = 0: noise b with density in proportion to exp(-|b| / scale), scale = G / e, where G is how
           far neighbors move the gradient (X under add-remove, 2 X under replace-one). The minimum then costs
           e + log(1 + X^2 / (4 r)); the second part pays for the change of the Hessian's determinant.
           delta > 0: Gaussian b; see `accounting.perturbation` for the proof of its event.
Source     Chaudhuri et al. pay 2 log(1 + X^2 / (4 r)) for the determinants under replace-one. Half of it is
           enough: the Hessian with the other row in it is at least the one without either.
           R2, Algorithm 2; Chaudhuri, Monteleoni, Sarwate 2011, arXiv:0912.0071, Algorithm 2 and Theorem 9;
           Kifer, Smith, Thakurta 2012; Redberg, Koskela, Wang 2023, arXiv:2401.00583.
"""

import math
from dataclasses import dataclass

from sfumato import _check
from sfumato.accounting.calibrate import calibrate
from sfumato.accounting.events import (
    DpEvent,
    ObjectivePerturbationDpEvent,
    PureDpEvent,
    UnsampledDpEvent,
    compose,
)
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import dp_event as dp
from sfumato.estimators.base import Floats
from sfumato.estimators.minimum import LEAST_REGULARIZATION, minimize, require_solvable
from sfumato.estimators.output_perturbation import SOLVER_TOLERANCE
from sfumato.estimators.spherical import gaussian_vector, on_grid, spherical_laplace
from sfumato.mechanisms.random import Generator

__all__ = ["GaussianObjectivePerturbation", "PureObjectivePerturbation", "regularization_for"]

_CURVATURE = 0.25  # the most that log(1 + e^-t) bends
_MOST = 0.5  # of epsilon, for the determinant
_LARGEST_EXPONENT = 700.0  # e^700 is a float
_SOLVER_SHARE = 0.01  # of epsilon, for what the solver leaves
_SOLVER_NOISE = 300.0  # over the most that neighbors move what the solver leaves


def regularization_for(*, epsilon: float, row_norm: float, share: float = 0.25) -> float:
    """Return the regularization at which the determinant takes a share of epsilon, or the least solvable.

    >>> round(regularization_for(epsilon=1.0, row_norm=1.0), 4)
    0.8802
    """
    paid = math.expm1(min(share * epsilon, _LARGEST_EXPONENT))
    return max(_CURVATURE / paid, LEAST_REGULARIZATION) * row_norm**2


@dataclass(frozen=True, kw_only=True, slots=True)
class PureObjectivePerturbation:
    """The minimum of a logistic objective with a random linear term, at delta 0.

    >>> pure = PureObjectivePerturbation(
    ...     epsilon=1.0, row_norm=1.0, regularization=10.0, relation=Relation.REPLACE_ONE
    ... )
    >>> round(pure.scale, 3)
    2.072
    """

    epsilon: float
    row_norm: float
    regularization: float
    relation: Relation

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon, row_norm=self.row_norm, regularization=self.regularization)
        least = regularization_for(epsilon=self.epsilon, row_norm=self.row_norm, share=_MOST)
        object.__setattr__(self, "regularization", max(float(self.regularization), least))

    @property
    def tolerance(self) -> float:
        """How near to the minimum the solver stops, times the regularization."""
        return SOLVER_TOLERANCE * self.row_norm

    @property
    def scale(self) -> float:
        """The scale of the linear term."""
        determinant = math.log1p(_CURVATURE * self.row_norm**2 / self.regularization)
        left = (1 - _SOLVER_SHARE) * self.epsilon - determinant
        return self.relation.diameter * self.row_norm / left

    @property
    def solver_scale(self) -> float:
        """The scale of the noise that hides where the solver stopped."""
        return 2 * self.tolerance / self.regularization / (_SOLVER_SHARE * self.epsilon)

    def event(self) -> DpEvent:
        """Return what one release costs."""
        return PureDpEvent(self.epsilon)

    def release(self, rows: Floats, signs: Floats, *, generator: Generator | None = None) -> Floats:
        """Return the minimum for rows of norm at most `row_norm` and labels -1 or 1."""
        dimension = rows.shape[1]
        tilt = spherical_laplace(dimension, scale=self.scale, generator=generator)
        best = minimize(
            rows,
            signs,
            row_norm=self.row_norm,
            regularization=self.regularization,
            tilt=tilt,
            tolerance=self.tolerance,
        )
        hidden = best + spherical_laplace(dimension, scale=self.solver_scale, generator=generator)
        return on_grid(hidden, noise=self.solver_scale)


@dataclass(frozen=True, kw_only=True, slots=True)
class GaussianObjectivePerturbation:
    """The minimum of a logistic objective with a Gaussian linear term; it costs what its event costs."""

    noise_multiplier: float  # standard deviation of the linear term over `row_norm`
    row_norm: float
    regularization: float
    relation: Relation

    def __post_init__(self) -> None:
        _check.positive(
            noise_multiplier=self.noise_multiplier,
            row_norm=self.row_norm,
            regularization=self.regularization,
        )
        require_solvable(self.regularization, row_norm=self.row_norm)

    @classmethod
    def calibrated(
        cls,
        *,
        epsilon: float,
        delta: float,
        row_norm: float,
        regularization: float,
        relation: Relation,
        runs: int = 1,
    ) -> "GaussianObjectivePerturbation":
        """Return the mechanism with the least noise for which `runs` of it cost (epsilon, delta) together.

        >>> made = GaussianObjectivePerturbation.calibrated(
        ...     epsilon=1.0, delta=1e-5, row_norm=1.0, regularization=5.0, relation=Relation.ADD_REMOVE
        ... )
        >>> round(made.noise_multiplier, 2)
        3.91
        """
        _check.positive(epsilon=epsilon, row_norm=row_norm, regularization=regularization)
        least = regularization_for(epsilon=epsilon / runs, row_norm=row_norm, share=_MOST)

        def make(noise_multiplier: float) -> "GaussianObjectivePerturbation":
            return cls(
                noise_multiplier=noise_multiplier,
                row_norm=row_norm,
                regularization=max(float(regularization), least),
                relation=relation,
            )

        return make(
            calibrate(
                lambda noise: compose(*[make(noise).event()] * runs),
                epsilon=epsilon,
                delta=delta,
                relation=relation,
                bracket=(1e-2, 1e6),
            )
        )

    @property
    def tolerance(self) -> float:
        """How near to the minimum the solver stops, times the regularization."""
        return SOLVER_TOLERANCE * self.row_norm

    @property
    def solver_stddev(self) -> float:
        """The standard deviation of the noise that hides where the solver stopped."""
        return _SOLVER_NOISE * 2 * self.tolerance / self.regularization

    def event(self) -> DpEvent:
        """Return what one release costs."""
        curvature = _CURVATURE * self.row_norm**2 / self.regularization
        solver = UnsampledDpEvent(dp.GaussianDpEvent(self.relation.diameter * _SOLVER_NOISE))
        return compose(ObjectivePerturbationDpEvent(self.noise_multiplier, curvature), solver)

    def release(self, rows: Floats, signs: Floats, *, generator: Generator | None = None) -> Floats:
        """Return the minimum for rows of norm at most `row_norm` and labels -1 or 1."""
        dimension = rows.shape[1]
        tilt = gaussian_vector(dimension, stddev=self.noise_multiplier * self.row_norm, generator=generator)
        best = minimize(
            rows,
            signs,
            row_norm=self.row_norm,
            regularization=self.regularization,
            tilt=tilt,
            tolerance=self.tolerance,
        )
        hidden = best + gaussian_vector(dimension, stddev=self.solver_stddev, generator=generator)
        return on_grid(hidden, noise=self.solver_stddev)
