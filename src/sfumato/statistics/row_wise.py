# SPDX-License-Identifier: Apache-2.0
"""Which expressions of a table may be private: those that make each row from one row.

Why        Sensitivities here count rows: with one unit less, at most `contribution_bound` rows are missing,
           and all others stay as they are. An expression that looks at several rows at once breaks that:
           after `limit(100)` another row moves up, after `x > x.mean()` everybody's answer may change.
Promise    What passes is a table of the engine with row-wise filters, projections and sorts on it. Relations
           and functions are let in by name, and by the very class that Ibis has for them. Anything else is
           refused: joins, the number of a row in its table, every function of the user's, parameters.
Casts      A cast that can fail would stop the whole query because of one row, and so tell of that row. Only
           casts that cannot fail pass, by a list of our own: Ibis calls some castable that fail on negative
           numbers or on large ones. `try_cast` makes a missing value of what does not fit.
Trusts     A view that lies in the engine is taken as a table: its definition is not read. It may be any
           query, as long as each of its rows belongs to one unit and depends on no other unit.
Not here   Functions of the engine that fail on some values, as an integer that overflows: the query fails,
           its budget stays spent, and that it failed is known.
"""

from functools import lru_cache
from typing import Any

from sfumato.errors import InvalidParameterError

__all__ = ["require_row_wise"]

_RELATIONS = "DatabaseTable UnboundTable Project Filter Sort DropColumns DropNull FillNull"
_VALUES = (  # each is computed from its arguments, in one row
    "Field Literal Alias SortKey Cast TryCast TypeOf Hash HashBytes HexDigest Argument "
    "Equals NotEquals Greater GreaterEqual Less LessEqual Between BetweenTime IdenticalTo InValues "
    "And Or Not Xor IsNull NotNull IsInf IsNan NullIf Coalesce Greatest Least IfElse SearchedCase SimpleCase "
    "Abs Add Subtract Multiply Divide FloorDivide Modulus Negate Power Sqrt Exp Ln Log Log2 Log10 "
    "Ceil Floor Round Sign Clip Bucket E Pi Degrees Radians BaseConvert "
    "Sin Cos Tan Cot Asin Acos Atan Atan2 "
    "BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitwiseLeftShift BitwiseRightShift "
    "Lowercase Uppercase Capitalize Reverse Strip LStrip RStrip LPad RPad StringLength StringAscii "
    "StringConcat StringContains StringFind StringJoin StringReplace StringSlice StringSplit Substring "
    "StrRight StartsWith EndsWith StringSQLLike StringSQLILike RegexExtract RegexReplace RegexSearch "
    "RegexSplit Repeat Translate Levenshtein FindInSet FuzzySearch "
    "ExtractAuthority ExtractFile ExtractFragment ExtractHost ExtractPath ExtractProtocol ExtractQuery "
    "ExtractUserInfo ExtractDay ExtractDayOfYear ExtractEpochSeconds ExtractHour ExtractIsoYear "
    "ExtractMicrosecond ExtractMillisecond ExtractMinute ExtractMonth ExtractQuarter ExtractSecond "
    "ExtractWeekOfYear ExtractYear DayOfWeekIndex DayOfWeekName Strftime Date Time "
    "DateAdd DateSub DateDiff DateDelta DateTruncate DateFromYMD TimeAdd TimeSub TimeDiff TimeDelta "
    "TimeTruncate TimeFromHMS TimestampAdd TimestampSub TimestampDiff TimestampDelta TimestampTruncate "
    "TimestampBucket TimestampFromUNIX TimestampFromYMDHMS "
    "IntervalAdd IntervalSubtract IntervalMultiply IntervalFloorDivide IntervalFromInteger "
    "Array ArrayAll ArrayAny ArrayConcat ArrayContains ArrayDistinct ArrayFilter ArrayFlatten ArrayIndex "
    "ArrayIntersect ArrayLength ArrayMap ArrayMax ArrayMean ArrayMin ArrayMode ArrayPosition ArrayRemove "
    "ArrayRepeat ArraySlice ArraySort ArrayStringJoin ArraySum ArrayUnion ArrayZip "
    "Map MapContains MapGet MapKeys MapLength MapMerge MapValues StructColumn StructField "
    "JSONGetItem ToJSONArray ToJSONMap UnwrapJSONBoolean UnwrapJSONFloat64 UnwrapJSONInt64 UnwrapJSONString"
)
_TRY = ("duckdb", "pyspark")  # engines known to have a cast that fails softly; PostgreSQL has none


def require_row_wise(expression: Any, *, engine: str) -> None:
    """Raise unless every row of an Ibis table comes from one row of a table in the engine of that name."""
    import ibis.expr.operations as ops

    for node in expression.op().find(ops.Node):
        wrong = _refused_relation(node) if isinstance(node, ops.Relation) else _refused_value(node, engine)
        if wrong:
            raise InvalidParameterError(
                f"{type(node).__name__} {wrong}. A private table may be filtered and projected row by row. "
                "Make anything else a table or a view in the engine, whose rows belong to one unit each."
            )


def _refused_relation(node: Any) -> str | None:
    import ibis.expr.operations as ops

    if isinstance(node, ops.SQLQueryResult | ops.SQLStringView):
        return "is SQL text, which cannot be checked"
    if isinstance(node, ops.InMemoryTable):
        return "is a frame in an Ibis table: give the frame itself"
    return None if type(node) in _classes(_RELATIONS) else "mixes rows, or changes how many there are"


def _refused_value(node: Any, engine: str) -> str | None:
    import ibis.expr.operations as ops

    if isinstance(node, ops.Reduction | ops.Analytic | ops.WindowFunction | ops.Subquery):
        return "looks at more than one row, so one unit could change what becomes of the others"
    if isinstance(node, ops.Unnest):
        return "makes several rows of one"
    # A function of the user's has a class of its own, whatever its name.
    if type(node) not in _classes(_VALUES):
        return "is not known to be a function of the values in one row"
    if isinstance(node, ops.Cast) and not _cannot_fail(node.arg.dtype, node.to):
        return f"from {node.arg.dtype} to {node.to} may fail on a row, and so tell of it: use try_cast"
    if isinstance(node, ops.TryCast) and engine not in _TRY and not _cannot_fail(node.arg.dtype, node.to):
        return f"from {node.arg.dtype} to {node.to} may fail on a row in {engine}, and so tell of it"
    return None


@lru_cache(maxsize=2)
def _classes(names: str) -> frozenset[type]:
    """Return the classes of these names, of those that this version of Ibis has."""
    import ibis.expr.operations as ops

    return frozenset(getattr(ops, name) for name in names.split() if hasattr(ops, name))


def _cannot_fail(given: Any, to: Any) -> bool:
    if to.is_string() or given.copy(nullable=True) == to.copy(nullable=True):
        return True
    if to.is_integer():
        return given.is_boolean() or (given.is_integer() and _holds(to, given))
    exact = given.is_integer() or given.is_boolean() or given.is_decimal() or given.is_float32()
    return to.is_float64() and exact


def _holds(wide: Any, narrow: Any) -> bool:
    """Return whether every whole number of one type is one of the other."""
    if wide.is_signed_integer() == narrow.is_signed_integer():
        return wide.nbytes >= narrow.nbytes
    return wide.is_signed_integer() and wide.nbytes > narrow.nbytes
