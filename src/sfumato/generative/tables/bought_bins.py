# SPDX-License-Identifier: Apache-2.0
"""Bins of a column of numbers of which nothing is known, from one noisy histogram.

The histogram has public cells: zero alone, and four for each doubling of the size, on both sides of it. The
bins follow its noisy counts: cells with many rows are divided, those with few are merged, so bins are narrow
where the rows are and wide where few are. A value that most rows have gets a narrow bin of its own.

Guarantee  `BinsQuestion` costs its event: that of one histogram with discrete Laplace noise. Each row counts
           in one cell, so a unit moves the counts by at most `rows_per_unit` in sum. All else is computed
           from noisy counts and public settings.
Edge cases Counts that noise alone could cause are not taken for rows, but neighbors are added up before they
           are given up, so that a tail that is spread over many cells is seen. If the noise could hide more
           than one row in 200, the bins go on for one more doubling on both sides. If nothing is seen, bins
           cover all sizes up to `largest`. Values beyond the bins count in the outermost ones.
Source     The cells are those of Wilson, Zhang, Lam, Desfontaines, Simmons-Marengo, Gipson 2020,
           arXiv:1909.01917, Section 5.1.1, in quarters.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.generative.tables.domain import Number
from sfumato.mechanisms.random import Generator
from sfumato.statistics.intervals import whole_half_width
from sfumato.statistics.noise import Kind, WholeNoise, l2_of_counts

__all__ = ["BinsQuestion"]

Floats = npt.NDArray[np.float64]

_PARTS = 4  # cells for each doubling
_MOST_DOUBLINGS = 1000
_SMALLEST = 1e-200
_LARGEST_WHOLE = 2.0**52  # up to which float64 tells a whole number from the next
_FALSE_ALARM = 0.01  # the chance that noise alone is taken for rows, in all cells together
_NOTICEABLE = 1 / 200  # a share of rows that should not be cut off unseen
_CHERNOFF = np.linspace(0.01, 0.99, 99)
_NARROWEST = 1e-6  # of a part of a cell, relative to the size of its numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class BinsQuestion:
    """The bins of one column.

    Args:
        epsilon: The epsilon of this purchase.
        bins: The most bins.
        whole: Whether the numbers are whole.
        smallest: The smallest size that is distinguished from zero, public.
        largest: The largest size of a number, public.
        rows_per_unit: The most rows of one unit.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> BinsQuestion(epsilon=1.0, bins=8, whole=True, smallest=1.0, largest=8.0).edges.tolist()[8:]
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    """

    epsilon: float
    bins: int
    whole: bool
    smallest: float
    largest: float
    rows_per_unit: int = 1

    def __post_init__(self) -> None:
        _check.count(bins=self.bins, rows_per_unit=self.rows_per_unit)
        _check.positive(epsilon=self.epsilon, smallest=self.smallest, largest=self.largest)
        _check.summable(sizes=(-self.largest, self.largest))
        if self.whole and not (float(self.largest).is_integer() and self.largest <= _LARGEST_WHOLE):
            raise InvalidParameterError("the largest of whole numbers must be whole, and at most 2**52.")
        if not _SMALLEST <= self.smallest < self.largest or self._doublings() > _MOST_DOUBLINGS:
            raise InvalidParameterError(
                f"smallest={self.smallest!r} must be at least {_SMALLEST:g} and below "
                f"largest={self.largest!r}, and they must be at most {_MOST_DOUBLINGS} doublings apart."
            )

    def _doublings(self) -> int:
        return max(1, math.ceil(math.log2(self.largest) - math.log2(self._finest)))

    @property
    def _finest(self) -> float:
        return max(1.0, float(math.floor(self.smallest))) if self.whole else self.smallest

    @property
    def edges(self) -> Floats:
        """The edges of the public cells. A cell holds its lower edge; zero has one of its own."""
        steps = np.arange(self._doublings() * _PARTS)
        sizes = np.ldexp(self._finest * (1 + steps % _PARTS / _PARTS), steps // _PARTS)
        sizes = np.append(sizes[sizes < self.largest], self.largest)
        if self.whole:
            found = np.concatenate([-np.floor(sizes), [0.0, 1.0], np.ceil(sizes), [self.largest + 1]])
            return np.unique(found)
        return np.concatenate([-sizes[::-1], [0.0, math.nextafter(0, 1)], sizes])

    def event(self) -> DpEvent:
        """Return the event that the purchase is charged with.

        Returns:
            The event, which an accountant prices.
        """
        return self._noise().event()

    def _noise(self) -> WholeNoise:
        return WholeNoise(
            epsilon=self.epsilon,
            delta=0.0,
            relation=Relation.ADD_REMOVE,
            kind=Kind.COUNTS,
            l1_sensitivity=self.rows_per_unit,
            l2_sensitivity=l2_of_counts(self.rows_per_unit, Relation.ADD_REMOVE),
            coordinates=min(self.edges.size - 1, self.rows_per_unit),
        )

    def buy(self, values: Floats, *, generator: Generator | None) -> Number:
        """Return the bins.

        Args:
            values: The private numbers. NaN is missing and counts nowhere.
            generator: Source of randomness. None is secure.

        Returns:
            The declaration of the column.
        """
        edges = self.edges
        places = np.searchsorted(edges[1:-1], values[~np.isnan(values)], side="right")
        counts = np.bincount(places, minlength=edges.size - 1).astype(np.int64)
        noisy = self._noise().add(counts, generator=generator)
        hidden = float(self._limits(noisy.size)[_PARTS])  # the rows of one doubling that noise could hide
        return self._number(_Cells.kept(edges, self._rows(noisy), hidden))

    def _rows(self, noisy: Floats) -> Floats:
        """Return the rows that are seen in each cell: in it alone, or in ever larger groups of the rest."""
        limit = self._limits(noisy.size)
        found, seen = np.zeros(noisy.size), np.zeros(noisy.size, dtype=bool)
        size = 1
        while size < 2 * noisy.size:
            for begin in range(0, noisy.size, size):
                rest = begin + np.flatnonzero(~seen[begin : begin + size])
                if rest.size and noisy[rest].sum() >= limit[rest.size]:
                    found[rest], seen[rest] = noisy[rest].sum() / rest.size, True
            size *= 2
        above = _with_tail(found, noisy, limit)
        return _with_tail(above[::-1], noisy[::-1], limit)[::-1]

    def _limits(self, cells: int) -> Floats:
        """Return what the noise of each number of cells together stays below, but for a small chance."""
        chance = _FALSE_ALARM / (2 * cells)
        alone = whole_half_width(self._noise().law, level=1 - 2 * chance) + 1.0
        summed = np.arange(cells + 1)[:, None] * -np.log1p(-(_CHERNOFF**2))  # Chernoff's bound
        bound = ((summed - math.log(chance)) / _CHERNOFF).min(axis=1) * self.rows_per_unit / self.epsilon
        return np.where(np.arange(cells + 1) == 1, alone, np.maximum(alone, bound))

    def _number(self, cells: "_Cells") -> Number:
        edges = cells.divided(self.bins, whole=self.whole).merged(self.bins).edges.tolist()
        if not self.whole:
            return Number(lower=edges[0], upper=edges[-1], bins=tuple(edges))
        if edges[-1] - edges[0] == 1:  # bounds must differ
            edges.append(edges[-1] + 1)
        last = edges[-1] - 1  # `Number` adds the one above the largest
        return Number(lower=edges[0], upper=last, bins=(*edges[:-1], last), whole=True)


@dataclass(frozen=True, slots=True)
class _Cells:
    """Cells side by side, with the rows that were seen in each and its width in public cells."""

    edges: Floats
    rows: Floats
    widths: Floats

    @classmethod
    def kept(cls, edges: Floats, rows: Floats, hidden: float) -> "_Cells":
        """Return the cells from the first to the last in which rows were seen."""
        full = np.flatnonzero(rows)
        first, last = (int(full[0]), int(full[-1])) if full.size else (0, rows.size - 1)
        if hidden > _NOTICEABLE * rows.sum():
            first, last = max(0, first - _PARTS), min(rows.size - 1, last + _PARTS)
        if first == last and edges[first] == 0:  # zero alone: bounds must differ
            last += 1
        taken = slice(first, last + 1)
        return cls(edges[first : last + 2], rows[taken], np.ones(last + 1 - first))

    def divided(self, bins: int, *, whole: bool) -> "_Cells":
        """Return cells of which none has more than its share of the rows, where it can be divided."""
        edges, rows, widths = [float(self.edges[0])], list[float](), list[float]()
        share = max(float(self.rows.sum()), 1.0) / bins
        for place, seen in enumerate(self.rows.tolist()):
            low, high = float(self.edges[place]), float(self.edges[place + 1])
            parts = min(max(1, math.ceil(seen / share)), _most_parts(low, high, whole=whole))
            inner = np.linspace(low, high, parts + 1)[1:]
            inner = np.floor(inner) if whole else inner
            edges += [*inner[:-1].tolist(), high]
            rows += [seen / parts] * parts
            widths += [1 / parts] * parts
        return _Cells(np.array(edges), np.array(rows), np.array(widths))

    def merged(self, bins: int) -> "_Cells":
        """Return at most `bins` cells. Those are merged that blur the fewest rows over the least width.

        Width counts twice: in public cells, for quantiles, and in numbers, for the mean.
        """
        edges, rows, widths = self.edges, self.rows, self.widths
        unit = float(np.sum(rows * np.diff(edges))) / max(float(np.sum(rows * widths)), 1.0)
        unit = max(unit, 1e-12 * float(edges[-1] - edges[0]))  # zero alone has next to no width
        while rows.size > bins:
            cost = _blur(rows, widths) + _blur(rows, np.diff(edges)) / unit
            # equal costs, as those of empty cells, are kept alike in width
            place = int(np.lexsort((widths[:-1] + widths[1:], cost))[0])
            edges = np.delete(edges, place + 1)
            rows, widths = _joined(rows, place), _joined(widths, place)
        return _Cells(edges, rows, widths)


def _with_tail(found: Floats, noisy: Floats, limit: Floats) -> Floats:
    """Return the rows that are seen, and those beyond the last of them that many cells together show."""
    full = np.flatnonzero(found)
    found, end = found.copy(), int(full[-1]) + 1 if full.size else found.size
    size = _PARTS
    while size <= 2 * (found.size - end):
        tail = noisy[end : end + size]
        if tail.sum() >= limit[tail.size]:
            found[end : end + size] = tail.sum() / tail.size
            end, size = end + tail.size, _PARTS
        else:
            size *= 2
    return found


def _most_parts(low: float, high: float, *, whole: bool) -> int:
    if whole:
        return int(min(high - low, 1e6))
    return max(1, int(min((high - low) / max(abs(low), abs(high), 1e-300) / _NARROWEST, 1e6)))


def _blur(rows: Floats, widths: Floats) -> Floats:
    """Return over how much more width the rows of each cell and the next are spread if these are merged."""
    return rows[:-1] * widths[1:] + rows[1:] * widths[:-1]


def _joined(values: Floats, place: int) -> Floats:
    """Return values with that at `place` and the next one added up."""
    return np.concatenate([values[:place], [values[place] + values[place + 1]], values[place + 2 :]])
