# SPDX-License-Identifier: Apache-2.0
"""The minimum of a regularized logistic objective, with a certified distance from it.

The objective is F(w) = sum_i log(1 + exp(-s_i w . x_i)) + r |w|^2 / 2 + tilt . w, with signs s_i, r the
regularization and rows x_i of norm at most `row_norm`, X.

Guarantee  `minimize` returns a w within tolerance / r of the one exact minimum. (A gradient norm of at most
           `tolerance` would imply that. float64 cannot always reach it, because many rows make the gradient
           stiff; it can reach a w that is near.)
           Third derivatives are at most X times second ones, so between w and the minimum, s / X away, the
           Hessian is at least (1 - e^-s) / s times H(w) on average. With t = X sqrt(g . H^-1 g / r) for the
           gradient g at w, that gives 1 - e^-s <= t, hence s <= -log(1 - t): the certificate. Half of what it
           may be is left for rounding, which takes less for up to 2^24 rows and 2^32 numbers, whatever they
           are, given r >= `LEAST_REGULARIZATION` X^2 (`require_solvable` says why, and refuses others).
Failure    Nothing is raised: an error for some data and none for a neighbor would distinguish them. If the
           steps run out, or beyond these limits the Hessian is not positive in float64, which is not known to
           happen, the last w is returned: its cost grows with its distance, by 2e-5 of epsilon for each
           tolerance; an error would cost everything. Newton's steps of size log(1 + d) / d, d = X times their
           length, provably lead to the minimum (Sun and Tran-Dinh 2019, arXiv:1703.04599, Section 4); longer
           ones are taken while F still falls.
Edge cases Without any row the minimum is -tilt / r.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from sfumato.errors import InvalidParameterError
from sfumato.estimators.base import Floats

__all__ = ["LEAST_REGULARIZATION", "minimize", "require_solvable"]

LEAST_REGULARIZATION = 1e-4  # in squared row norms
_STEPS = 5000  # of Newton's method; ten are usual
_RUN = 32  # rows whose gradients are added one after another; runs are added in pairs
_BLOCK = 2**9  # rows of the Hessian at a time: they stay in the processor's cache


def require_solvable(regularization: float, *, row_norm: float) -> None:
    """Refuse, from public numbers alone, where a minimum could not be certified in float64 for some rows.

    In units of X = 1, for n rows of d features, rounding moves t sqrt(r) = sqrt(g . H^-1 g) by at most
    sqrt(n) / 2 times the error d u |w| of a score (u = 2^-53), as H has the same rows in it, and by
    60 u n / sqrt(r) for sums; and |w| <= sqrt(1.4 n / r) + 2 |tilt| / r, as F(w) <= F(0). So t r, which is to
    be at most half of the tolerance, moves by about (d + 60) n u: 1e-6 for n d = 2^32, whatever r is. That t
    itself is below 1 needs (d + 60) n u < r / 2, and the Hessian needs it, too: hence the bound on r.

    >>> require_solvable(1e-3, row_norm=1.0)
    """
    if not regularization >= LEAST_REGULARIZATION * row_norm**2:
        raise InvalidParameterError(
            f"regularization={regularization!r} is too small for rows of norm {row_norm:g}: the minimum "
            "could not be computed well enough for its noise to hide it. Use at least "
            f"{LEAST_REGULARIZATION * row_norm**2:g}. Nothing was spent."
        )


def minimize(
    rows: Floats, signs: Floats, *, row_norm: float, regularization: float, tilt: Floats, tolerance: float
) -> Floats:
    """Return a point within tolerance / regularization of where the objective is least.

    >>> ones, zero = np.ones((4, 1)), np.zeros(1)
    >>> w = minimize(ones, np.ones(4), row_norm=1.0, regularization=1.0, tilt=zero, tolerance=1e-9)
    >>> w.round(4)
    array([1.0426])
    """
    objective = _Objective(
        rows=rows * (signs / row_norm)[:, None],
        regularization=regularization / row_norm / row_norm,
        tilt=tilt / row_norm,
    )
    return objective.minimum(within=tolerance / regularization * row_norm) / row_norm


@dataclass(frozen=True, kw_only=True, slots=True)
class _Objective:
    """F in units in which rows have norm at most 1; their signs are in them."""

    rows: Floats
    regularization: float
    tilt: Floats

    def minimum(self, *, within: float) -> Floats:
        """Return a point within a distance of the minimum."""
        w = -self.tilt / self.regularization if len(self.rows) == 0 else np.zeros(self.rows.shape[1])
        certified = -math.expm1(-min(within / 2, math.log(2)))  # t for which -log(1 - t) is this
        slope = self.gradient(w)
        for _ in range(_STEPS):
            step = _solved(self.hessian(w), -slope)
            if step is None or -float(slope @ step) <= certified**2 * self.regularization:
                break
            w, slope = self.after(w, step)
        return w

    def gradient(self, w: Floats) -> Floats:
        return self.regularization * w + self.tilt - _weighted_sum(self.rows, expit(-(self.rows @ w)))

    def hessian(self, w: Floats) -> Floats:
        scores = self.rows @ w
        bend = expit(scores) * expit(-scores)
        total = self.regularization * np.eye(len(w))
        for start in range(0, len(bend), _BLOCK):
            block = self.rows[start : start + _BLOCK]
            total += (block * bend[start : start + _BLOCK, None]).T @ block
        return total

    def after(self, w: Floats, step: Floats) -> tuple[Floats, Floats]:
        """Return a point along a step, as low as half of the best or what provably helps; and its slope."""
        length = float(np.linalg.norm(step))
        proven, size = math.log1p(length) / length if length > 0 else 1.0, 1.0
        slope = self.gradient(w + step)
        while size > proven and slope @ step > 0:
            size = max(size / 2, proven)
            slope = self.gradient(w + size * step)
        return w + size * step, slope


def _solved(hessian: Floats, slope: Floats) -> Floats | None:
    """Return hessian^-1 slope; None if rounding left the Hessian not positive, or not finite."""
    try:
        return cho_solve(cho_factor(hessian), slope)
    except (np.linalg.LinAlgError, ValueError):  # scipy's own for what is not finite
        return None


def _weighted_sum(rows: Floats, weights: Floats) -> Floats:
    """Return weights @ rows, with an error that hardly grows with the number of rows."""
    even = len(rows) // _RUN * _RUN
    runs = weights[:even].reshape(-1, 1, _RUN) @ rows[:even].reshape(-1, _RUN, rows.shape[1])
    return np.ascontiguousarray(runs[:, 0].T).sum(axis=1) + weights[even:] @ rows[even:]
