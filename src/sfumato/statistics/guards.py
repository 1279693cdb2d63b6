# SPDX-License-Identifier: Apache-2.0
"""Functions that would fail on some values, made total: what they fail on becomes missing first.

Guarantee  No row stops a query: the square root of a negative number, the logarithm of what is not positive,
           a float that is too large to be rounded to a whole number, and a date that no calendar function
           takes are missing, and so are left out (`owned_rows`). One row would else tell that it is there.
How        The argument is guarded, not the result: sqrt(CASE WHEN x >= 0 THEN x END) is total wherever an
           optimizer moves it. DuckDB's TRY(sqrt(x)) is not: where sqrt(x) occurs twice, DuckDB 1.5 computes
           it once, outside of TRY, and fails.
Dates      Those of the years 1 to 9999 (1 January 1700 to 2199 where they are kept in nanoseconds).
Where      DuckDB. In other engines these functions are refused (`row_wise`), which also sees to it that
           all other arguments are constants.
"""

from collections.abc import Callable
from datetime import date, datetime
from functools import lru_cache
from typing import Any

__all__ = ["dated", "guarded"]

_LARGEST = 2.0**62  # rounded, it still fits into 64 bits
_DATES = (
    "DateAdd DateSub TimestampAdd TimestampSub DateTruncate TimestampTruncate DateDelta Date Time Strftime "
    "DayOfWeekIndex DayOfWeekName ExtractDay ExtractDayOfYear ExtractEpochSeconds ExtractHour ExtractIsoYear "
    "ExtractMicrosecond ExtractMillisecond ExtractMinute ExtractMonth ExtractQuarter ExtractSecond "
    "ExtractWeekOfYear ExtractYear"
)
Guard = Callable[[Any], Any]  # from a value to whether the function takes it; None: it takes all


def guarded(expression: Any) -> Any:
    """Return an Ibis expression in which such functions are total.

    >>> import ibis
    >>> table = ibis.table({"x": "float64"}, name="t")
    >>> print(ibis.to_sql(guarded(table.select(y=table.x.sqrt())), dialect="duckdb"))
    SELECT
      SQRT(CASE WHEN "t0"."x" >= ... THEN "t0"."x" ELSE ... END) AS "y"
    FROM "t" AS "t0"
    """
    guards, root = _guards(), expression.op()
    return root.replace(_made_total).to_expr() if root.find(tuple(guards)) else expression


def _made_total(node: Any, kwargs: dict[str, Any] | None) -> Any:
    rebuilt = node.__recreate__(kwargs) if kwargs else node
    guard = _guards().get(type(node))
    if guard is None:
        return rebuilt
    given = zip(rebuilt.argnames, rebuilt.args, strict=True)
    return rebuilt.copy(**{name: _total(value, guard) for name, value in given})


def _total(value: Any, guard: Guard) -> Any:
    import ibis
    import ibis.expr.operations as ops

    if not isinstance(value, ops.Value) or isinstance(value, ops.Literal):
        return value
    fits = guard(value.to_expr())
    return value if fits is None else ibis.ifelse(fits, value.to_expr(), ibis.null(value.dtype)).op()


@lru_cache(maxsize=1)
def _guards() -> dict[type, Guard]:
    import ibis.expr.operations as ops

    named: dict[str, Guard] = {
        "Sqrt": lambda value: value >= 0.0,
        **dict.fromkeys(["Ln", "Log", "Log2", "Log10"], lambda value: value > 0.0),
        **dict.fromkeys(["Ceil", "Floor", "Round"], lambda value: value.between(-_LARGEST, _LARGEST)),
        **dict.fromkeys(_DATES.split(), _in_calendar),
    }
    return {getattr(ops, name): guard for name, guard in named.items() if hasattr(ops, name)}


def dated(value: Any) -> Any:
    """Return a date or a time, missing where Python has no such year; any other value as it is."""
    import ibis

    inside = _in_calendar(value)
    return value if inside is None else ibis.ifelse(inside, value, ibis.null(value.type()))


def _in_calendar(value: Any) -> Any:
    kind = value.type()
    if kind.is_date():
        return value.between(date(1, 1, 1), date(9999, 12, 31))
    if not kind.is_timestamp():
        return None
    first, last = (1700, 2199) if kind.scale == 9 else (1, 9999)
    return value.between(datetime(first, 1, 1), datetime(last, 12, 31))
