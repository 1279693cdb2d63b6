# SPDX-License-Identifier: Apache-2.0
"""Types of columns: declared, or read from the schema of a source, and never guessed from a value.

A type is one of number, integer, text, boolean, date and timestamp, or a type as Ibis names it, such as
"float64".

Guarantee  The type of a column is decided before any row is read: by `types`, or by the schema of the format
           (Parquet, databases, frames, arrays). A CSV file has no schema: its columns are text unless `types`
           declares another type. So one row cannot change how the others are read.
Edge cases A value that does not fit the declared type is missing. It causes no error and changes no other
           value. A whole number is digits with a sign: "3.7" is not rounded.
Failure    A question that does not fit the type of its column is refused before anything is charged, with the
           same message for every source.
"""

import contextlib
import difflib
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from sfumato.errors import ColumnTypeError, InvalidParameterError

__all__ = [
    "TYPES",
    "Types",
    "declared",
    "from_text",
    "no_numbers",
    "not_a_number",
    "plain_type",
    "plain_type_of",
    "read_types",
    "unfitting",
    "without_nan",
]

Types = Mapping[str, str] | str | os.PathLike[str]
Expression = Any  # Ibis is imported only when a table is opened

TYPES = {
    "number": "float64",
    "integer": "int64",
    "text": "string",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp",
}
_SOFT = ("duckdb", "pyspark")  # engines with a cast that returns null on failure
_DIGITS = r"^\s*[+-]?[0-9]+\s*$"
_OF_SERIES: dict[str, str | None] = {  # beginnings of type names in pandas, polars and pyarrow
    "struct": None,
    "str": "text",
    "large_string": "text",
    "utf8": "text",
    "cat": "text",
    "enum": "text",
    "dictionary": "text",
    "int": "integer",
    "uint": "integer",
    "float": "number",
    "double": "number",
    "halffloat": "number",
    "dec": "number",
    "bool": "boolean",
    "datetime": "timestamp",
    "timestamp": "timestamp",
    "date": "date",
}


# --- declared types ---------------------------------------------------------------------------------------


def read_types(types: Types | None) -> dict[str, str]:
    """Return declared types by column; a path is a TOML file of lines such as `age = "number"`.

    >>> read_types({"age": "number"})
    {'age': 'number'}
    """
    if types is None:
        return {}
    found: object = _of_toml(os.fspath(types)) if isinstance(types, str | os.PathLike) else types
    if not isinstance(found, Mapping) or not all(isinstance(kind, str) for kind in found.values()):
        raise InvalidParameterError(
            f"types must map names of columns to types ({', '.join(TYPES)}), as in "
            "types={'age': 'number'}, or be the path of a TOML file with lines such as age = \"number\"."
        )
    return {str(name): str(kind) for name, kind in found.items()}


