# SPDX-License-Identifier: Apache-2.0
"""Private columns and rows of numbers, and the sums and counts that statistics need from them.

Guarantee  A column counts at most `contribution_bound` rows of one privacy unit. Which rows of a unit count
           depends only on that unit's rows (`contribution_bound`), and a table keeps the same rows. Sums are
           exact: each value is first rounded to a grid of 2^-20 of half the width of the bounds. So a sum is
           a whole number of steps that float64 represents exactly, in any order of addition, and one row
           changes it by at most `STEPS`.
Edge cases Nulls and NaN are left out, as are rows without an owner. Infinities are clipped to the bounds like
           other values. Arrays of float64 are not copied. They are read when a release is computed, so do not
           write into them; missing values are detected when the column is constructed.
Failure    Values that are not numbers are refused, and not shown.
Source     Sums of floats that are rounded during addition have a larger sensitivity than assumed:
           Casacuberta, Shoemate, Vadhan, Wagaman 2022, arXiv:2207.10635.
Not here   Columns of a table, for which the engine computes the same: `table_columns`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidParameterError
from sfumato.statistics.arrays import Floats, Integers
from sfumato.statistics.columns.input_values import floats_of, name_of
from sfumato.statistics.columns.row_owners import bounded_rows

__all__ = [
    "MOST_ROWS",
    "STEPS",
    "ArrayColumn",
    "ArrayRows",
    "Bounds",
    "Column",
    "Moments",
    "Rows",
    "column_of",
    "in_steps",
    "rows_of",
]

Bounds = tuple[float, float]


STEPS = 2**20  # of the grid, from the middle of the bounds to each end
MOST_ROWS = 2**33  # whose sum float64 still represents exactly
_CHUNK = 2**16  # rows at a time: intermediate results stay in the processor's cache


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """The number of rows, and the sums of q and of q^2 / STEPS over them, each rounded to whole steps.

    q is the distance of a clipped value from the middle of the bounds in steps, from -STEPS to STEPS.
    """

    count: int
    total: int
    squares: int


class Column(Protocol):
    """One private column of numbers."""

    @property
    def name(self) -> str:
        """The name of the column."""
        ...

    @property
    def privacy_unit(self) -> str:
        """The privacy unit: who is protected."""
        ...

    @property
    def contribution_bound(self) -> int:
        """The most rows of one unit that count."""
        ...

    def moments(self, bounds: Bounds, *, squares: bool = True) -> Moments:
        """Return the sums of the clipped values and of their squares, around the middle of the bounds.

        The squares are 0 if they are not requested.
        """
        ...

    def histogram(self, edges: Floats) -> Integers:
        """Count the rows in [edge i, edge i + 1); values outside count in the first or the last bin."""
        ...

    def ordered(self, bounds: Bounds) -> Floats:
        """Return all values, clipped and sorted, for mechanisms that need each of them."""
        ...


class Rows(Protocol):
    """Several private columns of numbers, row by row."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        ...

    @property
    def privacy_unit(self) -> str:
        """The privacy unit: who is protected."""
        ...

    @property
    def contribution_bound(self) -> int:
        """The most rows of one unit that count."""
        ...

    def batches(self) -> Iterator[Floats]:
        """Yield all rows, some at a time: [rows, columns]. A row with a missing value is left out."""
        ...


@dataclass(frozen=True)
class ArrayRows:
    """Rows in memory, bounded for each privacy unit."""

    values: Floats  # [rows, columns], without missing ones
    names: tuple[str, ...]
    privacy_unit: str = "row"
    contribution_bound: int = 1

    def batches(self) -> Iterator[Floats]:
        """Yield all rows at once."""
        yield self.values


@dataclass(frozen=True)
class ArrayColumn:
    """One column in memory."""

    values: Floats  # [rows], without missing ones
    name: str = "values"
    privacy_unit: str = "row"
    contribution_bound: int = 1

    def moments(self, bounds: Bounds, *, squares: bool = True) -> Moments:
        """Return the sums of the clipped values and of their squares, around the middle of the bounds."""
        total = squared = 0
        for start in range(0, len(self.values), _CHUNK):
            steps = in_steps(self.values[start : start + _CHUNK], bounds)
            total += int(steps.sum())
            squared += int(np.rint(steps * steps / STEPS).sum()) if squares else 0
        return Moments(count=len(self.values), total=total, squares=squared)

    def histogram(self, edges: Floats) -> Integers:
        """Count the rows of each bin."""
        counts = np.zeros(len(edges) - 1, dtype=np.int64)
        if len(counts) == 1:
            return counts + len(self.values)
        for start in range(0, len(self.values), _CHUNK):
            places = _places(self.values[start : start + _CHUNK], edges)
            counts += np.bincount(places, minlength=len(counts))
        return counts

    def ordered(self, bounds: Bounds) -> Floats:
        """Return all values, clipped and sorted."""
        return np.sort(np.clip(self.values, *bounds))


