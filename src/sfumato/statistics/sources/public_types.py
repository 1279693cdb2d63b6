# SPDX-License-Identifier: Apache-2.0
"""Types of the columns of a public CSV file, inferred from all of its values, which are public.

Columns of a private CSV file are never typed so (`schema`): one row would decide how all others are read.

Edge cases A column has a type if every value has it as it is written: whole numbers of 64 bits, numbers, true
           or false, dates and times as ISO 8601 writes them. Digits with a zero before them, as in zip codes,
           are text, and so is a column without any value. A number may have a sign, and spaces around it.
Not here   Frames and Parquet files, which have types.
"""

from typing import Any

__all__ = ["inferred"]

Expression = Any

_WRITTEN = {  # types, in the order in which they are tried, and how their values are written
    "int64": r"^\s*[+-]?(0|[1-9][0-9]*)\s*$",
    "float64": r"^\s*[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$",
    "boolean": r"^\s*([Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee])\s*$",
    "date": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
    "timestamp": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?$",
}
_LARGEST_WHOLE = (
    2**53
)  # beyond, float64 would merge whole numbers: they stay text if 64 bits do not hold them


def inferred(table: Expression, backend: Any) -> Expression:
    """Return a table of text columns with the types that all values of a column have.

    Args:
        table: The table, of a public CSV file.
        backend: Its engine, DuckDB.

    Returns:
        The table. It was read once.

    >>> import ibis, pyarrow
    >>> engine = ibis.duckdb.connect()
    >>> made = engine.create_table("zips", pyarrow.table({"zip": ["01", "02"], "size": ["7", "8.5"]}))
    >>> {name: str(kind) for name, kind in inferred(made, engine).schema().items()}
    {'zip': 'string', 'size': 'float64'}
    """
    counted = {
        f"{kind}{i}": _has_type(table[name], kind).sum()
        for i, name in enumerate(table.columns)
        for kind in _WRITTEN
    }
    counted |= {f"known{i}": table[name].count() for i, name in enumerate(table.columns)}
    (found,) = backend.to_pyarrow(table.aggregate(**counted)).to_pylist()
    types: dict[str, str] = {}
    for i, name in enumerate(table.columns):
        fits = [kind for kind in _WRITTEN if found[f"known{i}"] and found[f"{kind}{i}"] == found[f"known{i}"]]
        types |= {name: fits[0]} if fits else {}
    return table.mutate(**{name: table[name].try_cast(kind) for name, kind in types.items()})


def _has_type(value: Expression, kind: str) -> Expression:
    """Return 1 where a text is written as a value of a type, and is one."""
    made = value.try_cast(kind)
    fits = value.re_search(_WRITTEN[kind]) & made.notnull()
    if kind == "float64":
        whole = value.re_search(_WRITTEN["int64"])
        fits &= ~made.isinf() & (~whole | (made.abs() <= _LARGEST_WHOLE))
    return fits.cast("int64")
