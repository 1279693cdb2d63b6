# SPDX-License-Identifier: Apache-2.0
"""Columns of categories of a private table: the engine counts.

Guarantee  What `categories` promises of an array: at most `contribution_bound` rows of a unit count
           (`owned_rows`), and a row that is not asked about takes no place of one that is.
Alike      What the engine counts as one is written in one way only: zero has no sign, texts have no collation
           (`keys.told_apart`). Else one row could decide how a category is written that others have, too.
           Types where that cannot be had (intervals, lists, structures) are refused, by the schema.
Memory     `tally` brings back one number for each category that was named; `tallies` one for each that
           occurs, which must fit into memory (a table's `keys` streams them).
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sfumato.errors import InvalidParameterError
from sfumato.statistics.categories import Counts
from sfumato.statistics.keys import told_apart
from sfumato.statistics.owned_rows import Expression, OwnedRows
from sfumato.statistics.table_columns import column

__all__ = ["TableCategories"]


@dataclass(frozen=True)
class TableCategories:
    """One column of categories of a private table."""

    owned: OwnedRows
    name: str

    @property
    def privacy_unit(self) -> str:
        """Who is protected."""
        return self.owned.privacy_unit

    @property
    def contribution_bound(self) -> int:
        """The most rows one unit has."""
        return self.owned.contribution_bound

    def tally(self, categories: Sequence[Hashable]) -> Counts:
        """Count the rows of each of these categories, by one query."""
        rows = self.owned.kept(self._values(), only=lambda rows: [rows["value"].isin(list(categories))])
        found = self._counted(rows)
        return np.array([found.get(category, 0) for category in categories], dtype=np.int64)

    def tallies(self) -> Mapping[Hashable, int]:
        """Count the rows of every category that occurs, by one query."""
        return self._counted(self.owned.kept(self._values()))

    def plan(self) -> str:
        """Return the query for the rows that count."""
        return self.owned.sql(self.owned.kept(self._values()))

    def _values(self) -> dict[str, Expression]:
        return {"value": told_apart(self.owned, _without_sign_of_zero(_category(self.owned, self.name)))}

    def _counted(self, rows: Expression) -> Counter[Hashable]:
        found = self.owned.table(rows.group_by("value").aggregate(count=rows.count()))
        counted = Counter[Hashable]()
        for category, count in zip(found["value"].to_pylist(), found["count"].to_pylist(), strict=True):
            counted[category] += count
        return counted


def _category(owned: OwnedRows, name: str) -> Expression:
    value = column(owned, name)
    kind = value.type()
    plain = kind.is_string() or kind.is_numeric() or kind.is_boolean() or kind.is_uuid() or kind.is_binary()
    if not (plain or kind.is_date() or kind.is_timestamp() or kind.is_time()):
        raise InvalidParameterError(
            f"column {name!r} has type {kind}, and categories are text, numbers, true or false, dates or "
            "times. Make one of these of it first, with table.mutate(...)."
        )
    return value


def _without_sign_of_zero(value: Expression) -> Expression:
    import ibis

    if not value.type().is_floating():
        return value
    return ibis.ifelse(value == 0, ibis.literal(0.0).cast(value.type()), value)
