# SPDX-License-Identifier: Apache-2.0
"""Values as they leave an engine: such as Python can hold, each written in one way only.

Guarantee  No value stops a query on its way out, and none decides how another is written. Whether a value can
           leave depends on that value alone: what Python cannot hold is missing, and so is left out.
Missing    Dates outside the years 1 to 9999, times of day from 24:00 on, text that is not UTF-8 (Spark keeps
           any bytes), and a `numeric` that is NaN (PostgreSQL), as NaN is in any other column of numbers.
Alike      Zero has no sign, texts have no collation (`collations`), and a decimal has no digits that say
           nothing: 1.0 and 1.00 are equal to PostgreSQL, and one row would decide how both are written.
Text       Decimals, times of day and UUIDs leave as text, since drivers fail on some of them, and so do
           Spark's timestamps. They are read from it, but for UUIDs. All else leaves as a number, true or
           false, a date, bytes or text.
"""

from collections.abc import Callable, Hashable, Sequence
from datetime import datetime, time
from decimal import Decimal
from typing import Any

from sfumato.statistics.filters.total_functions import dated, decimal
from sfumato.statistics.sources.collations import told_apart

__all__ = ["comparable", "portable", "read_back"]

Expression = Any


def comparable(value: Expression, *, engine: str) -> Expression:
    """Return values by which rows can be told apart, grouped and named; what Python cannot hold is missing.

    Text is refused in an engine whose collations are not known.
    """
    kind = value.type()
    if kind.is_string():
        return told_apart(value, engine=engine)
    if kind.is_floating():
        return _without_sign_of_zero(value)
    if kind.is_decimal() and engine == "postgres":
        return _without_nan(value)
    return dated(value)


def _without_sign_of_zero(value: Expression) -> Expression:
    import ibis

    return ibis.ifelse(value == 0, ibis.literal(0.0).cast(value.type()), value)


def _without_nan(value: Expression) -> Expression:
    import ibis

    return ibis.ifelse(value == decimal("NaN"), ibis.null(value.type()), value)


def portable(value: Expression, *, engine: str) -> Expression:
    """Return comparable values as a driver takes them: as text, where it would fail on some of them."""
    kind = value.type()
    if kind.is_decimal() and engine == "postgres":
        return _trimmed()(value).cast("string")
    late = kind.is_timestamp() and engine == "pyspark"  # its driver goes by the clock of the machine
    as_text = late or kind.is_decimal() or kind.is_time() or kind.is_uuid()
    return value.cast("string") if as_text else value


def _trimmed() -> Callable[[Expression], Expression]:
    """Return PostgreSQL's function that takes digits away that say nothing."""
    from ibis import udf

    builtin: Any = udf.scalar.builtin

    def trim_scale(value: Any) -> Any: ...

    return builtin(trim_scale, signature=(("decimal",), "decimal"))


def read_back(values: Sequence[Any], kind: Any) -> list[Hashable | None]:
    """Return portable values as Python's own, given the type that they had before; None for what it has not.

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
