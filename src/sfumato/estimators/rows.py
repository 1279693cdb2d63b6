# SPDX-License-Identifier: Apache-2.0
"""Rows as a linear model sees them: clipped to a public norm, with a constant for the intercept.

Guarantee  Every row that `clipped` returns has L2 norm at most `clip_norm` (up to 1e-12 of it), whatever was
           in it: huge numbers are scaled down without overflow, and a row with a NaN or an infinity becomes
           a row of zeros. One row depends on no other.
Intercept  A constant of half the clip norm is appended as one more feature, so that the intercept is
           regularized and protected like any other coefficient. Rows of zeros have none: in a sum of
           gradients they are as good as absent.
"""

import contextlib
import math

import numpy as np
import numpy.typing as npt

from sfumato.estimators.base import Floats

__all__ = ["INTERCEPT", "augmented", "clipped", "codes", "row_norm"]

INTERCEPT = 0.5  # the constant feature, over the clip norm


def row_norm(clip_norm: float, *, fit_intercept: bool) -> float:
    """Return the bound on the norm of a row, intercept included.

    >>> row_norm(2.0, fit_intercept=False), round(row_norm(2.0, fit_intercept=True), 4)
    (2.0, 2.2361)
    """
    return math.hypot(clip_norm, INTERCEPT * clip_norm) if fit_intercept else float(clip_norm)


def clipped(rows: Floats, *, clip_norm: float) -> Floats:
    """Return the rows, scaled down to the clip norm where they are longer; zeros where one is not finite.

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


def augmented(rows: Floats, present: npt.NDArray[np.bool_], *, constant: float) -> Floats:
    """Return the rows with the constant appended; rows that are not `present` are zeros throughout."""
    whole = np.hstack([rows, np.full((len(rows), 1), constant)]) if constant > 0 else rows
    return np.where(present[:, None], whole, 0.0)


def _equal(labels: npt.NDArray[np.generic], label: object) -> npt.NDArray[np.bool_]:
    """Compare each entry by itself."""
    if labels.dtype.kind != "O":
        return np.asarray(labels == label)
    plain = label.item() if isinstance(label, np.generic) else label
    return np.array([_same(entry, plain) for entry in labels], dtype=bool)


def _same(entry: object, label: object) -> bool:
    """Whether an entry is this label; whatever does not compare is not."""
    found = False
    with contextlib.suppress(Exception):  # of entries of any kind
        found = bool(entry == label)
    return found


def codes(labels: npt.NDArray[np.generic], classes: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """Return each label's place among the public classes, -1 where it is none of them.

    >>> codes(np.array(["no", "yes", "maybe"]), np.array(["no", "yes"])).tolist()
    [0, 1, -1]
    """
    found = np.full(len(labels), -1, dtype=np.int64)
    for place, label in enumerate(classes):
        found[_equal(labels, label)] = place
    return found
