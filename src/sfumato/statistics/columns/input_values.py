# SPDX-License-Identifier: Apache-2.0
"""Conversion of private input values to numbers and objects, without showing a value.

Edge cases None, NaN of any kind, NaT and pandas' NA are missing values.
Failure    Values of a type that is not a number are refused by that type. No error quotes a value.
"""

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, TypeVar, cast

import numpy as np

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import inputs
from sfumato.statistics.arrays import Floats
from sfumato.statistics.sources.schema import not_a_number, plain_type_of

__all__ = ["floats_of", "is_missing", "name_of", "objects_of", "quietly"]

_T = TypeVar("_T")
_NO_NUMBERS = ("text", "binary", "date", "timestamp")  # of `schema`


def name_of(values: Any) -> str:
    """Return the name of a Series, which is public; "values" for anything else."""
    carried = getattr(values, "name", None)
    return carried if isinstance(carried, str) and carried.strip() else "values"


def is_missing(value: object) -> bool:
    """Return whether a private value is missing: None, pandas' NA, or not equal to itself, as NaN and NaT.

    A value that fails to compare is not missing, and its error is not passed on: it may quote the value.
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    try:
        differs: Any = value != value
    except Exception:
        return isinstance(value, Decimal)  # a signaling NaN
    return differs is True or (isinstance(differs, np.bool_) and bool(differs))


def quietly(convert: Callable[[], _T]) -> _T | None:
    """Return the result of converting a private value; None if it fails, as the error may quote the value."""
    try:
        return convert()
    except Exception:
        return None


def floats_of(values: Any, what: str) -> Floats:
    """Return private values as float64, missing ones as NaN. Text is refused, even text of numbers."""
    _require_numbers(values, what)  # by the type of a series, whatever its values are
    given = inputs.array(values, what=what)
    if given.dtype == np.float64:
        return given  # not copied: no caller writes into it
    _require_numbers(given, what)
    if given.dtype.kind == "O":
        plain = [np.nan if is_missing(value) else value for value in given.ravel()]
        if any(isinstance(value, str | bytes) for value in plain):
            raise not_a_number(what, "text")
        given = np.array([*plain, None], dtype=object)[:-1].reshape(given.shape)
    return inputs.clippable(given, what=what)


def _require_numbers(values: Any, what: str) -> None:
    kind = plain_type_of(values)
    if kind in _NO_NUMBERS:
        raise not_a_number(what, kind)


def objects_of(values: Any, *, what: str) -> list[object]:
    """Return private values one by one, unchanged.

    numpy would convert a list to one type: NaN beside text becomes the text "nan", unless the list contains
    None; whole numbers beside a null become floats, and some of them equal. One row would then decide what
    another one is. So only numpy's own arrays are read by numpy.
    """
    if not isinstance(values, np.ndarray):
        listed = quietly(lambda: _listed(values))
        if listed is not None:
            return listed
    known = inputs.array(values, what=what)
    if known.ndim != 1:
        raise InvalidParameterError(f"{what} must be one column, with one dimension.")
    return known.tolist()


def _listed(values: Any) -> list[object] | None:
    """Return a column of pyarrow, polars or pandas, or any other iterable, as a list."""
    for name in ("to_pylist", "to_list"):
        if hasattr(values, name):
            return list(getattr(values, name)())
    iterable = isinstance(values, Iterable) and not isinstance(values, str | bytes)
    # A frame or a tensor has more dimensions, or elements that are not plain values.
    return list(cast(Iterable[object], values)) if iterable and not hasattr(values, "__array__") else None
