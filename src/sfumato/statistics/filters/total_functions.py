# SPDX-License-Identifier: Apache-2.0
"""Functions that would fail on some values, made total: such values become missing first.

The argument is guarded, not the result: sqrt(CASE WHEN x >= 0 THEN x END) is total wherever an optimizer
moves it. DuckDB's TRY(sqrt(x)) is not: if sqrt(x) occurs twice, DuckDB 1.5 computes it once, outside of TRY,
and fails. In DuckDB and PostgreSQL the functions that fail there are guarded. Functions that are not guarded
are refused (`row_wise`), which also makes sure that all other arguments are constants.

Guarantee  No row makes a query fail, as that would reveal the row. These values become missing and are left
           out (`owned_rows`): the square root of a negative number, the logarithm of a number that is not
           positive, the rounding of a float too large for 64 bits, and dates that calendar functions refuse.
Edge cases Dates are those of the years 1 to 9999 (1 January 1700 to 2199 in nanoseconds), and times of day
           are before 24:00, as in Python. They are compared with limits of their own type; with another type
           an engine would cast the column, and fail on values that do not fit. PostgreSQL fails if a
           `numeric` is outside float64 or too close to 0, and cannot cast booleans to floats. There, numbers
           that are too large become infinite, and so are clipped, and numbers that are too small become 0.
           PostgreSQL also fails if a product of floats is too close to 0: such values become 0 before it.
           A NaN within a struct or an array is missing, in every engine: conditions on it would otherwise
           depend on other rows (`table_sources`).
"""

import math
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

__all__ = ["dated", "decimal", "guarded"]

_LARGEST = 2.0**62  # rounded, it still fits into 64 bits
_DATES = (
    "DateAdd DateSub TimestampAdd TimestampSub DateTruncate TimestampTruncate DateDelta Date Time Strftime "
    "DayOfWeekIndex DayOfWeekName ExtractDay ExtractDayOfYear ExtractEpochSeconds ExtractHour ExtractIsoYear "
    "ExtractMicrosecond ExtractMillisecond ExtractMinute ExtractMonth ExtractQuarter ExtractSecond "
    "ExtractWeekOfYear ExtractYear Cast TryCast"
)
Guard = Callable[[Any], Any]  # from a value to whether the function accepts it; None: it accepts all
Total = Callable[[Any], Any]  # from a node to one with a result for every value


def guarded(expression: Any, *, engine: str) -> Any:
    """Return an Ibis expression in which such functions are total, in the engine of that name.

    >>> import ibis
    >>> table = ibis.table({"x": "float64"}, name="t")
    >>> print(ibis.to_sql(guarded(table.select(y=table.x.sqrt()), engine="duckdb"), dialect="duckdb"))
    SELECT
      SQRT(CASE WHEN "t0"."x" >= ... THEN "t0"."x" ELSE ... END) AS "y"
    FROM "t" AS "t0"
    """
    totals, root = _totals(engine), expression.op()
    if not totals or not root.find(tuple(totals)):
        return expression

    def made_total(node: Any, kwargs: dict[str, Any] | None) -> Any:
        rebuilt = node.__recreate__(kwargs) if kwargs else node
        total = totals.get(type(node))
        return rebuilt if total is None else total(rebuilt)

    return root.replace(made_total).to_expr()


@lru_cache(maxsize=8)
def _totals(engine: str) -> dict[type, Total]:
    import ibis.expr.operations as ops

    within: dict[type, Total] = {ops.StructField: _known_part, ops.ArrayIndex: _known_part}
    if engine == "postgres":
        return {**within, ops.Cast: _total_cast, ops.TryCast: _total_cast, ops.Multiply: _total_product}
    if engine != "duckdb":
        return within
    named: dict[str, Guard] = {
        "Sqrt": lambda value: value >= 0.0,
        **dict.fromkeys(["Ln", "Log", "Log2", "Log10"], lambda value: value > 0.0),
        **dict.fromkeys(["Ceil", "Floor", "Round"], lambda value: value.between(-_LARGEST, _LARGEST)),
        **dict.fromkeys(_DATES.split(), _in_calendar),
    }
    known = {getattr(ops, name): guard for name, guard in named.items() if hasattr(ops, name)}
    totals = {kind: _of_guarded(guard) for kind, guard in known.items()}
    return {**within, **totals, ops.DateTruncate: _as_date(totals[ops.DateTruncate])}


