# SPDX-License-Identifier: Apache-2.0
"""Clip a vector and round it to integers, with a bound on the norm of the integers that always holds.

Each coordinate is rounded up or down at random so that its mean does not change. Rounding can make a vector
longer, by up to sqrt(d); rarely by much. Vectors that became longer than the bound are rounded again.

Guarantee  `rounded` returns integers whose squared L2 norm is at most `bound`, whatever it is given. The norm
           is computed exactly, in integers, after rounding: the bound does not rest on chance or on
           floating-point numbers. Rounding errs by less than 1 in each coordinate.
Edge cases A vector with NaN or infinity is clipped to zeros. Zeros stay zeros. If `TRIES` roundings in a row
           are too long, every coordinate is rounded towards zero, which makes no vector longer; if even
           that exceeds the bound (the vector was not clipped), zeros are returned.
Source     Conditional rounding and its bound: Kairouz, Liu, Steinke 2021, arXiv:2102.06387, Section 4.
"""

import math

import numpy as np
import numpy.typing as npt

from sfumato.mechanisms.random import Generator, words

__all__ = ["TRIES", "clipped", "l2_bound_squared", "rounded"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

TRIES = 50  # a try fails with probability at most exp(-1/2): all of them with less than 2^-36
_BETA_TERM = 1.0  # sqrt(2 log(1/beta)) for beta = exp(-1/2), the paper's choice
_TO_UNIT = 2.0**-64
_LARGEST_SUM = 2.0**60  # sums of squares below fit 64 bits


def clipped(rows: Floats, clip_norm: float) -> Floats:
    """Scale each row down to a norm of at most `clip_norm`, up to rounding of float64.

    Args:
        rows: Vectors, [..., dimension].
        clip_norm: The largest norm.

    Returns:
        The clipped rows. A row that is not finite becomes zeros.

    >>> clipped(np.array([[3.0, 4.0], [0.0, np.inf]]), 1.0).tolist()
    [[0.6..., 0.8...], [0.0, 0.0]]
    """
    rows = np.where(np.isfinite(rows).all(-1, keepdims=True), rows, 0.0)
    largest = np.abs(rows).max(-1, keepdims=True)
    with np.errstate(under="ignore"):  # what is lost is zero beside the largest coordinate
        units = rows / np.where(largest > 0, largest, 1.0)  # scaled first: squares may overflow
        norms = np.linalg.norm(units, axis=-1, keepdims=True)  # 1 or more, or 0 for a row of zeros
        return units * np.minimum(largest, clip_norm / np.maximum(norms, 1.0))


def l2_bound_squared(*, clip_steps: float, size: int) -> int:
    """Return the bound on the squared norm of a rounded vector.

    Args:
        clip_steps: The clip norm in steps of the integer grid.
        size: How many coordinates a rotated vector has.

    Returns:
        The largest squared norm, a whole number.

    >>> l2_bound_squared(clip_steps=100.0, size=4)
    10102
    """
    always = (clip_steps + math.sqrt(size)) ** 2
    usually = clip_steps**2 + size / 4 + _BETA_TERM * (clip_steps + math.sqrt(size) / 2)
    return math.floor(min(always, usually))


def rounded(values: Floats, *, bound: int, generator: Generator | None = None) -> Integers:
    """Round a vector at random, without bias, to integers of a bounded norm.

    Args:
        values: One vector, in steps of the grid.
        bound: The largest squared norm (`l2_bound_squared`).
        generator: Source of randomness. None uses the secure generator.

    Returns:
        The integers.

    >>> rounded(np.array([2.0, -1.0]), bound=5).tolist()
    [2, -1]
    """
    if not bool(np.isfinite(values).all()) or float(np.abs(values).max(initial=0.0)) > math.sqrt(bound) + 1:
        return np.zeros(values.shape, np.int64)
    floor = np.floor(values)
    rest = values - floor
    for _ in range(TRIES):
        up = words(values.size, generator).astype(np.float64) * _TO_UNIT < rest
        found = (floor + up).astype(np.int64)
        if _fits(found, bound):
            return found
    shorter = np.trunc(values).astype(np.int64)
    return shorter if _fits(shorter, bound) else np.zeros_like(shorter)


def _fits(found: Integers, bound: int) -> bool:
    """Return whether the squared norm is at most `bound`: exactly, because squares are summed in integers."""
    roughly = found.astype(np.float64)
    if float(roughly @ roughly) > min(2.0 * bound, _LARGEST_SUM):
        return False  # far too long: its sum in 64 bits might overflow
    return int(found @ found) <= bound
