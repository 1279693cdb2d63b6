# SPDX-License-Identifier: Apache-2.0
"""Exact sampling: rounding of floating-point numbers never changes an outcome.

A random real of [0, 1) is read bit by bit and compared with an irrational threshold that is known as an
interval. The first 64 bits decide unless they fall into the interval (about once in 2^38 draws or rarer).
Then more bits are drawn and the interval is narrowed with `decimal`, whose exp is correctly rounded, until
they do. Deciding later with more bits changes no probability.

If a float64 filter is used, numpy's exp must be accurate to 2^-40 (it is accurate to 2^-51).

Guarantee  Given uniform bits, `integers` returns x with probability EXACTLY proportional to
           exp(-|x|^power / spread), `bernoulli_exp` succeeds with probability EXACTLY exp(-rate), and
           `categorical` picks i with probability EXACTLY proportional to weight_i exp(log_weight_i).
Source     The distributions are those of Canonne, Kamath and Steinke 2020, arXiv:2004.00010; large spreads
           are split into a coarse step and a uniform remainder as in Karney 2016, arXiv:1303.6257. Inversion
           with lazily refined bits is Knuth and Yao 1976.
"""

import decimal
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.mechanisms.random import Generator, Words, uniform_below, words

__all__ = [
    "MAX_SCALE",
    "bernoulli_exp",
    "categorical",
    "categorical_floats",
    "gaussian_integers",
    "integers",
    "laplace_integers",
]

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MAX_SCALE = 2.0**50  # of the noise, in grid steps: 45 scales still fit 64-bit integers
_TABLE_SCALE = 512  # up to this scale one table holds every likely outcome
_STEPS = 256  # a larger scale is split so that its coarse part has this scale
_MARGIN = 2.0**-40  # a float64 filter leaves what is closer than this to the exact path
_SMALLEST_TOTAL = 2.0**-900  # float64 loses digits of weights far below
_UNDECIDED = np.iinfo(np.int32).min
_WORD = 64


def gaussian_integers(
    count: int, *, stddev: float | Fraction, generator: Generator | None = None
) -> npt.NDArray[np.int64]:
    """Return integers x with probability exactly proportional to exp(-x^2 / (2 stddev^2)).

    A float is a fraction, and is taken as exactly that.

    >>> gaussian_integers(3, stddev=2.0).dtype
    dtype('int64')
    """
    _check.positive(stddev=float(stddev))
    _check.in_range(0, MAX_SCALE, stddev=float(stddev))
    return integers(count, power=2, spread=2 * _fraction(stddev) ** 2, generator=generator)


def laplace_integers(
    count: int, *, scale: float | Fraction, generator: Generator | None = None
) -> npt.NDArray[np.int64]:
    """Return integers x with probability exactly proportional to exp(-|x| / scale).

    >>> laplace_integers(3, scale=0.5).shape
    (3,)
    """
    _check.positive(scale=float(scale))
    _check.in_range(0, MAX_SCALE, scale=float(scale))
    return integers(count, power=1, spread=_fraction(scale), generator=generator)


def _fraction(value: float | Fraction) -> Fraction:
    return value if isinstance(value, Fraction) else Fraction(float(value))


def integers(
    count: int, *, power: int, spread: Fraction, generator: Generator | None = None
) -> npt.NDArray[np.int64]:
    """Return integers x with probability exactly proportional to exp(-|x|^power / spread), power 1 or 2."""
    scale = _scale(power, spread)
    if scale <= _TABLE_SCALE:
        return _table(power, spread, False).draw(count, generator)
    step = math.ceil(scale / _STEPS)
    out = np.empty(count, dtype=np.int64)
    filled = 0
    while filled < count:
        accepted = _split_round(count - filled + 8, step, power, spread, generator)[: count - filled]
        out[filled : filled + accepted.size] = accepted
        filled += accepted.size
    return out


def _scale(power: int, spread: Fraction) -> float:
    return math.sqrt(spread / 2) if power == 2 else float(spread)


def _split_round(
    count: int, step: int, power: int, spread: Fraction, generator: Generator | None
) -> Integers:
    """Propose step * coarse + fine, keep each with the probability that makes the law exact."""
    coarse = _table(power, spread / step**power, True).draw(count, generator)
    fine = uniform_below(step, count, generator)

    def rate(i: int) -> Fraction:
        low, high = int(coarse[i]) * step, int(coarse[i]) * step + int(fine[i])
        return (high**power - low**power) / spread

    base, rest = coarse.astype(np.float64) * step, fine.astype(np.float64)
    rates = (rest * (2.0 * base + rest) if power == 2 else rest) / float(spread)
    keep = bernoulli_exp(rates, rate, generator)
    magnitude = coarse * step + fine
    negative = uniform_below(2, count, generator) == 1
    keep &= ~((magnitude == 0) & negative)  # else zero would be drawn twice as often as it should
    return np.where(negative, -magnitude, magnitude)[keep]


