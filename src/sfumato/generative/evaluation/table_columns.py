# SPDX-License-Identifier: Apache-2.0
"""Synthetic and public tables as codes and as features, by the declarations that the synthesizer uses too.

A table is a pandas frame, or any mapping of names to columns of equal length; columns that are not declared
are left out. A declaration is `Number` or `Category`; that of a generator is `generator.domain`.

Guarantee  Nothing is read from a table but its cells: codes and features of a row depend on that row and on
           the declaration alone.
Edge cases Codes are those of `tables.domain`: a number outside the bounds counts in the first or the last
           bin, and what is missing or not listed has the last code, or a listed one if `missing=False`.
           `seen_codes` has two more codes for a number, below and above the bounds, for comparisons. As
           features, numbers are cut at the bounds, and what is missing is a mark in a column of its own. No
           value of a cell raises an error.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.rows import Floats, Integers, LabeledRows, without_torch
from sfumato.generative.tables.cells import cells_of
from sfumato.generative.tables.cells import numbers_of as column_numbers
from sfumato.generative.tables.domain import Category, Domain, Field, Number, UnknownDomainError

__all__ = [
    "Columns",
    "codes_of",
    "declared",
    "features_of",
    "labeled_table",
    "numbers_of",
    "seen_codes",
    "seen_sizes",
]

Columns = Domain | Mapping[str, Field]


def declared(columns: Columns) -> Domain:
    """Return the declared columns as a domain.

    Args:
        columns: The declared columns, by name, or a domain.

    Returns:
        The domain.

    Raises:
        InvalidParameterError: If no column is declared, or something else is.
    """
    if isinstance(columns, Domain):
        return columns
    try:
        return Domain(columns)
    except UnknownDomainError as error:
        raise InvalidParameterError(
            "columns must be declared by Number(...) or Category(...). For what a generator bought pass "
            "columns=generator.domain."
        ) from error


def codes_of(table: Any, columns: Columns) -> Integers:
    """Return the code of each cell.

    Args:
        table: The table.
        columns: The declared columns, by name, or a domain.

    Returns:
        [rows, columns].

    Raises:
        InvalidParameterError: If a column is missing, or no column is declared.
    """
    domain = declared(columns)
    return domain.encode(_taken(table, domain))


def seen_codes(table: Any, columns: Columns) -> Integers:
    """Return the code of each cell; for numbers beyond the bounds, one of two more codes.

    Args:
        table: The table.
        columns: The declared columns, by name, or a domain.

    Returns:
        [rows, columns]. Below the bounds the code is the size of the column, above them it is one more.

    Raises:
        InvalidParameterError: If a column is missing, or no column is declared.

    >>> from sfumato.generative.tables.domain import Number
    >>> seen_codes({"a": [-1, 0, 5, 7, None]}, {"a": Number(lower=0, upper=6, bins=2)}).ravel()
    array([3, 0, 1, 4, 2])
    """
    domain = declared(columns)
    codes = codes_of(table, domain)
    for place, (name, field) in enumerate(domain.columns.items()):
        if isinstance(field, Number):
            numbers = column_numbers(cells_of(table[name]))  # NaN is neither below nor above
            codes[numbers < field.lower, place] = field.size
            codes[numbers > field.upper, place] = field.size + 1
    return codes


def seen_sizes(columns: Columns) -> tuple[int, ...]:
    """Return the number of codes of each column that `seen_codes` knows.

    Args:
        columns: The declared columns, by name, or a domain.

    Returns:
        The numbers.
    """
    fields = declared(columns).columns.values()
    return tuple(field.size + 2 * isinstance(field, Number) for field in fields)


def features_of(table: Any, columns: Columns) -> Floats:
    """Return a table as numbers from 0 to 1.

    Args:
        table: The table.
        columns: The declared columns, by name, or a domain.

    Returns:
        Float64 [rows, features].

    Raises:
        InvalidParameterError: If a column is missing, or no column is declared.

    >>> from sfumato.generative.tables.domain import Number
    >>> features_of({"age": [20, 60, None], "sex": ["f", "m", "m"]},
    ...             {"age": Number(lower=0, upper=100), "sex": Category(values=["f", "m"], missing=False)})
    array([[0.2, 0. , 1. , 0. ],
           [0.6, 0. , 0. , 1. ],
           [0. , 1. , 0. , 1. ]])
    """
    domain = declared(columns)
    taken = _taken(table, domain)
    return np.concatenate([_features(field, taken[name]) for name, field in domain.columns.items()], axis=1)


def _features(field: Field, column: Any) -> Floats:
    cells = cells_of(column)
    if isinstance(field, Category):
        return np.eye(field.size)[field.encode(cells)]
    numbers = column_numbers(cells)
    other = np.isnan(numbers)
    known = np.clip(np.where(other, field.lower, numbers), field.lower, field.upper)
    scaled = (known - field.lower) / ((field.upper - field.lower) or 1.0)
    return np.stack([scaled, other.astype(np.float64)], axis=1) if field.missing else scaled[:, None]


def labeled_table(table: Any, columns: Columns, *, target: str) -> LabeledRows:
    """Return a synthetic or public table as rows with labels; rows whose target is not listed are left out.

    Args:
        table: The table.
        columns: The declared columns, by name, or a domain.
        target: The column to predict, a `Category`.

    Returns:
        Rows of numbers from 0 to 1; a label is a place among the categories.

    Raises:
        InvalidParameterError: If a column is missing, the target has no categories, or no row is left.
    """
    domain = declared(columns)
    field = domain.columns.get(target)
    if not isinstance(field, Category) or not field.values:
        hint = (
            " It is a column of numbers: give both tables a column that says whether the number is above a "
            "threshold, declare that as Category(values=[False, True]) in place of the numbers, and name it."
            if isinstance(field, Number)
            else ""
        )
        raise InvalidParameterError(f"the target {target!r} must be a declared Category with values.{hint}")
    others = {name: column for name, column in domain.columns.items() if name != target}
    if not others:
        raise InvalidParameterError("declare at least one column beside the target.")
    labels = codes_of(table, {target: field})[:, 0]
    kept = labels < len(field.values)
    if not kept.any():
        raise InvalidParameterError(f"no row has a declared category of the target {target!r}.")
    features = features_of(table, others)[kept]
    return LabeledRows(features=features, labels=labels[kept], classes=len(field.values))


def _taken(table: Any, domain: Domain) -> dict[str, Any]:
    names = list(table.columns if hasattr(table, "columns") else table)
    missing = [name for name in domain.names if name not in names]
    if missing:
        raise InvalidParameterError(f"the table has no column {missing[0]!r}, which is declared.")
    return {name: table[name] for name in domain.names}


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


def _number(value: Any) -> float:
    try:
        return float(value)
    except Exception:  # whatever a cell holds: it counts as missing
        return np.nan
