# SPDX-License-Identifier: Apache-2.0
"""How far a weighted sum of many independent noises on the integers is from zero.

Guarantee  `far` returns a distance that the sum exceeds with probability at most 1 - level: an upper bound
           that is proved, and about 3% above the least such distance.
           D is the standard deviation of the sum of continuous Laplace noises with the same scales, which is
           not less than that of the noise on the integers. The moment generating function of the latter is
           below that of the former, as (cosh x - 1) / x^2 rises. At 1 / D it is at most 2, so
           P(|S| > y) <= 4 exp(-y / D). That bounds the search, and what the sum below misses.
           A normal variable with a deviation of `_BLUR` D is added. It is beyond `_SIGMAS` of its deviations
           with a chance of `_MISSED`, both of which are taken off. Its characteristic function makes that of
           the sum small at high frequencies. So the probability is a finite Fourier series (Poisson's
           summation formula): exact but for mass beyond 40 D, and terms of less than exp(-32).
Not here   The same for a few noises of different scales, in closed form: `intervals`.
Source     Abate and Whitt 1992 (the Fourier-series method and its errors).
"""

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from sfumato import _check
from sfumato.accounting.roots import root_between

__all__ = ["far"]

_BLUR = 1 / 200
_SIGMAS = 5.0
_MISSED = 6e-7  # P(|Z| > 5) is 5.73e-7; the rest covers the mass that the series misses
_BEYOND = 40.0
_LEAST_SCALE = 1 / 1400  # below it no noise is ever drawn, and sinh overflows


def far(weights: Mapping[float, int], *, scale: float, level: float) -> float:
    """Return a distance from zero that the sum exceeds with probability at most 1 - level.

    Args:
        weights: How many noises have each weight.
        scale: The scale of the discrete Laplace noises.
        level: The probability with which the sum is closer.

    Returns:
        The distance.

    >>> round(far({1.0: 1}, scale=100.0, level=0.95)), round(far({1.0: 400}, scale=1.0, level=0.95))
    (303, 54)
    """
    _check.probability(level=level)
    known = tuple(sorted((abs(weight), count) for weight, count in weights.items() if weight and count))
    return _far(known, scale, level) if known else 0.0


@lru_cache(maxsize=4096)
def _far(weights: tuple[tuple[float, int], ...], scale: float, level: float) -> float:
    deviation = scale * math.sqrt(2 * math.fsum(count * weight**2 for weight, count in weights))
    miss = 1 - level
    most = deviation * math.log(4 / miss)
    if miss < 10 * _MISSED:
        return most
    period = most + _BEYOND * deviation
    step = 2 * math.pi / period
    blur = _BLUR * deviation
    places = step * np.arange(1, math.ceil(8 / (blur * step)) + 1)
    size = np.exp(-((blur * places) ** 2) / 2)
    for weight, count in weights:
        # cosh and cosine by half angles, so that nothing cancels.
        odds = (np.sin(weight * places / 2) / math.sinh(0.5 / max(scale, _LEAST_SCALE))) ** 2
        size *= (1 + odds) ** -float(count)
    terms = size / places

    def excess(distance: float) -> float:
        inside = step / math.pi * (distance + 2 * float(np.sin(places * distance) @ terms))
        return (1 - inside) - (miss - _MISSED)

    return root_between(excess, 0.0, most, xtol=1e-6 * deviation) + _SIGMAS * blur + 1e-6 * deviation
