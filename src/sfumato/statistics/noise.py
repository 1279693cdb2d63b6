# SPDX-License-Identifier: Apache-2.0
"""Noise on a few whole numbers: its distribution, its scale and its cost.

Guarantee  `add` returns the numbers with independent noise on each. It costs `event()` if neighbors differ by
           at most `l1_sensitivity` in L1 norm, by at most `l2_sensitivity` in L2 norm, and in at most
           `coordinates` of the numbers. All numbers are whole before the noise, so no sum was rounded.
           delta = 0: discrete Laplace noise (the geometric mechanism) of scale l1_sensitivity / epsilon. A
           change that is spread over several numbers costs no more than the same change of one number: in
           units of the scale, changes a and b have delta(epsilon) = 1 - (1 + min(u, a, b) / 2) e^-u, and one
           change of a + b has 1 - e^-u, with u = (a + b - epsilon) / 2.
           delta > 0: COUNTS stay whole and get discrete Gaussian noise, calibrated by the accountants. Sums
           in STEPS of a fine grid get Gaussian noise by the analytic calibration, which composes in closed
           form, on numbers that float64 represents exactly.
Edge cases Numbers are first clamped to 2^53 in size for Gaussian noise on STEPS, and to 2^62 for other noise.
           This does not increase the distance between any two of them. So the guarantee holds for more rows,
           but the answer no longer grows, and no message says so. The event of discrete noise under a
           replacing relation halves the sensitivity, so an odd sensitivity is rounded up.
Source     Ghosh, Roughgarden, Sundararajan 2009; Canonne, Kamath, Steinke 2020; Balle and Wang 2018.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sfumato import _check
from sfumato.accounting.calibrate import calibrate
from sfumato.accounting.events import DiscreteGaussianDpEvent, DpEvent, UnsampledDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.mechanisms import exact, inputs
from sfumato.mechanisms.additive import DiscreteLaplace, Gaussian
from sfumato.mechanisms.random import Generator
from sfumato.statistics.arrays import Floats, Integers
from sfumato.statistics.intervals import GaussianLaw, LaplaceLaw, Law

__all__ = ["Kind", "WholeNoise", "l2_of_counts"]

_LARGEST = 2**62  # with noise, it still fits into 64 bits
_LARGEST_FLOAT = 2**53  # up to which float64 holds every whole number


class Kind(enum.Enum):
    """What the whole numbers are: counts, or steps of a fine grid."""

    COUNTS = "counts"
    STEPS = "steps"


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeNoise:
    """Noise for whole numbers that differ between neighbors by at most the stated sensitivities.

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
        """The distribution of the noise on each number."""
        if self.delta == 0:
            return LaplaceLaw(self._laplace().scale)
        return GaussianLaw(self._stddev() if self.kind is Kind.COUNTS else self._gaussian().stddev)

    def event(self) -> DpEvent:
        """Return the event that one `add` is charged with."""
        if self.delta == 0:
            return self._laplace().event()
        if self.kind is Kind.STEPS:
            return self._gaussian().event()
        return _discrete_gaussian_event(self._stddev(), self.l2_sensitivity, self.coordinates, self.relation)

    def add(self, numbers: Sequence[int] | Integers, *, generator: Generator | None = None) -> Floats:
        """Return the numbers with noise: whole numbers, except for Gaussian noise on steps."""
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


def _clamped(numbers: Sequence[int] | Integers, most: int) -> Integers:
    if isinstance(numbers, np.ndarray):
        return np.clip(numbers.astype(np.int64), -most, most)
    return np.array([min(max(int(number), -most), most) for number in numbers], dtype=np.int64)


@lru_cache(maxsize=256)
def _calibrated(
    epsilon: float, delta: float, sensitivity: float, coordinates: int, relation: Relation
) -> float:
    """Return the smallest discrete Gaussian noise for (epsilon, delta), from public numbers only."""
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
    # Half the sensitivity to a replacement does not bound one contribution (`mechanisms.additive`), so no
    # sampling event may contain this one.
    return UnsampledDpEvent(event) if relation.replaces else event


def l2_of_counts(rows: int, relation: Relation) -> float:
    """Return the L2 sensitivity of a vector of counts to units of at most `rows` rows.

    Counts are not negative, so the counts x of a replaced unit and y of the new one have a non-negative inner
    product: |x - y|^2 <= |x|^2 + |y|^2.
    """
    return rows * math.sqrt(relation.diameter)
