# SPDX-License-Identifier: Apache-2.0
"""Which rows of a unit count where it has too many: one rule for arrays and for engines.

Rule       A unit has m rows, and k of them may count. If m > k, sort them by the columns that are asked for,
           number them r = 0 ... m - 1, and let t be the draw of the unit (`draws`), scaled to 1 ... m. Row r
           counts where (r k + t) mod m < k. These are k rows at even distances, from a start that is drawn.
Guarantee  At most k rows of a unit count: r k + t passes a multiple of m exactly k times. Which ones depends
           on the unit and on its own rows, as a multiset: on no other unit, nor on the order of the table. So
           neighbors differ in at most k rows that count. Rows that tie in the order are the same row to the
           question, and it does not matter which of them counts.
Unbiased   Each row counts for k of the m starts: with probability k / m, whatever its values are and however
           often they occur. Sums, counts and means of the rows that count are, on average over the draws,
           those of k rows drawn uniformly from each unit. As the rows are spread over the values, they mostly
           vary less than rows drawn one by one.
Again      Nothing is drawn anew: a question that is asked twice counts the same rows.
Source     Systematic sampling: Madow and Madow 1944, Annals of Mathematical Statistics 15.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.statistics.contributions.unit_draws import DRAWS

__all__ = ["is_kept", "kept"]

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
_LEAST_BITS = 20  # of a value that are sorted by at once: with fewer, too many are alike


def is_kept(place: Any, *, rows: Any, draw: Any, bound: int) -> Any:
    """Return whether each row counts: arrays of numpy, or expressions of Ibis.

    `place` is the row's number among the `rows` of its unit, from 0 on in the order of the values. Nothing
    overflows 64 bits where a unit has up to 2^33 rows.

    >>> is_kept(np.arange(6), rows=np.full(6, 6), draw=np.full(6, DRAWS // 2), bound=2)
    array([False,  True, False, False,  True, False])
    """
    most = min(bound, DRAWS)
    start = _start(draw, rows)
    if most == 1:
        return (rows == 1) | (place + start == rows)  # the same, without a division
    return (rows <= most) | ((place * most + start) % rows < most)


def kept(
    values: Floats, units: Whole, *, draws: Callable[[Whole], Whole], bound: int
) -> npt.NDArray[np.bool_]:
    """Return which rows count, given [rows, columns] of values and the number of each row's unit.

    Units are numbered from 0 on, without many gaps. `draws` gives the draws of some of them.
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


def _places(rows: Whole, *, start: Whole, bound: int) -> Whole:
    """Return the places for which `is_kept` holds, [units, bound]: where r k + t passes a multiple of m.

    >>> _places(np.array([6]), start=np.array([4]), bound=2)
    array([[1, 4]])
    """
    multiple = np.arange(bound) + (start >= bound)[:, None]
    return np.maximum(-((start[:, None] - multiple * rows[:, None]) // bound), 0)


def _sorted(values: Floats, units: Whole) -> npt.NDArray[np.intp]:
    """Return the order by unit, then by the columns of values."""
    if values.shape[1] > 1:
        return np.lexsort((*values.T[::-1], units))
    used = int(units.max(initial=0)).bit_length() + len(units).bit_length()
    if used > 64 - _LEAST_BITS:
        return np.lexsort((values[:, 0], units))
    return _packed_order(values[:, 0], units, 64 - used)


def _packed_order(values: Floats, units: Whole, bits: int) -> npt.NDArray[np.intp]:
    """Return the order by unit, then by value. To sort whole numbers takes half as long as to sort places.

    A number has the unit, the first `bits` bits of the value, and the place of the row.
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
    """Return whole numbers in the order of the values, of which none is NaN, nor a zero with a sign."""
    bits = values.view(np.int64)
    return (bits ^ ((bits >> 63) | np.int64(-(2**63)))).view(np.uint64)
