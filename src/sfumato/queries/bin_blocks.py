# SPDX-License-Identifier: Apache-2.0
"""Counts of even bins and of blocks of bins, from which the counts of all ranges are estimated.

Guarantee  A row is in one bin and in one block, so `measured` is a vector that one row moves by 2 in L1 norm
           and by sqrt(2) in L2 norm: the counts of bins by 1, and those of blocks by 1. `consistent` and
           everything in `RangeCounts` is computed from noisy numbers alone.
Edge cases Bins and blocks are two measurements of the same rows. Their least-squares estimate is consistent:
           a range is the sum of its bins, whichever way it is divided. Its variance is known in closed form,
           so blocks are chosen for the smallest mean error over all ranges, from public numbers. Intervals
           cover the noise of any one range: its distribution is computed (`noise_sums`). Ends of ranges are
           moved to the nearest edges. Values outside the bounds count in the first and the last bin. Counts
           may be negative: nothing is cut off, so that sums have no bias. Missing values are left out.
Source     Hay, Rastogi, Miklau, Suciu 2010, arXiv:0904.0942 (hierarchies and consistency); Qardaji, Yang, Li
           2013 (large branching is better).
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.queries.counts import Cell
from sfumato.statistics.arrays import Floats, Integers
from sfumato.statistics.columns.columns import Bounds
from sfumato.statistics.intervals import LaplaceLaw, Law, around, half_width
from sfumato.statistics.noise_sums import far

__all__ = ["MOST_BINS", "BinBlocks", "RangeCounts"]

MOST_BINS = 2**16


@dataclass(frozen=True, kw_only=True, slots=True)
class BinBlocks:
    """Even bins over bounds, in blocks.

    >>> BinBlocks(bounds=(0, 100), bins=1024).block
    32
    """

    bounds: Bounds
    bins: int

    def __post_init__(self) -> None:
        _check.bounds(bounds=self.bounds)
        _check.count(bins=self.bins)
        _check.in_range(2, MOST_BINS, bins=self.bins)

    @property
    def block(self) -> int:
        """The number of bins of a block."""
        return _best_block(self.bins)

    @property
    def size(self) -> int:
        """The number of counts of bins and of blocks."""
        return self.bins + -(-self.bins // self.block)

    @property
    def edges(self) -> Floats:
        """The edges of the bins."""
        return np.linspace(float(self.bounds[0]), float(self.bounds[1]), self.bins + 1)

    def measured(self, counts: Integers) -> Integers:
        """Return the counts of bins, and behind them those of blocks."""
        return np.r_[counts, np.add.reduceat(counts, np.arange(0, self.bins, self.block))]

    def consistent(self, noisy: Floats) -> Floats:
        """Return the least-squares estimate of the bins from noisy counts of bins and blocks."""
        return _consistent(noisy[: self.bins], noisy[self.bins :], self.block)

    def half_width(self, first: int, last: int, *, law: Law, level: float) -> float:
        """Return the half width of the interval of the bins from `first` up to before `last`."""
        if isinstance(law, LaplaceLaw):
            return far(_weights(first, last, self.bins, self.block), scale=law.scale, level=level)
        spread = math.sqrt(_variance(first, last, self.bins, self.block))
        return half_width(law, level=level, weights=(spread,))


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeCounts:
    """Released counts of bins, from which any range is answered at no further cost.

    Attributes:
        counts: The number of rows in each bin, with noise.
        blocks: The bins.
        law: The distribution of the noise.
        level: The confidence level of intervals.
    """

    counts: tuple[float, ...] = field(repr=False)
    blocks: BinBlocks
    law: Law = field(repr=False)
    level: float

    def between(self, lower: float, upper: float) -> Cell:
        """Return the number of rows with a value from `lower` to `upper`, with its interval.

        Args:
            lower: The lower end; it is moved to the nearest edge of a bin.
            upper: The upper end, likewise.

        Returns:
            The number and its interval.

        Raises:
            InvalidParameterError: If the ends are not numbers in order.
        """
        if not lower <= upper:
            raise InvalidParameterError("the lower end of a range must not be above its upper end.")
        first, last = self._place(lower), self._place(upper)
        if first == last:
            return Cell(value=0.0, interval=around(0.0, 0.0, level=self.level))
        value = math.fsum(self.counts[first:last])
        distance = self.blocks.half_width(first, last, law=self.law, level=self.level)
        return Cell(value=value, interval=around(value, distance, level=self.level, within=(0.0, math.inf)))

    def cdf(self, value: float) -> float:
        """Return the share of rows below a value, between 0 and 1; it never falls as the value rises.

        Args:
            value: The value; it is moved to the nearest edge of a bin.

        Returns:
            The share; 0 if the noisy number of rows is not positive.

        Raises:
            InvalidParameterError: If the value is not a number.
        """
        if math.isnan(value):
            raise InvalidParameterError("the value of a distribution function must be a number, not NaN.")
        sums = np.maximum.accumulate(np.r_[0.0, np.cumsum(self.counts)])
        return float(sums[self._place(value)] / sums[-1]) if sums[-1] > 0 else 0.0

    def _place(self, value: float) -> int:
        lower, upper = self.blocks.bounds
        share = (min(max(value, lower), upper) - lower) / (upper - lower)
        return round(share * self.blocks.bins)


def _consistent(bins: Floats, blocks: Floats, block: int) -> Floats:
    """Return the least-squares estimate of the bins, if all noises have the same variance.

    A block of w bins is known from its own count and from the sum of its bins, with variances 1 and w; its
    best estimate weighs them by w and 1. The difference is spread evenly over the bins.
    """
    found = bins.copy()
    for place, counted in enumerate(blocks):
        part = slice(place * block, (place + 1) * block)
        width, added = len(bins[part]), bins[part].sum()
        found[part] += (counted - added) / (width + 1)
    return found


def _variance(first: int, last: int, bins: int, block: int) -> float:
    """Return the variance of a range in units of that of one noise.

    Of a block of w bins, m bins have variance m - m^2 / (w + 1); different blocks are independent.
    """
    total = 0.0
    for start in range(first - first % block, last, block):
        width = min(block, bins - start)
        part = min(last, start + width) - max(first, start)
        total += part - part**2 / (width + 1)
    return total


def _weights(first: int, last: int, bins: int, block: int) -> Counter[float]:
    """Return how often each weight occurs, by which a range adds up the noises of bins and of blocks.

    Of a block of w bins, m in the range: those bins have 1 - m / (w + 1), its others -m / (w + 1), and the
    count of the block m / (w + 1).
    """
    found = Counter[float]()
    for start in range(first - first % block, last, block):
        width = min(block, bins - start)
        part = min(last, start + width) - max(first, start)
        spread = part / (width + 1)
        found[1 - spread] += part
        found[spread] += width - part + 1  # of either sign: the noises are symmetric
    return found


@lru_cache(maxsize=64)
def _best_block(bins: int) -> int:
    """Return the size of blocks with the least mean variance over all ranges."""
    tried = sorted({max(1, min(bins, round(math.sqrt(bins) * factor))) for factor in (0.5, 0.7, 1, 1.4, 2)})
    return min(tried, key=lambda block: _mean_variance(bins, block))


def _mean_variance(bins: int, block: int) -> float:
    """Return the mean variance of all ranges: of each block, by how many of its bins a range has."""
    total = 0.0
    for start in range(0, bins, block):
        width = min(block, bins - start)
        m = np.arange(1, width + 1)
        spread = m - m**2 / (width + 1)
        before, after = start + 1, bins - start - width + 1  # places of the other end, on either side
        inside = np.maximum(width - 1 - m, 0)  # ranges of m bins that touch no border of the block
        ways = np.where(m < width, before + after + inside, before * after)
        total += float((spread * ways).sum())
    return total / (bins * (bins + 1) / 2)
