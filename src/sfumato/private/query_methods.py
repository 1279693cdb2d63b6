# SPDX-License-Identifier: Apache-2.0
"""Methods of `PrivateData` for queries: groups, several statistics on one charge, keys, and what is left."""

from typing import TYPE_CHECKING, Any

from sfumato import queries
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.remaining import Remaining
from sfumato.statistics.release import Release
from sfumato.statistics.sources.private_tables import PrivateTable

if TYPE_CHECKING:
    from sfumato.private.private_data import PrivateData

__all__ = [
    "agg",
    "group_by",
    "join",
    "join_by_unit",
    "keys",
    "left",
    "left_out_share",
    "mutate",
    "ranges",
    "sql",
]


def left_out_share(
    self: "PrivateData",
    *,
    epsilon: float,
    most_rows: int | None = None,
    delta: float = 0.0,
    level: float = 0.95,
    purpose: str | None = None,
) -> Release[float | None]:
    """Release the share of rows that `contribution_bound` leaves out (`PrivateTable.left_out_share`).

    Args:
        epsilon: The privacy budget of this release.
        most_rows: The most rows of one unit that are counted. Default: that of the table.
        delta: The delta of this release. 0 for pure differential privacy.
        level: The confidence level of the interval.
        purpose: What the release is for. The account keeps it.

    Returns:
        The release, with the share, or None if the noise hides it.

    Raises:
        BudgetExceededError: If the budget does not cover the release. Nothing is spent.
    """
    query = self.table.left_out_share(
        epsilon=epsilon,
        most_rows=most_rows,
        delta=delta,
        relation=self.account.relation,
        level=level,
    )
    return self.release(query, purpose=purpose)


def keys(
    self: "PrivateData", *columns: str, epsilon: float, delta: float, purpose: str | None = None
) -> Release[list[Any]]:
    """Release the keys of columns that many units have.

    Args:
        *columns: The columns that make up a key.
        epsilon: The privacy budget of this release.
        delta: The chance that a key of one unit alone is listed.
        purpose: What the release is for. The account keeps it.

    Returns:
        The release, with the list of keys.

    Raises:
        BudgetExceededError: If the budget does not cover the release. Nothing is spent.
    """
    query = self.table.keys(*columns, epsilon=epsilon, delta=delta, relation=self.account.relation)
    return self.release(query, purpose=purpose)


def mutate(self: "PrivateData", **values: Any) -> "PrivateData":
    """Return the data with added columns, each computed from its own row, and the same account.

    Args:
        **values: Expressions of one row, by the name of the new column, such as
            `month=lambda row: row.day.truncate("M")`.

    Returns:
        The data with these columns. Nothing is read or charged yet.

    Raises:
        InvalidParameterError: If an expression reads other rows or could fail on a row.
    """
    return type(self)(self.table.mutate(**values), self.account)


def join(self: "PrivateData", public: Any, *, on: Any, keep_unmatched: bool = True) -> "PrivateData":
    """Return the data with the columns of a public table, and the same account (`PrivateTable.join`).

    Args:
        public: A pandas, polars or pyarrow frame, or the path of a Parquet or CSV file. It is read now.
        on: The column or columns of the key, which is unique in the public table; a mapping from private to
            public names if they differ.
        keep_unmatched: Whether rows without a match stay, with missing values in the new columns.

    Returns:
        The data with these columns. Nothing private is read or charged.

    Raises:
        InvalidParameterError: If a key has several public rows, or the tables do not fit.
    """
    return type(self)(self.table.join(public, on=on, keep_unmatched=keep_unmatched), self.account)


def join_by_unit(self: "PrivateData", other: PrivateTable) -> "PrivateData":
    """Return each row beside each row that the same unit has in another table (`PrivateTable.join_by_unit`).

    Args:
        other: A private table in the same DuckDB connection, with the same privacy unit. Both tables are
            protected together: everything that is released of the result is charged to this account.

    Returns:
        The joined data, with the same account. Nothing is read or charged.

    Raises:
        InvalidParameterError: If the tables have different units or engines, or `other` has an account of
            its own.
    """
    if not isinstance(other, PrivateTable):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError(
            "one account pays for what two tables tell about a unit: pass "
            "sfumato.statistics.private_table(...), which has no account of its own."
        )
    return type(self)(self.table.join_by_unit(other), self.account)


