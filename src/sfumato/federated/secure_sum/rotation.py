# SPDX-License-Identifier: Apache-2.0
"""A random rotation that all clients of a round share: random signs, then a Walsh-Hadamard transform.

A rotation spreads a vector evenly over its coordinates, so that few bits hold each of them. It is public: its
seed protects nothing.

Guarantee  None of privacy. The transform is orthogonal, so it keeps L2 norms up to rounding of float64, and
           `unrotated` inverts `rotated`.
Edge cases A vector is padded with zeros to the next power of two. A vector of one coordinate is kept, up to
           its sign.
Source     Ailon and Chazelle 2006; for distributed noise Kairouz, Liu, Steinke 2021, arXiv:2102.06387.
"""

import math

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.mechanisms.random import SeededGenerator, words

__all__ = ["padded_size", "rotated", "unrotated"]

Floats = npt.NDArray[np.float64]

_WORD = 64


def padded_size(dimension: int) -> int:
    """Return the least power of two that holds so many coordinates.

    Args:
        dimension: How many coordinates a vector has.

    Returns:
        The power of two.

    Raises:
        InvalidParameterError: If the dimension is not at least 1.

    >>> padded_size(1000), padded_size(1024)
    (1024, 1024)
    """
    _check.count(dimension=dimension)
    return 1 << (dimension - 1).bit_length()


def rotated(rows: Floats, *, seed: int) -> Floats:
    """Rotate each row.

    Args:
        rows: Vectors, [..., dimension].
        seed: The public seed of the round.

    Returns:
        The rotated rows, [..., padded_size(dimension)].

    >>> round(float(np.linalg.norm(rotated(np.array([3.0, 0.0, 4.0]), seed=1))), 6)
    5.0
    """
    dimension = rows.shape[-1]
    size = padded_size(dimension)
    out = np.zeros((*rows.shape[:-1], size))
    np.multiply(rows, _signs(dimension, seed), out=out[..., :dimension])
    return _transformed(out)


def unrotated(rows: Floats, *, dimension: int, seed: int) -> Floats:
    """Return what was rotated.

    Args:
        rows: Rotated vectors, [..., padded_size(dimension)].
        dimension: How many coordinates a vector had before it was padded.
        seed: The public seed of the round.

    Returns:
        The vectors, [..., dimension].

    >>> before = np.array([3.0, 0.0, 4.0])
    >>> unrotated(rotated(before, seed=1), dimension=3, seed=1).round(6).tolist()
    [3.0, 0.0, 4.0]
    """
    return _transformed(rows.astype(np.float64))[..., :dimension] * _signs(dimension, seed)


def _signs(count: int, seed: int) -> Floats:
    """Return -1 or 1 for each coordinate: the bits of a stream that is the same on every platform."""
    stream = words(-(-count // _WORD), SeededGenerator(seed).fork("rotation", 0))
    bits = np.unpackbits(stream.astype("<u8").view(np.uint8), bitorder="little")[:count]
    return 1.0 - 2.0 * bits.astype(np.float64)


def _transformed(rows: Floats) -> Floats:
    """Return the normalized Walsh-Hadamard transform of each row; the rows are overwritten."""
    size = rows.shape[-1]
    width = 1
    while width < size:
        pairs = rows.reshape(-1, size // (2 * width), 2, width)
        left, right = pairs[:, :, 0].copy(), pairs[:, :, 1]
        pairs[:, :, 0] += right
        np.subtract(left, right, out=right)
        width *= 2
    rows /= math.sqrt(size)
    return rows
