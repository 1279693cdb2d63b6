# SPDX-License-Identifier: Apache-2.0
"""Division of each row among several sums, so that count, mean and variance together cost one epsilon.

The count is the sum of all. The mean is the sum of u, or of u^2 and half of the middle share, divided by the
count. Its variance is half of the variance with epsilon split evenly between a count and a sum. The third
share, for the squares, adds nothing to it in the middle of the bounds, and a quarter at their ends.

Guarantee  A row at u in [0, 1], from the lower bound to the upper one, is divided among two sums, 1 - u and
           u; or among three, (1 - u)^2, 2 u (1 - u) and u^2. Shares are never negative and add up to one. So
           one row changes all sums together by 1 in L1 norm, and by at most 1 in L2 norm, and each sum gets
           noise for the whole epsilon. Shares are whole parts of a row, from whole steps of a grid, so no sum
           was rounded.
Neighbors  Replacing a row changes the sums by 2 in L1 norm and by sqrt(2) in L2 norm.
Edge cases If the number of rows is public, the error of the total of the sums is noise, and is subtracted.
           Gaussian noise is added in float64, so there a share is clamped to that of `most_rows` rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtri, stdtrit

from sfumato.mechanisms.random import Generator
from sfumato.statistics.arrays import Floats, Integers
from sfumato.statistics.columns.columns import STEPS, Moments
from sfumato.statistics.intervals import GaussianLaw, LaplaceLaw, Law, accepted
from sfumato.statistics.noise import Kind, WholeNoise, l2_of_counts
from sfumato.statistics.terms import Terms

__all__ = ["Adds", "NoisyShares", "Shares"]


@dataclass(frozen=True, slots=True)
class Shares:
    """How rows are divided: the Bernstein polynomials of a degree, in whole parts of a row.

    >>> shares = Shares(degree=1)
    >>> [part / shares.parts for part in shares.of(Moments(count=2, total=STEPS, squares=STEPS))]
    [0.5, 1.5]
    """

    degree: int  # 1 for the mean, 2 for squares as well

    @property
    def parts(self) -> int:
        """The number of parts of one row."""
        return STEPS << self.degree

    @property
    def most_rows(self) -> int:
        """The number of rows up to which Gaussian noise does not clamp a share (`noise`).

        >>> [Shares(degree).most_rows for degree in (1, 2)] == [2**32, 2**31]
        True
        """
        return 2**53 // self.parts

    @property
    def places(self) -> Floats:
        """The place in [0, 1] of each share, for the mean."""
        return np.linspace(0.0, 1.0, self.degree + 1)

    @property
    def squares(self) -> Floats:
        """The weight of each share in the mean of u^2, if the degree is 2."""
        return np.array([0.0, 0.0, 1.0])

    def of(self, moments: Moments) -> list[int]:
        """Return the exact sums. With q = 2 u - 1 in steps, u^2 is (1 + 2 q + q^2) / 4, and so on."""
        rows, total, squares = moments.count * STEPS, moments.total, moments.squares
        if self.degree == 1:
            return [rows - total, rows + total]
        return [rows - 2 * total + squares, 2 * (rows - squares), rows + 2 * total + squares]

    def noise(self, terms: Terms) -> WholeNoise:
        """Return the noise. The shares of a unit add up to its rows, which bounds both norms."""
        reach = terms.contribution_bound * self.parts
        return WholeNoise(
            epsilon=terms.epsilon,
            delta=terms.delta,
            relation=terms.relation,
            kind=Kind.STEPS,
            l1_sensitivity=reach * terms.relation.diameter,
            l2_sensitivity=l2_of_counts(reach, terms.relation),
            coordinates=self.degree + 1,
        )


class Adds(Protocol):
    """Noise for whole numbers, and its law."""

    @property
    def law(self) -> Law:
        """The distribution of the noise on each number."""
        ...

    def add(self, numbers: Sequence[int] | Integers, *, generator: Generator | None = None) -> Floats:
        """Return the numbers with noise."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class NoisyShares:
    """Noisy sums of shares in rows, the distribution of their noise, and the number of rows if it is public.

    >>> noisy = NoisyShares(sums=np.array([30.0, 10.0]), law=LaplaceLaw(1.0))
    >>> noisy.size, noisy.average(np.array([0.0, 1.0]))
    (40.0, 0.25)
    """

    sums: Floats
    law: Law
    public_size: int | None = None

    @classmethod
    def of(
        cls,
        exact: list[int],
        noise: "Adds",
        parts: int,
        public_size: int | None,
        generator: Generator | None,
    ) -> "NoisyShares":
        """Add noise to exact sums of parts."""
        sums = noise.add(exact, generator=generator) / parts
        if public_size is not None:  # the error of the total is noise, and is subtracted evenly
            sums = sums + (public_size - sums.sum()) / sums.size
        return cls(sums=sums, law=_scaled(noise.law, parts), public_size=public_size)

    @property
    def size(self) -> float:
        """The number of rows."""
        return float(self.sums.sum())

    def average(self, places: Floats) -> float:
        """Return the weighted mean of the shares."""
        return float(places @ self.sums) / self.size

    def weights(self, places: Floats) -> list[float]:
        """Return the weight of each noise in the weighted sum of the shares."""
        return (places if self.public_size is None else places - places.mean()).tolist()

    def test(self, places: Floats, value: float, stddev: float) -> float:
        """Return the p-value of `value` as the weighted mean, with a sampling error of this stddev."""
        distance = abs(float((places - value) @ self.sums))
        return self.law.tail(distance, weights=self.weights(places - value), stddev=stddev)

    def interval(self, places: Floats, *, level: float, stddev: float = 0.0) -> tuple[float, float]:
        """Return the values in [0, 1] that the noise does not refute."""
        return accepted(
            lambda value: self.test(places, value, stddev),
            center=self.average(places),
            within=(0.0, 1.0),
            level=level,
        )

    def variance(self, shares: Shares) -> tuple[float, list[float]]:
        """Return the variance in squared widths, and the effect of each noise on it to first order.

        A share at place p with square s changes it by (s - 2 m p + m^2 - v) / size: its squared distance from
        the mean m, minus the variance v.
        """
        mean = min(max(self.average(shares.places), 0.0), 1.0)
        found = self.average(shares.squares) - mean**2
        inside = min(max(found, 0.0), 0.25)
        moves = shares.squares - 2 * mean * shares.places + mean**2 - inside
        return found, (np.asarray(self.weights(moves)) / self.size).tolist()

    def sampling_stddev(self, shares: Shares, *, level: float) -> float:
        """Return the standard deviation of the sum of the draws, widened as in Student's distribution."""
        found, _ = self.variance(shares)
        spread = min(max(found, 0.0), 0.25)
        tail = (1 + max(level, 0.5)) / 2  # the two distributions agree in the middle
        student = float(stdtrit(max(self.size - 1, 1.0), tail) / ndtri(tail))
        return math.sqrt(spread * self.size) * student


def _scaled(law: Law, parts: int) -> Law:
    return LaplaceLaw(law.scale / parts) if isinstance(law, LaplaceLaw) else GaussianLaw(law.stddev / parts)
