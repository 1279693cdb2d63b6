# SPDX-License-Identifier: Apache-2.0
"""A private table: a frame at hand, or one that is read once the release is charged.

Guarantee  Before the charge only the names of columns are used, which are public. `read` is called after it.
           If units are given, at most `rows_per_unit` rows of each count. Which rows of a unit count depends
           on the unit, the number of its rows and their order among themselves, and on no other unit.
Edge cases A row whose unit is missing or cannot be compared is left out, because nobody could be protected by
           it; refusing the table would reveal that it has such a row.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.generative.tables.cells import cells_of, require_columns
from sfumato.statistics.columns.input_values import is_missing, quietly
from sfumato.statistics.columns.row_owners import bounded_rows

__all__ = ["DeferredTable", "PrivateColumns", "PrivateRows", "private_rows"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class PrivateRows:
    """A table at hand.

    Args:
        table: A pandas DataFrame, or columns by name.
        units: What identifies the unit of each row, or None.
    """

    table: Any
    units: Any = None

    @property
    def by_unit(self) -> bool:
        """Whether it is known whose each row is."""
        return self.units is not None

    def require(self, names: tuple[str, ...]) -> None:
        """Raise if the columns are not these, or differ in length. Names and shapes are public.

        Args:
            names: The names of the columns.

        Raises:
            InvalidParameterError: If something is wrong.
        """
        require_columns(self.table, names)
        lengths = {_length(self.table[name]) for name in names}
        if len(lengths) > 1:
            raise InvalidParameterError("all columns must have the same number of rows.")
        if self.units is not None and {_length(self.units)} != lengths:
            raise InvalidParameterError("units must have one entry for each row.")

    def read(self) -> "PrivateRows":
        """Return the rows.

        Returns:
            These rows.
        """
        return self


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DeferredTable:
    """A table that is read after the release is charged.

    Args:
        columns: The names of its columns, which are public.
        read: Returns `PrivateRows`. Its errors must not quote what was read. A failure leaves the release
            spent.
        by_unit: Whether the rows that `read` returns have units.
        bounded: Whether `read` itself leaves out the further rows of a unit that has too many.

    Raises:
        InvalidParameterError: If there is no column.

    >>> table = DeferredTable(columns=("a",), read=lambda: PrivateRows(table={"a": [1, 2]}))
    >>> table.by_unit, table.read().table
    (False, {'a': [1, 2]})
    """

    columns: tuple[str, ...]
    read: Callable[[], PrivateRows] = field(repr=False)
    by_unit: bool = False
    bounded: bool = False

    def __post_init__(self) -> None:
        if not self.columns:
            raise InvalidParameterError("a deferred table needs the names of its columns.")

    def require(self, names: tuple[str, ...]) -> None:
        """Raise if the columns are not these.

        Args:
            names: The names of the columns.
        """
        require_columns(dict.fromkeys(self.columns), names)


def private_rows(data: Any, units: Any) -> PrivateRows | DeferredTable:
    """Return the table that a caller gave, at hand or deferred.

    Args:
        data: A DataFrame, columns by name, or a `DeferredTable`.
        units: What identifies the unit of each row, or None. A deferred table brings its own.

    Returns:
        The table.

    Raises:
        InvalidParameterError: If units come with a deferred table.
    """
    if not isinstance(data, DeferredTable):
        return PrivateRows(table=data, units=units)
    if units is not None:
        raise InvalidParameterError("a deferred table brings its units: leave units=... out.")
    return data


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PrivateColumns:
    """The cells of the rows that count.

    Args:
        cells: The cells of each column, by name.
    """

    cells: Mapping[str, Any]

    @classmethod
    def of(cls, rows: PrivateRows, names: tuple[str, ...], *, rows_per_unit: int) -> "PrivateColumns":
        """Return the columns of a table, with at most so many rows of each unit.

        Args:
            rows: The table.
            names: The names of its columns.
            rows_per_unit: The most rows of one unit.

        Returns:
            The columns.

        Raises:
            InvalidParameterError: If columns and units differ in length.
        """
        rows.require(names)
        _check.count(rows_per_unit=rows_per_unit)
        found = {name: cells_of(rows.table[name]) for name in names}
        if rows.units is None:
            return cls(found)
        owners = [_owner(cell) for cell in cells_of(rows.units)]
        places = np.arange(len(owners), dtype=np.float64)[:, None]
        kept = np.sort(bounded_rows(places, owners, rows_per_unit)[:, 0].astype(np.int64))
        return cls({name: _taken(cells, kept) for name, cells in found.items()})


def _length(column: Any) -> int:
    if isinstance(column, str | bytes) or not hasattr(column, "__len__"):
        raise InvalidParameterError("each column of a table, and its units, is a list, an array or a Series.")
    return len(column)


def _owner(cell: object) -> Hashable:
    """Return a unit that can be compared with others, or None."""
    if is_missing(cell) or quietly(lambda: hash(cell)) is None:
        return None
    return cast(Hashable, cell)


def _taken(cells: Any, places: Any) -> Any:
    return cells[places] if isinstance(cells, np.ndarray) else [cells[place] for place in places]
