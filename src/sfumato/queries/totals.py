# SPDX-License-Identifier: Apache-2.0
"""The exact totals that the statistics of a workload need, all computed by one query of the engine.

Guarantee  Every total counts the same rows: those that have one of the keys and a unit, bounded once for the
           whole workload (`owned_rows`). So one unit moves each total by at most what `spending.Reach` says.
           Totals are exact whole numbers, in any order of addition (`table_columns`). They are not releases.
Edge cases A row whose value is missing counts as a row, and for no total of that column. Float64 adds whole
           steps exactly up to `MOST_ROWS` rows; beyond, integers are added up by a second query with the same
           result. Every key has a total, also one without rows: 0.
Failure    A type that does not fit is refused by the schema, before anything is charged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from sfumato.errors import InvalidParameterError
from sfumato.statistics.arrays import Floats, Integers
from sfumato.statistics.columns.columns import MOST_ROWS, STEPS, Bounds
from sfumato.statistics.columns.table_columns import binned, column, numeric, stepped, whole
from sfumato.statistics.contributions.owned_rows import Expression, OwnedRows, Within, is_known, number
from sfumato.statistics.groups.group_statistics import in_grid
from sfumato.statistics.groups.grouped_rows import Groups
from sfumato.statistics.groups.key_discovery import key_columns
from sfumato.statistics.sources.collations import in_bytes
from sfumato.statistics.sources.engine_values import comparable

__all__ = ["Bins", "Found", "GroupBins", "GroupedRows", "Kind", "Total"]

_ROWS, _BIN = "rows", "bin"


class Kind(Enum):
    """What is added up, or counted."""

    ROWS = "rows"
    KNOWN = "known"
    STEPS = "steps"
    SQUARES = "squares"
    GRID = "grid"
    DISTINCT = "distinct"


@dataclass(frozen=True, slots=True)
class Total:
    """One exact number of each group."""

    kind: Kind
    column: str | None = None
    bounds: Bounds | None = None


@dataclass(frozen=True, slots=True)
class Bins:
    """The counts of a column in even bins over bounds, in each group."""

    column: str
    bounds: Bounds
    cells: int

    @property
    def edges(self) -> Floats:
        """The edges of the bins."""
        return np.linspace(*self.bounds, self.cells + 1)


@dataclass(frozen=True, slots=True)
class GroupBins:
    """The bins of one group, as a column that can be counted. Raw: not a release."""

    places: Integers
    counts: Integers

    def histogram(self, edges: Floats) -> Integers:
        """Return the count of each bin."""
        found = np.zeros(len(edges) - 1, dtype=np.int64)
        found[self.places] = self.counts
        return found


@dataclass(frozen=True, slots=True)
class Found:
    """Exact totals and bins, in the order of the keys. Raw: not a release."""

    size: int
    totals: Mapping[Total, Integers] = field(repr=False)
    bins: Mapping[Bins, list[GroupBins]] = field(repr=False)


@dataclass(frozen=True, slots=True, repr=False)
class GroupedRows:
    """Rows in groups, for public keys; without `groups` all rows are one group."""

    owned: OwnedRows
    groups: Groups | None
    within: Within | None

    @property
    def size(self) -> int:
        """The number of groups."""
        return 1 if self.groups is None else len(self.groups.keys)

    def compute(self, totals: Iterable[Total], bins: Iterable[Bins]) -> Found:
        """Compute all totals by one query, and each histogram by one. Raw: not a release."""
        wanted = tuple(dict.fromkeys([Total(Kind.ROWS), *totals]))
        counted = tuple(dict.fromkeys(bins))
        names = tuple(dict.fromkeys([*_numbers(wanted), *(each.column for each in counted)]))
        rows = self._rows(names, _compared(wanted))
        places = {name: i for i, name in enumerate(names)}
        return Found(
            self.size,
            self._totals(rows, wanted, places),
            {each: self._bins(rows, each, places) for each in counted},
        )

    def plan(self, totals: Iterable[Total], bins: Iterable[Bins]) -> str:
        """Return the SQL that the engine would run."""
        wanted, counted = tuple(dict.fromkeys([Total(Kind.ROWS), *totals])), tuple(dict.fromkeys(bins))
        names = tuple(dict.fromkeys([*_numbers(wanted), *(each.column for each in counted)]))
        rows, places = self._rows(names, _compared(wanted)), {name: i for i, name in enumerate(names)}
        queries = [self._aggregated(rows, wanted, places, kind="float64")]
        queries += [self._binned(rows, each, places) for each in counted]
        return ";\n".join(map(self.owned.sql, queries))

    def require_computable(self, totals: Iterable[Total], bins: Iterable[Bins]) -> None:
        """Raise if a column is missing, or has a type that its statistic cannot read, by the schema."""
        wanted, counted = tuple(totals), tuple(bins)
        added = _numbers(each for each in wanted if each.kind is not Kind.KNOWN)
        added += [each.column for each in counted]
        for name in dict.fromkeys([*_numbers(wanted), *added]):
            value = (numeric if name in added else _number_or_present)(self.owned, name)
            self.owned.require_computable({"value": value}, name)
        for name in _compared(wanted):
            self.owned.require_computable({"value": _comparable(self.owned, name)}, name)
        for each in counted:
            if binned(number(0.0), each.edges) is None:
                raise InvalidParameterError(
                    f"the bounds {each.bounds} of {each.column!r} cannot be divided into {each.cells} even "
                    "bins of float64. Pass wider bounds."
                )

    # --- queries ------------------------------------------------------------------------------------------

    def _keys(self) -> dict[str, Expression]:
        if self.groups is None:
            return {}
        keys = key_columns(self.owned, self.groups.columns)
        if not self._by_bytes:
            return keys
        raw = (column(self.owned, name) for name in self.groups.columns)
        return {
            key: in_bytes(given) if made.type().is_string() else made
            for (key, made), given in zip(keys.items(), raw, strict=True)
        }

    @property
    def _by_bytes(self) -> bool:
        """Whether texts are grouped by their bytes: faster, and the same groups."""
        return self.owned.engine.name == "duckdb" and self.owned.unit is None

    def _wanted(self, rows: Expression) -> list[Expression]:
        """Return conditions for rows that may have one of the keys."""
        import ibis

        if self.groups is None:
            return []
        if not self._by_bytes:
            return self.groups.wanted(rows)
        parts = (dict.fromkeys(part) for part in zip(*self.groups.keys, strict=True))
        return [
            rows[f"key{i}"].isin([in_bytes(ibis.literal(p)) if isinstance(p, str) else p for p in part])
            for i, part in enumerate(parts)
        ]

    def _rows(self, numbers: tuple[str, ...], compared: tuple[str, ...]) -> Expression:
        """Return the rows that count, with all columns that the workload reads."""
        read = {f"number{i}": _number_or_present(self.owned, name) for i, name in enumerate(numbers)}
        read |= {f"label{i}": _comparable(self.owned, name) for i, name in enumerate(compared)}
        values = self._keys() or _every_row()
        only = None if self.groups is None else self._wanted
        return self.owned.kept(values, beside=read, only=only, within=self.within)

    def _aggregated(
        self, rows: Expression, wanted: tuple[Total, ...], places: Mapping[str, int], *, kind: str
    ) -> Expression:
        labels = {name: i for i, name in enumerate(_compared(wanted))}
        stepped_rows, steps = _with_steps(rows, wanted, places)
        made = {
            f"total{i}": _total(stepped_rows, each, places, labels, steps, kind)
            for i, each in enumerate(wanted)
        }
        rows = stepped_rows
        names = list(self._keys())
        return rows.group_by(names).aggregate(**made) if names else rows.aggregate(**made)

    def _totals(
        self, rows: Expression, wanted: tuple[Total, ...], places: Mapping[str, int]
    ) -> dict[Total, Integers]:
        found = self.owned.table(self._aggregated(rows, wanted, places, kind="float64")).to_pydict()
        if max((int(count or 0) for count in found["total0"]), default=0) > MOST_ROWS:
            found = self.owned.table(self._aggregated(rows, wanted, places, kind="int64")).to_pydict()
        order = self._order(found)
        return {each: _placed(found[f"total{i}"], order, self.size) for i, each in enumerate(wanted)}

    def _order(self, found: Mapping[str, list[Any]]) -> list[int | None]:
        """Return the place of each row of a result among the keys; None for another key."""
        names = list(self._keys())
        if self.groups is None:
            return [0] * len(next(iter(found.values())))
        coded = self._coded if self._by_bytes else tuple
        place = {coded(key): i for i, key in enumerate(self.groups.keys)}
        return [place.get(key) for key in zip(*(found[name] for name in names), strict=True)]

    @staticmethod
    def _coded(key: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(part.encode(errors="surrogatepass") if isinstance(part, str) else part for part in key)

    def _binned(self, rows: Expression, bins: Bins, places: Mapping[str, int]) -> Expression:
        number = f"number{places[bins.column]}"
        if self.owned.unit is None:  # no row displaces another: only rows with a value need be read
            values = (self._keys() or _every_row()) | {number: numeric(self.owned, bins.column)}
            known = self.owned.kept(values, only=None if self.groups is None else self._wanted)
        else:
            known = rows.filter(rows[number].notnull())
        place: Any = binned(known[number], bins.edges)
        named = known.select(*self._keys(), **{_BIN: place.cast("int32")})
        return named.group_by([*self._keys(), _BIN]).aggregate(**{_ROWS: named.count()})

    def _bins(self, rows: Expression, bins: Bins, places: Mapping[str, int]) -> list[GroupBins]:
        found = self.owned.table(self._binned(rows, bins, places))
        order = self._order(found.select([*self._keys()] or [_BIN]).to_pydict())
        owner = np.array([-1 if place is None else place for place in order], dtype=np.int64)
        cells, counts = (found[name].to_numpy().astype(np.int64) for name in (_BIN, _ROWS))
        return [GroupBins(cells[owner == i], counts[owner == i]) for i in range(self.size)]


def _every_row() -> dict[str, Expression]:
    """Return a column that every row has."""
    import ibis

    return {"every": ibis.literal(1)}


def _with_steps(
    rows: Expression, wanted: tuple[Total, ...], numbers: Mapping[str, int]
) -> tuple[Expression, dict[tuple[str, Bounds], str]]:
    """Return the rows with each value in steps, computed once for its sum and the sum of its squares."""
    kinds = (Kind.STEPS, Kind.SQUARES)
    read = dict.fromkeys(
        (each.column, each.bounds)
        for each in wanted
        if each.kind in kinds and each.column is not None and each.bounds is not None
    )
    if not read:
        return rows, {}
    named = {pair: f"steps{i}" for i, pair in enumerate(read)}
    made = {name: stepped(rows[f"number{numbers[c]}"], bounds) for (c, bounds), name in named.items()}
    return rows.mutate(**made), named


def _total(
    rows: Expression,
    wanted: Total,
    numbers: Mapping[str, int],
    labels: Mapping[str, int],
    steps: Mapping[tuple[str, Bounds], str],
    kind: str,
) -> Expression:
    if wanted.kind is Kind.ROWS or wanted.column is None:
        return rows.count()
    if wanted.kind is Kind.DISTINCT:
        return rows[f"label{labels[wanted.column]}"].nunique()
    value = rows[f"number{numbers[wanted.column]}"]
    if wanted.kind is Kind.KNOWN or wanted.bounds is None:
        return value.count()
    if wanted.kind is Kind.GRID:
        return in_grid(value, wanted.bounds).cast(kind).sum()
    known = rows[steps[wanted.column, wanted.bounds]]
    if wanted.kind is Kind.SQUARES:
        known = whole(known * known * number(1 / STEPS))
    return known.cast(kind).sum()


def _numbers(wanted: Iterable[Total]) -> list[str]:
    """Return the columns that are read as numbers, each once."""
    kinds = (Kind.ROWS, Kind.DISTINCT)
    return list(dict.fromkeys(t.column for t in wanted if t.kind not in kinds and t.column is not None))


def _compared(wanted: Iterable[Total]) -> tuple[str, ...]:
    """Return the columns whose values are compared, each once."""
    named = (t.column for t in wanted if t.kind is Kind.DISTINCT and t.column is not None)
    return tuple(dict.fromkeys(named))


def _number_or_present(owned: OwnedRows, name: str) -> Expression:
    """Return a column of numbers, or 1 where a column of another type has a value."""
    import ibis

    value = column(owned, name)
    if value.type().is_numeric() or value.type().is_boolean():
        return numeric(owned, name)
    return ibis.ifelse(is_known(value), number(1.0), ibis.null("float64"))


def _comparable(owned: OwnedRows, name: str) -> Expression:
    """Return a column whose different values can be counted."""
    if name == owned.unit:
        return owned.owner(name)  # one value for each unit, by the same comparison that bounds its rows
    value = column(owned, name)
    kind = value.type()
    plain = kind.is_string() or kind.is_numeric() or kind.is_boolean() or kind.is_date() or kind.is_uuid()
    if not plain:
        raise InvalidParameterError(
            f"column {name!r} has type {kind}, but different values are counted of text, numbers, true or "
            "false, and dates."
        )
    return comparable(value, engine=owned.engine.name)


def _placed(values: list[Any], order: list[int | None], size: int) -> Integers:
    found = np.zeros(size, dtype=np.int64)
    for place, value in zip(order, values, strict=True):
        if place is not None:
            found[place] += int(value or 0)
    return found
