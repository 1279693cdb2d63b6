# SPDX-License-Identifier: Apache-2.0
"""Exact sums of products of columns, for covariance and principal components.

Guarantee  `added_up` is the sum of v v^T over rows v, in whole steps: each row is scaled and rounded to whole
           numbers of at most 2^14, so every product and every sum is a whole number that float64 represents
           exactly, and a matrix product is exact in any order of addition. One row changes the matrix by
           |v|^2 in Frobenius norm. The upper triangle of a symmetric matrix determines it: with the entries
           off the diagonal weighted by sqrt(2) its norm is the Frobenius norm. In a box, where |v|^2 grows
           with the dimension, equal weights are better: entries are at most 1 each, so the triangle has a
           length of at most sqrt(m (m + 1) / 2).
Neighbors  A replaced row subtracts one such matrix and adds another. Both are positive semidefinite, so they
           never point in the same direction, and the sum changes by at most sqrt(2) times one of them.
Edge cases An entry that more than 2^33 rows make larger than 2^61 steps is clamped to that. This does not
           increase the distance of any two entries, so the guarantee holds, and no sum overflows. Such sums
           have 62 bits and float64 has 53, so weighted sums are rounded to multiples of 2^8 steps. Together
           with the rounding of float64 before, an entry is off by at most 4 of these on either neighbor. So 8
           for each entry are part of the sensitivity, less than a thousandth of it.
Source     Dwork, Talwar, Thakurta and Zhang 2014 (Analyze Gauss), with the weights of a symmetric matrix.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sfumato.accounting.guarantee import Relation
from sfumato.statistics.arrays import Floats, Integers

__all__ = ["COARSE", "GRAIN", "Scatter", "added_up"]


GRAIN = 2**14  # steps of one unit: 2^25 products of two such numbers add up exactly
COARSE = 2**8  # steps that sums are rounded to
_MOST = 2**61  # the largest entry, that of 2^33 rows
_ROUNDED = 8.0  # of these: the largest difference between neighbors in the rounding of an entry
_CHUNK = 2**20  # rows multiplied at once
_UP = 1 + 2.0**-40  # covers the roundings of a bound computed in float64


def added_up(batches: Iterable[Floats], dimension: int) -> Integers:
    """Return the sum of v v^T over rows of whole numbers of at most `GRAIN`."""
    total = np.zeros((dimension, dimension), dtype=object)  # Python's integers, which do not overflow
    for rows in batches:
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK]
            total = total + (part.T @ part).astype(np.int64)
    return np.clip(total, -_MOST, _MOST).astype(np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scatter:
    """The layout of the upper triangle of a sum of v v^T, and its sensitivity.

    >>> ball = Scatter(dimension=3, squared_length=1.0, box=False)
    >>> round(ball.reach(rows=1, relation=Relation.ADD_REMOVE) * COARSE / GRAIN**2, 3)
    1.0
    """

    dimension: int
    squared_length: float  # upper bound for a row, before it is rounded
    box: bool  # whether every coordinate is at most 1, rather than the length bounded

    @property
    def weights(self) -> Floats:
        """The weight of each entry of the triangle, by which sums are multiplied before the noise."""
        rows, columns = np.triu_indices(self.dimension)
        return np.where(rows == columns, 1.0, 1.0 if self.box else math.sqrt(2))

    def reach(self, *, rows: int, relation: Relation) -> float:
        """Return the L2 sensitivity of the weighted triangle to units of so many rows."""
        if self.box:
            length = GRAIN**2 * math.sqrt(self.dimension * (self.dimension + 1) / 2)
        else:
            length = (GRAIN * math.sqrt(self.squared_length) + math.sqrt(self.dimension) / 2) ** 2
        rounding = _ROUNDED * math.sqrt(self.weights.size)
        return (rows * math.sqrt(relation.diameter) * length / COARSE + rounding) * _UP

    def triangle(self, total: Integers) -> Integers:
        """Return the weighted upper triangle as whole numbers of `COARSE` steps."""
        upper = total[np.triu_indices(self.dimension)]
        return np.rint(upper * self.weights / COARSE).astype(np.int64)

    def matrix(self, triangle: Floats) -> Floats:
        """Return the symmetric matrix, in units, of a weighted triangle."""
        full = np.zeros((self.dimension, self.dimension))
        full[np.triu_indices(self.dimension)] = triangle / self.weights * (COARSE / GRAIN**2)
        return full + np.triu(full, 1).T
