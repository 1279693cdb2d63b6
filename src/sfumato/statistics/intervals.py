# SPDX-License-Identifier: Apache-2.0
"""How far may noise have moved a number? Tails of known noise laws, and intervals from them.

Promise    `tail` is the chance that a weighted sum of independent noises, with a normal error beside it where
           `stddev` is given, is further than `distance` from zero. Everything here is computed from public
           numbers and from what was already released, so it costs nothing.
Laplace    The characteristic function of the sum is a product of 1 / (1 + c^2 s^2), one factor for each scale
           c = weight * scale. In partial fractions it is a signed mixture of Laplace laws, whose tails are
           known, also with a normal error added. Equal scales have no such form: they are moved apart by one
           part in a thousand, which moves a tail by less than that.
Inversion  `accepted` collects all values that a test at `1 - level` would not refuse. It covers exactly where
           the law is exact, also for ratios whose denominator is noisy.
Whole      On the integers, `whole_half_width` is the least that covers at least `level`; for an epsilon above
           0.7 one integer more or less is a large step, so it may cover clearly more.
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

_APART = 1e-3  # relative distance that scales are given in partial fractions
_NEGLIGIBLE = 1e-9  # relative to the largest scale: adds less to a quantile than float64 shows


class Law(Protocol):
    """The law of one noise, symmetric around zero."""

    @property
    def stddev(self) -> float:
        """The standard deviation of one noise."""
        ...

    def tail(self, distance: float, *, weights: Sequence[float] = (1.0,), stddev: float = 0.0) -> float:
        """Return P(|sum of weight_i noise_i + stddev Z| > distance)."""
        ...

    def whole_tail(self, distance: int) -> float:
        """Return P(|noise| > distance) for the law of the same shape on the integers."""
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
        if self.stddev > 1000:  # the two laws agree to far more digits than are used
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
    """Return the least whole distance from zero that noise on the integers keeps with at least `level`.

    No whole distance is kept with exactly this chance: one less would be kept too rarely. How much more often
    than stated depends on the noise. For an epsilon up to 0.7 a 95% interval of a count covers at most 97.5%;
    above, where one integer more or less is a large step, up to 100%.

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
    """Return value +- distance, cut to where the truth must lie.

    >>> print(around(1.0, 3.0, level=0.95, within=(0.0, math.inf)))
    0 to 4 (95%, noise)
    """
    lower, upper = (min(max(end, within[0]), within[1]) for end in (value - distance, value + distance))
    return Interval(lower=lower, upper=upper, level=level, covers=covers)


def accepted(
    p_value: Callable[[float], float], *, center: float, within: tuple[float, float], level: float
) -> tuple[float, float]:
    """Return the ends of the values around `center` whose p-value is at least 1 - level.

    Where even the center is refused, or p-values do not fall to either side, all of `within` is returned.
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
    """Return the scales that matter, no two nearly equal, with the variance of the sum kept."""
    least = _NEGLIGIBLE * max(scales, default=0.0)
    kept = sorted(scale for scale in scales if scale > least)
    if len(kept) < 2:
        return kept
    middle = (len(kept) - 1) / 2
    moved = [scale * (1 + _APART * (i - middle)) for i, scale in enumerate(kept)]  # apart, as factors rise
    back = math.hypot(*kept) / math.hypot(*moved)
    return [scale * back for scale in moved]


def _partial_fraction(i: int, scales: list[float]) -> float:
    """Return the weight of one Laplace law in the law of the sum: the product of 1 / (1 - (c_j / c_i)^2)."""
    return math.prod(1 / (1 - (other / scales[i]) ** 2) for j, other in enumerate(scales) if j != i)


def _laplace_and_normal(t: float, scale: float, stddev: float) -> float:
    """Return P(|Laplace(scale) + stddev Z| > t), written so that nothing overflows."""
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
