# SPDX-License-Identifier: Apache-2.0
"""Conversion of pandas frames to types that do not reveal whether a value is missing or out of range.

Guarantee  A schema is public, but pandas chooses types by looking at the values: whole numbers become floats
           if one is missing, booleans become objects, and so do whole numbers beyond 64 bits. Nullable and
           Arrow types are no exception: with `dtype_backend` or `convert_dtypes` pandas chooses "Int64" or
           "Float64" by the values, too. Here they are read alike in all cases, so what is printed of a table
           is the same with such a row and without it.
Unit       A unit is converted to text, value by value, and 7.0 is written as 7: its type in pandas may depend
           on one row, but which rows of all other units count may not. So a number from which float64, which
           pandas may have chosen, cannot tell the next whole number (2^53 and above) is no unit: it counts as
           missing, and its row is left out; so does text of one in a column with a declared type. Otherwise
           two people could share a unit, and the rows of one decide which of the other's count.
Edge cases Numbers of all types are read as float64. As keys, only those values count that are whole. Whole
           numbers above 2^53 need text, or a polars or pyarrow frame. Times are in microseconds, as pandas
           chooses the unit by looking at all values; times that do not fit are missing. Any other mixture
           of objects is converted to text, value by value, and so are categories. A value without text in
           UTF-8 (half of a surrogate pair, other bytes, an object that fails) is missing, and causes no
           error. A row of another kind than all others (a word among numbers), or the only row that is not
           missing, decides the type of the column, unless a type is declared. A column with a declared type
           is read value by value by that type (`schema`), whatever its type in pandas is, so no row decides
           how another one is read. In a column that is declared as text, and in categories, text that says a
           number is written as that number, "01" as "1", as pandas may have read it so; numbers of 1e15 and
           above are missing (`columns.cell_meaning`). Public values in another writing are refused.
Not here   polars and pyarrow frames: their types are taken as they are.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import inputs
from sfumato.statistics.columns.cell_meaning import key_of, said
from sfumato.statistics.columns.input_values import is_missing, quietly
from sfumato.statistics.contributions.float_units import apart
from sfumato.statistics.sources.schema import TYPES

__all__ = ["is_pandas", "read_alike", "require_written", "typed_by_values", "written_alike"]

_TYPED = "category"  # the type in pandas that somebody chose: no reader of files chooses it by values
_NUMBERS = ("integer", "mixed-integer-float")  # names in pandas
_TEXT = ("text", TYPES["text"])
_INT64 = range(-(2**63), 2**63)
_WHOLE = range(-(2**63), 2**64)
_LARGEST = int(sys.float_info.max)


def is_pandas(source: Any) -> bool:
    """Return whether a source is a pandas frame, without importing pandas."""
    return type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "columns")


def typed_by_values(source: Any, *, types: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the columns of a pandas frame whose types one value may change: all that are not declared.

    A nullable type is one of them, because a reader of files may have chosen it by the values. Categories are
    text whatever they hold.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"age": [40, 50], "size": pd.array([1, 2], dtype="Int64"), "city": ["a", "b"]})
    >>> sorted(typed_by_values(frame, types={"city": "text"}))
    ['age', 'size']
    """
    if not is_pandas(source):
        return frozenset()
    return frozenset(
        name for name, kind in _kinds(source).items() if name not in (types or {}) and kind != _TYPED
    )


def _kinds(frame: Any) -> dict[str, str]:
    """Return the type of each column, by its name."""
    return {str(name): str(frame.dtypes.iloc[place]) for place, name in enumerate(frame.columns)}


def read_alike(source: Any, *, unit: str | None = None, types: Mapping[str, str] | None = None) -> Any:
    """Return a pandas frame with the types that it would have if no value were missing or out of range.

    Numbers become float64, and units become text. Other sources are returned unchanged. Values of a column
    with a declared type, in `types`, become text and are read by that type later, unless pandas already has
    them in a type of that kind: which type pandas has may depend on one value.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"ill": [True, None], "age": [40, 50], "coins": [1, 10**400]})
    >>> read_alike(frame).dtypes.astype(str).to_dict()
    {'ill': 'boolean', 'age': 'float64', 'coins': 'float64'}
    """
    if not is_pandas(source):
        return source
    frame, types = _with_names(source), types or {}
    for name in frame.columns:
        frame[name] = _column(frame[name], types.get(name), is_unit=name == unit)
    return frame


