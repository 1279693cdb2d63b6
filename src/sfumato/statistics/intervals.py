# SPDX-License-Identifier: Apache-2.0
"""Confidence intervals from the known distribution of the noise.

`tail` is the probability that a weighted sum of independent noises is further than `distance` from zero; a
normal error is added if `stddev` is given. Everything is computed from public numbers and from values that
were already released, so it costs nothing.

- Laplace: the characteristic function of the sum is a product of 1 / (1 + c^2 s^2), one factor for each scale
  c = weight * scale. Partial fractions make it a signed mixture of Laplace distributions, whose tails are
  known, also with a normal error added. Equal scales have no such form. They are separated by one part in a
  thousand, which changes a tail by less than that.
- Test inversion: `accepted` collects all values that a test at `1 - level` does not reject. Its coverage is
  exact if the distribution is exact, also for ratios with a noisy denominator.
- Integers: `whole_half_width` is the smallest distance that covers at least `level`. For an epsilon above 0.7
  one integer is a large step, so the interval may cover clearly more.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import erfcx, ndtr

from sfumato import _check
from sfumato.accounting.roots import root_between
from sfumato.statistics.release import Covers, Interval

__all__ = [
    "GaussianLaw",
    "LaplaceLaw",
    "Law",
    "accepted",
    "around",
    "half_width",
    "whole_half_width",
]

_APART = 1e-3  # relative distance of scales in partial fractions
_NEGLIGIBLE = 1e-9  # relative to the largest scale: adds less to a quantile than float64 shows


class Law(Protocol):
    """The distribution of one noise, symmetric around zero."""

    @property
    def stddev(self) -> float:
        """The standard deviation of one noise."""
        ...

    def tail(self, distance: float, *, weights: Sequence[float] = (1.0,), stddev: float = 0.0) -> float:
        """Return P(|sum of weight_i noise_i + stddev Z| > distance)."""
        ...

    def whole_tail(self, distance: int) -> float:
        """Return P(|noise| > distance) for the distribution of the same shape on the integers."""
        ...


@dataclass(frozen=True, slots=True)
class GaussianLaw:
    """Gaussian noise.

    >>> round(GaussianLaw(2.0).tail(3.92), 3)
    0.05
    """

    stddev: float

    def tail(self, distance: float, *, weights: Sequence[float] = (1.0,), stddev: float = 0.0) -> float:
        """Return P(|sum of weight_i noise_i + stddev Z| > distance)."""
        spread = math.hypot(self.stddev * math.hypot(*weights), stddev)
        return 2 * float(ndtr(-distance / spread)) if spread > 0 else float(distance < 0)

    def whole_tail(self, distance: int) -> float:
        """Return P(|noise| > distance) for the discrete Gaussian."""
        if self.stddev > 1000:  # the two distributions agree to far more digits than are used
            return self.tail(distance + 0.5)
        reach = np.arange(math.ceil(40 * self.stddev) + 2)
        weights = np.exp(-((reach / self.stddev) ** 2) / 2)
        total = 2 * weights.sum() - 1
        return float(2 * weights[distance + 1 :].sum() / total)


@dataclass(frozen=True, slots=True)
class LaplaceLaw:
    """Laplace noise.

    >>> round(LaplaceLaw(1.0).tail(2.9957), 3), round(LaplaceLaw(1.0).tail(3.0, weights=(0.6, 0.4)), 3)
    (0.05, 0.012)
    """

    scale: float

    @property
    def stddev(self) -> float:
        """The standard deviation of one noise."""
        return math.sqrt(2) * self.scale

    def tail(self, distance: float, *, weights: Sequence[float] = (1.0,), stddev: float = 0.0) -> float:
        """Return P(|sum of weight_i noise_i + stddev Z| > distance)."""
        scales = _separated([abs(weight) * self.scale for weight in weights])
        if not scales:
            return GaussianLaw(stddev).tail(distance)
        mixed = math.fsum(
            _partial_fraction(i, scales) * _laplace_and_normal(max(distance, 0.0), scale, stddev)
            for i, scale in enumerate(scales)
        )
        return min(1.0, max(0.0, mixed))

    def whole_tail(self, distance: int) -> float:
        """Return P(|noise| > distance) for the discrete Laplace."""
        return 2 * math.exp(-(distance + 1) / self.scale) / (1 + math.exp(-1 / self.scale))


def half_width(law: Law, *, level: float, weights: Sequence[float] = (1.0,), stddev: float = 0.0) -> float:
    """Return how far from zero the weighted noises stay with probability `level`.

    >>> round(half_width(GaussianLaw(1.0), level=0.95), 2)
    1.96
    """
    _check.probability(level=level)
    spread = math.hypot(law.stddev * math.hypot(*weights), stddev)
    if spread == 0:
        return 0.0

    def excess(distance: float) -> float:
        return law.tail(distance, weights=weights, stddev=stddev) - (1 - level)

    far = 4 * spread
    while excess(far) > 0:
        far *= 2
    return root_between(excess, 0.0, far, xtol=1e-9 * spread)


def whole_half_width(law: Law, *, level: float) -> int:
    """Return the smallest whole number that noise on the integers does not exceed with at least `level`.

    No whole distance has exactly this probability, and a smaller one has too little. For an epsilon up to 0.7
    a 95% interval of a count covers at most 97.5%; above, where one integer is a large step, up to 100%.

    >>> whole_half_width(LaplaceLaw(1.0), level=0.95)
    3
    """
    _check.probability(level=level)
    # The continuous quantile is at most one off; a search from there is short.
    distance = max(0, math.floor(half_width(law, level=level)) - 2)
    while law.whole_tail(distance) > 1 - level:
        distance += 1
    return distance


def around(
    value: float,
    distance: float,
    *,
    level: float,
    covers: tuple[Covers, ...] = (Covers.NOISE,),
    within: tuple[float, float] = (-math.inf, math.inf),
) -> Interval:
    """Return value +- distance, clipped to the range in which the truth must lie, and to no less than value.

    A noisy value may lie outside of that range: nothing is cut off from it, so that sums have no bias.

    >>> print(around(1.0, 3.0, level=0.95, within=(0.0, math.inf)))
    0 to 4 (95%, noise)
    >>> print(around(-1.0, 3.0, level=0.95, within=(0.0, math.inf)))
    -1 to 2 (95%, noise)
    """
    lower, upper = (min(max(end, within[0]), within[1]) for end in (value - distance, value + distance))
    return Interval(lower=min(lower, value), upper=max(upper, value), level=level, covers=covers)


def accepted(
    p_value: Callable[[float], float], *, center: float, within: tuple[float, float], level: float
) -> tuple[float, float]:
    """Return the ends of the values around `center` whose p-value is at least 1 - level.

    If even the center is rejected, all of `within` is returned; on a side where no value is rejected, its
    end.
    """
    _check.probability(level=level)
    start = min(max(center, within[0]), within[1])
    if p_value(start) < 1 - level:
        return within
    return _edge(p_value, start, within[0], level), _edge(p_value, start, within[1], level)


def _edge(p_value: Callable[[float], float], inside: float, end: float, level: float) -> float:
    if p_value(end) >= 1 - level:
        return end
    if inside == end:
        return inside

    def excess(value: float) -> float:
        return p_value(value) - (1 - level)

    tight = 1e-9 * abs(end - inside)
    return root_between(excess, inside, end, xtol=tight)


def _separated(scales: list[float]) -> list[float]:
    """Return the scales that are not negligible, no two nearly equal, with the same variance of the sum."""
    least = _NEGLIGIBLE * max(scales, default=0.0)
    kept = sorted(scale for scale in scales if scale > least)
    if len(kept) < 2:
        return kept
    middle = (len(kept) - 1) / 2
    moved = [
        scale * (1 + _APART * (i - middle)) for i, scale in enumerate(kept)
    ]  # separated, as the factors rise
    back = math.hypot(*kept) / math.hypot(*moved)
    return [scale * back for scale in moved]


def _partial_fraction(i: int, scales: list[float]) -> float:
    """Return the weight of one Laplace term in the sum: the product of 1 / (1 - (c_j / c_i)^2)."""
    return math.prod(1 / (1 - (other / scales[i]) ** 2) for j, other in enumerate(scales) if j != i)


def _laplace_and_normal(t: float, scale: float, stddev: float) -> float:
    """Return P(|Laplace(scale) + stddev Z| > t), without overflow."""
    if stddev == 0:
        return math.exp(-t / scale)
    z, ratio = t / stddev, stddev / scale
    bell = math.exp(-z * z / 2)
    far = bell * float(erfcx((z + ratio) / math.sqrt(2))) / 2
    if z < ratio:
        near = bell * float(erfcx((ratio - z) / math.sqrt(2))) / 2
    else:
        near = math.exp(ratio * (ratio / 2 - z)) * float(ndtr(z - ratio))
    return 2 * float(ndtr(-z)) + near - far
