# SPDX-License-Identifier: Apache-2.0
"""Gaussian noise on whole counts, and a budget of it that is divided while the results are seen.

The noise is discrete Gaussian on a grid of at most 2^-44 standard deviations, drawn exactly and added to
counts, which lie on the grid too. Its loss at a point is that of the continuous Gaussian. Their laws differ
by a factor within 1 +- (z^2 + 1) 2^-92 at z standard deviations, in the at most `sensitivity` coordinates
where neighbors differ, which is less than float64 resolves. So it is charged as Gaussian noise, as the noise
of `mechanisms.Gaussian` is, which is discrete too. The sum is rounded to float64 once, after the noise.

Guarantee  `CountNoise.add` costs `event()` if neighbors differ by at most `sensitivity` in Euclidean norm.
           All that a `NoiseBudget` admits is together at least as private as one Gaussian mechanism of its
           `noise_multiplier`, also if each noise is chosen after the results before it were seen, and also
           together with other mechanisms between them whose number and cost are fixed beforehand.
           Proof: by induction on the steps that are left. Suppose that whatever is left after the first step
           is dominated by the pair G(b) x O, with b what is left of the budget and O the other mechanisms,
           for every result of the first step. If the first step is Gaussian with cost a, the whole is
           dominated by G(a) x G(b) x O (adaptive composition of dominating pairs: Zhu, Dong, Wang 2022,
           arXiv:2106.08567, Theorem 10), and G(a) x G(b) = G(a + b) for squared shifts a and b. If it is one
           of the other mechanisms, it takes its place in O. Noise that is never drawn only lowers the cost.
Neighbors  Add-or-remove.
Source     For Gaussians alone this is the filter of Smith and Thakurta 2022, arXiv:2210.17520.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import exact
from sfumato.mechanisms.random import Generator

__all__ = ["CountNoise", "NoiseBudget", "OverspentError"]

_STEPS = 45  # bits of a standard deviation in grid steps
_LARGEST = 2.0**40  # of a standard deviation: the grid must hold whole counts
_SLACK = 1e-9  # relative: sums of squared shifts are rounded


class OverspentError(RuntimeError):
    """A noise was requested that the budget does not cover. Nothing is drawn: the library has an error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CountNoise:
    """Gaussian noise for a vector of counts.

    Args:
        stddev: The standard deviation of the noise on each count.
        sensitivity: How far one unit moves the counts, in Euclidean norm.
        relation: Which data sets are neighbors.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> CountNoise(stddev=6.0, sensitivity=2, relation=Relation.ADD_REMOVE).event()
    GaussianDpEvent(noise_multiplier=3.0)
    """

    stddev: float
    sensitivity: int
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        _check.positive(stddev=self.stddev)
        _check.in_range(2.0**-40, _LARGEST, stddev=self.stddev)
        _check.count(sensitivity=self.sensitivity)
        if self.relation is not Relation.ADD_REMOVE:
            raise InvalidParameterError("noise on counts of rows is stated for add-remove neighbors.")

    def event(self) -> DpEvent:
        """Return the event that one vector is charged with.

        Returns:
            The event.
        """
        return dp.GaussianDpEvent(self.noise_multiplier)

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation relative to what one unit moves."""
        return self.stddev / self.sensitivity

    def add(
        self, counts: npt.NDArray[np.int64], *, generator: Generator | None = None
    ) -> npt.NDArray[np.float64]:
        """Return counts with noise.

        Args:
            counts: The private counts.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The noisy counts, in the same shape.
        """
        bits = _STEPS - math.frexp(self.stddev)[1]  # of a count, in grid steps
        steps = exact.gaussian_integers(
            counts.size, stddev=Fraction(self.stddev) * Fraction(2) ** bits, generator=generator
        )
        # The noise is below 2^53 steps and a count below 2^53: both are exact, and their sum is rounded once.
        return counts.astype(np.float64) + np.ldexp(steps.astype(np.float64), -bits).reshape(counts.shape)


class NoiseBudget:
    """What Gaussian noise may still be drawn.

    Args:
        noise_multiplier: That of the one Gaussian mechanism which is charged.
        sensitivity: How far one unit moves any vector of counts, in Euclidean norm.

    >>> budget = NoiseBudget(noise_multiplier=2.0, sensitivity=1)
    >>> round(budget.noise(0.25).stddev, 6), round(budget.left, 6)
    (4.0, 0.75)
    """

    def __init__(self, *, noise_multiplier: float, sensitivity: int) -> None:
        _check.positive(noise_multiplier=noise_multiplier)
        self._whole = (1 - _SLACK) / noise_multiplier**2
        self._sensitivity = sensitivity
        self._shifts: list[float] = []  # squared, of the noises so far

    @property
    def used(self) -> float:
        """The share of the budget that is used."""
        return min(1.0, math.fsum(self._shifts) / self._whole)

    @property
    def left(self) -> float:
        """The share of the budget that is left."""
        return 1 - self.used

    def stddev(self, share: float) -> float:
        """Return the noise that a share of the budget would pay for. Nothing is taken.

        Args:
            share: The share of the whole budget.

        Returns:
            The standard deviation.
        """
        return self._sensitivity / math.sqrt(share * self._whole)

    def noise(self, share: float) -> CountNoise:
        """Take a share of the budget, and return the noise that it pays for.

        Args:
            share: The share of the whole budget.

        Returns:
            The noise, for one vector.

        Raises:
            OverspentError: If less is left.
        """
        found = CountNoise(stddev=self.stddev(share), sensitivity=self._sensitivity)
        shift = found.noise_multiplier**-2
        if not math.fsum([*self._shifts, shift]) <= self._whole * (1 + _SLACK / 2):
            raise OverspentError("this noise is not covered by what was charged.")
        self._shifts.append(shift)
        return found