def written_alike(source: Any, *, types: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the columns of a pandas frame whose values are text as `read_alike` writes it.

    >>> import pandas as pd
    >>> sorted(written_alike(pd.DataFrame({"zip": ["01", "x"], "age": [40, 50]}), types={"zip": "text"}))
    ['zip']
    """
    if not is_pandas(source):
        return frozenset()
    return frozenset(
        name
        for name, kind in _kinds(source).items()
        if ((types or {}).get(name) in _TEXT if name in (types or {}) else kind == "category")
    )


def require_written(name: str, values: Iterable[Any]) -> None:
    """Refuse public values that no row of a column of `written_alike` can have, in their writing."""
    for value in values:
        found = quietly(partial(_written, value)) if isinstance(value, str) else value
        if found != value:
            meant = "counts as missing" if found is None else f"is written as {found!r}"
            raise InvalidParameterError(
                f"{value!r} {meant} in column {name!r} of a pandas frame, as other rows decide whether "
                "pandas reads a column as numbers. Pass it so; or open the file, a polars or pyarrow frame: "
                "their text is kept."
            )


def _column(column: Any, declared: str | None, *, is_unit: bool) -> Any:
    column = _with_floats(column, is_unit=is_unit)
    kind = str(column.dtype)
    if is_unit and kind in ("float64", "float32"):
        return _units(column)  # whatever is declared reads these texts
    if declared is not None and (is_unit or not _reads_alike(kind, declared)):
        named, cell = (_unit_text, _unit_cell) if is_unit else (_written, _cell)
        return _texts(column, named if declared in _TEXT else cell)
    if is_unit:
        return _units(column)
    if kind == "object":
        return _plain(column)
    if kind == "category" or kind.startswith(("period", "interval")):
        return _texts(column, _written)
    return _texts(column) if kind.startswith("str") else column


def _with_floats(column: Any, *, is_unit: bool) -> Any:
    """Return a column of numbers as float64, the type of whole numbers if one is missing.

    A nullable column of float32 stays one as a unit: it tells fewer units apart.
    """
    from pandas.api.types import is_float_dtype, is_integer_dtype

    if hasattr(column, "sparse"):
        return _with_floats(column.sparse.to_dense(), is_unit=is_unit)
    kind = column.dtype
    if kind in (np.float64, np.float32) or not (is_integer_dtype(kind) or is_float_dtype(kind)):
        return column
    if isinstance(kind, np.dtype):
        return column.astype("float64")
    narrow = is_unit and str(kind) in ("Float32", "float[pyarrow]")
    numbers = column.to_numpy(dtype=np.float32 if narrow else np.float64, na_value=np.nan)
    return type(column)(numbers, index=column.index)


def _with_names(source: Any) -> Any:
    """Return a frame whose column names are text."""
    names = [str(name) for name in source.columns]
    if len(set(names)) < len(names):
        raise InvalidParameterError("two columns of the frame have the same name: rename one of them.")
    return source.set_axis(names, axis=1)


def _units(column: Any) -> Any:
    """Return units as text, as `_unit_named` writes them."""
    import pyarrow as pa

    if str(column.dtype) not in ("float64", "float32"):
        return _texts(column, _unit_named)
    values = column.to_numpy().astype(np.float64)
    told = np.abs(values) < apart(column.dtype.itemsize)
    whole = told & (values == np.rint(values))
    numbers = pa.array(np.where(whole, values, 0.0).astype(np.int64))
    texts = numbers.cast("string").to_numpy(zero_copy_only=False)
    rest = told & ~whole
    texts[rest] = _texts(column[rest], _unit_named).to_numpy(dtype=object, na_value=None)
    texts[~told] = None
    return _text_column(pa.array(texts, "string"), column)


def _text_column(texts: Any, column: Any) -> Any:
    return type(column)(texts.to_numpy(zero_copy_only=False), index=column.index, dtype="string")


def _reads_alike(kind: str, declared: str) -> bool:
    """Return whether an engine reads a pandas type as the declared one, as it reads single values."""
    number = kind.lower().startswith(("int", "uint", "float", "bool"))
    timed = kind in ("datetime64[s]", "datetime64[ms]", "datetime64[us]", "datetime64[ns]")
    by_kind = {
        "number": number,
        "float": number,
        "integer": number and not kind.lower().startswith("bool"),
        "int": number and not kind.lower().startswith("bool"),
        "bool": kind.lower().startswith("bool"),
        "date": timed,
        "timestamp": timed,
    }
    return next((so for start, so in by_kind.items() if declared.startswith(start)), False)


def _written(value: Any) -> str | None:
    """Return a value as text that depends on what it says alone: 1.0 and "01" are written as 1."""
    if isinstance(value, bool | np.bool_) or value in ("True", "TRUE", "true", "False", "FALSE", "false"):
        return str(value).lower()
    if said(value) is None and not isinstance(value, str):
        return _named(value)
    found = key_of(value)
    return None if found is None else _text(found)


def _named(value: Any) -> str:
    """Return a value as text that does not depend on its type in pandas: 1.0 is written as 1."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, timedelta):  # pandas writes it differently than Python
        return f"{value // timedelta(microseconds=1)} us"
    if isinstance(value, complex) and value.imag == 0:
        value = value.real
    return _number_or_text(value)


def _unit_named(value: Any) -> str | None:
    """Return a unit as text; None if it is a number from which float64 cannot tell the next one."""
    return _named(value) if _is_told_apart(value) else None


def _unit_text(value: Any) -> str | None:
    """Return a unit of a declared type as text; None if it is such a number, or text of one."""
    return _unit_named(value) if _is_text_told_apart(value) else None


def _unit_cell(value: Any) -> str | None:
    """Return a unit as written in a CSV file; None if it is such a number, or text of one."""
    return _cell(value) if _is_told_apart(value) and _is_text_told_apart(value) else None


def _is_text_told_apart(value: Any) -> bool:
    """Return whether text names one unit, also if pandas has it as a number because of other rows."""
    number = quietly(partial(float, value)) if isinstance(value, str) else None
    return number is None or abs(number) < apart(8)


def _is_told_apart(value: Any) -> bool:
    """Return whether a value names one unit, also if pandas has it as a float because of other rows."""
    if isinstance(value, complex) and value.imag == 0:
        value = value.real
    if isinstance(value, float | np.floating):
        size = value.itemsize if isinstance(value, np.floating) else 8
        return bool(abs(value) < apart(size))
    if isinstance(value, int | np.integer):  # others than those of 64 bits are never floats in pandas
        return int(value) not in _WHOLE or abs(int(value)) < apart(8)
    return True


def _number_or_text(value: Any) -> str:
    """Return a value as text; a whole number of 64 bits rounded to float64, as pandas may have done."""
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    rounded = isinstance(value, int | np.integer) and int(value) in _WHOLE
    return str(int(float(value))) if whole or rounded else _text(value)


def _text(value: Any) -> str:
    text = value.decode() if isinstance(value, bytes) else str(value)
    text.encode()  # half of a surrogate pair fails here
    return text


def _cell(value: Any) -> str:
    """Return a value as written in a CSV file, for an engine to read as the declared type."""
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
        return "inf" if value > 0 else "-inf"
    return _number_or_text(value)


def _plain(column: Any) -> Any:
    """Return a column of objects as text; booleans or numbers if only a missing or huge value made it so."""
    from pandas.api.types import infer_dtype

    known = np.array([*(None if is_missing(value) else value for value in column), None], dtype=object)[:-1]
    kind = infer_dtype(known, skipna=True)
    if kind == "boolean":
        return type(column)(known, index=column.index, dtype="boolean")
    if kind in _NUMBERS and any(isinstance(value, int) and value not in _INT64 for value in known):
        numbers = np.array([np.nan if value is None else value for value in known], dtype=object)
        return type(column)(inputs.clippable(numbers, what="values"), index=column.index)
    return _texts(column)


def _texts(column: Any, written: Callable[[Any], str | None] = _text) -> Any:
    """Return a column of objects as text."""
    if str(column.dtype).startswith("str") and written in (_text, _named, _unit_named):
        texts = quietly(partial(_valid_texts, column))
        if texts is not None:
            return _text_column(texts, column)
    texts = [None if is_missing(value) else quietly(partial(written, value)) for value in _values(column)]
    return type(column)(texts, index=column.index, dtype="string")


def _valid_texts(column: Any) -> Any:
    """Return texts as an Arrow array. Fails on text that is not UTF-8, which Arrow itself does not check."""
    import pyarrow as pa

    texts = pa.array(column, "string", from_pandas=True)
    texts.validate(full=True)
    return texts


def _values(column: Any) -> list[Any]:
    """Return the values of a column; those that Python cannot read, as text that is not UTF-8, are None."""
    found = quietly(partial(list, column))
    if found is not None:
        return found
    return [quietly(partial(column.iloc.__getitem__, place)) for place in range(len(column))]
