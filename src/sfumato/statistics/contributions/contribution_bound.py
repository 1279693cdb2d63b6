# SPDX-License-Identifier: Apache-2.0
"""Selection of the rows of a unit that count, if it has more than allowed; the same for arrays and engines.

A unit has m rows, and k of them may count. If m > k, its rows are sorted by the columns that the question
reads and numbered r = 0 ... m - 1. The draw of the unit (`unit_draws`), scaled to 1 ... m, is t. Row r counts
if (r k + t) mod m < k. These are k evenly spaced rows with a random start.

Each row counts for k of the m possible starts, so with probability k / m, whatever its values are and however
often they occur. On average over the draws, sums, counts and means are those of k rows drawn uniformly from
each unit. As the rows are spread over the values, the results mostly vary less than with rows drawn one by
one. Nothing is drawn again: the same question counts the same rows each time.

Guarantee  At most k rows of a unit count: r k + t passes a multiple of m exactly k times. Which rows count
           depends on the unit and on the multiset of its own rows, not on other units or on the order of the
           table. So neighbors differ in at most k rows that count. Rows that tie in the sort order are equal
           for the question, so it does not matter which of them counts.
Source     Systematic sampling: Madow and Madow 1944, Annals of Mathematical Statistics 15.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.statistics.arrays import Floats, Integers
from sfumato.statistics.contributions.unit_draws import DRAWS

__all__ = ["is_kept", "kept"]

_LEAST_BITS = 20  # of a value that are sorted together: with fewer, too many values are equal


def is_kept(place: Any, *, rows: Any, draw: Any, bound: int) -> Any:
    """Return whether each row counts, for arrays of numpy or expressions of Ibis.

    `place` is the number of the row among the `rows` of its unit, from 0 in the order of the values. Nothing
    overflows 64 bits if a unit has up to 2^33 rows.

    >>> is_kept(np.arange(6), rows=np.full(6, 6), draw=np.full(6, DRAWS // 2), bound=2)
    array([False,  True, False, False,  True, False])
    """
    most = min(bound, DRAWS)
    start = _start(draw, rows)
    if most == 1:
        return (rows == 1) | (place + start == rows)  # the same, without a division
    return (rows <= most) | ((place * most + start) % rows < most)


def kept(
    values: Floats, units: Integers, *, draws: Callable[[Integers], Integers], bound: int
) -> npt.NDArray[np.bool_]:
    """Return which rows count, given [rows, columns] of values and the number of each row's unit.

    Units are numbered from 0, without many gaps. `draws` returns the draws of some of them.
    """
    sizes = np.bincount(units)
    counts = sizes[units] <= bound
    crowded = np.flatnonzero(~counts)
    if not len(crowded):
        return counts
    order = crowded[_sorted(values[crowded], units[crowded])]
    names = np.flatnonzero(sizes > bound)
    rows = sizes[names]
    first = np.cumsum(rows) - rows
    places = _places(rows, start=_start(draws(names), rows), bound=bound)
    counts[order[first[:, None] + places]] = True
    return counts


def _start(draw: Any, rows: Any) -> Any:
    return (draw * rows >> 30) + 1


def _places(rows: Integers, *, start: Integers, bound: int) -> Integers:
    """Return the places for which `is_kept` holds, [units, bound]: where r k + t passes a multiple of m.

    >>> _places(np.array([6]), start=np.array([4]), bound=2)
    array([[1, 4]])
    """
    multiple = np.arange(bound) + (start >= bound)[:, None]
    return np.maximum(-((start[:, None] - multiple * rows[:, None]) // bound), 0)


def _sorted(values: Floats, units: Integers) -> npt.NDArray[np.intp]:
    """Return the order by unit, then by the columns of values."""
    if values.shape[1] > 1:
        return np.lexsort((*values.T[::-1], units))
    used = int(units.max(initial=0)).bit_length() + len(units).bit_length()
    if used > 64 - _LEAST_BITS:
        return np.lexsort((values[:, 0], units))
    return _packed_order(values[:, 0], units, 64 - used)


def _packed_order(values: Floats, units: Integers, bits: int) -> npt.NDArray[np.intp]:
    """Return the order by unit, then by value. Sorting whole numbers takes half the time of sorting places.

    A number consists of the unit, the first `bits` bits of the value, and the place of the row.
    """
    below = len(units).bit_length()
    leading = _ordered_bits(values) >> np.uint64(64 - bits)
    packed = (units.astype(np.uint64) << np.uint64(bits)) | leading
    packed = (packed << np.uint64(below)) | np.arange(len(units), dtype=np.uint64)
    packed.sort()
    order = (packed & np.uint64((1 << below) - 1)).astype(np.intp)
    packed >>= np.uint64(below)
    found, alike = values[order], packed[1:] == packed[:-1]
    if (wrong := alike & (found[1:] < found[:-1])).any():  # values that differ in other bits only
        run = np.concatenate([[0], np.cumsum(~alike)])
        mixed = np.flatnonzero(np.isin(run, run[1:][wrong]))
        order[mixed] = order[mixed][np.lexsort((found[mixed], run[mixed]))]
    return order


def _ordered_bits(values: Floats) -> npt.NDArray[np.uint64]:
    """Return whole numbers in the order of the values, which must not be NaN or a negative zero."""
    bits = values.view(np.int64)
    return (bits ^ ((bits >> 63) | np.int64(-(2**63)))).view(np.uint64)
