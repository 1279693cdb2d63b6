# SPDX-License-Identifier: Apache-2.0
"""Conversion of values that leave an engine to values that Python can hold, each written in one way.

Guarantee  No value makes a query fail when it leaves the engine, and no value decides how another is written.
           Whether a value can leave depends only on that value; values that Python cannot hold are missing,
           and are left out.
Edge cases These are missing: dates outside the years 1 to 9999, times of day from 24:00 on, text that is not
           UTF-8 (Spark keeps any bytes), and a `numeric` that is NaN (PostgreSQL). Zero has no sign, texts
           have no collation (`collations`), and decimals have no trailing zeros: 1.0 and 1.00 are equal in
           PostgreSQL, and one row would decide how both are written. Decimals, times of day, UUIDs and
           Spark's timestamps leave as text, since drivers fail on some of them, and are converted back,
           except for UUIDs. All other values leave as numbers, booleans, dates, bytes or text.
"""

from collections.abc import Callable, Hashable, Sequence
from datetime import datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import Any

from sfumato.statistics.filters.total_functions import dated, decimal
from sfumato.statistics.sources.collations import told_apart

__all__ = ["comparable", "portable", "read_back", "writable"]

Expression = Any


def comparable(value: Expression, *, engine: str) -> Expression:
    """Return values by which rows can be compared, grouped and named; missing if Python cannot hold them.

    Raises for text in an engine whose collations are not known.
    """
    kind = value.type()
    if kind.is_string():
        return told_apart(value, engine=engine)
    if kind.is_floating():
        return _without_sign_of_zero(value)
    if kind.is_decimal() and engine == "postgres":
        return _without_nan(value)
    return dated(value)


def writable(value: Expression, *, engine: str) -> Expression:
    """Return values that a later query can name; missing if it cannot, such as text with NUL."""
    import ibis

    if value.type().is_uint64():
        named = value <= ibis.literal(2**63 - 1, type="uint64")
    elif value.type().is_string() and engine in _CHARACTER:
        named = ~value.contains(_character(_CHARACTER[engine])(0))
    else:  # PostgreSQL has no text with NUL
        return value
    return ibis.ifelse(named, value, ibis.null(value.type()))


_CHARACTER = {"duckdb": "chr", "pyspark": "char"}


@lru_cache(maxsize=2)
def _character(name: str) -> Callable[[int], Expression]:
    """Return the engine's function from a number to a character: engines do not read NUL in SQL text."""
    from ibis import udf

    builtin: Any = udf.scalar.builtin

    def of_number(code: Any) -> Any: ...

    return builtin(of_number, name=name, signature=(("int32",), "string"))


def _without_sign_of_zero(value: Expression) -> Expression:
    import ibis

    return ibis.ifelse(value == 0, ibis.literal(0.0).cast(value.type()), value)


def _without_nan(value: Expression) -> Expression:
    import ibis

    return ibis.ifelse(value == decimal("NaN"), ibis.null(value.type()), value)


def portable(value: Expression, *, engine: str) -> Expression:
    """Return comparable values as text if the driver would fail on some of them; otherwise unchanged."""
    kind = value.type()
    if kind.is_decimal() and engine == "postgres":
        return _trimmed()(value).cast("string")
    late = kind.is_timestamp() and engine == "pyspark"  # its driver uses the time zone of the machine
    as_text = late or kind.is_decimal() or kind.is_time() or kind.is_uuid()
    return value.cast("string") if as_text else value


def _trimmed() -> Callable[[Expression], Expression]:
    """Return PostgreSQL's function that removes trailing zeros."""
    from ibis import udf

    builtin: Any = udf.scalar.builtin

    def trim_scale(value: Any) -> Any: ...

    return builtin(trim_scale, signature=(("decimal",), "decimal"))


def read_back(values: Sequence[Any], kind: Any) -> list[Hashable | None]:
    """Return portable values as Python values of their original type; None if Python cannot hold one.

    >>> import ibis.expr.datatypes as dt
    >>> read_back(["1.50"], dt.Decimal(5, 2)), read_back(["24:00:00", "10:30:00"], dt.time)
    ([Decimal('1.50')], [None, datetime.time(10, 30)])
    """
    if kind.is_decimal():
        return [Decimal(text) for text in values]
    if kind.is_time():
        return [None if text >= "24" else time.fromisoformat(text) for text in values]
    if kind.is_timestamp():
        return [datetime.fromisoformat(each) if isinstance(each, str) else each for each in values]
    return list(values)
