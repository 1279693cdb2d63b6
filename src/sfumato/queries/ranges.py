# SPDX-License-Identifier: Apache-2.0
"""Range queries: a histogram of bins and of blocks of bins, from which every range is answered consistently.

Guarantee  Each bin, and each block of `block` bins, is counted, and all counts get noise as one vector. A row
           is in one bin and in one block, so a unit of k rows moves the vector by at most 2 k in L1 norm and
           sqrt(2) k in L2 norm. Everything else is computed from the noisy counts.
Neighbors  Replacing a unit doubles the L1 norm, and multiplies the L2 norm by sqrt(2) (`noise`).
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
from typing import Any

import numpy as np

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator
from sfumato.queries.counts import Cell
from sfumato.statistics.arrays import Floats
from sfumato.statistics.columns.columns import Bounds, Column, column_of
from sfumato.statistics.intervals import LaplaceLaw, around, half_width
from sfumato.statistics.noise import Kind, WholeNoise, l2_of_counts
from sfumato.statistics.noise_sums import far
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.release import Parts, Release
from sfumato.statistics.terms import Terms

__all__ = ["RangeRelease", "Ranges", "ranges"]

_MOST_BINS = 2**16


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranges(Terms):
    """The counts of even bins over bounds, measured for ranges of any length."""

    bounds: Bounds
    bins: int = 1024

    def __post_init__(self) -> None:
        Terms.__post_init__(self)
        _check.bounds(bounds=self.bounds)
        _check.count(bins=self.bins)
        _check.in_range(2, _MOST_BINS, bins=self.bins)
        if self.relation not in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
            raise InvalidParameterError(
                f"ranges support add-remove and replace-one neighbors, not {self.relation.value}."
            )

    @property
    def name(self) -> str:
        """What is asked."""
        return f"ranges of {self.column}"

    @property
    def block(self) -> int:
        """The number of bins of a block."""
        return _best_block(self.bins)

    @property
    def edges(self) -> Floats:
        """The edges of the bins."""
        return np.linspace(float(self.bounds[0]), float(self.bounds[1]), self.bins + 1)

    def noise(self) -> WholeNoise:
        """Return the noise for the counts of bins and of blocks, as one vector."""
        rows, diameter = self.contribution_bound, self.relation.diameter
        return WholeNoise(
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            kind=Kind.COUNTS,
            l1_sensitivity=2 * rows * diameter,
            l2_sensitivity=math.sqrt(2) * l2_of_counts(rows, self.relation),
            coordinates=min(self.bins + -(-self.bins // self.block), 2 * rows * diameter),
        )

    def event(self) -> DpEvent:
        """Return the event that a release is charged with."""
        return self.noise().event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[tuple[float, ...]]:
        """Return consistent counts of the bins."""
        noise, exact = self.noise(), data.histogram(self.edges)
        starts = np.arange(0, self.bins, self.block)
        noisy = noise.add(np.r_[exact, np.add.reduceat(exact, starts)], generator=generator)
        found = _consistent(noisy[: self.bins], noisy[self.bins :], self.block)
        edges = self.edges.tolist()
        labels = {"from": tuple(edges[:-1]), "to": tuple(edges[1:])}
        return Answer(value=tuple(found.tolist()), parts=Parts(labels=labels, numbers=tuple(found.tolist())))

    def half_width(self, first: int, last: int) -> float:
        """Return the half width of the interval of the bins from `first` up to before `last`."""
        law = self.noise().law
        if isinstance(law, LaplaceLaw):
            weights = _weights(first, last, self.bins, self.block)
            return far(weights, scale=law.scale, level=self.level)
        spread = math.sqrt(_variance(first, last, self.bins, self.block))
        return half_width(law, level=self.level, weights=(spread,))


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeRelease:
    """Released counts of bins, from which any range is answered at no further cost.

    Attributes:
        release: The release of the bins, with its guarantee and its exports.
        question: What was asked.
    """

    release: Release[tuple[float, ...]] = field(repr=False)
    question: Ranges = field(repr=False)

    @property
    def guarantee(self) -> Guarantee:
        """Epsilon, delta, relation and privacy unit of all ranges together."""
        return self.release.guarantee

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
            return Cell(value=0.0, interval=around(0.0, 0.0, level=self.question.level))
        value = math.fsum(self.release.value[first:last])
        distance = self.question.half_width(first, last)
        known = around(value, distance, level=self.question.level, within=(0.0, math.inf))
        return Cell(value=value, interval=known)

    def cdf(self, value: float) -> float:
        """Return the share of rows below a value, between 0 and 1; it never falls as the value rises.

        Args:
            value: The value; it is moved to the nearest edge of a bin.

        Returns:
            The share; 0 if the noisy number of rows is not positive.
        """
        sums = np.maximum.accumulate(np.r_[0.0, np.cumsum(self.release.value)])
        return float(sums[self._place(value)] / sums[-1]) if sums[-1] > 0 else 0.0

    def _place(self, value: float) -> int:
        lower, upper = self.question.bounds
        share = (min(max(value, lower), upper) - lower) / (upper - lower)
        return round(share * self.question.bins)


def ranges(
    values: Any,
    *,
    bounds: Bounds,
    bins: int = 1024,
    epsilon: float,
    delta: float = 0.0,
    relation: Relation | str = Relation.ADD_REMOVE,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> RangeRelease:
    """Release counts from which every range of values is answered, and the distribution function.

    Args:
        values: Numbers in a list, array or series, or a column of a private table.
        bounds: Lower and upper bound, public. Values outside count in the first and the last bin.
        bins: The number of even bins.
        epsilon: The privacy budget of all ranges together.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors.
        level: The confidence level of the intervals.
        account: The account to charge before any data is read.
        purpose: The purpose that the account records.
        generator: The source of randomness. None means secure randomness from the operating system.

    Returns:
        The release.

    Raises:
        InvalidParameterError: If a parameter is out of range. Nothing is charged.
        BudgetExceededError: If the account has too little budget left. Nothing is computed.

    >>> ages = ranges([20.0] * 500 + [60.0] * 500, bounds=(0, 100), bins=100, epsilon=2.0)
    >>> 400 < ages.between(50, 70).value < 600, ages.cdf(100)
    (True, 1.0)
    """
    column = column_of(values)
    question = Ranges(
        bounds=bounds,
        bins=bins,
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=column.contribution_bound,
        level=level,
        column=column.name,
    )
    found = Query(question, column).release(account=account, purpose=purpose, generator=generator)
    return RangeRelease(release=found, question=question)


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
