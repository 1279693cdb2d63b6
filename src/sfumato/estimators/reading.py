# SPDX-License-Identifier: Apache-2.0
"""Reading of X and y, entry by entry, so that no row changes how another one is read.

numpy would convert all entries to one type, so a list is converted as a whole only if that type is a number.
A list has rows and entries, and anything nested deeper is not a number.

Guarantee  The result for a row depends on that row alone. An entry that is not a number (missing, text, a
           list, anything) becomes NaN, and its row contributes nothing; an entry of y is compared with the
           classes by itself. No entry causes an error or a warning.
Failure    Only properties of all rows are refused: a number of dimensions, and a type that an array or the
           column of a frame has as a whole, such as text, complex numbers or dates.
"""

import contextlib
import math
from collections.abc import Iterable
from decimal import Decimal
from numbers import Real
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse
from sklearn.utils.validation import validate_data

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import inputs

__all__ = [
    "Floats",
    "entries_of",
    "matrix_of",
    "numbers_of",
    "require_features",
    "require_matrix",
    "same_features",
]

Floats = npt.NDArray[np.float64]

_NUMBERS = "biuf"  # numpy's kinds: bool, signed, unsigned, floating
_RESHAPE = (
    "X must be a matrix [rows, features], but has {} dimension(s). Reshape your data: X.reshape(-1, 1) if it "
    "is one feature."
)
_NO_NUMBERS = ("str", "cat", "enum", "date", "time", "dur")  # how types of columns begin that hold none


def matrix_of(X: Any, *, flat: bool = False) -> Floats:
    """Return X as float64 [rows, features]; `flat`: one dimension is taken for one feature.

    >>> matrix_of([[1, 2.5], [None, "secret"]]).tolist()
    [[1.0, 2.5], [nan, nan]]
    """
    rows = numbers_of(X, what="X")
    rows = rows[:, None] if flat and rows.ndim == 1 else rows
    if rows.ndim != 2:
        raise InvalidParameterError(_RESHAPE.format(rows.ndim))
    require_features(rows.shape[1])
    return rows


def require_features(count: int) -> None:
    """Refuse a matrix without columns."""
    if count == 0:
        raise InvalidParameterError("0 feature(s) (shape=(..., 0)) while a minimum of 1 is required.")


def same_features(estimator: Any, X: Any, rows: Any, *, reset: bool) -> None:
    """Note the number and the names of the features, or compare: neither reads a value."""
    problem = ""
    try:
        check: Any = validate_data  # its annotations know no arrays
        named = X if len(getattr(X, "shape", ())) == 2 else rows  # a frame has names of features
        check(estimator, named, reset=reset, skip_check_array=True)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise InvalidParameterError(problem)


def require_matrix(X: Any) -> None:
    """Refuse what cannot be a matrix of numbers, by its shape and its type: nothing in it is read."""
    shape: Any = getattr(X, "shape", None)
    if issparse(X) or getattr(getattr(X, "dtype", None), "kind", "f") not in _NUMBERS + "O" or _typed(X):
        raise _no_numbers("X")
    if shape is not None and len(shape) != 2:
        raise InvalidParameterError(_RESHAPE.format(len(shape)))


def numbers_of(values: Any, *, what: str) -> Floats:
    """Return private values as float64, NaN if an entry is no number."""
    given = _array(values)
    if given is None or given.ndim == 0 or given.dtype.kind not in _NUMBERS + "O" or _typed(values):
        raise _no_numbers(what)
    if given.dtype.kind == "O":
        return np.array([_number(entry) for entry in given.ravel()], dtype=np.float64).reshape(given.shape)
    with np.errstate(all="ignore"):  # numbers beyond float64 become infinities
        return given.astype(np.float64)


def _no_numbers(what: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"{what} must be a dense array of real numbers. Complex data not supported, nor text, nor sparse "
        "matrices."
    )


def entries_of(y: Any) -> npt.NDArray[Any]:
    """Return y as an array; of a list, each entry as it is: a list in it is an entry, and no axis."""
    if not isinstance(y, list | tuple):
        return inputs.array(y, what="y")
    listed = cast(list[object], y)
    known = np.empty(len(listed), dtype=object)
    for place, entry in enumerate(listed):
        known[place] = entry
    return known


def _array(values: Any) -> npt.NDArray[Any] | None:
    """Return values as an array; None if that fails, in whatever way: the error may quote them."""
    found: npt.NDArray[Any] | None = None
    with contextlib.suppress(Exception), np.errstate(all="ignore"):
        found = np.asarray(values)
    if isinstance(values, list | tuple):
        if found is None or found.dtype.kind not in _NUMBERS:
            with contextlib.suppress(Exception):
                found = np.array(cast(Any, values), dtype=object)
        if found is not None and found.ndim > 2:  # each entry is a list, and none is a number
            return np.full(found.shape[:2], math.nan)
    return found


def _typed(values: Any) -> bool:
    """Whether a frame says of one of its columns that it holds something other than numbers."""
    types: Any = getattr(values, "dtypes", ())
    each = cast(Iterable[object], types if isinstance(types, Iterable) else (types,))
    return any(str(kind).lower().startswith(_NO_NUMBERS) for kind in each)


def _number(entry: Any) -> float:
    found = math.nan
    plain = entry.item() if isinstance(entry, np.ndarray) and entry.ndim == 0 else entry
    if isinstance(plain, Real | Decimal | np.bool_):
        with contextlib.suppress(Exception):  # too large for float64, or a NaN that signals
            found = float(plain)
    return found
