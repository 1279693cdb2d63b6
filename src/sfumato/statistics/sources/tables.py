# SPDX-License-Identifier: Apache-2.0
"""Private tables: rows that belong to units, in any engine that Ibis speaks to; DuckDB by default.

Guarantee  Nothing of a table's rows can be got from it but by a release. Every release counts at most
           `contribution_bound` rows of one privacy unit, whatever the table holds (`owned_rows`), so a unit
           moves a count by at most that.
Neighbors  Tables that differ in all rows of one unit: there or not (add-remove), or replaced by any others.
Unit       "row": each row is a unit. Else a column that names the unit of each row, not called "row" itself.
Lazy       A table is an expression. Filters, columns and groups only make larger ones; nothing is computed,
           and nothing spent, before a release.
Public     The schema is: names and types of columns. The number of rows is not, nor whether any value is
           missing, which pandas' types would tell (`frames`).
Not here   What may be asked: `groups`, `keys`, and every question of columns and rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from sfumato import _check
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.table_categories import TableCategories
from sfumato.statistics.columns.table_columns import TableColumn, TableRows, column, numeric
from sfumato.statistics.contributions.owned_rows import OwnedRows, is_known, shown
from sfumato.statistics.contributions.unit_draws import seed
from sfumato.statistics.filters.row_expressions import filtered, with_columns
from sfumato.statistics.filters.row_wise import require_row_wise
from sfumato.statistics.groups.group_statistics import RowCount
from sfumato.statistics.groups.grouped_rows import Groups, groups_of
from sfumato.statistics.groups.key_discovery import KeyDiscovery, Keyed
from sfumato.statistics.query import Query
from sfumato.statistics.questions.left_out_rows import left_out_share
from sfumato.statistics.sources.pandas_frames import is_pandas, read_alike
from sfumato.statistics.sources.schema import Types, read_types
from sfumato.statistics.sources.table_sources import is_lines, opened

__all__ = ["PrivateTable", "private_table"]

_ROW = "row"  # the unit where each row is one


@dataclass(frozen=True, repr=False)
class PrivateTable:
    """A table whose rows may be asked about, and not seen. Make one with `private_table`."""

    owned: OwnedRows

    @property
    def privacy_unit(self) -> str:
        """Who is protected."""
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
        """Return the Ibis type of a column."""
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
        """Return a column of numbers, for any question of a column."""
        self.owned.require_computable({"value": numeric(self.owned, name)}, name)
        return TableColumn(self.owned, name)

    def categories(self, name: str) -> TableCategories:
        """Return a column of categories, for any question of categories."""
        found = TableCategories(self.owned, name)
        found.require_countable()
        return found

    def present(self, name: str) -> TableColumn:
        """Return a column of any type as one of numbers: 1 where it has a value. To count those rows."""
        import ibis

        known = ibis.ifelse(is_known(column(self.owned, name)), 1.0, ibis.null("float64"))
        added = f"{name} has a value"  # a column beside it: it may be that of the unit
        expression = self.owned.expression.mutate(**{added: known})
        return TableColumn(replace(self.owned, expression=expression), added)

    def rows(self, *names: str, classes: Sequence[Any] | None = None) -> TableRows:
        """Return several columns of numbers, for questions of rows.

        With `classes` the last column is a label of any type, and is the place of its class among them: rows
        with another label are left out.
        """
        if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            raise InvalidParameterError("name one or more columns, each once: table.rows('age', 'income').")
        rows = TableRows(self.owned, names, None if classes is None else tuple(classes))
        rows.require_fitting()
        return rows

    def filter(self, *predicates: Any) -> "PrivateTable":
        """Return the rows for which all predicates hold: Ibis expressions of one row, or functions to them.

        >>> import pandas as pd
        >>> table = private_table(pd.DataFrame({"age": [30.0, 40.0], "sex": ["f", "m"]}))
        >>> table.filter(lambda row: row.sex == "f")["age"].name
        'age'
        """
        return self._with(filtered(self.owned.expression, predicates))

    def mutate(self, **values: Any) -> "PrivateTable":
        """Return the table with columns added, each computed from its own row.

        >>> import pandas as pd
        >>> table = private_table(pd.DataFrame({"cents": [250, 399]}))
        >>> table.mutate(euros=lambda row: row.cents / 100).schema
        {'cents': 'float64', 'euros': 'float64'}
        """
        if self.owned.unit in values:
            raise InvalidParameterError(f"column {self.owned.unit!r} says whose a row is; it cannot change.")
        return self._with(with_columns(self.owned.expression, values))

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
        """Ask how many rows there are: at most `contribution_bound` of each unit, so units if that is 1.

        >>> import pandas as pd
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
        """Ask which share of the rows `contribution_bound` leaves out, so that no other release counts them.

        Rows are counted up to `most_rows` of each unit, a public number: ten times the bound if not given.

        >>> import pandas as pd
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
        """Return groups of rows by one or more columns, for the keys that are named: they must be public.

        With several columns each key is a tuple. Rows with any other key are left out.
        """
        if keys is None:
            raise InvalidParameterError(
                "which keys a column has is private. Name the keys you want, chosen without the data, as "
                "keys=[...]; or find common ones with budget: "
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
        """Ask which keys a column has; only those that many units have can come out.

        >>> import pandas as pd
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