def _known_part(node: Any) -> Any:
    """Return a part of a value in which NaN is missing, as it is in columns (`schema.without_nan`)."""
    import ibis

    if not node.dtype.is_floating():
        return node
    part = node.to_expr()
    return ibis.ifelse(part.isnan(), ibis.null(node.dtype), part).op()


def _as_date(total: Total) -> Total:
    """Return a function that makes a date of a truncated date, for which DuckDB returns a timestamp."""
    import ibis.expr.datatypes as dt
    import ibis.expr.operations as ops

    return lambda node: ops.Cast(total(node), to=dt.date)


def _of_guarded(guard: Guard) -> Total:
    """Return a function that makes a node total by guarding its arguments."""

    def total(node: Any) -> Any:
        given = zip(node.argnames, node.args, strict=True)
        return node.copy(**{name: _fitting(value, guard) for name, value in given})

    return total


def _fitting(value: Any, guard: Guard) -> Any:
    import ibis
    import ibis.expr.operations as ops

    if not isinstance(value, ops.Value) or isinstance(value, ops.Literal):
        return value
    fits = guard(value.to_expr())
    return value if fits is None else ibis.ifelse(fits, value.to_expr(), ibis.null(value.dtype)).op()


# --- PostgreSQL's floats ----------------------------------------------------------------------------------


def _total_product(node: Any) -> Any:
    """Return a product with a small constant in which tiny values count as 0, as their product would be."""
    import ibis

    factor = _constant(node.right)
    if not 0 < abs(factor) < 1:
        return node
    least, value = sys.float_info.min / abs(factor), node.left.to_expr()
    return ibis.ifelse(value.between(_float64(-least), _float64(least)), _float64(0.0), node.to_expr()).op()


def _constant(node: Any) -> float:
    """Return a constant of float64, as `owned_rows.number` writes it; 0 for anything else."""
    import ibis.expr.operations as ops

    written: Any = node.arg if isinstance(node, ops.Cast) and node.to.is_float64() else None
    return float(written.value) if isinstance(written, ops.Literal) else 0.0


def _float64(number: float) -> Any:
    import ibis

    return ibis.literal(repr(number)).cast("float64")


def _total_cast(node: Any) -> Any:
    import ibis.expr.datatypes as dt
    import ibis.expr.operations as ops

    given = node.arg.dtype
    if given.is_boolean() and node.to.is_numeric():
        return ops.Cast(
            ops.Cast(node.arg, to=dt.int32), to=node.to
        )  # the only number type that PostgreSQL casts them to
    if given.is_decimal() and node.to.is_float64():
        return _float_of_decimal(node.arg.to_expr()).op()
    return ops.Cast(node.arg, to=node.to)


def _float_of_decimal(value: Any) -> Any:
    import ibis

    largest, least = repr(sys.float_info.max), repr(math.ulp(0.0))
    return ibis.cases(
        (value == decimal("NaN"), _float64(math.nan)),  # in PostgreSQL NaN is larger than all other numbers
        (value > decimal(largest), _float64(math.inf)),
        (value < decimal(f"-{largest}"), _float64(-math.inf)),
        ((value < decimal(least)) & (value > decimal(f"-{least}")), _float64(0.0)),
        else_=value.cast("float64"),
    )


def decimal(text: str) -> Any:
    """Return a literal of any number of digits."""
    import ibis
    import ibis.expr.datatypes as dt

    literal: Any = ibis.literal(text)
    return literal.cast(dt.Decimal())


# --- dates ------------------------------------------------------------------------------------------------


def dated(value: Any) -> Any:
    """Return a date or a time, missing if Python cannot represent it; other values unchanged."""
    import ibis

    inside = _in_calendar(value)
    return value if inside is None else ibis.ifelse(inside, value, ibis.null(value.type()))


def _in_calendar(value: Any) -> Any:
    import ibis

    kind = value.type()
    ends = _ends(kind)
    if ends is None:
        return None
    first, last = (ibis.literal(end).cast(kind.copy(nullable=True)) for end in ends)
    return value.between(first, last)


def _ends(kind: Any) -> tuple[str, str] | None:
    """Return the first and the last accepted value; None if the type is not a date or a time."""
    if kind.is_date():
        return "0001-01-01", "9999-12-31"
    if kind.is_time():
        return "00:00:00", "23:59:59.999999"
    if not kind.is_timestamp():
        return None
    years = ("1700", "2199") if kind.scale == 9 else ("0001", "9999")
    return f"{years[0]}-01-01 00:00:00", f"{years[1]}-12-31 23:59:59"
