# SPDX-License-Identifier: Apache-2.0
"""Noise on sums over cells: counts, gradients and moments, released in several parts of one budget.

A cell is a bin of a feature, a leaf of a tree or a cluster. A part is one release: a vector of sums over
rows, in whole steps of a public grid, so no sum is rounded. Its noise is exact discrete noise on that grid. A
later part may depend on the results of earlier ones; its share of the budget may not.

Guarantee  (epsilon, delta), if the shares of all parts add up to at most 1 and one row moves each part by at
           most its `Reach`. delta = 0: discrete Laplace noise of scale l1 / (epsilon share), and basic
           composition. delta > 0: discrete Gaussian noise of stddev m l2 / sqrt(share), where a Gaussian of
           noise multiplier m costs (epsilon, delta). By the lemma in `accounting.integer_noise`, neighbors
           are told apart through noise of b steps, b at least 2^10, at most as well as through a Gaussian of
           b / (1 + 2^-21). `_SLACK` is larger, so all parts together cost one Gaussian of multiplier m.
Neighbors  Add-or-remove and replace-one. `counts` and `signed` return the reach under either: cells of counts
           move by two ones at most if a row is replaced, and two ones are sqrt(2) apart in L2 norm.
Edge cases Gaussian noise has at least 2^10 steps, even if a huge epsilon would allow less. Sums of up to 2^33
           rows are exact. Noise beyond 2^50 (an epsilon of 1e-9 and a million cells a row) is refused.
Source     Canonne, Kamath, Steinke 2020 (discrete Gaussian); Ghosh, Roughgarden, Sundararajan 2009.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.events import DpEvent, PureDpEvent, UnsampledDpEvent
from sfumato.accounting.gaussian import stddev_for
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.estimators.reading import Floats
from sfumato.mechanisms import exact
from sfumato.mechanisms.random import Generator

__all__ = ["CellNoise", "Part", "Reach", "counts", "signed"]

_SLACK = 1 + 1e-6
_FINEST = 20  # as a power of 2: steps to a unit
_LEAST_STEPS = 2.0**10  # of Gaussian noise
_MOST_EPSILON = 500.0  # with delta above 0: for less noise than that there is no price


class Reach(NamedTuple):
    """How far neighbors may be apart in one part, in units of one row: its L1 and L2 norm."""

    l1: float
    l2: float


def counts(cells: int, relation: Relation) -> Reach:
    """Return the reach of counts, where a row counts once in each of so many cells.

    >>> counts(4, Relation.ADD_REMOVE)
    Reach(l1=4, l2=2.0)
    """
    moved = cells * relation.diameter
    return Reach(moved, math.sqrt(moved))


def signed(l1: float, l2: float, relation: Relation) -> Reach:
    """Return the reach of sums to which a row adds a vector of at most these norms."""
    return Reach(l1 * relation.diameter, l2 * relation.diameter)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The noise of one release: `size` is its scale or its stddev, in steps.

    >>> part = CellNoise(epsilon=1.0, delta=0.0, relation=Relation.ADD_REMOVE).part(1.0, Reach(1, 1))
    >>> part.add(part.steps * np.array([100.0, 200.0]), generator=None).shape
    (2,)
    """

    steps: int
    size: float
    pure: bool
    reach: Reach
    share: float

    @property
    def stddev(self) -> float:
        """The standard deviation of the noise, in units."""
        return self.size / self.steps * (math.sqrt(2) if self.pure else 1.0)

    def whole(self, values: Floats) -> Floats:
        """Return values in whole steps, rounded towards 0: no norm grows."""
        return np.trunc(values * self.steps)

    def add(self, sums: Floats, *, generator: Generator | None) -> Floats:
        """Return sums of whole steps with noise, in units."""
        if self.pure:
            drawn = exact.laplace_integers(sums.size, scale=self.size, generator=generator)
        else:
            drawn = exact.gaussian_integers(sums.size, stddev=self.size, generator=generator)
        noisy = sums.astype(np.int64) + drawn.reshape(sums.shape)
        return noisy.astype(np.float64) / self.steps

    def count(
        self, places: npt.NDArray[np.intp], shape: tuple[int, ...], generator: Generator | None
    ) -> Floats:
        """Return how many entries there are of each place in an array of this shape, with noise."""
        found = np.bincount(places.ravel(), minlength=math.prod(shape)).astype(np.float64)
        return self.add(found.reshape(shape) * self.steps, generator=generator)


@dataclass(frozen=True, kw_only=True, slots=True)
class CellNoise:
    """The budget of several parts."""

    epsilon: float
    delta: float
    relation: Relation

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        object.__setattr__(self, "epsilon", float(self.epsilon))  # of numpy's types some are too coarse
        if self.delta > 0:
            _check.in_range(0, _MOST_EPSILON, epsilon=self.epsilon)
        if self.relation not in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
            raise InvalidParameterError(
                "this estimator is private for add-remove or replace-one neighbors, but relation="
                f"{self.relation.value!r} was given."
            )

    def event(self) -> DpEvent:
        """Return the event of all parts together."""
        if self.delta == 0:
            return PureDpEvent(float(self.epsilon))
        gaussian = dp.GaussianDpEvent(self._multiplier() * self.relation.diameter)
        return UnsampledDpEvent(gaussian) if self.relation.replaces else gaussian

    def _multiplier(self) -> float:
        return stddev_for(self.epsilon, self.delta, 1.0) * _SLACK

    def part(self, share: float, reach: Reach) -> Part:
        """Return the noise of a part with a share of the budget."""
        pure = self.delta == 0
        if pure:
            size = reach.l1 / (self.epsilon * share) * _SLACK
        else:
            size = reach.l2 * self._multiplier() / math.sqrt(share) * _SLACK
        if not size < exact.MAX_SCALE:
            raise InvalidParameterError(
                "the budget is too small for so many cells: the noise would overflow."
            )
        steps = 2 ** min(max(_FINEST - math.floor(math.log2(size)), 0), _FINEST)
        least = 0.0 if pure else _LEAST_STEPS
        return Part(steps=steps, size=max(size * steps, least), pure=pure, reach=reach, share=share)