def private_table(
    source: Any | str | PathLike[str],
    *,
    privacy_unit: str | None = None,
    contribution_bound: int = 1,
    types: Types | None = None,
    table: str | None = None,
    engine: Any = None,
) -> PrivateTable:
    """Return a private table of a file, a frame, a database or an Ibis table.

    `source` is a path to CSV or Parquet (`*` for many files), a pandas, polars or pyarrow frame, an Ibis
    table, or the URL of a database, of which `table` is then the name of a table. `privacy_unit` names the
    column that says whose a row is; None, or "row", means that each row is a unit of its own. `types` has
    the types of columns, `{"age": "number", "since": "date"}`, or is the path of a TOML file that has them;
    a column of a CSV file is text unless its type is declared (`schema`). `engine` is an Ibis backend that
    reads a path in place of DuckDB.

    >>> import pandas as pd
    >>> visits = pd.DataFrame({"patient": ["a", "a", "b"], "cost": [10.0, 30.0, 20.0]})
    >>> private_table(visits, privacy_unit="patient", contribution_bound=2)
    <PrivateTable in duckdb; unit: patient, of at most 2 row(s); patient: string, cost: float64>
    """
    _check.count(contribution_bound=contribution_bound)
    if privacy_unit in (None, _ROW) and contribution_bound != 1:
        raise InvalidParameterError(
            "contribution_bound is about units that own several rows: say whose they are with "
            "privacy_unit=..."
        )
    known = read_types(types)
    alike = read_alike(source, unit=privacy_unit, types=known)
    expression, backend = opened(alike, engine=engine, table=table, types=known)
    require_row_wise(expression, engine=backend.name)
    unit = _unit(privacy_unit, expression.columns)
    owned = OwnedRows(
        expression=expression,
        engine=backend,
        unit=unit,
        contribution_bound=contribution_bound,
        lines_left_out=is_lines(source),
        floats_may_be_whole=is_pandas(source),
    )
    if unit is not None:
        _check_unit(owned, unit)
    return PrivateTable(owned)


def _check_unit(owned: OwnedRows, unit: str) -> None:
    kind = column(owned, unit).type()
    plain = kind.is_string() or kind.is_numeric() or kind.is_boolean() or kind.is_uuid() or kind.is_binary()
    if not (plain or kind.is_date() or kind.is_timestamp()):
        raise InvalidParameterError(
            f"column {unit!r} has type {kind}, and a unit is told by text, a number, a date or a time. Name "
            "another column, or make one of these of it in the source."
        )
    # Refuses text in an engine where texts that differ may be equal, what cannot be put in order, and what
    # has no draw in it.
    owned.require_computable({}, unit)
    seed(owned.owner(unit), engine=owned.engine.name)


def _unit(privacy_unit: str | None, columns: Sequence[str]) -> str | None:
    """Return the column of units, if there is one: "row" is each row, and never a column."""
    if privacy_unit != _ROW:
        return privacy_unit
    if _ROW in columns:
        raise InvalidParameterError(
            'privacy_unit="row" means that each row is a unit, but a column is called "row", too. Rename the '
            "column if it says whose a row is; leave privacy_unit out if each row is a unit."
        )
    return None
