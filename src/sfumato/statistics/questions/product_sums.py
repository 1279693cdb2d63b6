# SPDX-License-Identifier: Apache-2.0
"""Sums of products of columns, exact before the noise: what covariance and principal components are made of.

Guarantee  `Scatter` is the sum of v v^T over rows v, in whole steps: each row is scaled and rounded to whole
           numbers of at most 2^14, so every product and every sum is a whole number that float64 holds, and a
           matrix product gives them exactly, in whatever order it adds.
Reach      One row moves the matrix by |v|^2 in Frobenius norm. Of a symmetric matrix the upper triangle says
           all: with the entries off the diagonal weighted by sqrt(2) its norm is the Frobenius norm. In a
           box, where |v|^2 grows with the dimension, equal weights are better: entries are at most 1 each, so
           the triangle is at most sqrt(m (m + 1) / 2) long.
Large      An entry that more than 2^33 rows make larger than 2^61 steps is that much. This moves no two of
           them further apart, so the guarantee is the same, and no sum overflows.
Rounding   Such sums have 62 bits, float64 has 53: weighted sums are rounded to multiples of
           2^8 steps. With what float64 rounds before, an entry is off by at most 4 of these on either
           neighbor; 8 for each entry are part of the reach, less than a thousandth of it.
Neighbors  A replaced row takes one such matrix away and brings another. Both are positive semidefinite, so
           they never point the same way, and the sum moves by at most sqrt(2) times one of them.
Source     Dwork, Talwar, Thakurta and Zhang 2014 (Analyze Gauss), with the weights of a symmetric matrix.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato.accounting.guarantee import Relation

__all__ = ["COARSE", "GRAIN", "Scatter", "added_up"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

GRAIN = 2**14  # steps of one unit: 2^25 products of two such numbers still add up exactly
COARSE = 2**8  # steps that sums are rounded to
_MOST = 2**61  # that an entry is: what 2^33 rows make of it
_ROUNDED = 8.0  # of these, at most, that the rounding of an entry differs between neighbors
_CHUNK = 2**20  # rows multiplied at once
_UP = 1 + 2.0**-40  # covers the roundings of a bound computed in float64


def added_up(batches: Iterable[Floats], dimension: int) -> Integers:
    """Return the sum of v v^T over rows of whole numbers of at most `GRAIN`."""
    total = np.zeros((dimension, dimension), dtype=object)  # Python's whole numbers, which have no end
    for rows in batches:
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK]
            total = total + (part.T @ part).astype(np.int64)
    return np.clip(total, -_MOST, _MOST).astype(np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scatter:
    """How the upper triangle of a sum of v v^T is laid out, and how far one unit moves it.

    >>> ball = Scatter(dimension=3, squared_length=1.0, box=False)
    >>> round(ball.reach(rows=1, relation=Relation.ADD_REMOVE) * COARSE / GRAIN**2, 3)
    1.0
    """

    dimension: int
    squared_length: float  # of a row, at most, before it is rounded
    box: bool  # whether every coordinate is at most 1, rather than the length bounded

    @property
    def weights(self) -> Floats:
        """Return the weight of each entry of the triangle, by which sums are multiplied before the noise."""
        rows, columns = np.triu_indices(self.dimension)
        return np.where(rows == columns, 1.0, 1.0 if self.box else math.sqrt(2))

    def reach(self, *, rows: int, relation: Relation) -> float:
        """Return how far units of so many rows move the weighted triangle, in Euclidean norm."""
        if self.box:
            length = GRAIN**2 * math.sqrt(self.dimension * (self.dimension + 1) / 2)
        else:
            length = (GRAIN * math.sqrt(self.squared_length) + math.sqrt(self.dimension) / 2) ** 2
        rounding = _ROUNDED * math.sqrt(self.weights.size)
        return (rows * math.sqrt(relation.diameter) * length / COARSE + rounding) * _UP

    def triangle(self, total: Integers) -> Integers:
        """Return the weighted upper triangle in whole numbers of `COARSE` steps."""
        upper = total[np.triu_indices(self.dimension)]
        return np.rint(upper * self.weights / COARSE).astype(np.int64)

    def matrix(self, triangle: Floats) -> Floats:
        """Return the symmetric matrix, in units, of a weighted triangle."""
        full = np.zeros((self.dimension, self.dimension))
        full[np.triu_indices(self.dimension)] = triangle / self.weights * (COARSE / GRAIN**2)
        return full + np.triu(full, 1).T
