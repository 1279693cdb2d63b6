# SPDX-License-Identifier: Apache-2.0
"""Conversion of Arrow columns in polars, pyarrow and pandas frames, so that DuckDB can read every value.

Guarantee  DuckDB stores times with a zone, and durations, in microseconds, and any query fails if one in
           seconds or milliseconds does not fit. Here such a value is missing before DuckDB reads it. So is
           text that is not UTF-8, which such a frame can hold and DuckDB fails on.
Edge cases All other columns stay as they are. Texts are checked once, when the frame is opened, and
           a lazy polars frame is collected for it.
"""

import importlib
from typing import Any

from sfumato.errors import InvalidParameterError

__all__ = ["readable"]

_STEPS = {"s": 10**6, "ms": 10**3}  # microseconds in one of these
_LARGEST = 2**63 - 1


def readable(frame: Any) -> Any:
    """Return a frame that DuckDB can read; a frame without Arrow columns is returned unchanged.

    >>> import pyarrow as pa
    >>> since = pa.chunked_array([[0, 2**62]], type=pa.timestamp("ms", "UTC"))
    >>> readable(pa.table({"since": since}))["since"].null_count
    1
    """
    library = type(frame).__module__.split(".")[0]
    if library == "pandas":
        return _mended(_of_pandas(frame))
    if library == "polars":
        return _of_polars(frame.collect() if hasattr(frame, "collect") else frame)
    return _mended(_table(frame)) if library == "pyarrow" and hasattr(frame, "itercolumns") else frame


def _table(frame: Any) -> Any:
    import pyarrow as pa

    return pa.Table.from_batches([frame]) if isinstance(frame, pa.RecordBatch) else frame


def _of_pandas(frame: Any) -> Any:
    """Return an Arrow table, with times in microseconds (`pandas_frames` explains why).

    DuckDB would copy all texts of a pandas frame for every query.
    """
    import pyarrow as pa

    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError):  # because of a type: no column has objects any more
        table = None
    if table is None:
        kinds = ", ".join(f"{name}: {kind}" for name, kind in frame.dtypes.items())
        raise InvalidParameterError(
            f"a column of this pandas frame has a type that DuckDB does not support ({kinds}). Convert it to "
            "text or numbers, or remove it."
        )
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit != "us":
            table = table.set_column(place, field.name, _in_range(table.column(place)))
    return table


def _of_polars(frame: Any) -> Any:
    """Return an Arrow table if the schema has times to convert, else the frame with the types it has."""
    import polars

    table = frame.to_arrow()
    if any(map(_is_coarse, table.schema.types)):
        return _mended(table)
    for name in table.column_names:
        column = table.column(name)
        mended = _in_utf8(column)
        if mended is not column:  # also of categories: the schema stays as it was
            frame = frame.with_columns(polars.Series(name, mended.to_pylist(), dtype=frame.schema[name]))
    return frame


def _mended(table: Any) -> Any:
    for place, field in enumerate(table.schema):
        column = table.column(place)
        mended = _in_range(column) if _is_coarse(field.type) else _in_utf8(column)
        if mended is not column:
            table = table.set_column(place, field.name, mended)
    return table


def _is_coarse(kind: Any) -> bool:
    """Return whether a type is a time with a zone, or a duration, in units longer than microseconds."""
    import pyarrow as pa

    timed = (pa.types.is_timestamp(kind) and kind.tz is not None) or pa.types.is_duration(kind)
    return timed and kind.unit in _STEPS


def _in_range(column: Any) -> Any:
    """Return a column of times in microseconds, missing if they do not fit into 64 bits."""
    import pyarrow as pa

    compute: Any = importlib.import_module("pyarrow.compute")  # creates its functions on import
    kind = column.type
    finer = pa.duration("us") if pa.types.is_duration(kind) else pa.timestamp("us", kind.tz)
    if kind.unit == "ns":
        return column.cast(finer, safe=False)
    most = _LARGEST // _STEPS[kind.unit]
    numbers = column.cast(pa.int64())
    inside = compute.and_(compute.less_equal(numbers, most), compute.greater_equal(numbers, -most))
    return compute.if_else(inside, column, pa.scalar(None, kind)).cast(finer)


def _in_utf8(column: Any) -> Any:
    """Return a column; texts that are not UTF-8 are missing."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        return column
    try:
        column.validate(full=True)
        return column
    except pa.ArrowInvalid:
        pass
    texts = [_decoded(each) for chunk in column.chunks for each in chunk.cast(kind).cast(pa.large_binary())]
    return pa.chunked_array([texts], type=kind)


def _decoded(value: Any) -> str | None:
    try:
        return None if not value.is_valid else value.as_py().decode()
    except UnicodeDecodeError:
        return None
