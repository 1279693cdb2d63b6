# SPDX-License-Identifier: Apache-2.0
"""Groups of a private table, of which workloads and ranges are asked.

Guarantee  Keys, bounds, columns and conditions are checked by the schema. Nothing is charged or read before a
           release (`aggregation`, `group_ranges`).
Edge cases Keys are a list, a mapping from columns to domains (their product), or `Discovered`. Two bounds,
           `rows_per_group` and `groups_per_unit`, divide the contribution bound of the table. A unit is in no
           more groups than keys are named, so that number, which is public, bounds the second one, too.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sfumato import _check
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator
from sfumato.queries.aggregation import Aggregation
from sfumato.queries.bin_blocks import BinBlocks
from sfumato.queries.counts import Statistic
from sfumato.queries.group_ranges import GroupRangeRelease, GroupRanges, released
from sfumato.queries.public_keys import MOST_KEYS, listed, require_few
from sfumato.queries.spending import Reach
from sfumato.queries.tables import require_names_apart
from sfumato.queries.workload import Source, Workload, planned
from sfumato.statistics.columns.columns import Bounds
from sfumato.statistics.contributions.owned_rows import Within
from sfumato.statistics.groups.grouped_rows import groups_of
from sfumato.statistics.query import Query
from sfumato.statistics.sources.private_tables import PrivateTable

__all__ = ["MOST_KEYS", "Discovered", "Grouped", "group_by"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Discovered:
    """Keys that are found in the data, if enough units have them. The search is part of the charge.

    Args:
        share: The share of the budget for the search, relative to the shares of the statistics.

    Raises:
        InvalidParameterError: If the share is not above 0.
    """

    share: float = 1.0

    def __post_init__(self) -> None:
        _check.positive(share=self.share)


Keys = Sequence[Any] | Mapping[str, Sequence[Any]] | Discovered


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Grouped:
    """Groups of a private table. `group_by` makes one; `agg` asks for statistics of each group.

    Args:
        table: The private table.
        columns: The columns to group by; none makes one group of all rows.
        keys: The keys, or how they are found; None without columns.
        rows_per_group: The most rows of one unit in one group, or None.
        groups_per_unit: The most groups of one unit, or None.
        account: The account that is charged, or None.
        heads: The names of the columns in the release; none means their own.
    """

    table: PrivateTable
    columns: tuple[str, ...] = ()
    keys: Keys | None = None
    rows_per_group: int | None = None
    groups_per_unit: int | None = None
    account: Account | None = None
    heads: tuple[str, ...] = ()

    def __repr__(self) -> str:
        by = f" by {', '.join(self.columns)}" if self.columns else ""
        return f"<Grouped{by} of {self.table!r}>"

    def agg(
        self,
        *,
        epsilon: float | None = None,
        delta: float = 0.0,
        relation: Relation | str | None = None,
        where: Any = None,
        level: float = 0.95,
        **statistics: Statistic,
    ) -> "Aggregation":
        """Return the query for several statistics of each group, on one charge.

        Args:
            epsilon: The budget of the whole query. None: every statistic has an `error`, which costs what it
                needs.
            delta: The delta of the guarantee. 0 means pure differential privacy; above 0, noise is Gaussian.
            relation: Which data sets are neighbors. None means that of the account, or add-remove.
            where: A condition of one row, or several, as `filter` takes them. Other rows do not count.
            level: The confidence level of the intervals, between 0 and 1.
            **statistics: The statistics, each by the name of its column in the release.

        Returns:
            The query. Nothing is computed or charged before `.release()`.

        Raises:
            InvalidParameterError: If a parameter is out of range, or a column does not fit its statistic.
        """
        if not statistics:
            raise InvalidParameterError("pass one or more statistics, such as n=count().")
        wrong = [name for name, each in statistics.items() if not hasattr(each, "expected_error")]
        if wrong:
            raise InvalidParameterError(
                f"{wrong[0]!r} is not a statistic. Pass one of sfumato.queries, such as n=count(); other "
                "parameters are epsilon, delta, relation, where and level."
            )
        heads = self.heads or self.columns
        require_names_apart(heads, statistics)
        asked, source = self.reach(self._relation(relation)), self.source(where)
        workload = planned(
            statistics,
            columns=heads,
            reach=asked,
            epsilon=epsilon,
            delta=delta,
            contribution_bound=self.table.contribution_bound,
            level=level,
            key_share=self.keys.share if isinstance(self.keys, Discovered) else None,
        )
        _require_fitting(source, workload)
        return Aggregation(
            query=Query(workload, source), workload=workload, source=source, account=self.account
        )

    def ranges(
        self,
        column: str,
        *,
        bounds: Bounds,
        bins: int = 1024,
        epsilon: float,
        delta: float = 0.0,
        relation: Relation | str | None = None,
        where: Any = None,
        level: float = 0.95,
        purpose: str | None = None,
        generator: Generator | None = None,
    ) -> GroupRangeRelease:
        """Release counts from which every range of a column is answered in each group.

        Args:
            column: The column of numbers.
            bounds: Lower and upper bound, public. Values outside count in the first and the last bin.
            bins: The number of even bins.
            epsilon: The budget of all ranges of all groups together.
            delta: The delta of the guarantee. 0 means pure differential privacy.
            relation: Which data sets are neighbors. None means that of the account, or add-remove.
            where: A condition of one row, or several, as `filter` takes them. Other rows do not count.
            level: The confidence level of the intervals, between 0 and 1.
            purpose: The purpose that the account records.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The release: `found["north"].between(20, 50)`.

        Raises:
            InvalidParameterError: If a parameter is out of range, or keys are not public. Nothing is charged.
            BudgetExceededError: If the account does not cover it. Nothing is spent.

        >>> import pandas as pd
        >>> from sfumato.statistics import private_table
        >>> shops = pd.DataFrame({"city": ["Rome", "Oslo"] * 500, "price": [10.0, 30.0] * 500})
        >>> groups = group_by(private_table(shops), "city", keys=["Oslo", "Rome"])
        >>> prices = groups.ranges("price", bounds=(0, 50), bins=50, epsilon=2.0)
        >>> prices["Oslo"].between(20, 40).value > 400, prices["Rome"].cdf(20) > 0.8
        (True, True)
        """
        question = GroupRanges(
            column=column,
            blocks=BinBlocks(bounds=bounds, bins=bins),
            columns=self.heads or self.columns,
            reach=self.reach(self._relation(relation)),
            contribution_bound=self.table.contribution_bound,
            epsilon=epsilon,
            delta=delta,
            level=level,
        )
        source = self.source(where)
        return released(question, source, account=self.account, purpose=purpose, generator=generator)

    def _relation(self, asked: Relation | str | None) -> Relation:
        if asked is not None:
            return Relation.parse(asked)
        return Relation.ADD_REMOVE if self.account is None else self.account.relation

    def reach(self, relation: Relation) -> Reach:
        """Return how many rows and groups of a unit count.

        Args:
            relation: Which data sets are neighbors.

        Returns:
            The reach.

        Raises:
            InvalidParameterError: If the relation is not supported, or the bounds do not fit.
        """
        if relation not in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
            raise InvalidParameterError(
                f"queries support add-remove and replace-one neighbors, not {relation.value}."
            )
        unit, bound = self.table.owned.unit, self.table.contribution_bound
        rows, groups = self._bounds()
        if rows is None or groups is None:
            most = self._at_most_named(bound) if self.columns else 1
            return Reach(relation=relation, rows=bound, groups=1, most_groups=most, unit=unit)
        return Reach(relation=relation, rows=rows, groups=groups, most_groups=groups, unit=unit)

    def _bounds(self) -> tuple[int | None, int | None]:
        """Return rows for each group and groups for each unit, or None for both if they are not bounded."""
        rows, groups, bound = self.rows_per_group, self.groups_per_unit, self.table.contribution_bound
        if rows is None and groups is None:
            return None, None
        if self.table.owned.unit is None or not self.columns:
            raise InvalidParameterError(
                "rows_per_group and groups_per_unit bound the rows of a unit in groups: open the data with a "
                "privacy_unit, and group it."
            )
        if rows is not None:
            _check.count(rows_per_group=rows)
        if groups is not None:
            _check.count(groups_per_unit=groups)
        rows, groups = rows or max(1, bound // (groups or 1)), groups or max(1, bound // (rows or 1))
        groups = self._at_most_named(groups)
        if rows * groups > bound:
            raise InvalidParameterError(
                f"{rows} rows in each of {groups} groups are more than the contribution bound of {bound} "
                "that the data was opened with. Lower one of them, or open the data with a larger bound."
            )
        return rows, groups

    def _at_most_named(self, groups: int) -> int:
        """Return so many groups, but no more than keys are named."""
        if self.keys is None or isinstance(self.keys, Discovered):
            return groups
        domains = self.keys.values() if isinstance(self.keys, Mapping) else (self.keys,)
        return max(1, min(groups, math.prod(map(len, domains))))

    def source(self, where: Any = None) -> Source:
        """Return the rows that are asked, with their keys and bounds.

        Args:
            where: A condition of one row, or several.

        Returns:
            The rows. Nothing is read.

        Raises:
            InvalidParameterError: If keys, bounds or the condition do not fit.
        """
        table = self.table
        if where is not None:
            table = table.filter(*(where if isinstance(where, list | tuple) else (where,)))
        rows, groups = self._bounds()
        within = None
        if rows is not None and groups is not None:
            named = tuple(f"key{i}" for i in range(len(self.columns)))
            within = Within(keys=named, groups=groups, rows=rows)
        return Source(
            owned=table.owned,
            columns=self.columns,
            keys=_known(table, self.columns, self.keys),
            within=within,
        )


def group_by(
    table: PrivateTable,
    *columns: str,
    keys: Keys | None = None,
    rows_per_group: int | None = None,
    groups_per_unit: int | None = None,
    account: Account | None = None,
) -> Grouped:
    """Return groups of a private table, of which `agg` asks several statistics on one charge.

    Args:
        table: The private table.
        *columns: The columns to group by. None makes one group of all rows.
        keys: A list of keys (tuples if there are several columns); a mapping from each column to its domain,
            for all combinations; or `Discovered()`. Rows with other keys are left out.
        rows_per_group: The most rows of one unit in one group.
        groups_per_unit: The most groups of one unit; never more than keys are named.
        account: The account that releases are charged to.

    Returns:
        The groups.

    Raises:
        InvalidParameterError: If keys are missing, repeated, too many or not of the type of their column, or
            the bounds exceed the contribution bound.

    >>> import pandas as pd
    >>> from sfumato.queries import count, mean
    >>> from sfumato.statistics import private_table
    >>> shops = pd.DataFrame({"city": ["Rome", "Oslo"] * 500, "price": [10.0, 30.0] * 500})
    >>> groups = group_by(private_table(shops), "city", keys=["Oslo", "Rome"])
    >>> table = groups.agg(n=count(), price=mean("price", bounds=(0, 50)), epsilon=2.0).release()
    >>> table.keys, list(table.values)
    (['Oslo', 'Rome'], ['n', 'price'])
    """
    if columns and keys is None:
        raise InvalidParameterError(
            "which keys a column has is private. Pass keys=[...] chosen without the data, the domains of the "
            f"columns as keys={{{', '.join(f'{name!r}: [...]' for name in columns)}}}, or "
            "keys=Discovered() to find common ones as part of the charge."
        )
    if keys is not None and not columns:
        raise InvalidParameterError("keys need columns to group by: group_by('region', keys=[...]).")
    if isinstance(keys, Mapping) and set(keys) != set(columns):
        raise InvalidParameterError("keys must have one domain for each column that is grouped by.")
    grouped = Grouped(
        table=table,
        columns=columns,
        keys=keys if keys is None or isinstance(keys, Discovered) else listed(keys),
        rows_per_group=rows_per_group,
        groups_per_unit=groups_per_unit,
        account=account,
    )
    grouped.source()  # refuses keys and bounds that do not fit
    return grouped


def _known(table: PrivateTable, columns: tuple[str, ...], keys: Keys | None) -> tuple[Any, ...] | None:
    """Return the public keys as tuples, checked by the schema; None if they are discovered."""
    if keys is None:
        return None
    if isinstance(keys, Discovered):
        Source(owned=table.owned, columns=columns, keys=None, within=None).keyed()  # checks the columns
        return None
    if isinstance(keys, Mapping):
        domains = [list(keys[name]) for name in columns]
        require_few(math.prod(map(len, domains)))
        combined = list(itertools.product(*domains))
        listed: Any = [key[0] for key in combined] if len(columns) == 1 else combined
    else:
        require_few(len(keys))
        listed = keys
    return groups_of(table.owned, columns, listed).keys


def _require_fitting(source: Source, workload: Workload) -> None:
    rows = source.grouped(()) if not source.columns else None
    if source.columns:
        rows = source.grouped() if source.keys is not None else None
    if rows is None:  # keys are discovered: any key that fits checks the other columns
        rows = Source(owned=source.owned, columns=(), keys=None, within=None).grouped()
    rows.require_computable(workload.totals(), workload.bins())
