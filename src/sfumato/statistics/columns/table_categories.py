# SPDX-License-Identifier: Apache-2.0
"""Columns of categories of a private table, counted by its engine.

Guarantee  The same as for arrays (`categories`): at most `contribution_bound` rows of a unit count
           (`owned_rows`), and rows of other categories never displace rows of the named ones.
Edge cases Values that the engine counts as one category are written in one way only (`engine_values`).
           Otherwise one row could decide how a category is written that other rows share. Types for which
           this is not possible (intervals, lists, structures) are refused by the schema. Values that Python
           cannot represent are not counted. `tally` returns one number for each named category. `tallies`
           returns one for each category that occurs; these must fit into memory (a table's `keys` streams).
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sfumato.errors import InvalidParameterError
from sfumato.statistics.arrays import Integers
from sfumato.statistics.columns.table_columns import column, fits
from sfumato.statistics.contributions.owned_rows import Expression, OwnedRows, described, shown
from sfumato.statistics.sources.engine_values import comparable, portable, read_back
from sfumato.statistics.sources.pandas_frames import require_written
from sfumato.statistics.sources.schema import plain_type, unfitting

__all__ = ["TableCategories"]


@dataclass(frozen=True, repr=False)
class TableCategories:
    """One column of categories of a private table."""

    owned: OwnedRows
    name: str

    @property
    def privacy_unit(self) -> str:
        """The privacy unit: who is protected."""
        return self.owned.privacy_unit

    @property
    def contribution_bound(self) -> int:
        """The most rows of one unit that count."""
        return self.owned.contribution_bound

    def __repr__(self) -> str:
        return described(self, self.name)

    def __dir__(self) -> list[str]:
        return shown(self, "owned", "tallies", "tally")

    def tally(self, categories: Sequence[Hashable]) -> Integers:
        """Count the rows of each of these categories, by one query. Raw: not a release."""
        self.require_fitting(categories)
        rows = self.owned.kept(self._values(), only=lambda rows: [rows["value"].isin(list(categories))])
        found = self._counted(rows)
        return np.array([found.get(category, 0) for category in categories], dtype=np.int64)

    def tallies(self) -> Mapping[Hashable, int]:
        """Count the rows of every category that occurs, by one query. Raw: not a release."""
        return self._counted(self.owned.kept(self._values()))

    def require_countable(self) -> None:
        """Raise if the type of the column has no categories, or the engine cannot count it."""
        self.owned.require_computable(self._values(), self.name)

    def require_fitting(self, categories: Sequence[Hashable]) -> None:
        """Raise if categories are not of the column's type: an engine would cast each row to compare."""
        kind = _category(self.owned, self.name).type()
        if not all(fits(category, kind, whole=False) for category in categories):
            named = str(kind) if kind.is_decimal() else plain_type(kind)
            raise unfitting(self.name, named, categories, what="category")
        if self.name in self.owned.written_alike:
            require_written(self.name, categories)

    def plan(self) -> str:
        """Return the SQL for the rows that count."""
        return self.owned.sql(self.owned.kept(self._values()))

    def _values(self) -> dict[str, Expression]:
        return {"value": comparable(_category(self.owned, self.name), engine=self.owned.engine.name)}

    def _counted(self, rows: Expression) -> Counter[Hashable]:
        counts = rows.group_by("value").aggregate(count=rows.count())
        kind = counts["value"].type()
        found = self.owned.table(
            counts.mutate(value=portable(counts["value"], engine=self.owned.engine.name))
        )
        categories = read_back(found["value"].to_pylist(), kind)
        counted = Counter[Hashable]()
        for category, count in zip(categories, found["count"].to_pylist(), strict=True):
            if category is not None:
                counted[self._named(category)] += count
        return counted

    def _named(self, category: Hashable) -> Hashable:
        """Return a category; an integer if a missing value may have made it a float."""
        if self.owned.floats_may_be_whole and isinstance(category, float) and category.is_integer():
            return int(category)
        return category


def _category(owned: OwnedRows, name: str) -> Expression:
    value = column(owned, name)
    kind = value.type()
    plain = kind.is_string() or kind.is_numeric() or kind.is_boolean() or kind.is_uuid() or kind.is_binary()
    zoned = kind.is_timestamp() and kind.timezone is not None
    if not (plain or kind.is_date() or (kind.is_timestamp() and not zoned) or kind.is_time()):
        raise InvalidParameterError(
            f"column {name!r} has type {kind}, but categories are text, numbers, true or false, dates or "
            "times without a zone. Convert it first, with table.mutate(...)."
        )
    return value
