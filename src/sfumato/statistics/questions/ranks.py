# SPDX-License-Identifier: Apache-2.0
"""Ranks along a public grid, and exact draws of a point near a wanted rank, for quantiles.

The bounds are divided into `cells` equal cells, and each cell into `parts` equal parts. The rows of a cell
are spread evenly over its parts, except for `whole` of them, which may be anywhere in it. So a value that
many rows share has a width, can be drawn, and can be split.

Guarantee  `draw` returns a point with density proportional to exp(rate * score), sampled exactly
           (`mechanisms.selection.IntervalExponential`). The score of a point is minus its distance in rank
           from the wanted rank q n + shift, in whole numbers, so nothing is rounded. Beyond a public
           distance, where the density has fallen by e^-128, all points have the same score, which does not
           increase the distance of any two scores. So only rows near the wanted rank are read one by one.
Neighbors  One more row increases the rank at every point by 0 or 1, and q n by q. So it changes every score
           by at most max(q, 1 - q). A replaced row changes every rank by at most 1 and does not change n, so
           1. Proof: the m rows of a cell put floor(j (m - whole) / parts) of them before its part j (0 if m
           is less than `whole`). This grows by 0 or 1 with m, as does its sum with min(m, whole), the end of
           the range.
           `split` divides rows in two at the border of a part, a point that is public once it was released.
           Of a cell that is divided, floor(m j / parts) rows are on the left, so one more row adds one row to
           exactly one side.
"""

import dataclasses
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor

import numpy as np

from sfumato import _check
from sfumato.accounting import calibrate
from sfumato.accounting.events import DpEvent, ExponentialDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import inputs
from sfumato.mechanisms.random import Generator
from sfumato.mechanisms.selection import IntervalExponential
from sfumato.statistics.arrays import Floats, Integers
from sfumato.statistics.columns.columns import ArrayColumn, Bounds, Column

__all__ = ["Grid", "RankTerms", "Ranks", "draw", "grid_of", "ranks_of", "settle", "share_of_draws"]


DENOMINATOR = 2**20  # of a quantile: with at most 2^33 rows, float64 represents every score exactly
_DEPTH = 128  # of the density, in powers of e: far below the weight of the narrowest part
_FARTHEST = 2**53  # the largest distance in rank that a score may have
_MEMORY_CELLS = 2**32
_TABLE_CELLS = 2**16
_MOST_CELLS = {True: 2**40, False: 2**22}  # in memory, and counted by an engine


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """A public grid over bounds."""

    bounds: Bounds
    cells: int
    parts: int  # of a cell
    whole: int  # rows of a cell that may be anywhere in it

    def value(self, point: float) -> float:
        """Return the value at a point, given in parts from the lower bound."""
        lower, upper = self.bounds
        share = point / (self.cells * self.parts)
        return min(max(lower * (1 - share) + upper * share, lower), upper)

    def around(self, low: float, high: float) -> tuple[int, int]:
        """Return the borders of the cells around two points: rows within a cell have no order."""
        return floor(low / self.parts) * self.parts, ceil(high / self.parts) * self.parts


def grid_of(column: Column, bounds: Bounds, resolution: int | None) -> Grid:
    """Return the grid for a column: a fine one for rows in memory, otherwise one that an engine can count.

    The choice never depends on the number of rows, which is private.
    """
    memory = isinstance(column, ArrayColumn)
    if resolution is not None:
        _check.count(resolution=resolution)
        _check.in_range(1, _MOST_CELLS[memory], resolution=resolution)
    if memory:
        return Grid(bounds=bounds, cells=resolution or _MEMORY_CELLS, parts=2**12, whole=1)
    return Grid(bounds=bounds, cells=resolution or _TABLE_CELLS, parts=2**6, whole=2**10)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """Rows between two points of a grid: the occupied cells, or parts of cells, in order."""

    starts: Integers
    widths: Integers
    upto: Integers  # rows up to the end of each cell, and `base` rows more
    base: int
    low: int
    high: int
    whole: int

    @property
    def rows(self) -> int:
        """The number of rows, which is private."""
        return int(self.upto[-1]) - self.base if self.upto.size else 0

    @property
    def counts(self) -> Integers:
        """The number of rows of each cell, which is private."""
        return np.diff(self.upto, prepend=self.base)

    def parted(self, low: int, high: int) -> list[int]:
        """Return the number of rows below, between and above two borders of cells, which is private.

        One more row adds one to exactly one of the three.
        """
        below, upto = (
            self.cells(0, int(np.searchsorted(self.starts, end)), 0, 0).rows for end in (low, high)
        )
        return [below, upto - below, self.rows - upto]

    def split(self, point: int) -> "tuple[Ranks, Ranks]":
        """Return the rows below a point and the others."""
        cells = self._cut(point)
        first = int(np.searchsorted(cells.starts, point))
        return cells.cells(0, first, self.low, point), cells.cells(first, None, point, self.high)

    def cells(self, first: int, last: int | None, low: int, high: int) -> "Ranks":
        """Return some of the cells, without a copy, between two points."""
        inside = slice(first, last)
        return Ranks(
            starts=self.starts[inside],
            widths=self.widths[inside],
            upto=self.upto[inside],
            base=int(self.upto[first - 1]) if first else self.base,
            low=low,
            high=high,
            whole=self.whole,
        )

    def _cut(self, point: int) -> "Ranks":
        """Return the same ranks with the cell around a point divided in two, if there is one."""
        at = int(np.searchsorted(self.starts, point)) - 1
        if at < 0 or self.starts[at] + self.widths[at] <= point:
            return self
        before, width = point - int(self.starts[at]), int(self.widths[at])
        earlier = int(self.upto[at - 1]) if at else self.base
        left = (int(self.upto[at]) - earlier) * before // width
        return dataclasses.replace(
            self,
            starts=np.insert(self.starts, at + 1, point),
            widths=np.r_[self.widths[:at], before, width - before, self.widths[at + 1 :]],
            upto=np.insert(self.upto, at, earlier + left),
        )