# --- inversion of an exact table --------------------------------------------------------------------------


class _Table:
    """Cells of [0, 1), one for each outcome, with borders known to 2^-64; and an index by leading bits.

    Outcomes are 0, 1, -1, 2, -2, ... or, for a half table, 0, 1, 2, ...
    """

    def __init__(self, power: int, spread: Fraction, half: bool) -> None:
        self._law = (power, spread, half)
        lower, upper = _borders(power, spread, half, _WORD)
        inside = sum(border < 2**_WORD for border in upper)
        self._upper = np.array(upper[:inside], dtype=np.uint64)
        # The cell after the last border is open: it has no certain part, so it is never decided here.
        self._lower = np.array([*lower[:inside], 0], dtype=np.uint64)
        self._outcomes = np.array([_outcome(i, half) for i in range(inside + 1)], dtype=np.int64)
        self._shift = np.uint64(_WORD - self._index_bits(_scale(power, spread)))
        self._index = self._build_index()

    @staticmethod
    def _index_bits(scale: float) -> int:
        return min(18, max(12, 9 + math.ceil(math.log2(max(scale, 1.0)))))

    def _build_index(self) -> npt.NDArray[np.int32]:
        first = np.arange(1 << (_WORD - int(self._shift)), dtype=np.uint64) << self._shift
        cell, certain = self._locate(first)
        certain &= first + ((np.uint64(1) << self._shift) - np.uint64(1)) < self._lower[cell]
        return np.where(certain, self._outcomes[cell], _UNDECIDED).astype(np.int32)

    def _locate(self, drawn: Words) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """Return the cell each word falls into, and whether its 64 bits settle it."""
        cell = np.searchsorted(self._upper, drawn, side="right")
        return cell, drawn < self._lower[cell]

    def draw(self, count: int, generator: Generator | None) -> Integers:
        """Return `count` outcomes: by index for nearly all, by border for most others, else by more bits."""
        drawn = words(count, generator)
        out = self._index[(drawn >> self._shift).view(np.int64)].astype(np.int64)
        open_ = np.flatnonzero(out == _UNDECIDED)
        cell, certain = self._locate(drawn[open_])
        out[open_] = self._outcomes[cell]
        for i in open_[~certain]:
            out[i] = refine(int(drawn[i]), _WORD, *self._law, generator=generator)
        return out


@lru_cache(maxsize=32)
def _table(power: int, spread: Fraction, half: bool) -> _Table:
    return _Table(power, spread, half)


def _outcome(cell: int, half: bool) -> int:
    if half:
        return cell
    return (cell + 1) // 2 if cell % 2 else -(cell // 2)


def refine(
    number: int,
    bits: int,
    power: int,
    spread: Fraction,
    half: bool,
    *,
    generator: Generator | None,
    more: int = _WORD,
) -> int:
    """Draw `more` bits at a time after the first `bits`, which read `number`, until one outcome is left."""
    while True:
        number = (number << more) | (int(words(1, generator)[0]) >> (_WORD - more))
        bits += more
        lower, upper = _borders(power, spread, half, bits)
        cell = bisect_right(upper, number)
        if cell < len(lower) and number < lower[cell]:
            return _outcome(cell, half)


