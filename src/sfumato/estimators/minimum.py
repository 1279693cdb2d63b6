# SPDX-License-Identifier: Apache-2.0
"""The minimum of a regularized logistic objective, to a stated gradient norm.

Objective  F(w) = sum_i log(1 + exp(-s_i w . x_i)) + regularization * |w|^2 / 2 + tilt . w, with signs s_i.
Promise    `minimize` returns a w at which the gradient of F is at most `tolerance` in norm, so it is within
           tolerance / regularization of the one exact minimum (F is strongly convex). It never returns less:
           Newton's method with a line search converges on such an F from anywhere.
Rows       None at all is fine: the minimum is then -tilt / regularization.
"""

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from sfumato.errors import QueryFailedError
from sfumato.estimators.base import Floats

__all__ = ["gradient", "minimize"]

_STEPS = 500  # of Newton's method; ten are usual
_ENOUGH = 1e-4  # of the decrease that the slope promises: Armijo's rule
_ROUNDING = 1e-14  # relative, of the objective's terms: near the minimum it cannot be seen to fall


def gradient(w: Floats, rows: Floats, signs: Floats, *, regularization: float, tilt: Floats) -> Floats:
    """Return the gradient of the objective.

    >>> zero = np.zeros(1)
    >>> gradient(zero, np.ones((4, 1)), np.ones(4), regularization=1.0, tilt=zero)
    array([-2.])
    """
    slopes = -signs * expit(-signs * (rows @ w))  # [rows], each in [-1, 1]
    return rows.T @ slopes + regularization * w + tilt


def minimize(rows: Floats, signs: Floats, *, regularization: float, tilt: Floats, tolerance: float) -> Floats:
    """Return where the objective is least, up to the gradient norm `tolerance`.

    >>> w = minimize(np.ones((4, 1)), np.ones(4), regularization=1.0, tilt=np.zeros(1), tolerance=1e-9)
    >>> w.round(4)
    array([1.0426])
    """
    w = -tilt / regularization if len(rows) == 0 else np.zeros(rows.shape[1])
    for _ in range(_STEPS):
        slope = gradient(w, rows, signs, regularization=regularization, tilt=tilt)
        if np.linalg.norm(slope) <= tolerance / 2:  # half: the rest is for the rounding of the sum
            return w
        w = _step(w, slope, rows, signs, regularization, tilt)
    raise QueryFailedError(
        "the minimum was not reached: the numbers leave float64. What was charged stays spent. Use a smaller "
        "clip_norm and a larger regularization."
    )


def _value(
    w: Floats, rows: Floats, signs: Floats, regularization: float, tilt: Floats
) -> tuple[float, float]:
    """Return the objective, and the size of its terms, which may cancel: its rounding is relative to them."""
    rising = float(np.logaddexp(0.0, -signs * (rows @ w)).sum() + regularization * (w @ w) / 2)
    return rising + float(tilt @ w), rising + float(np.abs(tilt) @ np.abs(w))


def _step(
    w: Floats, slope: Floats, rows: Floats, signs: Floats, regularization: float, tilt: Floats
) -> Floats:
    likely = expit(signs * (rows @ w))
    hessian = (rows * (likely * (1 - likely))[:, None]).T @ rows
    hessian[np.diag_indices_from(hessian)] += regularization
    direction = -cho_solve(cho_factor(hessian), slope)
    (now, terms), promised, size = _value(w, rows, signs, regularization, tilt), float(slope @ direction), 1.0
    while size > 1e-12:
        then, after = _value(w + size * direction, rows, signs, regularization, tilt)
        if then <= now + _ENOUGH * size * promised + _ROUNDING * max(terms, after):
            break
        size /= 2
    return w + size * direction
