# SPDX-License-Identifier: Apache-2.0
"""pandas frames, whose types must not tell whether a value is missing or out of range.

Promise    A schema is public, but pandas chooses types by looking at the values: whole numbers become floats
           where one is missing, true and false become objects, and so do whole numbers beyond 64 bits. Here
           they are read alike in either case, so what is printed of a table is the same with such a row and
           without it.
Numbers    Whole numbers are float64, as all others, and where keys are asked for, those of them count that
           are whole. Above 2^53 they need a type that can be missing: pandas' "Int64".
Unit       Units that are whole numbers stay whole, also where a missing one has made floats of them: float64
           would take some for one another. One that is no whole number among whole ones decides that all are
           floats; which rows of the others count does not change with it (`draws`).
Objects    Any other mixture of objects is text, value by value, as are categories: one that has no text in
           UTF-8 (half of a surrogate pair, other bytes, an object that fails) is missing, and fails nothing.
           A column of objects has no type of its own. Where one row is of another kind than all others, or
           the only one that is not missing, it decides what the column is; `types` settles that.
Not here   Nullable types, polars and pyarrow tell nothing of this kind.
"""

from functools import partial
from typing import Any

import numpy as np

from sfumato.mechanisms import inputs
from sfumato.statistics.columns import is_missing, quietly

__all__ = ["is_pandas", "read_alike"]

_NUMBERS = ("integer", "mixed-integer-float")  # pandas' words
_INT64 = range(-(2**63), 2**63)


def is_pandas(source: Any) -> bool:
    """Whether a source is a pandas frame; pandas is not imported for it."""
    return type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "columns")


def read_alike(source: Any, *, unit: str | None = None) -> Any:
    """Return a pandas frame with the types that it would have if no value were missing or out of range.

    Numbers become float64, and units that are whole numbers int64. Any other source stays as it is.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"ill": [True, None], "age": [40, 50], "coins": [1, 10**400]})
    >>> read_alike(frame).dtypes.astype(str).to_dict()
    {'ill': 'boolean', 'age': 'float64', 'coins': 'float64'}
    """
    if not (is_pandas(source) and source.columns.is_unique):
        return source
    frame = source.copy(deep=False)
    for name, kind in source.dtypes.items():
        if str(kind) == "object" and name != unit:
            frame[name] = _plain(source[name])
        elif str(kind) in ("object", "category") or str(kind).startswith("str"):
            frame[name] = _texts(source[name])
        elif name == unit:
            frame[name] = _units(source[name])
        elif str(kind).startswith(("int", "uint")):
            frame[name] = source[name].astype("float64")
    return frame


def _units(column: Any) -> Any:
    """Return units that are whole numbers of 64 bits as such, missing or not; any others as they are."""
    if not isinstance(column.dtype, np.dtype) or column.dtype.kind not in "fiu":
        return column
    known = column.to_numpy()[~np.isnan(column.to_numpy())]
    fit = (known >= -(2.0**63)) & (known < 2.0**63) & (known == np.rint(known))
    return column.astype("Int64") if bool(fit.all()) else column


def _plain(column: Any) -> Any:
    """Return a column of objects as text; with a type of its own if one missing or huge value made it so."""
    from pandas.api.types import infer_dtype

    known = np.array([*(None if is_missing(value) else value for value in column), None], dtype=object)[:-1]
    kind = infer_dtype(known, skipna=True)
    if kind == "boolean":
        return type(column)(known, index=column.index, dtype="boolean")
    if kind in _NUMBERS and any(isinstance(value, int) and value not in _INT64 for value in known):
        numbers = np.array([np.nan if value is None else value for value in known], dtype=object)
        return type(column)(inputs.clippable(numbers, what="values"), index=column.index)
    return _texts(column)


def _texts(column: Any) -> Any:
    """Return a column of objects as text."""
    texts = [None if is_missing(value) else quietly(partial(_text, value)) for value in column]
    return type(column)(texts, index=column.index, dtype="string")


def _text(value: Any) -> str:
    text = value.decode() if isinstance(value, bytes) else str(value)
    text.encode()  # half of a surrogate pair fails here
    return text