@lru_cache(maxsize=8)
def _borders(power: int, spread: Fraction, half: bool, bits: int) -> tuple[list[int], list[int]]:
    """Return bounds below and above on 2^bits times each border between the cells.

    Fixed point with 160 bits to spare. `slip` bounds the error of a weight: each product of numbers in
    [0, 1] adds the errors of its factors and one unit of truncation.
    """
    point = bits + 160
    weight, ratio = 1 << point, _exp_fixed(1 / spread, point)
    change = _exp_fixed(2 / spread, point) if power == 2 else 1 << point
    slip = ratio_slip = 1
    running, totals, x = 0, list[int](), 0
    error = 0
    while weight >> (point - bits - 64):
        for _ in range(1 if half or x == 0 else 2):
            running, error = running + weight, error + slip
            totals.append(running)
        weight, slip = (weight * ratio) >> point, slip + ratio_slip + 1
        ratio, ratio_slip = (ratio * change) >> point, ratio_slip + (2 if power == 2 else 0)
        x += 1
    # What is left is at most a geometric series: its ratio is at most exp(-1/spread) <= 1 - 1/(spread + 1).
    error += 2 * (weight + slip) * (math.ceil(spread) + 2)
    lower = [((total - error) << bits) // (running + error) for total in totals]
    upper = [-((-(total + error) << bits) // (running - error)) for total in totals]
    return lower, upper


def _exp_fixed(rate: Fraction, point: int) -> int:
    """Return floor or nearly so of 2^point exp(-rate), at most one unit off."""
    if rate > point:  # e^-rate < 2^-point
        return 0
    # An argument below `point` loses a few of these digits; twelve more than the result needs are enough.
    context = decimal.Context(prec=math.ceil(point * math.log10(2)) + 12, traps=[decimal.InvalidOperation])
    exponent = context.divide(decimal.Decimal(-rate.numerator), decimal.Decimal(rate.denominator))
    return int(context.multiply(context.exp(exponent), decimal.Decimal(1 << point)))


# --- coins and choices ------------------------------------------------------------------------------------


def bernoulli_exp(
    rates: Floats, rate: Callable[[int], Fraction], generator: Generator | None = None
) -> npt.NDArray[np.bool_]:
    """Return for each i a coin that is True with probability exactly exp(-rate(i)).

    `rates` are the same numbers in float64, right to a relative 2^-48; they only settle clear cases.
    """
    drawn = words(rates.size, generator)
    gap = drawn.astype(np.float64) * 2.0**-_WORD - np.exp(-rates)
    out = gap < 0
    for i in np.flatnonzero(~(np.abs(gap) > _MARGIN)):
        out[i] = _coin(int(drawn[i]), _WORD, rate(int(i)), generator)
    return out


def _coin(number: int, bits: int, rate: Fraction, generator: Generator | None, more: int = _WORD) -> bool:
    """Decide by further bits whether a real that begins with `number` lies below exp(-rate)."""
    if rate == 0:
        return True
    while True:
        number = (number << more) | (int(words(1, generator)[0]) >> (_WORD - more))
        bits += more
        border = _exp_fixed(rate, bits + 8)  # at most one unit of 2^-(bits + 8) off
        if number + 1 <= (border - 1) >> 8:
            return True
        if number >= ((border + 1) >> 8) + 1:
            return False


def categorical(
    log_weights: Sequence[Fraction], weights: Sequence[Fraction], generator: Generator | None = None
) -> int:
    """Return i with probability exactly proportional to weights[i] exp(log_weights[i]).

    Cells of weight zero are left out before anything is computed: whatever their log weight, they can neither
    be chosen nor overflow.
    """
    live = [i for i, weight in enumerate(weights) if weight > 0]
    top = max(log_weights[i] for i in live)
    widest = max(weights[i] for i in live)
    rates = [top - log_weights[i] for i in live]
    parts = [weights[i] / widest for i in live]
    return live[_cell(rates, parts, generator)]


def _cell(rates: Sequence[Fraction], parts: Sequence[Fraction], generator: Generator | None) -> int:
    """Return i with probability exactly proportional to parts[i] exp(-rates[i]); the least rate is zero."""
    floats = np.array([float(min(rate, 10_000)) for rate in rates])
    sizes = np.array([float(part) for part in parts])
    return categorical_floats(floats, sizes, lambda: (rates, parts), generator)


def categorical_floats(
    rates: Floats,
    parts: Floats,
    exactly: Callable[[], tuple[Sequence[Fraction], Sequence[Fraction]]],
    generator: Generator | None = None,
) -> int:
    """Return i with probability exactly proportional to parts[i] exp(-rates[i]), of what `exactly` returns.

    `rates` and `parts` are the same numbers in float64, right to a relative 2^-51; they only settle clear
    cases, and `exactly` is not called for those. The least rate is zero and the largest part is one.
    """
    drawn = int(words(1, generator)[0])
    with np.errstate(under="ignore"):  # what is lost is below the margin, or else left to the exact path
        ends = np.cumsum(np.exp(-rates) * parts)
        at = drawn * 2.0**-_WORD * ends[-1]
        # Relative errors: 2^-41 of exp(-745) from its argument, one rounding for each addition.
        margin = ends[-1] * (_MARGIN + ends.size * 2.0**-50)
    cell = int(np.searchsorted(ends, at, side="right"))
    near = np.abs(ends[max(cell - 1, 0) : cell + 1] - at)
    if ends[-1] > _SMALLEST_TOTAL and cell < ends.size and bool((near > margin).all()):
        return cell
    return _categorical_refine(drawn, _WORD, *exactly(), generator)


def _categorical_refine(
    number: int,
    bits: int,
    rates: Sequence[Fraction],
    parts: Sequence[Fraction],
    generator: Generator | None,
    more: int = _WORD,
) -> int:
    while True:
        number = (number << more) | (int(words(1, generator)[0]) >> (_WORD - more))
        bits += more
        point = bits + 64 + len(rates).bit_length()
        totals, running = list[int](), 0
        for rate, part in zip(rates, parts, strict=True):
            running += (_exp_fixed(rate, point) * part.numerator) // part.denominator
            totals.append(running)
        error = 2 * len(rates)  # two units of truncation for each weight
        if running <= error:  # all weights are tiny: these digits do not show them yet
            continue
        lower = [((total - error) << bits) // (running + error) for total in totals]
        upper = [-((-(total + error) << bits) // (running - error)) for total in totals]
        cell = bisect_right(upper, number)
        if cell < len(lower) and number < lower[cell]:
            return cell
