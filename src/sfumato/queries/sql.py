# SPDX-License-Identifier: Apache-2.0
"""SQL: one SELECT with aggregates of one private table, as the query that `group_by(...).agg(...)` makes.

Guarantee  The text is parsed, never run. What it asks becomes statistics, groups and a filter of this
           package, so its cost and its noise are theirs. Every clause that is not listed here is refused by
           name: subqueries, windows, HAVING, DISTINCT, LIMIT, and so on.
Edge cases COUNT, SUM, AVG, MEDIAN, QUANTILE_CONT, VAR_POP and STDDEV_POP are answered. Values that they read
           are clipped to `bounds`, so all but counts need them.
Failure    Everything is decided from the text and the schema, before anything is charged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError, MissingDependencyError
from sfumato.ledger.account import Account
from sfumato.queries import asked
from sfumato.queries.aggregation import Aggregation
from sfumato.queries.counts import Statistic
from sfumato.queries.grouped import Keys, group_by
from sfumato.queries.sql_joins import with_joins
from sfumato.queries.sql_nodes import require_read
from sfumato.queries.sql_rows import expression_of, named_column, refused
from sfumato.statistics.columns.columns import Bounds
from sfumato.statistics.filters.column_names import unused
from sfumato.statistics.sources.private_tables import PrivateTable

__all__ = ["Statement", "condition", "read_statement", "sql"]

_RESERVED = {"epsilon", "delta", "relation", "where", "level", "self"}  # parameters of `agg`
_KNOWN = {"expressions", "from_", "from", "joins", "where", "group", "kind"}
_REASONS = {
    "having": "it selects groups by private numbers. Select rows of the release, which costs nothing.",
    "order": "sort the release, which costs nothing.",
    "limit": "it selects rows by their order. Select rows of the release, which costs nothing.",
    "offset": "it selects rows by their order.",
    "distinct": "use COUNT(DISTINCT column), or name the keys of groups.",
    "with_": "name one table, without WITH.",
    "with": "name one table, without WITH.",
    "windows": "a window reads other rows.",
    "qualify": "a window reads other rows.",
    "sample": "rows that are drawn by the engine are not the sample that is accounted for.",
}
_OF_BOUNDS = {
    "Sum": asked.sum,
    "Avg": asked.mean,
    "Median": asked.median,
    "StddevPop": asked.standard_deviation,
    "VariancePop": asked.variance,
}


def sql(
    table: PrivateTable,
    statement: str,
    *,
    epsilon: float,
    delta: float = 0.0,
    bounds: Mapping[str, Bounds] | None = None,
    keys: Keys | None = None,
    rows_per_group: int | None = None,
    groups_per_unit: int | None = None,
    relation: Relation | str | None = None,
    account: Account | None = None,
    name: str | None = None,
    tables: Mapping[str, Any] | None = None,
) -> Aggregation:
    """Return the query that a SELECT statement asks of a private table.

    Args:
        table: The private table.
        statement: One SELECT, such as "SELECT region, COUNT(*), AVG(age) FROM data GROUP BY region".
        epsilon: The budget of the whole statement.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        bounds: Lower and upper bound, public, by the name of the column, or of an expression's alias.
        keys: The keys of the groups: a list, domains by column, or `Discovered()`.
        rows_per_group: The most rows of one unit in one group.
        groups_per_unit: The most groups of one unit.
        relation: Which data sets are neighbors. None means that of the account, or add-remove.
        account: The account that the release is charged to.
        name: The name of the table in FROM, beside "data".
        tables: Public tables for JOIN, by name: frames or paths, as `PrivateTable.join` takes them.

    Returns:
        The query. Nothing is computed or charged before `.release()`.

    Raises:
        InvalidParameterError: If a clause has no private answer, or bounds or keys are missing.
        MissingDependencyError: If sqlglot is not installed.

    >>> import pandas as pd
    >>> from sfumato.statistics import private_table
    >>> people = private_table(pd.DataFrame({"sex": ["f", "m"] * 500, "age": [30.0, 40.0] * 500}))
    >>> asks = "SELECT sex, COUNT(*) AS n, AVG(age) AS age FROM data WHERE age < 90 GROUP BY sex"
    >>> query = sql(people, asks, epsilon=2.0, bounds={"age": (0, 100)}, keys=["f", "m"])
    >>> list(query.release().values)
    ['n', 'age']
    """
    read = read_statement(table, statement, bounds=bounds, name=name, tables=tables)
    return read.asked(
        epsilon=epsilon,
        delta=delta,
        keys=keys,
        rows_per_group=rows_per_group,
        groups_per_unit=groups_per_unit,
        relation=relation,
        account=account,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """A SELECT, as it was read, without its budget and its keys. `read_statement` makes one.

    Attributes:
        table: The private table, with the condition and the columns of the statement.
        columns: The columns of GROUP BY.
        heads: Their names in the release.
        statistics: The aggregates, by name.
    """

    table: PrivateTable
    columns: tuple[str, ...]
    heads: tuple[str, ...]
    statistics: Mapping[str, Statistic]

    def asked(
        self,
        *,
        epsilon: float,
        delta: float = 0.0,
        keys: Keys | None = None,
        rows_per_group: int | None = None,
        groups_per_unit: int | None = None,
        relation: Relation | str | None = None,
        account: Account | None = None,
    ) -> Aggregation:
        """Return the query. The arguments are those of `sql`."""
        groups = group_by(
            self.table,
            *self.columns,
            keys=keys,
            rows_per_group=rows_per_group,
            groups_per_unit=groups_per_unit,
            account=account,
        )
        statistics = cast(dict[str, Any], dict(self.statistics))
        return replace(groups, heads=self.heads).agg(
            epsilon=epsilon, delta=delta, relation=relation, **statistics
        )


def read_statement(
    table: PrivateTable,
    statement: str,
    *,
    bounds: Mapping[str, Bounds] | None = None,
    name: str | None = None,
    tables: Mapping[str, Any] | None = None,
) -> Statement:
    """Read a SELECT statement. Nothing is charged, and no private data is read.

    Args:
        table: The private table.
        statement: The statement.
        bounds: Bounds by column or alias.
        name: The name of the table in FROM, beside "data".
        tables: Public tables for JOIN, by name.

    Returns:
        The statement.

    Raises:
        InvalidParameterError: If a clause has no private answer.
        MissingDependencyError: If sqlglot is not installed.
    """
    select = _parsed(statement)
    _require_one_table(select, name)
    table = with_joins(table, select, tables or {})
    read = _Read(table=table, bounds=dict(bounds or {}))
    where = select.args.get("where")
    predicate = None if where is None else expression_of(where.this, table.owned.expression, "WHERE")
    columns = read.keys(select)
    statistics = read.statistics(select, columns)
    require_read(select)
    return Statement(
        table=read.table if predicate is None else read.table.filter(predicate),
        columns=columns,
        heads=tuple(read.written.get(column, column) for column in columns),
        statistics=statistics,
    )


def condition(table: PrivateTable, text: str) -> Any:
    """Return a condition of one row that is written in SQL, such as "age >= 18 AND city = 'Rome'".

    Args:
        table: The private table.
        text: The condition, as it stands behind WHERE.

    Returns:
        The condition, as `filter` and `agg(where=...)` take it.

    Raises:
        InvalidParameterError: If it is not a condition of one row.
    """
    select = _parsed(f"SELECT COUNT(*) FROM data WHERE {text}")
    beside = [clause for clause in ("group", "kind") if select.args.get(clause)]
    if beside:
        raise refused(beside[0].upper(), "a condition ends there: pass what stands behind WHERE alone.")
    made = expression_of(select.args["where"].this, table.owned.expression, "WHERE")
    require_read(select)
    return made


def _parsed(statement: str) -> Any:
    try:
        import sqlglot
        from sqlglot.errors import SqlglotError
    except ImportError as error:
        raise MissingDependencyError("SQL needs sqlglot: pip install sqlglot.") from error
    try:
        found = [each for each in sqlglot.parse(statement, dialect="duckdb") if each is not None]
    except SqlglotError as error:
        raise InvalidParameterError(f"the statement is not SQL: {str(error).splitlines()[0]}") from None
    if len(found) != 1 or type(found[0]).__name__ != "Select":
        raise refused("the statement", "pass one SELECT, without UNION or a second statement.")
    for clause, value in found[0].args.items():
        if value and clause not in _KNOWN:
            reason = _REASONS.get(clause, "this clause has no private answer.")
            raise refused(clause.strip("_").upper(), reason)
    return found[0]


def _require_one_table(select: Any, name: str | None) -> None:
    source = select.args.get("from_") or select.args.get("from")
    named: Any = None if source is None else source.this
    if type(named).__name__ != "Table" or not named.name or named.args.get("db"):
        raise refused("FROM", "name one table. A subquery or a second table reads other rows.")
    if any(value for part, value in named.args.items() if part not in ("this", "alias")):
        raise refused(f"FROM {named.sql()}", "name the table alone, without a join, a sample or a pivot.")
    if named.name.lower() not in {"data", (name or "data").lower()}:
        raise refused(f"FROM {named.name}", f"there is one table, {name or 'data'!r}.")


@dataclass(kw_only=True, slots=True)
class _Read:
    """A table to which a statement adds the columns that it computes."""

    table: PrivateTable
    bounds: dict[str, Bounds]
    derived: dict[str, str] = field(default_factory=dict[str, str])  # from the text of an expression
    written: dict[str, str] = field(
        default_factory=dict[str, str]
    )  # from a derived column to its name in SQL

    def keys(self, select: Any) -> tuple[str, ...]:
        """Return the columns of GROUP BY, by name, by place or by the alias of an expression."""
        group = select.args.get("group")
        if group is None:
            return ()
        extra = [name for name, value in group.args.items() if value and name != "expressions"]
        if extra:
            raise refused(f"GROUP BY {extra[0].upper()}", "group by columns.")
        return tuple(self._key(each, select) for each in group.expressions)

    def _key(self, node: Any, select: Any) -> str:
        kind = type(node).__name__
        if kind == "Literal" and node.is_int and 1 <= int(node.this) <= len(select.expressions):
            node = select.expressions[int(node.this) - 1]
            return self._column(node.unalias(), node.alias or None, "GROUP BY")
        named = [each for each in select.expressions if each.alias and each.alias == node.name]
        if kind == "Column" and node.name not in self.table.schema and named:
            return self._column(named[0].unalias(), named[0].alias, "GROUP BY")
        return self._column(node, None, "GROUP BY")

    def _column(self, node: Any, alias: str | None, clause: str) -> str:
        """Return the name of a column, or of a new one that is computed from its own row."""
        if type(node).__name__ == "Column":
            return named_column(node, tuple(self.table.schema), clause)
        text = node.sql()
        if text not in self.derived:
            made = expression_of(node, self.table.owned.expression, clause)
            if not hasattr(made, "type"):
                raise refused(f"{clause} {text}", "is a constant.")
            wanted = alias if alias and alias not in self.table.schema else text
            name = unused(wanted, self.table.schema)  # engines take names that differ by case for one
            self.table = self.table.mutate(**{name: made})
            self.derived[text], self.written[name] = name, wanted
        return self.derived[text]

    def statistics(self, select: Any, columns: Sequence[str]) -> dict[str, Statistic]:
        """Return the aggregates of SELECT, by alias."""
        found: dict[str, Statistic] = {}
        for node in select.expressions:
            inner, alias = node.unalias(), node.alias
            if type(inner).__name__ == "Column" or inner.sql() in self.derived:
                if self._column(inner, alias, "SELECT") in columns:
                    continue
                raise refused(f"SELECT {inner.sql()}", "is neither grouped by nor aggregated: it shows rows.")
            name = alias or _plain_name(inner)
            if name in _RESERVED:
                raise refused(f"SELECT {node.sql()}", f"{name!r} is a parameter: give it another alias.")
            if name in found or name in columns:
                raise refused(f"SELECT {node.sql()}", f"a second column {name!r}: give it an alias.")
            found[name] = self._aggregate(inner, alias)
        if not found:
            raise refused("SELECT", "it has no aggregate, such as COUNT(*): it would show rows.")
        return found

    def _aggregate(self, node: Any, alias: str) -> Statistic:
        kind, text = type(node).__name__, node.sql(dialect="duckdb")
        if kind == "Count":
            return self._count(node, text)
        if kind in _OF_BOUNDS and type(node.this).__name__ != "Distinct":
            column = self._column(node.this, None, text)
            return _OF_BOUNDS[kind](column, bounds=self._bounds(column, alias, text))
        if (
            kind in ("PercentileCont", "Quantile")
            and type(node.args.get("quantile") or node.expression).__name__ == "Literal"
        ):
            column = self._column(node.this, None, text)
            q = float((node.args.get("quantile") or node.expression).this)
            return asked.quantile(column, q, bounds=self._bounds(column, alias, text))
        raise refused(
            f"SELECT {text}",
            "is not answered privately. COUNT, SUM, AVG, MEDIAN, QUANTILE_CONT(column, q), VAR_POP and "
            "STDDEV_POP are.",
        )

    def _count(self, node: Any, text: str) -> Statistic:
        inner = node.this
        if type(inner).__name__ == "Star" or (type(inner).__name__ == "Literal" and not inner.is_string):
            return asked.count()
        if type(inner).__name__ == "Distinct":
            if len(inner.expressions) != 1:
                raise refused(f"SELECT {text}", "COUNT(DISTINCT ...) takes one column.")
            return asked.count_distinct(self._column(inner.expressions[0], None, text))
        return asked.count(self._column(inner, None, text))

    def _bounds(self, column: str, alias: str, text: str) -> Bounds:
        column = self.written.get(column, column)
        # an alias that is a column, too, means the bounds of that column
        found = None if alias in self.table.schema else self.bounds.get(alias)
        found = self.bounds.get(column) if found is None else found
        if found is None:
            raise refused(
                f"SELECT {text}",
                f"pass bounds={{{column!r}: (lower, upper)}}, public and chosen without the data.",
            )
        return found


def _plain_name(node: Any) -> str:
    """Return a name for an aggregate without an alias, such as avg_age."""
    column = next((part.name for part in node.walk() if type(part).__name__ == "Column"), "")
    kind = {"Avg": "avg", "StddevPop": "stddev", "VariancePop": "variance"}.get(type(node).__name__)
    first = kind or type(node).__name__.lower()
    return f"{first}_{column}" if column else first
