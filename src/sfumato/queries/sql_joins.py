# SPDX-License-Identifier: Apache-2.0
"""JOIN in SQL: public tables beside the private one, as `PrivateTable.join` makes them.

Guarantee  A table in JOIN is one that the caller passed as public; its key must be unique. `[INNER] JOIN`
           leaves out rows without a match, `LEFT JOIN` keeps them. Other joins, and conditions other than
           equal columns, are refused by name.
Edge cases A qualified name must name a column of its own table, also in ON. The key of a public table is
           named by the private column: they are equal, or the former is missing.
Failure    Decided from the text, the schemas and the public tables, before anything is charged.
"""

from collections.abc import Mapping
from typing import Any

from sfumato.queries.sql_rows import named_column, refused
from sfumato.statistics.sources.private_tables import PrivateTable

__all__ = ["with_joins"]


def with_joins(table: PrivateTable, select: Any, public: Mapping[str, Any]) -> PrivateTable:
    """Return the private table with the columns of all tables in JOIN.

    Args:
        table: The private table.
        select: The statement, as sqlglot parsed it.
        public: Public tables by name.

    Returns:
        The table.

    Raises:
        InvalidParameterError: If a join has no private answer.
    """
    source = (select.args.get("from_") or select.args.get("from")).this
    columns = {source.alias_or_name.lower(): set(table.schema)}
    joins = select.args.get("joins") or ()
    for join in joins:
        before = set(table.schema)
        table = _joined(table, join, public, columns)
        columns[join.this.alias_or_name.lower()] = set(table.schema) - before
    checked = {id(node) for join in joins if join.args.get("on") for node in join.args["on"].walk()}
    for node in select.walk() if joins else ():
        if type(node).__name__ == "Column" and id(node) not in checked:
            _require_own(node, columns)
    return table


def _joined(
    table: PrivateTable, join: Any, public: Mapping[str, Any], columns: Mapping[str, set[str]]
) -> PrivateTable:
    text, named = join.sql(dialect="duckdb").strip(), join.this
    if type(named).__name__ != "Table" or named.name not in public or named.args.get("db"):
        raise refused(
            text,
            "a joined table is public, and passed by its name: tables={'zips': frame}. A second private "
            "table is joined in Python, with join_by_unit(...).",
        )
    if any(value for part, value in named.args.items() if part not in ("this", "alias")):
        raise refused(text, "name the table alone, without a sample or a pivot.")
    if named.alias_or_name.lower() in columns:
        raise refused(text, "a second table of that name: give it an alias.")
    side, kind = (str(join.args.get(part) or "").upper() for part in ("side", "kind"))
    extra = [
        part for part in ("method", "global_", "global", "hint", "match_condition") if join.args.get(part)
    ]
    if side not in ("", "LEFT") or kind not in ("", "INNER", "OUTER") or extra:
        raise refused(text, "JOIN and LEFT JOIN are answered: others add rows, or drop the private ones.")
    on = _using(join, table, text) or _on(join, table, columns, text)
    return table.join(public[named.name], on=on, keep_unmatched=side == "LEFT")


def _using(join: Any, table: PrivateTable, text: str) -> dict[str, str]:
    names = [each.name for each in join.args.get("using") or ()]
    absent = [name for name in names if name not in table.schema]
    if absent:
        raise refused(text, f"the private table has no column {absent[0]!r}.")
    return {name: name for name in names}


def _on(join: Any, table: PrivateTable, columns: Mapping[str, set[str]], text: str) -> dict[str, str]:
    """Return the columns of ON, public ones by private ones."""
    condition, alias = join.args.get("on"), join.this.alias_or_name
    if condition is None:
        raise refused(text, "it needs ON or USING: without one, every row meets every other.")
    found: dict[str, str] = {}
    for part in condition.flatten() if type(condition).__name__ == "And" else (condition,):
        sides = (part.this, part.args.get("expression"))
        if type(part).__name__ != "EQ" or any(type(side).__name__ != "Column" for side in sides):
            raise refused(
                text, "ON takes equal columns, such as data.zip = zips.zip AND data.year = zips.year."
            )
        of_public = [side.table.lower() == alias.lower() for side in sides]
        if sum(of_public) != 1:
            raise refused(
                text, f"each condition compares one column of {alias} with one of the private table."
            )
        right, left = sides if of_public[0] else sides[::-1]
        _require_own(left, columns)
        name = named_column(left, tuple(table.schema), text)
        if name in found:
            raise refused(text, f"{name!r} is compared twice: compare each column once.")
        found[name] = right.name
    return found


def _require_own(node: Any, columns: Mapping[str, set[str]]) -> None:
    """Raise if a name is qualified by a table that does not have the column."""
    own = columns.get(node.table.lower())
    if node.table and (own is None or node.name.lower() not in {name.lower() for name in own}):
        raise refused(
            node.sql(), "its table has no such column. The key of a join is named by the private column."
        )
