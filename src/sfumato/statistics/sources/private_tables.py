# SPDX-License-Identifier: Apache-2.0
"""Private tables: rows that belong to privacy units, in any engine that Ibis supports; DuckDB by default.

A table is an expression. Filters, new columns and groups extend the expression; nothing is computed, and
nothing is charged, before a release. The schema (names and types of columns) is public. The number of rows is
private, and so is whether a value is missing, which types in pandas would reveal (`pandas_frames`).

Guarantee  The rows of a table leave it only through a release. Every release counts at most
           `contribution_bound` rows of one privacy unit, whatever the table holds (`owned_rows`), so a unit
           changes a count by at most that number.
Neighbors  Tables that differ in all rows of one unit: present or absent (add-remove), or replaced by others.
Not here   The statistics: `group_statistics`, `key_discovery`, and the questions of columns and rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.table_categories import TableCategories
from sfumato.statistics.columns.table_columns import TableColumn, TableRows, column, numeric
from sfumato.statistics.contributions.owned_rows import OwnedRows, is_known, shown
from sfumato.statistics.filters.column_names import unused
from sfumato.statistics.filters.row_expressions import filtered, with_columns
from sfumato.statistics.filters.row_wise import require_row_wise
from sfumato.statistics.groups.group_statistics import RowCount
from sfumato.statistics.groups.grouped_rows import Groups, groups_of
from sfumato.statistics.groups.key_discovery import KeyDiscovery, Keyed
from sfumato.statistics.query import Query
from sfumato.statistics.questions.left_out_rows import left_out_share
from sfumato.statistics.sources.public_joins import On, joined
from sfumato.statistics.sources.unit_joins import joined_by_unit

__all__ = ["PrivateTable"]


@dataclass(frozen=True, repr=False)
class PrivateTable:
    """A table whose rows are private. Open one with `private_table`.

    Args:
        owned: The rows, their engine and the units that own them.
    """

    owned: OwnedRows

    @property
    def privacy_unit(self) -> str:
        """The privacy unit: who is protected."""
        return self.owned.privacy_unit

    @property
    def contribution_bound(self) -> int:
        """The most rows of one unit that count in a release."""
        return self.owned.contribution_bound

    @property
    def schema(self) -> dict[str, str]:
        """The names and types of the columns."""
        return {name: str(kind) for name, kind in self.owned.expression.schema().items()}

    def type_of(self, name: str) -> Any:
        """Return the Ibis type of a column.

        Args:
            name: The name of a column.

        Returns:
            Its Ibis type.

        Raises:
            InvalidParameterError: If there is no such column.
        """
        return column(self.owned, name).type()

    def __dir__(self) -> list[str]:
        return shown(self, "owned")

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {kind}" for name, kind in self.schema.items())
        return (
            f"<PrivateTable in {self.owned.engine.name}; unit: {self.privacy_unit}, of at most "
            f"{self.contribution_bound} row(s); {columns}>"
        )

    def __getitem__(self, name: str) -> TableColumn:
        """Return a column of numbers, for any statistic of a column."""
        self.owned.require_computable({"value": numeric(self.owned, name)}, name)
        return TableColumn(self.owned, name)

    def categories(self, name: str) -> TableCategories:
        """Return a column of categories, for any statistic of categories.

        Args:
            name: The name of a column.

        Returns:
            The private column.

        Raises:
            InvalidParameterError: If there is no such column, or its type has no categories.
        """
        found = TableCategories(self.owned, name)
        found.require_countable()
        return found

    def present(self, name: str) -> TableColumn:
        """Return a column of any type as one of numbers: 1 if a row has a value. Use it to count those rows.

        Args:
            name: The name of a column.

        Returns:
            The private column of numbers.

        Raises:
            InvalidParameterError: If there is no such column.
        """
        import ibis

        known = ibis.ifelse(is_known(column(self.owned, name)), 1.0, ibis.null("float64"))
        columns = self.owned.expression.columns
        added = unused(f"{name} has a value", columns)  # a new column, as this one may be that of the unit
        expression = self.owned.expression.mutate(**{added: known})
        return TableColumn(replace(self.owned, expression=expression), added)

    def rows(self, *names: str, classes: Sequence[Any] | None = None) -> TableRows:
        """Return several columns of numbers, for statistics of rows.

        Args:
            names: The names of the columns, each once.
            classes: Public classes. If given, the last column is a label of any type, which becomes its place
                among the classes; rows with another label are left out.

        Returns:
            The private rows.

        Raises:
            InvalidParameterError: If a name is missing or repeated, or a column has another type.
        """
        if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            raise InvalidParameterError(
                "pass one or more names of columns, each once: table.rows('age', 'income')."
            )
        rows = TableRows(self.owned, names, None if classes is None else tuple(classes))
        rows.require_fitting()
        return rows

    def filter(self, *predicates: Any) -> "PrivateTable":
        """Return the rows for which all predicates are true.

        Args:
            predicates: Ibis expressions of one row, or functions from a row to one.

        Returns:
            The table with these rows.

        Raises:
            InvalidParameterError: If a predicate is not true or false, reads other rows, or could fail on a
                row.

        >>> import pandas as pd
        >>> from sfumato.statistics import private_table
        >>> table = private_table(pd.DataFrame({"age": [30.0, 40.0], "sex": ["f", "m"]}))
        >>> table.filter(lambda row: row.sex == "f")["age"].name
        'age'
        """
        return self._with(filtered(self.owned.expression, predicates))

    def mutate(self, **values: Any) -> "PrivateTable":
        """Return the table with added columns, each computed from its own row.

        Args:
            values: Ibis expressions of one row, or functions from a row to one, by the name of the new
                column.

        Returns:
            The table with these columns.

        Raises:
            InvalidParameterError: If an expression reads other rows or could fail on a row, or the column of
                the unit would change.

        >>> import pandas as pd
        >>> from sfumato.statistics import private_table
        >>> table = private_table(pd.DataFrame({"cents": [250, 399]}))
        >>> table.mutate(euros=lambda row: row.cents / 100).schema
        {'cents': 'float64', 'euros': 'float64'}
        """
        if self.owned.unit in values:
            raise InvalidParameterError(
                f"column {self.owned.unit!r} is the privacy unit and cannot change. Use another name."
            )
        return self._with(with_columns(self.owned.expression, values))

    def join(self, public: Any, *, on: On, keep_unmatched: bool = True) -> "PrivateTable":
        """Return the table with the columns of a public table, in which each key occurs at most once.

        Args:
            public: A pandas, polars or pyarrow frame, or the path of a Parquet or CSV file. It is read now.
                Columns of a CSV file have the type that all of their values have.
            on: The column or columns of the key; a mapping from private to public names if they differ.
            keep_unmatched: Whether rows whose key is missing, or not in the public table, stay, with missing
                values in the new columns. Otherwise they are left out.

        Returns:
            The table with these columns. Every row is still one row of the same unit.

        Raises:
            InvalidParameterError: If a key has several public rows, types differ, a column is in both
                tables, or the engine is not DuckDB.

        >>> import pandas as pd
        >>> from sfumato.statistics import private_table
        >>> visits = private_table(pd.DataFrame({"zip": ["10", "20", "99"], "cost": [5.0, 7.0, 9.0]}))
        >>> visits.join(pd.DataFrame({"zip": ["10", "20"], "region": ["north", "south"]}), on="zip").schema
        {'zip': 'string', 'cost': 'float64', 'region': 'string'}
        """
        found = joined(self.owned, public, on=on, keep_unmatched=keep_unmatched)
        self.owned.require_prepared(found.expression)
        return PrivateTable(found)

    def join_by_unit(self, other: "PrivateTable") -> "PrivateTable":
        """Return each row beside each row that the same unit has in another private table.

        Args:
            other: A private table in the same DuckDB connection, with the same privacy unit.

        Returns:
            The joined table. Its contribution bound is the product of the two bounds.

        Raises:
            InvalidParameterError: If the tables have different units or engines, or the same column.
        """
        found = joined_by_unit(self.owned, other.owned)
        self.owned.require_prepared(found.expression)
        return PrivateTable(found)

    def _with(self, expression: Any) -> "PrivateTable":
        require_row_wise(expression, engine=self.owned.engine.name)
        self.owned.require_prepared(expression)
        return PrivateTable(replace(self.owned, expression=expression))

    def count(
        self,
        *,
        epsilon: float,
        delta: float = 0.0,
        relation: Relation | str = Relation.ADD_REMOVE,
        level: float = 0.95,
    ) -> Query[float]:
        """Return the query for the number of rows: at most `contribution_bound` of each unit, so units if
        that is 1.

        Args:
            epsilon: The privacy budget of this release.
            delta: The delta of the guarantee. 0 means pure differential privacy.
            relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
            level: The confidence level of the interval, between 0 and 1.

        Returns:
            The query. Nothing is computed or charged before `.release()`.

        Raises:
            InvalidParameterError: If a parameter is out of range.

        >>> import pandas as pd
        >>> from sfumato.statistics import private_table
        >>> private_table(pd.DataFrame({"age": [30, 40]})).count(epsilon=0.5)
        <Query: number of rows. Would cost epsilon 0.5, delta 0, for one row of at most 1 row(s), ...
        """
        question = RowCount(
            epsilon=epsilon,
            delta=delta,
            relation=Relation.parse(relation),
            contribution_bound=self.contribution_bound,
            level=level,
            column="rows",
            unit=self.owned.unit,
        )
        return Query(question, self.owned)

    def left_out_share(
        self,
        *,
        epsilon: float,
        most_rows: int | None = None,
        delta: float = 0.0,
        relation: Relation | str = Relation.ADD_REMOVE,
        level: float = 0.95,
    ) -> Query[float | None]:
        """Return the query for the share of the rows that `contribution_bound` leaves out of all other
        releases.

        Args:
            epsilon: The privacy budget of this release.
            most_rows: The most rows of one unit that are counted here, public. None means ten times the
                bound.
            delta: The delta of the guarantee. 0 means pure differential privacy.
            relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
            level: The confidence level of the interval, between 0 and 1.

        Returns:
            The query. Nothing is computed or charged before `.release()`.

        Raises:
            InvalidParameterError: If a parameter is out of range, or each row is a unit.

        >>> import pandas as pd
        >>> from sfumato.statistics import private_table
        >>> visits = pd.DataFrame({"patient": [i // 4 for i in range(4000)]})
        >>> table = private_table(visits, privacy_unit="patient", contribution_bound=1)
        >>> release = table.left_out_share(epsilon=1.0, most_rows=5).release()
        >>> abs(release.value - 0.75) < 0.1
        True
        """
        return left_out_share(
            self.owned, epsilon=epsilon, most_rows=most_rows, delta=delta, relation=relation, level=level
        )

    def group_by(self, *columns: str, keys: Sequence[Any] | None = None) -> Groups:
        """Return groups of rows by one or more columns, for public keys.

        Args:
            columns: The names of the columns to group by.
            keys: The keys, chosen without the data; tuples if there are several columns. Rows with other keys
                are left out.

        Returns:
            The groups, which offer `count`, `sum` and `mean`.

        Raises:
            InvalidParameterError: If keys are missing, repeated, or not of the type of their column.
        """
        if keys is None:
            raise InvalidParameterError(
                "which keys a column has is private. Pass the keys that you want, chosen without the data, "
                "as keys=[...]; or spend budget to find common ones: "
                f"table.keys({', '.join(map(repr, columns))}, epsilon=..., delta=...)."
            )
        return groups_of(self.owned, columns, keys)

    def keys(
        self,
        *columns: str,
        epsilon: float,
        delta: float,
        relation: Relation | str = Relation.ADD_REMOVE,
    ) -> Query[list[Any]]:
        """Return the query for the keys of columns. Only keys that many units share can be released.

        Args:
            columns: The names of the columns.
            epsilon: The privacy budget of this release.
            delta: The delta of the guarantee, above 0.
            relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".

        Returns:
            The query. Nothing is computed or charged before `.release()`.

        Raises:
            InvalidParameterError: If a parameter is out of range.

        >>> import pandas as pd
        >>> from sfumato.statistics import private_table
        >>> table = private_table(pd.DataFrame({"city": ["Rome"] * 500 + ["Atlantis"]}))
        >>> table.keys("city", epsilon=1.0, delta=1e-6).release().value
        ['Rome']
        """
        question = KeyDiscovery(
            columns=columns,
            epsilon=epsilon,
            delta=delta,
            relation=Relation.parse(relation),
            contribution_bound=self.contribution_bound,
        )
        return Query(question, Keyed(self.owned, columns))
