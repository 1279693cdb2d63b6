# SPDX-License-Identifier: Apache-2.0
"""The check that an expression computes each row from one row, and cannot fail on any row.

Guarantee  An accepted expression is a table of the engine with row-wise filters, projections and sorts.
           Sensitivities count rows: without one unit, at most `contribution_bound` rows are missing, and all
           others are unchanged. An expression that reads several rows breaks that: after `limit(100)` another
           row moves up, and after `x > x.mean()` the result may change for everybody. Relations and functions
           are allowed by name, and by the exact class that Ibis has for them. Everything else is refused:
           joins, row numbers, user-defined functions, parameters.
Failure    A function that fails on one row fails the whole query, which reveals that row whatever the noise
           is. The allowed functions have a result for every value. In DuckDB some of them do because values
           that they would fail on become missing first (`total_functions`); other engines may not use these.
           DuckDB's own TRY(...) is not enough: a part that occurs twice is computed outside of it.
           Only casts that cannot fail are allowed, by a list of our own, because Ibis calls some casts safe
           that fail on negative or large numbers. `try_cast` makes values that do not fit missing. An engine
           that compares text with a number casts the text, so only values of like types may be compared.
           Two columns whose names differ only by case are refused, except in PostgreSQL: DuckDB would read
           the first in place of the second, without the casts that make the second total.
Not here   Views: a view in the engine is treated as a table, and its definition is not read. It may be any
           query that no row can make fail, if each of its rows belongs to one unit and depends on no other.
           Memory and time: a row so large that a query runs out of either is not prevented.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import lru_cache
from typing import Any

from sfumato.errors import InvalidParameterError
from sfumato.statistics.filters.column_names import alike

__all__ = ["require_row_wise"]

_RELATIONS = "DatabaseTable UnboundTable Project Filter Sort DropColumns DropNull"
_SHIFTED = "DateAdd DateSub TimestampAdd TimestampSub"
_FURTHEST = 100_000  # of any unit, years included: a date within `total_functions` can still be moved by it
_DATES = (
    f"{_SHIFTED} DateTruncate TimestampTruncate DateDelta Date Time Strftime DayOfWeekIndex DayOfWeekName "
    "ExtractDay ExtractDayOfYear ExtractEpochSeconds ExtractHour ExtractIsoYear ExtractMicrosecond "
    "ExtractMillisecond ExtractMinute ExtractMonth ExtractQuarter ExtractSecond ExtractWeekOfYear ExtractYear"
)
_EVERYWHERE = (
    "Field Literal Alias SortKey Cast TryCast Hash HexDigest E Pi "
    "Equals NotEquals Greater GreaterEqual Less LessEqual Between IdenticalTo InValues "
    "And Or Not Xor IsNull NotNull IsInf IsNan NullIf Coalesce Greatest Least IfElse SearchedCase SimpleCase "
    "Clip Abs Negate Lowercase Uppercase Reverse Strip LStrip RStrip StringLength StringConcat "
    "StringContains StringFind StartsWith EndsWith StringSQLLike StringSQLILike Substring StrRight"
)
_DUCKDB = (
    "Add Subtract Multiply Divide FloorDivide Modulus Power Sqrt Exp Ln Log Log2 Log10 Ceil Floor Round "
    "Sign Bucket Degrees Radians Atan Atan2 BitwiseAnd BitwiseOr BitwiseXor BitwiseNot "
    "Capitalize StringAscii StringJoin StringReplace StringSlice StringSplit Translate "
    "RegexExtract RegexReplace RegexSearch ArrayContains ArrayIndex ArrayLength StructField "
    f"{_DATES}"
)
_SPARK = (
    "Add Subtract Multiply Bucket "
    "ExtractDay ExtractDayOfYear ExtractHour ExtractMinute ExtractMonth ExtractQuarter ExtractYear"
)
_OF_ENGINE = {"duckdb": f"{_EVERYWHERE} {_DUCKDB}", "pyspark": f"{_EVERYWHERE} {_SPARK}"}
_TELL_CASE_APART = ("postgres",)  # engines in which x and X are different columns
_TRY = ("duckdb", "pyspark")  # engines with a cast that returns null on failure; PostgreSQL has none
_FLOATS = "Abs Negate Add Subtract Multiply Divide"  # whole numbers and decimals could overflow
_NUMBERS = "Modulus Power Sqrt Exp Ln Log Log2 Log10 Ceil Floor Round Sign Bucket Degrees Radians Atan Atan2"
_OF_LITERALS = (  # except for their first argument
    "Substring StrRight StringSlice StringReplace StringSplit Translate StringSQLLike StringSQLILike Round "
    "RegexExtract RegexReplace RegexSearch ArrayIndex HexDigest Strftime"
)


def require_row_wise(expression: Any, *, engine: str) -> None:
    """Raise unless every row of an Ibis table comes from one row of a table in the engine of that name."""
    import ibis.expr.operations as ops

    for node in expression.op().find(ops.Node):
        wrong = (
            _refused_relation(node, engine)
            if isinstance(node, ops.Relation)
            else _refused_value(node, engine)
        )
        if wrong:
            raise InvalidParameterError(
                f"{type(node).__name__} {wrong}. A private table can only be filtered and projected row by "
                "row. For anything else, make a table or a view in the engine whose rows belong to one unit "
                "each."
            )


def _refused_relation(node: Any, engine: str) -> str | None:
    import ibis.expr.operations as ops

    if isinstance(node, ops.SQLQueryResult | ops.SQLStringView):
        return "is SQL text, which cannot be checked"
    if isinstance(node, ops.InMemoryTable):
        return "is a frame in an Ibis table: pass the frame itself"
    if type(node) not in _classes(_RELATIONS):
        return "mixes rows, or changes their number"
    pair = None if engine in _TELL_CASE_APART else alike(node.schema.names)
    return f"has the columns {pair[0]!r} and {pair[1]!r}, which {engine} may take for one" if pair else None


def _refused_value(node: Any, engine: str) -> str | None:
    import ibis.expr.operations as ops

    if isinstance(node, ops.Reduction | ops.Analytic | ops.WindowFunction | ops.Subquery):
        return "reads more than one row, so one unit could change the result for others"
    if isinstance(node, ops.Unnest):
        return "makes several rows from one"
    # A user-defined function has its own class, whatever its name is.
    if type(node) not in _classes(_OF_ENGINE.get(engine, _EVERYWHERE)):
        return f"is not on the list of functions of one row that no row can make fail in {engine}"
    refusals = (check(node, engine) for names, check in _CHECKS if type(node) in _classes(names))
    return next((refusal for refusal in refusals if refusal), None)


@lru_cache(maxsize=64)
def _classes(names: str) -> frozenset[type]:
    """Return the classes with these names that this version of Ibis has."""
    import ibis.expr.operations as ops

    return frozenset(getattr(ops, name) for name in names.split() if hasattr(ops, name))


# --- casts ------------------------------------------------------------------------------------------------


def _refused_cast(node: Any, engine: str) -> str | None:
    if _cannot_fail(node.arg.dtype, node.to):
        return None
    return f"from {node.arg.dtype} to {node.to} may fail on a row, and so reveal it: use try_cast"


def _refused_try(node: Any, engine: str) -> str | None:
    given, to = node.arg.dtype, node.to
    if _cannot_fail(given, to) or (engine in _TRY and _is_tried(given, to, engine)):
        return None
    return f"from {given} to {to} may fail on a row in {engine}, and so reveal it"


def _is_tried(given: Any, to: Any, engine: str) -> bool:
    """Return whether try_cast never fails: DuckDB fails on some times, and on types unknown to Ibis."""
    if engine != "duckdb":
        return True
    if given.is_date():
        return to.is_timestamp() and to.timezone is None and to.scale in (None, 6)
    if given.is_timestamp():
        return to.is_date() and given.timezone is None and given.scale in (None, 6, 9)
    return not given.is_unknown()


def _cannot_fail(given: Any, to: Any) -> bool:
    if given.is_unknown():  # to Ibis, so its casts are unknown, too
        return False
    if to.is_string() or given.copy(nullable=True) == to.copy(nullable=True):
        return True
    if to.is_integer():
        return given.is_boolean() or (given.is_integer() and _holds(to, given))
    exact = given.is_integer() or given.is_boolean() or given.is_decimal() or given.is_float32()
    return to.is_float64() and exact


def _holds(wide: Any, narrow: Any) -> bool:
    """Return whether the wide type holds every whole number of the narrow one."""
    if wide.is_signed_integer() == narrow.is_signed_integer():
        return wide.nbytes >= narrow.nbytes
    return wide.is_signed_integer() and wide.nbytes > narrow.nbytes


# --- comparisons and alternatives of one result -----------------------------------------------------------


def _of_all(node: Any) -> list[list[Any]]:
    return [[part for given in node.args for part in (given if isinstance(given, tuple) else (given,))]]


def _of_branches(node: Any) -> list[list[Any]]:
    return [[node.true_expr, node.false_null_expr]]


def _of_cases(node: Any) -> list[list[Any]]:
    matched = [[node.base, *node.cases]] if hasattr(node, "base") else []
    return [*matched, [*node.results, node.default]]


def _of_elements(node: Any) -> list[list[Any]]:
    return [[node.arg.dtype.value_type, node.other]]


def _refused_unlike(parts: Callable[[Any], list[list[Any]]]) -> Callable[[Any, str], str | None]:
    def check(node: Any, engine: str) -> str | None:
        if all(_alike(part) for part in parts(node)):
            return None
        return (
            "combines values of different types: an engine casts one of them, which may fail on a row, and "
            "so reveal it. Give both the same type, with cast or try_cast, or with types=... when they "
            "are read"
        )

    return check


def _alike(values: Iterable[Any]) -> bool:
    """Return whether an engine compares values of these types without a cast that can fail."""
    import ibis.expr.datatypes as dt
    import ibis.expr.operations as ops

    known = [value for value in values if value is not None]
    columns = [_kind(v) for v in known if not isinstance(v, ops.Literal)]
    kinds = [kind for kind in map(_kind, known) if not isinstance(kind, dt.Null)]
    if all(k.is_integer() or k.is_floating() for k in kinds) or all(k.is_string() for k in kinds):
        return True
    if len({k.copy(nullable=True) for k in kinds}) <= 1:
        return True
    times = {k.copy(nullable=True) for k in columns if not isinstance(k, dt.Null)}
    literals = [v for v in known if isinstance(v, ops.Literal)]
    return len(times) == 1 and all(_is_time_like(literal, next(iter(times))) for literal in literals)


def _kind(value: Any) -> Any:
    return value.dtype if hasattr(value, "dtype") else value


def _is_time_like(literal: Any, column: Any) -> bool:
    """Return whether a literal is a date, or a time without a zone, that fits a column of dates or times."""
    kind, value = literal.dtype, literal.value
    if kind.is_null():
        return True
    if kind.is_string() and (column.is_date() or column.is_timestamp()):
        return _is_iso(value)
    if column.is_date():
        return kind.is_date()
    zoned = column.is_timestamp() and (column.timezone is not None or column.scale not in (None, 6, 9))
    plain = kind.is_date() or (kind.is_timestamp() and kind.timezone is None)
    return column.is_timestamp() and not zoned and plain


def _is_iso(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        return False


# --- functions --------------------------------------------------------------------------------------------


def _refused_whole(node: Any, engine: str) -> str | None:
    if node.dtype.is_floating() and any(_kind(given).is_floating() for given in node.args):
        return None
    if type(node).__name__ == "Divide" and all(_is_plain_number(given) for given in node.args):
        return None
    return f"of {node.dtype} may overflow on a row, and so reveal it: cast to float64 first"


def _refused_number(node: Any, engine: str) -> str | None:
    return None if _is_plain_number(node.args[0]) else "is only allowed for whole numbers and floats"


def _is_plain_number(value: Any) -> bool:
    return value.dtype.is_integer() or value.dtype.is_floating()


def _refused_division(node: Any, engine: str) -> str | None:
    import ibis.expr.operations as ops

    by = node.right.value if isinstance(node.right, ops.Literal) else None
    if node.left.dtype.is_signed_integer() and isinstance(by, int) and by >= 2:
        return None
    return "may overflow on a row, and so reveal it: divide with / and round down, or by a whole number >= 2"


def _refused_remainder(node: Any, engine: str) -> str | None:
    import ibis.expr.operations as ops

    by = node.right.value if isinstance(node.right, ops.Literal) else None
    if node.dtype.is_floating() or (isinstance(by, int) and by >= 2):
        return None
    return "of whole numbers may overflow on a row, and so reveal it: cast to float64, or use a number >= 2"


def _refused_base(node: Any, engine: str) -> str | None:
    import ibis.expr.operations as ops

    base = node.base
    if base is None or (isinstance(base, ops.Literal) and base.value > 1):
        return None
    return "must have a constant base above 1: any other may fail on a row, and so reveal it"


def _refused_arguments(node: Any, engine: str) -> str | None:
    import ibis.expr.operations as ops

    given = [each for each in node.args[1:] if isinstance(each, ops.Value)]
    if all(isinstance(each, ops.Literal) for each in given):
        return None
    return "must have constants for all but its first argument: others may fail on a row, and so reveal it"


def _refused_pattern(node: Any, engine: str) -> str | None:
    """Refuse a trailing escape character, on which an engine fails only if a text has matched so far."""
    import ibis.expr.operations as ops

    pattern = node.pattern.value if isinstance(node.pattern, ops.Literal) else ""
    if node.escape is None and (engine == "duckdb" or "\\" not in pattern):
        return None
    return "must have a pattern without a backslash: in some engines it may fail on a row, and so reveal it"


def _refused_place(node: Any, engine: str) -> str | None:
    import ibis.expr.operations as ops

    places = [each.value for each in node.args[1:] if isinstance(each, ops.Literal)]
    if engine == "duckdb" or all(place is None or place >= 0 for place in places):
        return None
    return (
        "must have positions and lengths of 0 or more: others fail on every row, so reveal whether one exists"
    )


def _refused_shift(node: Any, engine: str) -> str | None:
    import ibis.expr.operations as ops

    by = node.args[1]
    if isinstance(by, ops.Literal) and by.dtype.is_interval() and abs(int(by.value)) <= _FURTHEST:
        return None
    return f"must move dates by a constant of at most {_FURTHEST}: others may fail on a row"


def _refused_date(node: Any, engine: str) -> str | None:
    times = [_kind(given) for given in node.args if getattr(_kind(given), "is_timestamp", bool)()]
    if all(kind.timezone is None and kind.scale in (None, 6, 9) for kind in times):
        return None
    return "is only allowed for dates, and for times without a zone in micro- or nanoseconds: try_cast first"


_CHECKS: tuple[tuple[str, Callable[[Any, str], str | None]], ...] = (
    ("Cast", _refused_cast),
    ("TryCast", _refused_try),
    (
        "Equals NotEquals Greater GreaterEqual Less LessEqual Between IdenticalTo InValues NullIf Coalesce "
        "Greatest Least Clip",
        _refused_unlike(_of_all),
    ),
    ("IfElse", _refused_unlike(_of_branches)),
    ("SearchedCase SimpleCase", _refused_unlike(_of_cases)),
    ("ArrayContains", _refused_unlike(_of_elements)),
    (_FLOATS, _refused_whole),
    (_NUMBERS, _refused_number),
    ("FloorDivide", _refused_division),
    ("Modulus", _refused_remainder),
    ("Log", _refused_base),
    (_OF_LITERALS, _refused_arguments),
    ("StringSQLLike StringSQLILike", _refused_pattern),
    ("Substring StrRight", _refused_place),
    (_SHIFTED, _refused_shift),
    (_DATES, _refused_date),
)