def in_steps(values: Floats, bounds: Bounds) -> Floats:
    """Return values as whole steps from the middle of the bounds, clipped.

    >>> in_steps(np.array([0.0, 1.0, 9.0]), (0, 2)) / STEPS
    array([-1.,  0.,  1.])
    """
    lower, upper = bounds
    middle, half = lower / 2 + upper / 2, upper / 2 - lower / 2
    return np.clip(np.rint((np.clip(values, lower, upper) - middle) * (STEPS / half)), -STEPS, STEPS)


def _places(values: Floats, edges: Floats) -> npt.NDArray[np.intp]:
    """Return the bin of each value: by search, or for even bins by a guess that is corrected."""
    if not _even(edges):
        return np.searchsorted(edges[1:-1], values, side="right")
    width = (edges[-1] - edges[0]) / (len(edges) - 1)
    last = len(edges) - 2
    guess = np.clip((np.clip(values, edges[0], edges[-1]) - edges[0]) / width, 0, last).astype(np.intp)
    guess -= (values < edges[guess]) & (guess > 0)
    guess += (values >= edges[guess + 1]) & (guess < last)
    return guess


def _even(edges: Floats) -> bool:
    with np.errstate(all="ignore"):  # for bins as wide as float64 the search is used
        even = np.linspace(edges[0], edges[-1], len(edges))
        return bool((np.abs(even - edges) < (edges[-1] - edges[0]) / (len(edges) - 1) / 4).all())


def column_of(
    values: Any,
    *,
    name: str | None = None,
    owners: Any = None,
    contribution_bound: int = 1,
    privacy_unit: str | None = None,
) -> Column:
    """Return a private column of numbers in memory; a column of a table is returned unchanged.

    Args:
        values: Numbers in a list, array or series. Missing values are left out.
        name: The name of the column. None means the name of the series, or "values".
        owners: The privacy unit of each row, one entry for each. None means that each row is a unit.
        contribution_bound: The most rows of one unit that count. Above 1 it needs `owners`.
        privacy_unit: The name of the privacy unit. None means "owner" with `owners`, else "row".

    Returns:
        The column, for any statistic of a column.

    Raises:
        InvalidParameterError: If `values` are not one column of numbers, or `owners` do not fit them.

    >>> column_of([1.0, float("nan"), 3.0]).moments((0, 2))
    Moments(count=2, total=1048576, squares=1048576)
    """
    if isinstance(values, ArrayColumn) or hasattr(values, "moments"):
        return values
    named = name or name_of(values)
    known = floats_of(values, named)
    if known.ndim != 1:
        raise InvalidParameterError(f"{named} must be one column of numbers, with one dimension.")
    rows = bounded_rows(known[:, None], owners, contribution_bound)
    return ArrayColumn(rows[:, 0], named, privacy_unit or _unit(owners), contribution_bound)


def rows_of(
    values: Any,
    *,
    names: tuple[str, ...] | None = None,
    owners: Any = None,
    contribution_bound: int = 1,
    privacy_unit: str | None = None,
) -> Rows:
    """Return private rows of numbers in memory; rows of a table are returned unchanged.

    Args:
        values: Numbers, [rows, columns]. Rows with a missing value are left out.
        names: The names of the columns. None means "column 0", "column 1" and so on.
        owners: The privacy unit of each row, one entry for each. None means that each row is a unit.
        contribution_bound: The most rows of one unit that count. Above 1 it needs `owners`.
        privacy_unit: The name of the privacy unit. None means "owner" with `owners`, else "row".

    Returns:
        The rows, for any statistic of rows.

    Raises:
        InvalidParameterError: If `values` are not a matrix of numbers, or `names` or `owners` do not fit
            them.

    >>> next(rows_of([[1.0, 2.0], [float("nan"), 4.0]]).batches())
    array([[1., 2.]])
    """
    if isinstance(values, ArrayRows) or hasattr(values, "batches"):
        return values
    known = floats_of(values, "rows")
    if known.ndim != 2 or known.shape[1] == 0:
        raise InvalidParameterError("rows must be a matrix with at least one column: [rows, columns].")
    named = names or tuple(f"column {i}" for i in range(known.shape[1]))
    if len(named) != known.shape[1]:
        raise InvalidParameterError(
            f"{len(named)} names were given for {known.shape[1]} columns. Pass one for each."
        )
    rows = bounded_rows(known, owners, contribution_bound)
    return ArrayRows(rows, named, privacy_unit or _unit(owners), contribution_bound)


def _unit(owners: Any) -> str:
    return "row" if owners is None else "owner"
