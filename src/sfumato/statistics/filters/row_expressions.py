# SPDX-License-Identifier: Apache-2.0
"""Filters and new columns as a caller writes them, converted to Ibis expressions of one row.

Failure    A mistake raises `InvalidParameterError`, which says what is wrong and what to write instead,
           before anything is charged. Errors of Ibis are neither passed on nor chained.
Not here   The check whether an expression is allowed on private data: `row_wise`.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from sfumato.errors import InvalidParameterError
from sfumato.statistics.filters.column_names import alike

__all__ = ["filtered", "with_columns"]

Expression = Any
_FILTER, _COLUMN = "filter", "new column"
_EXAMPLES = {
    _FILTER: "table.filter(lambda row: row.age >= 18)",
    _COLUMN: "table.mutate(adult=lambda row: row.age >= 18)",
}


def filtered(table: Expression, predicates: Iterable[Any]) -> Expression:
    """Return the rows of an Ibis table for which all predicates hold.

    >>> import ibis
    >>> filtered(ibis.table({"age": "int64"}, name="t"), [lambda row: row.height > 180])
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: this filter cannot be used: there is no column 'height'. Write ...
    """
    tests = [_made(table, predicate, _FILTER) for predicate in _flat(predicates)]
    if not tests:
        _refuse(table, _FILTER, "it has no test")
    for test in tests:
        _require_test(table, test)
    return _without_ibis_errors(lambda: table.filter(*tests), table, _FILTER)


def with_columns(table: Expression, values: dict[str, Any]) -> Expression:
    """Return an Ibis table with added columns; a number is the same for all rows.

    Refuses a name that differs from that of another column only by case, in any engine (`column_names`).
    """
    import ibis

    pair = alike([*table.columns, *(name for name in values if name not in table.columns)])
    if pair:
        _refuse(table, _COLUMN, f"an engine may take {pair[1]!r} for {pair[0]!r}. Use another name")
    numbers = {name: ibis.literal(value) for name, value in values.items() if isinstance(value, int | float)}
    made = {name: _made(table, value, _COLUMN) for name, value in (values | numbers).items()}
    return _without_ibis_errors(lambda: table.mutate(**made), table, _COLUMN)


def _flat(given: Iterable[Any]) -> list[Any]:
    return [part for each in given for part in (each if isinstance(each, list | tuple) else (each,))]


def _made(table: Expression, given: Any, what: str) -> Expression:
    """Return an expression from one, from a function of the row, or from `ibis._`."""
    from ibis.common.deferred import Deferred
    from ibis.expr.types import Value

    if isinstance(given, Deferred):
        return _without_ibis_errors(lambda: table.bind(given)[0], table, what)
    made = _without_ibis_errors(lambda: given(table), table, what) if callable(given) else given
    if not isinstance(made, Value):
        _refuse(table, what, f"it is a Python {type(made).__name__}, not an expression of a row")
    return made


def _require_test(table: Expression, test: Expression) -> None:
    kind = test.type()
    if not kind.is_boolean():
        _refuse(table, _FILTER, f"it returns {kind}, not true or false")


def _without_ibis_errors(make: Callable[[], Expression], table: Expression, what: str) -> Expression:
    try:
        return make()
    except Exception as error:
        reason = _reason(error)
    _refuse(table, what, reason)  # outside the handler, so that their error is not chained to ours


def _reason(error: Exception) -> str:
    """Return what is wrong in plain words: Ibis names its own classes."""
    from ibis.common.exceptions import IntegrityError

    text = str(error)
    unknown = re.match(r"'Table' object has no attribute ('.*')|Column ('.*') is not found", text)
    if unknown:
        return f"there is no column {unknown[1] or unknown[2]}"
    missing = re.match(r"'\w+(?:Column|Scalar)' object has no attribute ('.*')", text)
    if missing:
        return f"a column of this type has no {missing[1]}"
    if "truth value" in text:
        return (
            "Python's and, or, not, in and if do not work on a column. Use (a) & (b), (a) | (b), ~(a), "
            "row.x.isin([...]) and ibis.cases(...)"
        )
    if isinstance(error, IntegrityError):
        return "it is an expression of another table. Make it a function of the row"
    if type(error).__module__.startswith("ibis") or " operand " in text:
        return "it combines values of incompatible types, such as text with a number"
    return f"the function raises {type(error).__name__} with the row as its only argument"


def _refuse(table: Expression, what: str, reason: str) -> NoReturn:
    raise InvalidParameterError(
        f"this {what} cannot be used: {reason}. Write an expression of one row, such as {_EXAMPLES[what]}. "
        f"The columns are: {', '.join(f'{name} ({kind})' for name, kind in table.schema().items())}."
    )
