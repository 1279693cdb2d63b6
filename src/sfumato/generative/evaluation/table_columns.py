# SPDX-License-Identifier: Apache-2.0
"""Declared columns of a table: numbers between edges, or categories. Bins and features follow from them.

A table is a pandas frame, or any mapping of names to columns of equal length.

Guarantee  Edges and categories are declared, and never read from a table: bins and features of a row depend
           on that row alone.
Edge cases A number outside the edges, a missing value, text that is no number and an undeclared category all
           belong to one more bin, the last. As features they are zeros and a mark in a column of its own. No
           value of a cell raises an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.rows import Floats, Integers, LabeledRows, without_torch
from sfumato.generative.tables.cells import cells_of, place_of, places_of
from sfumato.generative.tables.cells import numbers_of as column_numbers

__all__ = ["Categories", "Column", "Edges", "bins_of", "features_of", "labeled_table", "numbers_of"]


@dataclass(frozen=True, slots=True)
class Edges:
    """A column of numbers, and the edges of its bins.

    Args:
        values: The edges, rising; a bin holds its left edge, and the last one both.

    Raises:
        InvalidParameterError: If there are fewer than two edges, or they do not rise.

    >>> Edges((0, 10, 20)).bins([5, 10, 20, 99, None]).tolist()
    [0, 1, 1, 2, 2]
    """

    values: Sequence[float]

    def __post_init__(self) -> None:
        edges = np.asarray(self.values, dtype=np.float64)
        if edges.ndim != 1 or len(edges) < 2 or not (np.isfinite(edges).all() and (np.diff(edges) > 0).all()):
            raise InvalidParameterError(
                "edges must be at least two finite numbers, each above the one before."
            )

    @property
    def size(self) -> int:
        """The number of bins, with the one for other values."""
        return len(self.values)

    def bins(self, column: Any) -> Integers:
        """Return the bin of each value.

        Args:
            column: The values.

        Returns:
            Numbers from 0; the last is that of other values.
        """
        numbers, last = _numbers(column), len(self.values) - 1
        with np.errstate(invalid="ignore"):
            inside = (numbers >= self.values[0]) & (numbers <= self.values[-1])
        places = np.searchsorted(self.values, np.where(inside, numbers, self.values[0]), side="right") - 1
        return np.where(inside, np.minimum(places, last - 1), last).astype(np.int64)

    def features(self, column: Any) -> Floats:
        """Return each value as a number from 0 to 1, and a mark of other values.

        Args:
            column: The values.

        Returns:
            [rows, 2].
        """
        numbers, other = _numbers(column), self.bins(column) == self.size - 1
        low, high = float(self.values[0]), float(self.values[-1])
        scaled = (np.where(other, low, numbers) - low) / (high - low)
        return np.stack([scaled, other.astype(np.float64)], axis=1)


@dataclass(frozen=True, slots=True)
class Categories:
    """A column of categories.

    Args:
        values: The categories, each once.

    Raises:
        InvalidParameterError: If there is none, or one is repeated.

    >>> Categories(("red", "blue")).bins(["blue", "green", None]).tolist()
    [1, 2, 2]
    """

    values: Sequence[Any]

    def __post_init__(self) -> None:
        if isinstance(self.values, str) or len(self.values) == 0 or len(set(self.values)) < len(self.values):
            raise InvalidParameterError("categories must be a list of at least one value, each once.")

    @property
    def size(self) -> int:
        """The number of bins, with the one for other values."""
        return len(self.values) + 1

    def bins(self, column: Any) -> Integers:
        """Return the place of each value among the categories.

        Args:
            column: The values.

        Returns:
            Numbers from 0; the last is that of other values.
        """
        places, other = places_of(self.values), len(self.values)
        return np.array([place_of(cell, places, other) for cell in cells_of(column)], dtype=np.int64)

    def features(self, column: Any) -> Floats:
        """Return a mark for each category, and one for other values.

        Args:
            column: The values.

        Returns:
            [rows, categories + 1].
        """
        return np.eye(self.size)[self.bins(column)]


Column = Edges | Categories


def bins_of(table: Any, columns: Mapping[str, Column]) -> Integers:
    """Return the bin of each cell.

    Args:
        table: The table.
        columns: The declared columns, by name.

    Returns:
        [rows, columns].

    Raises:
        InvalidParameterError: If a column is missing, or no column is declared.
    """
    return np.stack([columns[name].bins(column) for name, column in _columns(table, columns)], axis=1)


def features_of(table: Any, columns: Mapping[str, Column]) -> Floats:
    """Return a table as numbers from 0 to 1.

    Args:
        table: The table.
        columns: The declared columns, by name.

    Returns:
        Float64 [rows, features].

    Raises:
        InvalidParameterError: If a column is missing, or no column is declared.

    >>> features_of({"age": [20, 60], "sex": ["f", "m"]},
    ...             {"age": Edges((0, 50, 100)), "sex": Categories(("f", "m"))})
    array([[0.2, 0. , 1. , 0. , 0. ],
           [0.6, 0. , 0. , 1. , 0. ]])
    """
    found = [columns[name].features(column) for name, column in _columns(table, columns)]
    return np.concatenate(found, axis=1)


def labeled_table(table: Any, columns: Mapping[str, Column], *, target: str) -> LabeledRows:
    """Return a synthetic or public table as rows with labels; rows whose target is undeclared are left out.

    Args:
        table: The table.
        columns: The declared columns, by name.
        target: The column to predict, declared with `Categories`.

    Returns:
        Rows of numbers from 0 to 1; a label is a place among the categories.

    Raises:
        InvalidParameterError: If a column is missing, the target has no categories, or no row is left.
    """
    declared = columns.get(target)
    if not isinstance(declared, Categories):
        raise InvalidParameterError(f"declare the target {target!r} with Categories(...) in columns.")
    others = {name: column for name, column in columns.items() if name != target}
    labels = bins_of(table, {target: declared})[:, 0]
    kept = labels < len(declared.values)
    if not kept.any():
        raise InvalidParameterError(f"no row has a declared category of the target {target!r}.")
    features = features_of(table, others)[kept]
    return LabeledRows(features=features, labels=labels[kept], classes=len(declared.values))


def _columns(table: Any, columns: Mapping[str, Column]) -> list[tuple[str, Any]]:
    if not columns:
        raise InvalidParameterError("declare at least one column beside the target.")
    names = list(table.columns if hasattr(table, "columns") else table)
    missing = [name for name in columns if name not in names]
    if missing:
        raise InvalidParameterError(f"the table has no column {missing[0]!r}, which is declared.")
    return [(name, table[name]) for name in columns]


def numbers_of(values: Any) -> Floats:
    """Return an array of any kind as numbers, NaN where a cell is none. Each depends on that cell alone.

    Args:
        values: An array, a tensor, or lists of equal length.

    Returns:
        Float64, of the same shape.

    >>> numbers_of([1, "2.5", None, "many"])
    array([1. , 2.5, nan, nan])
    """
    plain = without_torch(values)
    kind = getattr(plain, "dtype", None)
    if isinstance(kind, np.dtype) and kind.kind in "fiub":
        return np.asarray(plain, dtype=np.float64)
    cells = np.asarray(plain, dtype=object)
    return np.array([_number(value) for value in cells.ravel()], dtype=np.float64).reshape(cells.shape)


def _numbers(column: Any) -> Floats:
    """Return a column as numbers; a cell that holds several values is none."""
    return column_numbers(cells_of(column))


def _number(value: Any) -> float:
    try:
        return float(value)
    except Exception:  # whatever a cell holds: it counts as missing
        return np.nan