def _of_toml(path: str) -> object:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameterError(f"the file of types {path!r} cannot be read: {error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidParameterError(f"the file of types {path!r} is not TOML: {error}.") from error


def declared(table: Expression, types: Mapping[str, str], *, engine: str) -> Expression:
    """Return an Ibis table whose columns have the declared types; values that do not fit are missing."""
    unknown = [name for name in types if name not in table.columns]
    if unknown:
        raise InvalidParameterError(
            f"types are declared for columns that do not exist: {', '.join(unknown)}. "
            f"The table has: {', '.join(table.columns)}."
        )
    kinds = {name: _parsed(name, kind) for name, kind in types.items()}
    return table.mutate(**{name: _read_as(table[name], kind, engine) for name, kind in kinds.items()})


def without_nan(table: Expression) -> Expression:
    """Return an Ibis table in which every NaN of a column of floats is missing."""
    floats = [table[name] for name, kind in table.schema().items() if kind.is_floating()]
    return table.mutate(*(_known(value).name(value.get_name()) for value in floats))


def _known(value: Expression) -> Expression:
    import ibis

    return ibis.ifelse(value.isnan(), ibis.null(value.type()), value)


def _parsed(name: str, given: str) -> Any:
    """Return the Ibis type of a declaration."""
    import ibis

    kind: Any = None
    with contextlib.suppress(Exception):  # any error of the parser or of Ibis
        kind = ibis.dtype(TYPES.get(given, given)).copy(nullable=True)
    zoned = kind is not None and kind.is_timestamp() and kind.timezone is not None
    if kind is None or zoned or not (kind.is_primitive() or kind.is_decimal() or _is_time(kind)):
        close = difflib.get_close_matches(given, TYPES, n=1)
        meant = f"Did you mean {close[0]!r}?" if close else f"Types are: {', '.join(TYPES)}."
        raise InvalidParameterError(f"column {name!r} cannot have the type {given!r}. {meant}")
    return kind


def _is_time(kind: Any) -> bool:
    return kind.is_string() or kind.is_date() or kind.is_timestamp() or kind.is_time()


def _read_as(value: Expression, kind: Any, engine: str) -> Expression:
    given = value.type().copy(nullable=True)
    if given == kind or (given.is_timestamp() and kind.is_timestamp() and given.timezone is None):
        return value
    if engine not in _SOFT:
        raise InvalidParameterError(
            f"column {value.get_name()!r} has type {plain_type(given)} in the schema of the database, and "
            f"{engine} cannot read it as {plain_type(kind)} without failing on a row that does not fit. Make "
            "a view in the database with a column of that type, and open the view."
        )
    if kind.is_string():
        return value.cast(kind)
    if kind.is_integer() and not (given.is_integer() or given.is_boolean()):
        return _whole(value, kind, engine)
    return value.try_cast(kind)


def _whole(value: Expression, kind: Any, engine: str) -> Expression:
    """Return whole numbers; numbers that are not whole are missing, as engines would round them."""
    found = value.try_cast(kind)
    if not value.type().is_string():
        exact = found.cast("float64") == value.cast("float64")
    elif engine == "duckdb":
        exact = value.re_search(_DIGITS)
    else:
        return found  # Spark accepts digits only
    return exact.ifelse(found, None)


# --- types of columns -------------------------------------------------------------------------------------


def plain_type(kind: Any) -> str:
    """Return our name for an Ibis type; the name in Ibis if we have none."""
    if kind.is_string():
        return "text"
    if kind.is_floating() or kind.is_decimal():
        return "number"
    known = {"integer": kind.is_integer(), "boolean": kind.is_boolean(), "date": kind.is_date()}
    known["timestamp"] = kind.is_timestamp()
    return next((name for name, so in known.items() if so), str(kind))


def plain_type_of(values: Any) -> str | None:
    """Return the type of an array or a series; None if each entry has its own type.

    >>> import numpy as np
    >>> plain_type_of(np.array(["a", "b"])), plain_type_of(np.array([1.5])), plain_type_of(["a"])
    ('text', 'number', None)
    """
    kind: Any = getattr(values, "dtype", None)
    kind = getattr(values, "type", None) if kind is None else kind
    if hasattr(kind, "categories") and str(kind) == "category":  # pandas: the type of its categories
        return plain_type_of(kind.categories)
    by_numpy = {"U": "text", "S": "binary", "T": "text", "i": "integer", "u": "integer", "f": "number"}
    letter = getattr(kind, "kind", None)
    if isinstance(letter, str) and type(kind).__module__.startswith("numpy"):
        return (by_numpy | {"b": "boolean", "M": "timestamp"}).get(letter)
    named = str(kind).lower()
    return next((plain for start, plain in _OF_SERIES.items() if named.startswith(start)), None)


def from_text(text: str, kind: Any, *, name: str) -> Any:
    """Return the value that a text names, by the type of the column."""
    found: Any = None
    with contextlib.suppress(KeyError, ValueError, OverflowError):
        found = _READ[plain_type(kind)](text)
    if found is None:
        raise InvalidParameterError(
            f"{text!r} cannot be a value of column {name!r}, whose type is {plain_type(kind)}. Pass "
            "values of that type, or declare another type for the column."
        )
    return found


def _number(text: str) -> int | float | None:
    found = int(text) if re.match(_DIGITS, text) else float(text)
    return found if math.isfinite(found) else None


def _boolean(text: str) -> bool | None:
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(text.lower())


_READ = {"text": str, "number": _number, "integer": int, "boolean": _boolean, "date": date.fromisoformat}


# --- errors -----------------------------------------------------------------------------------------------


def not_a_number(name: str, kind: str) -> ColumnTypeError:
    """Return the error for a column that must be numbers and has another type."""
    problem = f"column {name!r} has type {kind}, which is not a number; nothing was charged."
    if kind != "text":
        return ColumnTypeError(f"{problem} Name a column of numbers.")
    return _undeclared(f"{problem} Name a column of numbers; or, if its texts are numbers,", name, "number")


def no_numbers(names: Sequence[str]) -> ColumnTypeError:
    """Return the error for a table without a column of numbers to learn from."""
    problem = f"none of the columns ({', '.join(names)}) has a type that is a number; nothing was charged."
    return _undeclared(f"{problem} If the texts of a column are numbers,", "COLUMN", "number")


def unfitting(name: str, kind: str, values: Iterable[Any], *, what: str) -> ColumnTypeError:
    """Return the error for values (categories, keys, classes) that are not of the type of their column."""
    problem = f"column {name!r} has type {kind}, but a given {what} has another type; nothing was charged."
    wanted = _type_of_all(values)
    if kind not in TYPES:
        return ColumnTypeError(f"{problem} Convert the column to text, numbers or dates in the source.")
    if kind != "text" or wanted is None:
        return ColumnTypeError(f"{problem} Pass values of that type.")
    return _undeclared(f"{problem} Pass texts; or, if its texts are values of type {wanted},", name, wanted)


def _undeclared(problem: str, name: str, wanted: str) -> ColumnTypeError:
    error = ColumnTypeError(
        f"{problem} declare the type when you open the data: types={{{name!r}: {wanted!r}}}."
    )
    error.in_options = f"{problem} declare the type: --type {name}={wanted}"
    return error


def _type_of_all(values: Iterable[Any]) -> str | None:
    """Return the plain type that all these public values have."""
    of_python = {bool: "boolean", int: "integer", float: "number", date: "date"}
    found = {of_python.get(type(value)) for value in values}
    return "number" if found == {"integer", "number"} else found.pop() if len(found) == 1 else None