def group_by(
    self: "PrivateData",
    *columns: str,
    keys: Any = None,
    rows_per_group: int | None = None,
    groups_per_unit: int | None = None,
) -> queries.Grouped:
    """Return groups, of which `agg` asks several statistics on one charge.

    Args:
        *columns: The columns to group by.
        keys: A list of keys (tuples if there are several columns); a mapping from each column to its domain,
            for all combinations; or `sfumato.queries.Discovered()`.
        rows_per_group: The most rows of one unit in one group.
        groups_per_unit: The most groups of one unit.

    Returns:
        The groups. Nothing is read or charged yet.

    Raises:
        InvalidParameterError: If keys are missing, repeated, too many or of another type.
    """
    return queries.group_by(
        self.table,
        *columns,
        keys=keys,
        rows_per_group=rows_per_group,
        groups_per_unit=groups_per_unit,
        account=self.account,
    )


def agg(
    self: "PrivateData",
    *,
    epsilon: float | None = None,
    delta: float = 0.0,
    relation: Relation | str | None = None,
    where: Any = None,
    level: float = 0.95,
    **statistics: queries.Statistic,
) -> queries.Aggregation:
    """Return the query for several statistics of all rows, on one charge.

    Args:
        epsilon: The budget of the whole query. None: every statistic has an `error`.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors. None means that of the account.
        where: A condition of one row, or several. Other rows do not count.
        level: The confidence level of the intervals.
        **statistics: The statistics, by name, such as `n=sfumato.queries.count()`.

    Returns:
        The query. Nothing is computed or charged before `.release()`.

    Raises:
        InvalidParameterError: If a parameter is out of range, or a column does not fit its statistic.
    """
    groups = queries.group_by(self.table, account=self.account)
    return groups.agg(epsilon=epsilon, delta=delta, relation=relation, where=where, level=level, **statistics)


def sql(
    self: "PrivateData",
    statement: str,
    *,
    epsilon: float,
    delta: float = 0.0,
    bounds: Any = None,
    keys: Any = None,
    rows_per_group: int | None = None,
    groups_per_unit: int | None = None,
    tables: Any = None,
) -> queries.Aggregation:
    """Return the query that a SELECT statement asks. Call `.release()` on it.

    Args:
        statement: One SELECT with aggregates, FROM data, or from the name of this data.
        epsilon: The budget of the whole statement.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        bounds: Lower and upper bound, public, by the name of the column: {"amount": (0, 100)}.
        keys: The keys of the groups: a list, domains by column, or `sfumato.queries.Discovered()`.
        rows_per_group: The most rows of one unit in one group.
        groups_per_unit: The most groups of one unit.
        tables: Public tables for JOIN, by name: {"zips": frame}.

    Returns:
        The query. Nothing is computed or charged before `.release()`.

    Raises:
        InvalidParameterError: If a clause has no private answer, which the message names.
    """
    return queries.sql(
        self.table,
        statement,
        epsilon=epsilon,
        delta=delta,
        bounds=bounds,
        keys=keys,
        rows_per_group=rows_per_group,
        groups_per_unit=groups_per_unit,
        account=self.account,
        name=self.account.name,
        tables=tables,
    )


def ranges(
    self: "PrivateData",
    column: str,
    *,
    bounds: tuple[float, float],
    bins: int = 1024,
    epsilon: float,
    delta: float = 0.0,
    level: float = 0.95,
    purpose: str | None = None,
) -> queries.RangeRelease:
    """Release counts from which every range of a column is answered (`sfumato.queries.ranges`).

    Args:
        column: The column of numbers.
        bounds: Lower and upper bound, public. Values outside count in the first and the last bin.
        bins: The number of even bins.
        epsilon: The budget of all ranges together.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        level: The confidence level of the intervals.
        purpose: What the release is for. The account keeps it.

    Returns:
        The release.

    Raises:
        InvalidParameterError: If a parameter is out of range. Nothing is charged.
        BudgetExceededError: If the budget does not cover it. Nothing is spent.
    """
    return queries.ranges(
        self.table[column],
        bounds=bounds,
        bins=bins,
        epsilon=epsilon,
        delta=delta,
        level=level,
        relation=self.account.relation,
        account=self.account,
        purpose=purpose,
    )


def left(self: "PrivateData", *, delta: float = 0.0) -> Remaining:
    """Return what the budget would still admit as one more release.

    Args:
        delta: The delta of that release.

    Returns:
        The largest epsilon, and other figures.

    Raises:
        InvalidParameterError: If the delta is not between 0 and 1.
    """
    return self.account.remaining(delta=delta)
