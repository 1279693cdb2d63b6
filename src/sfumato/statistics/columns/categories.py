# SPDX-License-Identifier: Apache-2.0
"""Private columns of categories: text, codes, and other values that are counted by equality.

Guarantee  A column counts at most `contribution_bound` rows of one privacy unit; which rows of a unit count
           depends only on that unit's rows.
Edge cases Rows belong to one category only if they have one type and are written alike: 1, 1.0 and True are
           three categories. Otherwise the first row would decide how a category is written that other rows
           share. Zero has no sign, and numpy's scalars count as Python's. A category that the caller names
           counts all rows equal to it. None and NaN are missing, and are left out.
Failure    A value that cannot be a category (a list, a dictionary) is refused, and not shown.
Not here   Columns of a table, which the engine counts in the same way: `table_categories`.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Protocol, cast
from uuid import UUID

import numpy as np

from sfumato.errors import InvalidParameterError
from sfumato.statistics.arrays import Integers
from sfumato.statistics.columns.columns import ArrayRows, rows_of
from sfumato.statistics.columns.input_values import is_missing, name_of, objects_of
from sfumato.statistics.sources.schema import plain_type_of, unfitting

__all__ = ["ArrayCategories", "Categories", "categories_of"]

Written = tuple[type[Any], str, Hashable]
_WRITTEN_ALIKE = (str, int, bool, bytes, date)  # if equal
_SORTED = (*_WRITTEN_ALIKE, float, Decimal, UUID)


class Categories(Protocol):
    """One private column of categories."""

    @property
    def name(self) -> str:
        """The name of the column."""
        ...

    @property
    def privacy_unit(self) -> str:
        """The privacy unit: who is protected."""
        ...

    @property
    def contribution_bound(self) -> int:
        """The most rows of one unit that count."""
        ...

    def require_fitting(self, categories: Sequence[Hashable]) -> None:
        """Raise if categories are not of the type of the column, which is public."""
        ...

    def tally(self, categories: Sequence[Hashable]) -> Integers:
        """Count the rows of each of these categories; other rows are not counted."""
        ...

    def tallies(self) -> Mapping[Hashable, int]:
        """Count the rows of every category that occurs. Which categories occur is private."""
        ...


@dataclass(frozen=True)
class ArrayCategories:
    """One column of categories in memory."""

    counted: Mapping[Written, int]
    name: str = "values"
    privacy_unit: str = "row"
    contribution_bound: int = 1
    kind: str | None = None  # the type of the array (`schema`); None: each row has its own type

    def require_fitting(self, categories: Sequence[Hashable]) -> None:
        """Raise if texts are given for a column of another type, or other values for a column of text."""
        textual = self.kind == "text"
        if self.kind is not None and any(isinstance(each, str) != textual for each in categories):
            raise unfitting(self.name, self.kind, categories, what="category")

    def tally(self, categories: Sequence[Hashable]) -> Integers:
        """Count the rows of each of these categories."""
        equal = Counter[Hashable]()
        for (_, _, value), count in self.counted.items():
            equal[value] += count
        return np.array([equal[category] for category in categories], dtype=np.int64)

    def tallies(self) -> Mapping[Hashable, int]:
        """Count the rows of every category that occurs."""
        return _Tallies(self.counted)


class _Tallies(Mapping[Hashable, int]):
    """Counts by category; equal categories that are written differently are distinct."""

    def __init__(self, counted: Mapping[Written, int]) -> None:
        self._counted = counted

    def __getitem__(self, category: Hashable) -> int:
        return self._counted[_written(category)]

    def __iter__(self) -> Iterator[Hashable]:
        return (value for _, _, value in self._counted)

    def __len__(self) -> int:
        return len(self._counted)


def categories_of(
    values: Any,
    *,
    name: str | None = None,
    owners: Any = None,
    contribution_bound: int = 1,
    privacy_unit: str | None = None,
) -> Categories:
    """Return a private column of categories in memory; a column of a table is returned unchanged.

    Args:
        values: Categories: text, numbers, dates, in a list, an array or a series. Missing values are left
            out.
        name: The name of the column. None means the name of the series, or "values".
        owners: The privacy unit of each row, one entry for each. None means that each row is a unit.
        contribution_bound: The most rows of one unit that count. Above 1 it needs `owners`.
        privacy_unit: The name of the privacy unit. None means "owner" with `owners`, else "row".

    Returns:
        The column, for any statistic of categories.

    Raises:
        InvalidParameterError: If a value cannot be a category, or `owners` do not fit.

    >>> categories_of(["tea", "coffee", None, "tea"]).tally(["tea", "milk"])
    array([2, 0])
    """
    if hasattr(values, "tally"):
        return values
    named = name or name_of(values)
    known = objects_of(values, what=named)
    labels = _labels(known, named)
    ranks: Mapping[Any, float] = {**({} if owners is None else _ranks(labels)), None: np.nan}
    order = np.fromiter((ranks.get(label, 0.0) for label in labels), np.float64, len(labels))
    kept = rows_of(
        np.column_stack([order, np.arange(len(labels))]),
        owners=owners,
        contribution_bound=contribution_bound,
        privacy_unit=privacy_unit,
    )
    rows = cast(ArrayRows, kept).values[:, 1].astype(np.int64)
    counted = Counter(cast(Written, labels[row]) for row in rows)
    return ArrayCategories(counted, named, kept.privacy_unit, contribution_bound, plain_type_of(values))


def _written(value: Any) -> Written:
    """Return the type of a category, its text if equal values may differ in it, and the value."""
    if isinstance(value, np.bool_ | np.number | np.str_):
        value = cast(Hashable, value.item())
    kind = cast(type[Any], type(value))
    if kind is float:
        return kind, "", value + 0.0  # -0.0 + 0.0 is 0.0
    return kind, "" if kind in _WRITTEN_ALIKE else repr(value), value


def _labels(values: list[object], name: str) -> list[Written | None]:
    """Return categories as they are written; None for a missing one."""
    try:
        labels = [None if is_missing(value) else _written(value) for value in values]
        hash(tuple(labels))  # fails on a list or a dictionary
        return labels
    except Exception:  # the message may quote a value
        pass
    raise InvalidParameterError(
        f"{name} must be categories, such as text, numbers or dates. Nothing was charged."
    )


def _ranks(labels: list[Written | None]) -> dict[Written, int]:
    """Return the rank of each category: by type, then as an engine sorts that type."""
    known = {label for label in labels if label is not None}
    return {label: rank for rank, label in enumerate(sorted(known, key=_sortable))}


def _sortable(label: Written) -> tuple[str, Any, str]:
    """Return the sort key of a category, which depends on the type: values of one type always compare.

    Equal categories that are written differently, such as 1.0 and 1.00, are sorted by their text.
    """
    kind, written, value = label
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind in _SORTED:
        return name, value, written
    return name, cast(Any, value).isoformat() if kind in (datetime, time) else "", written
