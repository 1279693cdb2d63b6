# SPDX-License-Identifier: Apache-2.0
"""Cells of private tables as they are, as numbers and as texts, without an error that a value could cause.

Guarantee  What is returned for a cell depends on that cell alone. No value raises or warns. The type of a
           column of a frame or an array is no exception: one word among numbers makes all of them text, so
           there text that reads as a number or as true or false counts as that, as it would without the word.
Edge cases So "01" in a frame is 1. A list keeps its cells as they are: pass frame["zip"].tolist().
Failure    Names and shapes are public, and wrong ones are refused. No message shows a value of the data.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.input_values import quietly

__all__ = [
    "UNKNOWN",
    "Cells",
    "UnknownDomainError",
    "as_read",
    "cells_of",
    "numbers_of",
    "place_of",
    "places_of",
    "require_columns",
    "text_of",
]

Cells = Sequence[object] | npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating, Decimal, Fraction, str)
_PLAIN = (str, int, float, bool, np.bool_, np.integer, np.floating)
_LONGEST = 200  # characters of a category
_LARGEST = 1e18  # of a number that may be a category
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
        return array if array.dtype.kind in "biuf" else [as_read(cell) for cell in array.tolist()]
    listed = quietly(lambda: list(column))
    if listed is None or isinstance(column, str | bytes):
        raise InvalidParameterError("each column of a table is a list, an array or a Series.")
    return [as_read(cell) for cell in listed] if known is not None else listed


def as_read(cell: object) -> object:
    """Return a cell as it would be in a column of its own kind: text of a number as a number.

    Args:
        cell: The private cell.

    Returns:
        The cell.

    >>> as_read("01"), as_read("1.50"), as_read("TRUE"), as_read("tea"), as_read(2 + 0j)
    (1.0, 1.5, True, 'tea', 2.0)
    """
    if isinstance(cell, complex | np.complexfloating):
        return float(cell.real) if cell.imag == 0 else cell
    if not isinstance(cell, str):
        return cell
    if cell.strip().lower() in ("true", "false"):
        return cell.strip().lower() == "true"
    number = _number(cell)
    return number if math.isfinite(number) and abs(number) < _LARGEST else cell


def places_of(values: Sequence[Any]) -> dict[Hashable, int]:
    """Return the place of each listed value: by itself, by its text, and as a frame may show it.

    Args:
        values: The public values.

    Returns:
        The places.

    >>> places_of(["01", "x"])
    {'01': 0, 'x': 1, '1': 0}
    """
    places: dict[Hashable, int] = {value: place for place, value in enumerate(values)}
    for shown in (values, [as_read(value) for value in values]):
        for place, value in enumerate(shown):
            text = text_of(value)
            if text is not None:
                places.setdefault(text, place)
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
    if isinstance(cells, np.ndarray):
        with np.errstate(all="ignore"):  # a long double may be too large
            return cells.astype(np.float64)
    return np.fromiter((_number(cell) for cell in cells), np.float64, len(cells))


def _number(cell: object) -> float:
    if not isinstance(cell, _NUMBERS):
        return math.nan
    try:
        return float(cell)
    except OverflowError:  # a whole number or a fraction beyond float64
        return math.inf if cast(int, cell) > 0 else -math.inf
    except Exception:  # text that is not a number, or a signaling NaN; the message may quote it
        return math.nan


def place_of(cell: object, places: Mapping[Hashable, int], other: int) -> int:
    """Return the place of a cell in a list, by its value or its text; `other` if it is not there.

    Args:
        cell: The private cell.
        places: The places of known values.
        other: The place of all others.

    Returns:
        The place.

    >>> place_of("1", {1: 0, "1": 0}, 7), place_of([], {1: 0}, 7)
    (0, 7)
    """
    try:
        found = places.get(cast(Hashable, cell))
    except Exception:  # a list or another cell that cannot be compared; the message may quote it
        return other
    return places.get(text_of(cell), other) if found is None else found


def text_of(cell: object) -> str | None:
    """Return the text of a cell, the same for 1 and 1.0; None for a cell that cannot be a category.

    Args:
        cell: The private cell.

    Returns:
        The text.

    >>> text_of(1.0), text_of("tea"), text_of(None), text_of(float("nan"))
    ('1', 'tea', None, None)
    """
    if not isinstance(cell, _PLAIN):
        return None
    plain: Any = cell.item() if isinstance(cell, np.generic) else cell
    if isinstance(plain, float):
        if not math.isfinite(plain):
            return None
        plain = int(plain) if plain.is_integer() else plain
    found = str(plain) if isinstance(plain, str) or abs(plain) < _LARGEST else ""
    return found if 0 < len(found) <= _LONGEST else None
