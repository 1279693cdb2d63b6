# SPDX-License-Identifier: Apache-2.0
"""Two private tables with the same units, joined by the unit: each row beside each other row of that unit.

Guarantee  A joined row is made of two rows of one unit, and belongs to it. Each table is bounded before the
           join, to its own contribution bound; so a unit has at most the product of the two bounds of joined
           rows, which is the bound of the result. The rows of other units do not change.
Neighbors  Data sets that differ in all rows of one unit, in both tables.
Edge cases Units that are in one of the tables only have no joined row. Rows without a unit are left out.
Failure    Decided by the schemas. Units of different types are refused, as an engine would cast one of them.
Not here   Joins by any other column: a row would meet rows of other units, and one unit could multiply or
           change the rows of all others. Accounts: the caller charges one account for the result.
"""

from dataclasses import replace
from typing import Any

from sfumato.errors import InvalidParameterError
from sfumato.statistics.contributions.owned_rows import OwnedRows
from sfumato.statistics.filters.column_names import alike
from sfumato.statistics.sources.public_joins import viewed

__all__ = ["joined_by_unit"]


def joined_by_unit(one: OwnedRows, other: OwnedRows) -> OwnedRows:
    """Return the joined rows of the units that are in both tables.

    Args:
        one: The rows of a table.
        other: The rows of another table in the same engine, with the same unit.

    Returns:
        The joined rows.

    Raises:
        InvalidParameterError: If the tables have different units or engines, or the same column.
    """
    unit = _unit(one, other)
    first, second = _bounded(one, unit), _bounded(other, unit)
    twice = alike([unit, *first, *second])
    if twice is not None:
        raise InvalidParameterError(
            f"the columns {twice[0]!r} and {twice[1]!r} have one name for the engine: rename one of them."
        )
    left, right = _rows(one, first, "one"), _rows(other, second, "other")
    if left["one_unit"].type() != right["other_unit"].type():
        raise InvalidParameterError(f"the unit {unit!r} has different types in the two tables: convert one.")
    found = left.inner_join(right, left["one_unit"] == right["other_unit"])
    named = {unit: found["one_unit"]}
    named |= {name: found[f"one{i}"] for i, name in enumerate(first)}
    named |= {name: found[f"other{i}"] for i, name in enumerate(second)}
    return replace(
        one,
        expression=viewed(one, found.select(**named)),
        contribution_bound=one.contribution_bound * other.contribution_bound,
        lines_left_out=True,
        floats_may_be_whole=one.floats_may_be_whole or other.floats_may_be_whole,
        typed_by_values=one.typed_by_values | other.typed_by_values,
        untyped=one.untyped | other.untyped,
    )


def _unit(one: OwnedRows, other: OwnedRows) -> str:
    if one.engine is not other.engine or one.engine.name != "duckdb":
        raise InvalidParameterError(
            "private tables are joined if both are tables of one DuckDB connection: con = "
            "ibis.duckdb.connect(), then open con.read_parquet(...) or con.create_table(...)."
        )
    if one.unit is None or one.unit != other.unit:
        raise InvalidParameterError(
            "private tables are joined by their privacy unit: open both with the same privacy_unit column. A "
            "join by another column would mix the rows of different units."
        )
    return one.unit


def _bounded(owned: OwnedRows, unit: str) -> tuple[str, ...]:
    """Return the columns beside the unit. Raises if their values have no order by which rows are bounded."""
    names = tuple(name for name in owned.expression.columns if name != unit)
    for name in names:
        kind = owned.expression[name].type()
        plain = kind.is_string() or kind.is_numeric() or kind.is_boolean() or kind.is_date()
        if not (plain or kind.is_timestamp()):
            raise InvalidParameterError(f"column {name!r} has type {kind}: leave it out of the join.")
    return names


def _rows(owned: OwnedRows, names: tuple[str, ...], side: str) -> Any:
    """Return the rows that count, with columns named by their place, as names may be those of `kept`."""
    read = {f"{side}{i}": owned.expression[name] for i, name in enumerate(names)}
    rows = owned.kept({}, beside=read)
    return rows.rename({f"{side}_unit": "unit"})
