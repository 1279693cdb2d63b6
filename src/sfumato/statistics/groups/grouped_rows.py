# SPDX-License-Identifier: Apache-2.0
"""Groups of rows for public keys, counted and added up by one query.

Guarantee  Counts and totals are of at most `contribution_bound` rows of one unit, in all groups together, and
           are exact whole numbers (`owned_rows`, `table_columns`). They are released with noise
           (`group_statistics`). Keys are named by the caller without the data, or were released before
           (`key_discovery`). Every key gets an answer, also a key without rows, so which keys occur stays
           private. Rows with other keys are left out before rows are bounded, so that they never displace
           rows of the named keys.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce
from operator import add, and_, or_
from typing import Any

import numpy as np

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.statistics.arrays import Integers
from sfumato.statistics.columns.columns import Bounds
from sfumato.statistics.columns.table_columns import fits, numeric
from sfumato.statistics.contributions.owned_rows import Expression, OwnedRows, described, shown
from sfumato.statistics.groups.group_statistics import GroupCount, GroupMean, GroupSum, Key, Value
from sfumato.statistics.groups.key_discovery import key_columns
from sfumato.statistics.query import Query
from sfumato.statistics.sources.pandas_frames import require_written
from sfumato.statistics.sources.schema import plain_type, unfitting

__all__ = ["Groups", "groups_of"]

_FEW = 32  # keys that are compared one by one; more keys are looked up


@dataclass(frozen=True, slots=True, repr=False)
class Groups:
    """Rows of a private table, grouped by columns, for public keys.

    Args:
        owned: The rows, their engine and the units that own them.
        columns: The columns to group by.
        keys: The keys, one tuple for each.
    """

    owned: OwnedRows
    columns: tuple[str, ...]
    keys: tuple[Key, ...]

    @property
    def privacy_unit(self) -> str:
        """The privacy unit: who is protected."""
        return self.owned.privacy_unit

    @property
    def contribution_bound(self) -> int:
        """The most rows of one unit that count, in all groups together."""
        return self.owned.contribution_bound

    def __repr__(self) -> str:
        return described(self, *self.columns)

    def __dir__(self) -> list[str]:
        return shown(self, "compute", "owned", "totals", "wanted")

    def count(
        self,
        *,
        epsilon: float,
        delta: float = 0.0,
        relation: Relation | str = Relation.ADD_REMOVE,
        level: float = 0.95,
    ) -> Query[dict[Any, float]]:
        """Return the query for the number of rows in each group.

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
        >>> table = private_table(pd.DataFrame({"sector": ["steel"] * 9 + ["wood"]}))
        >>> sorted(table.group_by("sector", keys=["wood", "steel"]).count(epsilon=1.0).release().value)
        ['steel', 'wood']
        """
        terms = self._terms(epsilon, delta, relation, level, "rows")
        return Query(GroupCount(unit=self.owned.unit, **terms), self)

    def sum(
        self,
        column: str,
        *,
        bounds: Bounds,
        epsilon: float,
        delta: float = 0.0,
        relation: Relation | str = Relation.ADD_REMOVE,
        level: float = 0.95,
    ) -> Query[dict[Any, float]]:
        """Return the query for the sum of a column in each group, with values clipped to the bounds.

        Args:
            column: The name of a column of numbers.
            bounds: Lower and upper bound, public. Values outside are clipped to them.
            epsilon: The privacy budget of this release.
            delta: The delta of the guarantee. 0 means pure differential privacy.
            relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
            level: The confidence level of the interval, between 0 and 1.

        Returns:
            The query. Nothing is computed or charged before `.release()`.

        Raises:
            InvalidParameterError: If a parameter is out of range, or the column is not one of numbers.
        """
        self._require_number(column)
        return Query(GroupSum(bounds=bounds, **self._terms(epsilon, delta, relation, level, column)), self)

    def mean(
        self,
        column: str,
        *,
        bounds: Bounds,
        epsilon: float,
        delta: float = 0.0,
        relation: Relation | str = Relation.ADD_REMOVE,
        level: float = 0.95,
    ) -> Query[dict[Any, float]]:
        """Return the query for the mean of a column in each group, with values clipped to the bounds.

        Args:
            column: The name of a column of numbers.
            bounds: Lower and upper bound, public. Values outside are clipped to them.
            epsilon: The privacy budget of this release.
            delta: The delta of the guarantee. 0 means pure differential privacy.
            relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
            level: The confidence level of the interval, between 0 and 1.

        Returns:
            The query. Nothing is computed or charged before `.release()`.

        Raises:
            InvalidParameterError: If a parameter is out of range, or the column is not one of numbers.
        """
        self._require_number(column)
        return Query(GroupMean(bounds=bounds, **self._terms(epsilon, delta, relation, level, column)), self)

    def _require_number(self, column: str) -> None:
        self.owned.require_computable({"value": numeric(self.owned, column)}, column)

    def _terms(
        self, epsilon: float, delta: float, relation: Relation | str, level: float, column: str
    ) -> dict[str, Any]:
        return {
            "columns": self.columns,
            "keys": self.keys,
            "contribution_bound": self.contribution_bound,
            "epsilon": epsilon,
            "delta": delta,
            "relation": Relation.parse(relation),
            "level": level,
            "column": column,
        }

    def totals(self, column: str | None, value: Value | None) -> Expression:
        """Return the query: for each key the number of rows, and the sum of a value of a column."""
        values = key_columns(self.owned, self.columns)
        names = list(values)
        if column is not None:
            values["value"] = numeric(self.owned, column)
        rows = self.owned.kept(values, only=self.wanted)
        sums = {} if value is None else {"total": value(rows["value"]).cast("int64").sum()}
        return rows.group_by(names).aggregate(count=rows.count(), **sums)

    def wanted(self, rows: Expression) -> list[Expression]:
        """Return conditions for rows that have one of the keys."""
        columns = [rows[f"key{i}"] for i in range(len(self.columns))]
        # If each row is a unit, a row with another key displaces no other, and is skipped later.
        return _has_parts(columns, self.keys) if self.owned.unit is None else _has_one(columns, self.keys)

    def compute(self, column: str | None, value: Value | None) -> tuple[Integers, Integers]:
        """Return counts and totals in the order of the keys; 0 for a key without rows. Raw: not a release."""
        found = self.owned.table(self.totals(column, value)).to_pydict()
        place = {key: i for i, key in enumerate(self.keys)}
        counts, totals = np.zeros((2, len(self.keys)), dtype=np.int64)
        seen = zip(*(found[f"key{i}"] for i in range(len(self.columns))), strict=True)
        for row, key in enumerate(seen):
            if key in place:
                counts[place[key]] += found["count"][row]
                totals[place[key]] += int(found["total"][row]) if value is not None else 0
        return counts, totals


def _has_parts(columns: Sequence[Expression], keys: Sequence[Key]) -> list[Expression]:
    """Return conditions for rows each part of which occurs in one of the keys."""
    parts = zip(*keys, strict=True)
    return [column.isin(list(dict.fromkeys(part))) for column, part in zip(columns, parts, strict=True)]


def _has_one(columns: Sequence[Expression], keys: Sequence[Key]) -> list[Expression]:
    """Return conditions for rows that have one of the keys."""
    each = _has_parts(columns, keys)
    if len(keys) == math.prod(len(set(part)) for part in zip(*keys, strict=True)):  # all combinations
        return each
    if len(keys) <= _FEW:
        pairs = (zip(columns, key, strict=True) for key in keys)
        return [reduce(or_, (reduce(and_, (column == part for column, part in pair)) for pair in pairs))]
    # Keys joined by a character that no part has stay distinct. Engines look up one text among many.
    taken = {letter for key in keys for part in key for letter in _label(part)}
    between = next(chr(code) for code in range(1, len(taken) + 2) if chr(code) not in taken)
    joined = reduce(add, [_labels(columns[0]), *(between + _labels(column) for column in columns[1:])])
    return [*each, joined.isin([between.join(_label(part) for part in key) for key in keys])]


def _label(part: Hashable) -> str:
    if isinstance(part, bool):
        return str(int(part))
    return part.isoformat() if isinstance(part, date) else str(part)


def _labels(column: Expression) -> Expression:
    """Return the parts of keys as text, as `_label` does; wrong only for dates that cannot be keys."""
    import ibis

    kind = column.type()
    if kind.is_boolean():
        return ibis.ifelse(column, "1", "0")
    return column.strftime("%Y-%m-%d") if kind.is_date() else column.cast("string")


def groups_of(owned: OwnedRows, columns: Sequence[str], keys: Sequence[Any]) -> Groups:
    """Return groups. Raises if the keys do not fit the schema."""
    values = key_columns(owned, columns)
    owned.require_computable(values, *columns)
    kinds = [value.type() for value in values.values()]
    if isinstance(keys, str) or not isinstance(keys, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError("keys must be a list of keys, as in keys=['Rome', 'Oslo'].")
    known = tuple(_key(key, columns, kinds) for key in keys)
    for place, name in enumerate(columns):
        if name in owned.written_alike:
            require_written(name, [key[place] for key in known])
    if not known or len(set(known)) < len(known):
        raise InvalidParameterError("keys must contain at least one key, and each key once.")
    return Groups(owned, tuple(columns), known)


def _key(key: Any, columns: Sequence[str], kinds: Sequence[Any]) -> Key:
    parts = (key,) if len(kinds) == 1 else key
    if not (isinstance(parts, tuple) and len(parts) == len(kinds)):
        raise InvalidParameterError(
            f"key {key!r} must be a tuple with {len(kinds)} parts, one for each column."
        )
    for part, column, kind in zip(parts, columns, kinds, strict=True):
        if not fits(part, kind, whole=True):
            raise unfitting(column, plain_type(kind), [part], what="key")
    return parts