def ranks_of(column: Column, grid: Grid) -> Ranks:
    """Return the ranks of a whole column."""
    occupied, upto = _sorted(column, grid) if isinstance(column, ArrayColumn) else _counted(column, grid)
    occupied *= grid.parts
    return Ranks(
        starts=occupied,
        widths=np.broadcast_to(np.int64(grid.parts), occupied.shape),
        upto=upto,
        base=0,
        low=0,
        high=grid.cells * grid.parts,
        whole=grid.whole,
    )


def _sorted(column: Column, grid: Grid) -> tuple[Integers, Integers]:
    lower, upper = grid.bounds
    scale = grid.cells / (upper - lower)
    places = column.ordered(grid.bounds)  # a copy, which may be overwritten
    places *= scale
    places -= lower * scale
    cells = np.clip(places, 0, grid.cells - 1, out=places).astype(np.int64)
    last = np.flatnonzero(cells[1:] != cells[:-1])  # the last row of each cell but the last cell
    upto = np.r_[last, cells.size - 1] if cells.size else last
    return cells[upto], upto + 1


def _counted(column: Column, grid: Grid) -> tuple[Integers, Integers]:
    counts = column.histogram(np.linspace(*grid.bounds, grid.cells + 1))
    occupied = np.flatnonzero(counts)
    return occupied, np.cumsum(counts[occupied])


def settle(q: float | Fraction) -> Fraction:
    """Return the nearest fraction whose denominator is small enough for exact scores.

    >>> settle(0.1)
    Fraction(1, 10)
    """
    return Fraction(q).limit_denominator(DENOMINATOR)


def draw(
    ranks: Ranks,
    q: Fraction,
    *,
    epsilon: float,
    sensitivity: Fraction,
    relation: Relation,
    shift: float = 0.0,
    generator: Generator | None,
) -> float:
    """Return a point whose rank is near q n + shift, by the exponential mechanism."""
    if ranks.high == ranks.low:
        return float(ranks.low)
    beside = _outwards(shift * q.denominator)
    wanted = q.numerator * ranks.rows + beside  # in units of 1 / denominator
    # The wanted rank may be that far beyond all ranks: the nearest rank must still be the likeliest.
    farthest = ceil(2 * _DEPTH * sensitivity / Fraction(epsilon)) * q.denominator + abs(beside)
    farthest = min(farthest, _FARTHEST)
    near, before = _near(ranks, wanted - farthest, wanted + farthest, q.denominator)
    edges, least, most = _intervals(near)
    above, below = q.denominator * (before + least) - wanted, wanted - q.denominator * (before + most)
    scores = -np.clip(np.maximum(above, below), 0, farthest)
    mechanism = IntervalExponential(
        epsilon=epsilon,
        sensitivity=float(sensitivity * q.denominator),
        relation=relation,
        bounds=(float(ranks.low), float(ranks.high)),
    )
    return mechanism.release(
        np.r_[float(ranks.low), edges, float(ranks.high)],
        np.r_[-farthest, scores, -farthest].astype(np.float64),
        generator=generator,
    )


def _outwards(shift: float) -> int:
    return ceil(shift) if shift > 0 else floor(shift)


