# SPDX-License-Identifier: Apache-2.0
"""Expressions of one row in SQL, as Ibis expressions of a private table.

Guarantee  An expression is made of the columns of one row, constants and the operators below. Anything else
           is refused by its name: a subquery would read other rows. The result is checked like any other
           filter or column (`filters.row_wise`), so nothing gets past that check by being written in SQL.
Failure    Everything is decided from the text and the schema, before anything is charged.
"""

import operator
from collections.abc import Callable
from datetime import date
from typing import Any

from sfumato.errors import InvalidParameterError

__all__ = ["expression_of", "named_column", "refused"]

_UNITS = {"YEAR": "Y", "QUARTER": "Q", "MONTH": "M", "WEEK": "W", "DAY": "D"}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "EQ": operator.eq,
    "NEQ": operator.ne,
    "GT": operator.gt,
    "GTE": operator.ge,
    "LT": operator.lt,
    "LTE": operator.le,
    "And": operator.and_,
    "Or": operator.or_,
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.truediv,
}


def refused(what: str, reason: str) -> InvalidParameterError:
    """Return the error for a part of a statement that has no private answer."""
    return InvalidParameterError(f"{what}: {reason} Nothing was charged, and no data was read.")


def expression_of(node: Any, table: Any, clause: str) -> Any:
    """Return an expression of one row of an Ibis table.

    Args:
        node: The part of the statement, as sqlglot parsed it.
        table: The Ibis table.
        clause: Where the part stands, such as "WHERE", for messages.

    Returns:
        The Ibis expression, or a plain constant.

    Raises:
        InvalidParameterError: If a part of it is not on the list.
    """
    try:
        return _made(node, table, clause)
    except InvalidParameterError:
        raise
    except Exception:  # of Ibis, which names its own classes
        pass
    raise refused(f"{clause} {node.sql()}", "it combines values of types that cannot be compared.")


def _made(node: Any, table: Any, clause: str) -> Any:
    kind = type(node).__name__
    if kind in _BINARY:
        left, right = (expression_of(part, table, clause) for part in (node.this, node.expression))
        return _BINARY[kind](left, right)
    if kind in _MADE:
        return _MADE[kind](node, table, clause)
    raise refused(
        f"{clause} {node.sql()}",
        "is not on the list of expressions of one row. Use columns, constants, comparisons, AND, OR, NOT, IN "
        "with a list, BETWEEN, LIKE, IS NULL, + - * /, DATE_TRUNC, or make the column with mutate(...).",
    )


def named_column(node: Any, columns: Any, clause: str) -> str:
    """Return the column that is named: exactly, or the only one that differs by upper and lower case."""
    name = node.name
    if name in columns:
        return name
    alike = [column for column in columns if column.lower() == name.lower()]
    if len(alike) == 1 and not node.this.args.get("quoted"):
        return alike[0]
    raise refused(f"{clause} {node.sql()}", f"there is no such column. There are: {', '.join(columns)}.")


def _column(node: Any, table: Any, clause: str) -> Any:
    return table[named_column(node, table.columns, clause)]


def _literal(node: Any, table: Any, clause: str) -> Any:
    if node.is_string:
        return node.this
    return int(node.this) if node.is_int else float(node.this)


def _not(node: Any, table: Any, clause: str) -> Any:
    return ~expression_of(node.this, table, clause)


def _inner(node: Any, table: Any, clause: str) -> Any:
    return expression_of(node.this, table, clause)


def _negative(node: Any, table: Any, clause: str) -> Any:
    return -expression_of(node.this, table, clause)


def _in(node: Any, table: Any, clause: str) -> Any:
    if node.args.get("query") is not None or node.args.get("unnest") is not None:
        raise refused(f"{clause} IN (SELECT ...)", "a subquery reads other rows. List the values.")
    if not node.expressions:
        raise refused(f"{clause} {node.sql()}", "list the values in brackets: IN (1, 2).")
    listed = [expression_of(each, table, clause) for each in node.expressions]
    return expression_of(node.this, table, clause).isin(listed)


def _between(node: Any, table: Any, clause: str) -> Any:
    low, high = (expression_of(node.args[end], table, clause) for end in ("low", "high"))
    return expression_of(node.this, table, clause).between(low, high)


def _like(node: Any, table: Any, clause: str) -> Any:
    return expression_of(node.this, table, clause).like(expression_of(node.expression, table, clause))


def _is(node: Any, table: Any, clause: str) -> Any:
    value, other = expression_of(node.this, table, clause), type(node.expression).__name__
    if other == "Null":
        return value.isnull()
    if other == "Boolean":
        return value.identical_to(bool(node.expression.this))
    raise refused(f"{clause} {node.sql()}", "IS takes NULL, TRUE or FALSE.")


def _cast(node: Any, table: Any, clause: str) -> Any:
    value, to = expression_of(node.this, table, clause), str(node.to.sql()).upper()
    if isinstance(value, str) and to == "DATE":
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise refused(f"{clause} {node.sql()}", "is not a date.") from None
    names = {"DATE": "date", "DOUBLE": "float64", "BIGINT": "int64", "TEXT": "string", "VARCHAR": "string"}
    if isinstance(value, str | int | float) or to not in names:
        raise refused(f"{clause} {node.sql()}", "casts are to DATE, DOUBLE, BIGINT or TEXT, of columns.")
    return value.try_cast(names[to])  # a cast that fails on a row would reveal it


def _truncated(node: Any, table: Any, clause: str) -> Any:
    unit = _UNITS.get(str(node.args["unit"].name).upper())
    if unit is None:
        raise refused(f"{clause} {node.sql()}", f"dates are truncated to {', '.join(_UNITS)}.")
    value = expression_of(node.this, table, clause)
    day = value if value.type().is_date() else value.try_cast("date")
    return day.truncate(unit)


_MADE: dict[str, Callable[[Any, Any, str], Any]] = {
    "Column": _column,
    "Literal": _literal,
    "Boolean": lambda node, table, clause: bool(node.this),
    "Paren": _inner,
    "Not": _not,
    "Neg": _negative,
    "In": _in,
    "Between": _between,
    "Like": _like,
    "Is": _is,
    "Cast": _cast,
    "TryCast": _cast,
    "TimestampTrunc": _truncated,
    "DateTrunc": _truncated,
}
