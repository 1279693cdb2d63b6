# SPDX-License-Identifier: Apache-2.0
"""Gaussian noise on vectors, and a zCDP budget (rho) that several vectors share.

Guarantee  `VectorGaussian.add` adds independent noise of one `stddev` to every coordinate. It costs `event()`
           if neighbors are at most `sensitivity` apart in Euclidean norm: the noise is the same in all
           directions, so a vector costs what one number of that sensitivity costs. The coordinates are whole
           numbers that float64 represents exactly, so no sum was rounded, and the noise on each is that of
           `mechanisms.Gaussian`. The budget is `rho`, or the rho of Gaussian noise for (epsilon, delta); the
           shares of several vectors add up to it. A delta is needed in both cases: the cost is stated at it.
Neighbors  Add-or-remove changes a sum of rows by the length of one row; replacing changes it by two lengths.
Edge cases `whole_rows` scales rows to a ball or a box of radius `steps` and rounds to whole numbers. So a row
           has a length of at most steps + sqrt(d) / 2, or each coordinate is at most `steps`. Rows outside
           the ball are scaled down to it; an infinite coordinate counts as 1e150. Each row is computed on its
           own and in a fixed order of additions, so other rows do not change how it is rounded.
Source     Bun and Steinke 2016, arXiv:1605.02065, Lemma 2.4 (rho of Gaussian noise on a vector).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.gaussian import stddev_for
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import Gaussian, Generator, arrays, inputs
from sfumato.mechanisms.random import resolve
from sfumato.statistics.arrays import Floats, Integers
from sfumato.statistics.columns.columns import Bounds, Rows

__all__ = [
    "Concentrated",
    "VectorGaussian",
    "ball_reach",
    "for_each_column",
    "in_ball",
    "row_products",
    "whole_rows",
]


_INFINITE = 1e150  # replaces an infinite coordinate: its square still fits float64
_UP = 1 + 2.0**-40  # covers the roundings of a bound computed in float64


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorGaussian:
    """Gaussian noise for a vector that differs between neighbors by at most `sensitivity` in Euclidean norm.

    >>> noise = VectorGaussian.of_rho(rho=0.5, sensitivity=10.0, relation=Relation.ADD_REMOVE)
    >>> noise.add(np.array([100, 200])).shape
    (2,)
    """

    stddev: float
    sensitivity: float
    relation: Relation

    @classmethod
    def of_rho(cls, *, rho: float, sensitivity: float, relation: Relation) -> "VectorGaussian":
        """Return the noise that costs `rho`."""
        _check.positive(rho=rho, sensitivity=sensitivity)
        stddev = math.nextafter(sensitivity / math.sqrt(2 * rho), math.inf)
        return cls(stddev=stddev, sensitivity=sensitivity, relation=relation)

    def event(self) -> DpEvent:
        """Return the event that one vector is charged with."""
        return self._each().event()

    def add(self, numbers: Integers, *, generator: Generator | None = None) -> Floats:
        """Return whole numbers with noise."""
        if not resolve(generator).secure:  # seeded: one draw for all, as `Gaussian` draws for one
            drawn = arrays.gaussian(numbers.size, stddev=self.stddev, generator=generator)
            return numbers.astype(np.float64) + drawn.reshape(numbers.shape)
        noise = self._each()
        flat = [noise.release(int(number), generator=generator) for number in numbers.ravel()]
        return np.array(flat, dtype=np.float64).reshape(numbers.shape)

    def _each(self) -> Gaussian:
        return Gaussian(stddev=self.stddev, sensitivity=self.sensitivity, relation=self.relation)


@dataclass(frozen=True, kw_only=True, slots=True)
class Concentrated:
    """The parameters of a question whose budget is one rho: given, or that of (epsilon, delta).

    >>> round(Concentrated(epsilon=1.0, delta=1e-6).budget, 4)
    0.028
    """

    delta: float
    epsilon: float | None = None
    rho: float | None = None
    relation: Relation = Relation.ADD_REMOVE
    contribution_bound: int = 1
    public_size: int | None = None

    def __post_init__(self) -> None:
        _check.delta(delta=self.delta)
        given = [name for name in ("epsilon", "rho") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidParameterError("pass the budget once: epsilon=... or rho=..., each with a delta.")
        _check.positive(**{given[0]: getattr(self, given[0])})
        inputs.settle(self, "delta", given[0])
        object.__setattr__(self, "relation", Relation.parse(self.relation))
        _check.count(contribution_bound=self.contribution_bound)
        self._check_size()

    def _check_size(self) -> None:
        if self.relation not in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
            raise InvalidParameterError(
                f"this statistic supports add-remove and replace-one neighbors, not {self.relation.value}."
            )
        if self.public_size is not None:
            _check.count(public_size=self.public_size)
        elif self.relation is Relation.REPLACE_ONE:
            raise InvalidParameterError(
                "under replace-one neighbors the number of rows is public: pass public_size=..., or use "
                "add-remove neighbors, for which a share of the budget pays for it."
            )

    @property
    def budget(self) -> float:
        """The rho of the whole question."""
        if self.rho is not None:
            return self.rho
        return 0.5 / stddev_for(cast(float, self.epsilon), self.delta, 1.0) ** 2  # one of the two is given

    def noise(self, share: float, sensitivity: float) -> VectorGaussian:
        """Return the noise for a share of the budget.

        Args:
            share: The share of the budget, from 0 to 1.
            sensitivity: The L2 sensitivity of the vector that gets the noise.

        Returns:
            The noise.
        """
        return VectorGaussian.of_rho(rho=share * self.budget, sensitivity=sensitivity, relation=self.relation)


def ball_reach(dimension: int, steps: int, *, rows: int, relation: Relation) -> float:
    """Return the L2 sensitivity of a sum of `whole_rows` of a ball to units of so many rows."""
    return rows * relation.diameter * (steps + math.sqrt(dimension) / 2) * _UP


def in_ball(rows: Floats, center: Floats, radius: float) -> Floats:
    """Return rows relative to a center and a radius; rows outside the unit ball are scaled down to it.

    >>> in_ball(np.array([[3.0, 4.0], [0.0, 1.0]]), np.zeros(2), 2.0)
    array([[0.6, 0.8],
           [0. , 0.5]])
    """
    moved = np.nan_to_num(np.clip(rows, -_INFINITE, _INFINITE) - center, nan=0.0)
    largest = np.abs(moved).max(axis=1, keepdims=True, initial=0.0)
    unit = moved / np.where(largest > 0, largest, 1.0)  # squares of these neither overflow nor vanish
    length = np.sqrt(row_products(unit * unit, np.ones((1, unit.shape[1]))))
    outside = largest > radius / np.maximum(length, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):  # only in rows outside, where it is not used
        inside = moved / radius
    return np.where(outside, unit / np.maximum(length, 1.0), inside)


def row_products(rows: Floats, matrix: Floats) -> Floats:
    """Return rows @ matrix.T, with each row computed independently of the others.

    A matrix product may round a row differently, depending on the number of rows. Then rows that neighbors
    share would differ.
    """
    total = np.zeros((len(rows), len(matrix)))
    for column, weights in zip(rows.T, matrix.T, strict=True):
        total += column[:, None] * weights
    return total


def whole_rows(rows: Floats, *, steps: int) -> Floats:
    """Return rows of the unit ball or the unit box in whole steps."""
    return np.rint(rows * steps)


def for_each_column(bounds: Bounds | Sequence[Bounds], rows: Rows) -> tuple[Bounds, ...]:
    """Return bounds for each column from one pair for all, or from one pair for each."""
    pairs = tuple(bounds)
    if len(pairs) == 2 and not isinstance(pairs[0], tuple | list):
        return ((pairs[0], pairs[1]),) * len(rows.names)  # type: ignore[return-value]  # a pair of numbers
    if len(pairs) != len(rows.names):
        raise InvalidParameterError(
            f"{len(pairs)} bounds were given for {len(rows.names)} columns. Pass one pair, or one for each."
        )
    return pairs  # type: ignore[return-value]  # pairs: `_check.bounds` refuses anything else