def _near(ranks: Ranks, least: int, most: int, denominator: int) -> tuple[Ranks, int]:
    """Return the cells whose ranks may lie within a range, and the number of rows before them."""
    size = ranks.upto.size
    first = int(np.searchsorted(ranks.upto, ranks.base - (-least // denominator)))
    reached = int(np.searchsorted(ranks.upto, ranks.base + most // denominator, side="right"))
    last = max(first, min(reached + 1, size))  # the cell after the last whose end is within the range
    low = int(ranks.starts[first - 1] + ranks.widths[first - 1]) if first else ranks.low
    near = ranks.cells(first, last, low, int(ranks.starts[last]) if last < size else ranks.high)
    return near, near.base - ranks.base


def _intervals(ranks: Ranks) -> tuple[Floats, Integers, Integers]:
    """Return the edges of intervals of constant rank, and the smallest and the largest rank of each.

    Each occupied cell adds the gap before it, and then one interval for each rank within it, or for each of
    its parts if those are fewer; the gap after the last cell comes last.
    """
    counts = ranks.counts
    spread = np.maximum(counts - ranks.whole, 0)
    sizes = 1 + np.clip(spread, 1, ranks.widths)
    owner = np.repeat(np.arange(sizes.size), sizes)
    place = np.arange(owner.size) - np.repeat(np.cumsum(sizes) - sizes, sizes) - 1  # -1 for the gap
    width, rows = ranks.widths[owner], np.maximum(spread[owner], 1)
    by_rank = rows < width
    begin = np.where(by_rank, -(-place * width // rows), place)
    inside = np.where(by_rank, place, place * rows // width)

    below = np.cumsum(counts) - counts
    ends = ranks.starts + ranks.widths
    gap = place < 0
    edges = np.where(gap, np.r_[ranks.low, ends][owner], ranks.starts[owner] + begin)
    least = below[owner] + np.where(gap, 0, inside)
    most = least + np.where(gap, 0, np.minimum(counts, ranks.whole)[owner])
    last = np.r_[ranks.low, ends][-1]
    edges = np.r_[edges, last, ranks.high].astype(np.float64)
    return edges, np.r_[least, ranks.rows], np.r_[most, ranks.rows]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTerms:
    """The parameters that all questions about ranks share."""

    bounds: Bounds
    epsilon: float
    delta: float = 0.0
    relation: Relation = Relation.ADD_REMOVE
    contribution_bound: int = 1
    resolution: int | None = None
    column: str = "values"

    def __post_init__(self) -> None:
        _check.positive(epsilon=self.epsilon)
        if self.delta != 0:
            _check.delta(delta=self.delta)
        _check.count(contribution_bound=self.contribution_bound)
        _check.text(column=self.column)
        object.__setattr__(self, "relation", Relation.parse(self.relation))
        if self.relation not in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
            raise InvalidParameterError(
                f"quantiles support add-remove and replace-one neighbors, not {self.relation.value}."
            )
        inputs.settle(self, "epsilon", "delta")
        inputs.settle_bounds(self, self.bounds)

    def reach(self, q: Fraction, *, first: bool) -> Fraction:
        """Return the sensitivity of a score; after the first draw a replaced row may affect two halves.

        Args:
            q: The quantile.
            first: Whether it is the first draw.

        Returns:
            The sensitivity.
        """
        one_more = max(q, 1 - q)
        if self.relation is Relation.REPLACE_ONE:
            one_more = Fraction(1) if first else 2 * one_more
        return self.contribution_bound * one_more

    def draw(
        self, ranks: Ranks, q: Fraction, epsilon: float, generator: Generator | None, *, first: bool = True,
        shift: float = 0.0,
    ) -> float:  # fmt: skip
        """Return a point whose rank is near a quantile, by the exponential mechanism.

        Args:
            ranks: The ranks of the points.
            q: The quantile.
            epsilon: The budget of this draw.
            generator: The source of randomness. Default: secure.
            first: Whether it is the first draw.
            shift: How many ranks are added to the wanted one.

        Returns:
            The point.
        """
        reach = self.reach(q, first=first)
        return draw(
            ranks, q, epsilon=epsilon, sensitivity=reach, relation=self.relation, shift=shift,
            generator=generator,
        )  # fmt: skip


@lru_cache(maxsize=256)
def share_of_draws(draws: int, epsilon: float, delta: float, relation: Relation) -> float:
    """Return the epsilon of each draw, so that all draws together cost the budget."""
    share = epsilon / draws
    while draws * share > epsilon:
        share = math.nextafter(share, 0.0)
    if delta == 0 or draws == 1:
        return share

    def event(each: float) -> DpEvent:
        return dp.SelfComposedDpEvent(ExponentialDpEvent(each), draws)

    bracket = (share, 64 * share)
    return calibrate(event, epsilon=epsilon, delta=delta, relation=relation, bracket=bracket, cost_rises=True)
