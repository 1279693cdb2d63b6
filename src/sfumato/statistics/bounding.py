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

from sfumato.statistics.draws import DRAWS

__all__ = ["is_kept", "kept"]

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
_DIGIT = 16  # bits that numpy sorts by counting


def is_kept(place: Any, *, rows: Any, draw: Any, bound: int) -> Any:
    """Return whether each row counts: arrays of numpy, or expressions of Ibis.

    `place` is the row's number among the `rows` of its unit, from 0 on in the order of the values. Nothing
    overflows 64 bits where a unit has up to 2^33 rows.

    >>> is_kept(np.arange(6), rows=np.full(6, 6), draw=np.full(6, DRAWS // 2), bound=2)
    array([False,  True, False, False,  True, False])
    """
    most = min(bound, DRAWS)
    start = (draw * rows >> 30) + 1
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
    counts = np.ones(len(units), dtype=bool)
    crowded = np.flatnonzero(sizes[units] > bound)
    order = crowded[_sorted(values[crowded], units[crowded])]
    rows = sizes[units[order]]
    first = np.flatnonzero(np.diff(units[order], prepend=-1))
    place = np.arange(len(order)) - np.repeat(first, rows[first])
    draw = np.repeat(draws(units[order[first]]), rows[first])
    counts[order] = is_kept(place, rows=rows, draw=draw, bound=bound)
    return counts


def _sorted(values: Floats, units: Whole) -> npt.NDArray[np.intp]:
    """Return the order by unit, then by the columns of values."""
    order = np.argsort(values[:, 0]) if values.shape[1] == 1 else np.lexsort(values.T[::-1])
    for shift in range(0, int(units.max(initial=0)).bit_length(), _DIGIT):
        digits = (units[order] >> shift).astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
    return order
