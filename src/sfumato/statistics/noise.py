# SPDX-License-Identifier: Apache-2.0
"""Noise on a few whole numbers: which law, how much, and how sure one can be afterwards.

Guarantee  `add` returns the numbers with independent noise on each. It costs `event()`, if a neighbor moves
           them by at most `l1_sensitivity` added up, by at most `l2_sensitivity` in Euclidean norm, and
           moves at most `coordinates` of them. Everything before the noise is a whole number: no sum was
           rounded on the way.
Pure       delta 0: discrete Laplace noise (the geometric mechanism) of scale l1_sensitivity / epsilon. A
           move that is spread over several numbers costs no more than the same move of one number: in scales,
           a and b moved apart have delta(epsilon) = 1 - (1 + min(u, a, b) / 2) e^-u, and a + b moved at once
           1 - e^-u, with u = (a + b - epsilon) / 2.
Gaussian   delta above 0. COUNTS keep whole: discrete Gaussian noise, calibrated by the accountants. Sums in
           STEPS of a fine grid get Gaussian noise by the analytic calibration, which composes in closed
           form, on numbers that float64 holds.
Large      Numbers are first clamped to 2^53 in size for Gaussian noise on STEPS, to 2^62 for any other noise.
           That moves no two of them further apart, so whoever has more rows gets an answer that no longer
           grows, with the same guarantee and without a word about it.
Rounding   The event of discrete noise under replacement halves the sensitivity, so an odd one is rounded up.
Source     Ghosh, Roughgarden, Sundararajan 2009; Canonne, Kamath, Steinke 2020; Balle and Wang 2018.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.calibrate import calibrate
from sfumato.accounting.events import DiscreteGaussianDpEvent, DpEvent, UnsampledDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.mechanisms import exact, inputs
from sfumato.mechanisms.additive import DiscreteLaplace, Gaussian
from sfumato.mechanisms.random import Generator
from sfumato.statistics.intervals import GaussianLaw, LaplaceLaw, Law

__all__ = ["Kind", "WholeNoise", "l2_of_counts"]

Whole = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_LARGEST = 2**62  # with noise, it still fits into 64 bits
_LARGEST_FLOAT = 2**53  # up to which float64 holds every whole number


class Kind(enum.Enum):
    """What the whole numbers are: few and meaningful each, or steps of a grid finer than anybody asks."""

    COUNTS = "counts"
    STEPS = "steps"


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeNoise:
    """Noise for whole numbers that a neighbor moves by at most the stated sensitivities.

    >>> noise = WholeNoise(epsilon=0.5, delta=0.0, relation=Relation.ADD_REMOVE, kind=Kind.COUNTS,
    ...                    l1_sensitivity=1, l2_sensitivity=1.0, coordinates=1)
    >>> noise.event(), noise.add([10, 20]).shape
    (DiscreteLaplaceDpEvent(noise_parameter=0.5, sensitivity=1), (2,))
    """

    epsilon: float
    delta: float
    relation: Relation
    kind: Kind
    l1_sensitivity: int
    l2_sensitivity: float
    coordinates: int

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon, l2_sensitivity=self.l2_sensitivity)
        _check.count(l1_sensitivity=self.l1_sensitivity, coordinates=self.coordinates)
        inputs.check_relation(self.relation)
        if self.delta != 0:
            _check.probability(delta=self.delta)

    @property
    def law(self) -> Law:
        """The law of the noise on each number."""
        if self.delta == 0:
            return LaplaceLaw(self._laplace().scale)
        return GaussianLaw(self._stddev() if self.kind is Kind.COUNTS else self._gaussian().stddev)

    def event(self) -> DpEvent:
        """Return what one `add` costs."""
        if self.delta == 0:
            return self._laplace().event()
        if self.kind is Kind.STEPS:
            return self._gaussian().event()
        return _discrete_gaussian_event(self._stddev(), self.l2_sensitivity, self.coordinates, self.relation)

    def add(self, numbers: Sequence[int] | Whole, *, generator: Generator | None = None) -> Floats:
        """Return the numbers with noise: whole ones, except for Gaussian noise on steps."""
        floats = self.delta > 0 and self.kind is Kind.STEPS
        known = _clamped(numbers, _LARGEST_FLOAT if floats else _LARGEST)
        if floats:
            mechanism = self._gaussian()
            return np.array([mechanism.release(int(number), generator=generator) for number in known])
        if self.delta > 0:
            noise = exact.gaussian_integers(known.size, stddev=self._stddev(), generator=generator)
        else:
            noise = exact.laplace_integers(known.size, scale=self._laplace().scale, generator=generator)
        return (known + noise.reshape(known.shape)).astype(np.float64)

    def _laplace(self) -> DiscreteLaplace:
        step = self.relation.diameter
        even = -(-self.l1_sensitivity // step) * step
        return DiscreteLaplace.calibrated(epsilon=self.epsilon, sensitivity=even, relation=self.relation)

    def _gaussian(self) -> Gaussian:
        return Gaussian.calibrated(
            epsilon=self.epsilon, delta=self.delta, sensitivity=self.l2_sensitivity, relation=self.relation
        )

    def _stddev(self) -> float:
        return _calibrated(self.epsilon, self.delta, self.l2_sensitivity, self.coordinates, self.relation)


def _clamped(numbers: Sequence[int] | Whole, most: int) -> Whole:
    if isinstance(numbers, np.ndarray):
        return np.clip(numbers.astype(np.int64), -most, most)
    return np.array([min(max(int(number), -most), most) for number in numbers], dtype=np.int64)


@lru_cache(maxsize=256)
def _calibrated(
    epsilon: float, delta: float, sensitivity: float, coordinates: int, relation: Relation
) -> float:
    """Return the least discrete Gaussian noise for (epsilon, delta): from public numbers alone."""
    ideal = Gaussian.calibrated(epsilon=epsilon, delta=delta, sensitivity=sensitivity, relation=relation)
    return calibrate(
        lambda stddev: _discrete_gaussian_event(stddev, sensitivity, coordinates, relation),
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        bracket=(ideal.stddev / 4, ideal.stddev * 4),
    )


def _discrete_gaussian_event(
    stddev: float, sensitivity: float, coordinates: int, relation: Relation
) -> DpEvent:
    event = DiscreteGaussianDpEvent(stddev, sensitivity / relation.diameter, coordinates)
    # Half of a replacement's reach is no bound on one contribution: `mechanisms.additive`.
    return UnsampledDpEvent(event) if relation.replaces else event


def l2_of_counts(rows: int, relation: Relation) -> float:
    """Return how far units of at most `rows` rows move a vector of counts in Euclidean norm.

    Counts are not negative, so what a replaced unit takes away and what it brings never point the same way:
    |x - y|^2 <= |x|^2 + |y|^2.
    """
    return rows * math.sqrt(relation.diameter)
