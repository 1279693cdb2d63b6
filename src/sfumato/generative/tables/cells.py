# SPDX-License-Identifier: Apache-2.0
"""Cells of private tables as they are, as numbers and as texts, without an error that a value could cause.

Guarantee  What is returned for a cell depends on that cell alone, whatever the type of its column is: it is
           read by `statistics.columns.cell_meaning`, in frames, arrays, lists and tables alike. No value
           raises or warns.
Edge cases So "01" and 1 are one category. Declare values as they should be written, such as "01".
Failure    Names and shapes are public, and wrong ones are refused. No message shows a value of the data.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.cell_meaning import key_of, numbers_said, said
from sfumato.statistics.columns.input_values import quietly

__all__ = [
    "UNKNOWN",
    "Cells",
    "UnknownDomainError",
    "cells_of",
    "is_word",
    "numbers_of",
    "place_of",
    "places_of",
    "require_columns",
    "text_of",
]

Cells = Sequence[object] | npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

_LONGEST = 200  # characters of a category
UNKNOWN = (
    "the values of column {0!r} are not known. Declare them, {0!r}: Category(values=[...]) or "
    "Number(lower=..., upper=...); or let the release buy them, {0!r}: UnknownCategory() or UnknownNumber(). "
    "Or leave the column out of the table."
)


class UnknownDomainError(InvalidParameterError):
    """A column has no declared values, and none were bought."""


def require_columns(frame: Any, names: Sequence[str]) -> None:
    """Refuse a frame that lacks a column or has others. Names are public.

    Args:
        frame: The table.
        names: The names of its columns.

    Raises:
        UnknownDomainError: If there is another column.
        InvalidParameterError: If one is lacking or there twice.
    """
    given = [*_names(frame)]
    for name in given:
        if name not in names:
            raise UnknownDomainError(UNKNOWN.format(name))
    if len(given) != len(set(given)):
        raise InvalidParameterError("two columns of the table have the same name.")
    lacking = [name for name in names if name not in given]
    if lacking:
        raise InvalidParameterError(f"the table has no column {lacking[0]!r}, which the domain declares.")


def _names(frame: Any) -> Iterator[Any]:
    if isinstance(frame, Mapping):
        return iter(cast("Mapping[Any, Any]", frame))
    if hasattr(frame, "columns") and hasattr(frame, "__getitem__"):
        return iter(frame.columns)
    raise InvalidParameterError("a table is a pandas DataFrame, or columns by name: {'age': [...], ...}.")


def cells_of(column: Any) -> Cells:
    """Return the cells of a column, one by one and unchanged; an array of numbers as it is.

    Args:
        column: A Series, array or list.

    Returns:
        The cells.

    Raises:
        InvalidParameterError: If it is not one column.
    """
    known = getattr(column, "to_numpy", None)
    array = column if isinstance(column, np.ndarray) else None
    if known is not None and isinstance(getattr(column, "dtype", None), np.dtype):
        array = known()
    if array is not None:
        if array.ndim != 1:
            raise InvalidParameterError("each column of a table has one dimension.")
        return _listed(array)
    listed = quietly(lambda: list(column))
    if listed is None or isinstance(column, str | bytes):
        raise InvalidParameterError("each column of a table is a list, an array or a Series.")
    return listed


def _listed(array: npt.NDArray[Any]) -> Cells:
    if array.dtype.kind in "biuf":
        return array
    if array.dtype.kind != "M":
        return array.tolist()
    times = array.astype("datetime64[us]").tolist()  # other units would become whole numbers
    return [time if isinstance(time, datetime) else None for time in times]


def places_of(values: Sequence[Any]) -> dict[str, int]:
    """Return the place of each listed value, by the text by which cells are compared with it.

    Args:
        values: The public values.

    Returns:
        The places.

    Raises:
        InvalidParameterError: If a value counts as missing, or two are the same value.

    >>> places_of(["01", "x"])
    {'1': 0, 'x': 1}
    """
    places: dict[str, int] = {}
    for place, value in enumerate(values):
        key = key_of(value)
        if key is None:
            raise InvalidParameterError(
                f"{value!r} cannot be a category: empty texts, words for missing values such as 'NA', and "
                "numbers of 1e15 and above count as missing, because other cells of a column can change how "
                "readers of files take them. Leave it out (missing=True has a code for it), or write it "
                "otherwise in the table."
            )
        if key in places:
            raise InvalidParameterError(
                f"values must be different, but {values[places[key]]!r} and {value!r} are the same value: "
                "other cells of a column can change how readers of files write it. List one of them."
            )
        places[key] = place
    return places


def numbers_of(cells: Cells) -> Floats:
    """Return cells as float64: NaN for those that are not numbers, infinity for those that are too large.

    Args:
        cells: The private cells.

    Returns:
        The numbers.

    >>> numbers_of([1, "2.5", "two", None, 10**400])
    array([1. , 2.5, nan, nan, inf])
    """
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        return numbers_said(cells)
    return np.fromiter((_number(cell) for cell in cells), np.float64, len(cells))


def _number(cell: object) -> float:
    found = said(cell)
    return found if isinstance(found, float) else math.nan


def is_word(cell: object) -> bool:
    """Return whether a cell is text, and neither a number nor missing.

    Args:
        cell: The private cell.

    Returns:
        Whether it is.

    >>> is_word("tea"), is_word("7"), is_word("NULL")
    (True, False, False)
    """
    return isinstance(said(cell), str)


def place_of(cell: object, places: Mapping[str, int], other: int) -> int:
    """Return the place of a cell in a list; `other` if it is not there.

    Args:
        cell: The private cell.
        places: The places of known values, of `places_of`.
        other: The place of all others.

    Returns:
        The place.

    >>> place_of("1.0", {"1": 0}, 7), place_of([], {"1": 0}, 7)
    (0, 7)
    """
    key = key_of(cell)
    return other if key is None else places.get(key, other)


def text_of(cell: object) -> str | None:
    """Return the text of a cell, the same for 1 and 1.0; None for a cell that cannot be a category.

    Args:
        cell: The private cell.

    Returns:
        The text.

    >>> text_of(1.0), text_of("tea"), text_of(None), text_of(float("nan"))
    ('1', 'tea', None, None)
    """
    key = key_of(cell)
    return key if key is not None and len(key) <= _LONGEST else None
