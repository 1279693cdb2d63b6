# SPDX-License-Identifier: Apache-2.0
"""Rows of a linear model: clipped to a public norm, with a constant for the intercept.

A constant of half the clip norm is appended as one more feature, so that the intercept is regularized and
protected like any other coefficient. Rows of zeros get none: in a sum of gradients they count as absent.

Guarantee  Every row that `clipped` returns has L2 norm at most `clip_norm` (up to 1e-12 of it), whatever was
           in it: huge numbers are scaled down without overflow, and a row with a NaN or an infinity becomes
           a row of zeros. One row depends on no other. `clipped_steps` puts finite rows on a public grid, of
           `STEPS` to the clip norm, and no norm is then above `STEPS`: not even by rounding.
"""

import math

import numpy as np
import numpy.typing as npt

from sfumato.estimators.reading import Floats
from sfumato.statistics.columns.columns import STEPS

__all__ = ["INTERCEPT", "augmented", "clipped", "clipped_steps", "row_norm"]

INTERCEPT = 0.5  # the constant feature, over the clip norm
_INSIDE = 1 - 2.0**-30  # a norm computed in float64 is off by less


def row_norm(clip_norm: float, *, fit_intercept: bool) -> float:
    """Return the bound on the norm of a row, intercept included.

    >>> row_norm(2.0, fit_intercept=False), round(row_norm(2.0, fit_intercept=True), 4)
    (2.0, 2.2361)
    """
    return math.hypot(clip_norm, INTERCEPT * clip_norm) if fit_intercept else float(clip_norm)


def clipped(rows: Floats, *, clip_norm: float) -> Floats:
    """Return the rows, scaled down to the clip norm if they are longer; zeros if one is not finite.

    >>> clipped(np.array([[3.0, 4.0], [0.25, 0.5], [np.nan, 1.0]]), clip_norm=1.0).round(3).tolist()
    [[0.6, 0.8], [0.25, 0.5], [0.0, 0.0]]
    """
    finite = np.isfinite(rows).all(axis=1, keepdims=True)
    known = np.where(finite, rows, 0.0)
    largest = np.abs(known).max(axis=1, initial=0.0)
    unit = known / np.where(largest > 0, largest, 1.0)[:, None]  # entries of at most 1: squares are safe
    lengths = np.linalg.norm(unit, axis=1)
    with np.errstate(over="ignore"):
        long = largest * lengths > clip_norm
    scale = clip_norm / np.where(lengths > 0, lengths, 1.0)
    return np.where(long[:, None], unit * scale[:, None], known)


def clipped_steps(rows: Floats, *, clip_norm: float) -> Floats:
    """Return finite rows over clip_norm, of norm at most 1, in whole steps, rounded towards 0.

    >>> clipped_steps(np.array([[0.5, -0.25]]), clip_norm=1.0) / STEPS
    array([[ 0.5 , -0.25]])
    """
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    largest = np.where(largest > 0, largest, 1.0)  # scaled first: squares may overflow
    direction = rows / largest
    norms = np.linalg.norm(direction, axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        length = np.minimum((largest / clip_norm) * norms, _INSIDE)
    return np.trunc(direction * (length / np.where(norms > 0, norms, 1.0)) * STEPS)


def augmented(rows: Floats, present: npt.NDArray[np.bool_], *, constant: float) -> Floats:
    """Return the rows with the constant appended; rows that are not `present` are zeros throughout."""
    whole = np.hstack([rows, np.full((len(rows), 1), constant)]) if constant > 0 else rows
    return np.where(present[:, None], whole, 0.0)
