# SPDX-License-Identifier: Apache-2.0
"""pandas frames, whose types must not tell whether a value is missing or out of range.

Promise    A schema is public, but pandas chooses types by looking at the values: whole numbers become floats
           where one is missing, true and false become objects, and so do whole numbers beyond 64 bits. Here
           they are read alike in either case, so what is printed of a table is the same with such a row and
           without it.
Numbers    Whole numbers are float64, as all others, and where keys are asked for, those of them count that
           are whole. Above 2^53 they need a type that can be missing: pandas' "Int64".
Unit       A unit that is a number is compared as text: float64 would take some for one another.
Objects    Any other mixture of objects is text, value by value: one that has no text in UTF-8 (half of a
           surrogate pair, other bytes, an object that fails) is missing, and fails nothing.
Not here   Nullable types, polars and pyarrow tell nothing of this kind.
"""

from functools import partial
from typing import Any

import numpy as np

from sfumato.mechanisms import inputs
from sfumato.statistics.columns import is_missing, quietly

__all__ = ["is_pandas", "read_alike"]


def is_pandas(source: Any) -> bool:
    """Whether a source is a pandas frame; pandas is not imported for it."""
    return type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "columns")


def read_alike(source: Any, *, unit: str | None = None) -> Any:
    """Return a pandas frame with the types that it would have if no value were missing or out of range.

    Numbers become float64. The column of the unit, and any source that is no pandas frame, stay as they are.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"ill": [True, None], "age": [40, 50], "coins": [1, 10**400]})
    >>> read_alike(frame).dtypes.astype(str).to_dict()
    {'ill': 'boolean', 'age': 'float64', 'coins': 'float64'}
    """
    if not (is_pandas(source) and source.columns.is_unique):
        return source
    frame = source.copy(deep=False)
    for name, kind in source.dtypes.items():
        if str(kind) == "object":
            frame[name] = _texts(source[name]) if name == unit else _plain(source[name])
        elif str(kind).startswith(("int", "uint")) and name != unit:
            frame[name] = source[name].astype("float64")
    return frame


def _plain(column: Any) -> Any:
    """Return a column of objects as text, unless all are truth values or whole numbers."""
    from pandas.api.types import infer_dtype

    kind = infer_dtype(column, skipna=True)
    if kind == "boolean":
        return column.astype("boolean")
    if kind == "integer":
        known = np.array([np.nan if is_missing(value) else value for value in column], dtype=object)
        return type(column)(inputs.clippable(known, what="values"), index=column.index)
    return _texts(column)


def _texts(column: Any) -> Any:
    """Return a column of objects as text."""
    texts = [None if is_missing(value) else quietly(partial(_text, value)) for value in column]
    return type(column)(texts, index=column.index, dtype="string")


def _text(value: Any) -> str:
    text = value.decode() if isinstance(value, bytes) else str(value)
    text.encode()  # half of a surrogate pair fails here
    return text
