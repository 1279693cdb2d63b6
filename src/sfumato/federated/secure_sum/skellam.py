# SPDX-License-Identifier: Apache-2.0
"""Exact Skellam noise in vectors: the difference of two Poisson variables of the same mean.

Sums of independent Skellam variables are Skellam variables, so the noise of many clients has a simple law.
A Poisson variable is drawn by inversion of an exact table. The first 64 random bits decide unless they fall
between the bounds on a border of two cells; then more bits are drawn, and the borders are computed to
more digits. Deciding later with more bits changes no probability.

Guarantee  Given uniform bits, the probability of each outcome is EXACTLY that of a Skellam variable whose two
           means are variance / 2. A float is taken as exactly that fraction.
Failure    A variance above `MAX_VARIANCE` is refused: its table would not fit in memory.
Source     The Skellam mechanism: Agarwal, Kairouz, Liu 2021, arXiv:2110.04995. Inversion with lazily refined
           bits is Knuth and Yao 1976.
"""

import math
from bisect import bisect_right
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.mechanisms.random import Generator, words

__all__ = ["MAX_VARIANCE", "skellam_integers"]

Integers = npt.NDArray[np.int64]

MAX_VARIANCE = 2.0**26  # a table of 110,000 cells
_WORD = 64
_SPARE = 96  # bits beyond those asked for: errors of up to a million terms stay far below


def skellam_integers(
    count: int, *, variance: float | Fraction, generator: Generator | None = None
) -> npt.NDArray[np.int64]:
    """Return independent Skellam variables with mean 0.

    Args:
        count: How many.
        variance: Their variance, at most `MAX_VARIANCE`.
        generator: Source of randomness. None uses the secure generator; any other kind is for study only.

    Returns:
        The integers.

    Raises:
        InvalidParameterError: If the variance is not above 0, or too large.

    >>> skellam_integers(3, variance=8.0).dtype
    dtype('int64')
    """
    _check.positive(variance=float(variance))
    _check.in_range(0, MAX_VARIANCE, variance=float(variance))
    mean = (variance if isinstance(variance, Fraction) else Fraction(float(variance))) / 2
    table = _table(mean)
    return table.draw(count, generator) - table.draw(count, generator)


class _PoissonTable:
    """The outcomes of a Poisson variable with the borders of their cells of [0, 1), known to 2^-64."""

    def __init__(self, mean: Fraction) -> None:
        self._mean = mean
        self._first, lower, upper = _borders(mean, _WORD)
        inside = sum(border < 2**_WORD for border in upper)
        self._upper = np.array(upper[:inside], dtype=np.uint64)
        # The cell after the last border is open: it has no certain part, so it is never decided here.
        self._lower = np.array([*lower[:inside], 0], dtype=np.uint64)
        self._shift = np.uint64(_WORD - min(18, max(12, 8 + len(upper).bit_length())))
        heads = np.arange(1 << (_WORD - int(self._shift)), dtype=np.uint64) << self._shift
        self._guess = np.searchsorted(self._upper, heads, side="right").astype(np.int32)

    def draw(self, count: int, generator: Generator | None) -> Integers:
        drawn = words(count, generator)
        head = (drawn >> self._shift).view(np.int64)
        cell = self._guess[head].astype(np.int64)  # right, unless a border lies in between
        late = np.flatnonzero(drawn >= self._lower[cell])
        cell[late] = np.searchsorted(self._upper, drawn[late], side="right")
        out = cell + self._first
        for i in late[drawn[late] >= self._lower[cell[late]]]:
            out[i] = _refined(int(drawn[i]), self._mean, generator)
        return out


@lru_cache(maxsize=16)
def _table(mean: Fraction) -> _PoissonTable:
    return _PoissonTable(mean)


def _refined(number: int, mean: Fraction, generator: Generator | None, bits: int = _WORD) -> int:
    """Draw further bits of a real that begins with `number` until one outcome is left."""
    while True:
        number = (number << _WORD) | int(words(1, generator)[0])
        bits += _WORD
        first, lower, upper = _borders(mean, bits)
        cell = bisect_right(upper, number)
        if cell < len(lower) and number < lower[cell]:
            return first + cell


@lru_cache(maxsize=8)
def _borders(mean: Fraction, bits: int) -> tuple[int, list[int], list[int]]:
    """Return the first outcome, and bounds below and above on 2^bits times the borders of the cells.

    Weights begin with 1 at the mode and are multiplied by mean / k upwards and k / mean downwards, each
    product rounded down: after j products a weight is at most j units of 2^-point too small. Outcomes that
    weigh less than 2^-(bits + 32) are left out on both sides. What is left out below the first outcome
    belongs to no cell of the table: `error` covers it, so that such a number stays undecided
    and is asked for again with more bits.
    """
    point = bits + _SPARE
    mode, least = int(mean), 1 << (point - bits - 32)
    above = _weights(mode, 1, mean, point, least)
    below = _weights(mode, -1, mean, point, least)
    weights = [*reversed(below), 1 << point, *above]
    first = mode - len(below)
    # Left-out tails are geometric at least: their ratios are below 1 - 1/(2 sqrt(mean) + 2) there.
    tail = 2 * least * (2 * math.isqrt(math.ceil(mean)) + 4)
    error = tail + len(weights) ** 2
    lower, upper, running = list[int](), list[int](), 0
    whole = sum(weights)
    for weight in weights:
        running += weight
        lower.append((max(running - error, 0) << bits) // (whole + error))
        upper.append(-((-(running + error) << bits) // (whole - error)))
    return first, lower, upper


def _weights(mode: int, direction: int, mean: Fraction, point: int, least: int) -> list[int]:
    """Return the weights of mode + 1, mode + 2, ... (or of mode - 1, ...) as far as they matter."""
    found, weight, k = list[int](), 1 << point, mode
    while weight > least:
        if direction > 0:
            k += 1
            weight = weight * mean.numerator // (mean.denominator * k)
        elif k == 0:
            break
        else:
            weight = weight * mean.denominator * k // mean.numerator
            k -= 1
        found.append(weight)
    return found
