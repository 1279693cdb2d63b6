# SPDX-License-Identifier: Apache-2.0
"""The exact totals and histograms that the statistics of a workload need, computed by few queries.

Guarantee  Every total counts the same rows: those that have one of the keys and a unit, bounded once for the
           whole workload (`owned_rows`). So one unit moves each total by at most what `spending.Reach` says.
           Totals are exact whole numbers, in any order of addition (`table_columns`). They are not releases.
           A histogram counts each row with a value in one bin: by its value in whole steps, or by the edges.
Edge cases A row whose value is missing counts as a row, and for no total of that column. Float64 adds whole
           steps exactly up to `MOST_ROWS` rows; beyond, integers are added up by a second query with the same
           result. Every key has a total, also one without rows: 0. By steps, a value closer to an edge of a
           bin than half a step may count on the other side of it, also one at the edge: enough for quantiles,
           as a bin has 32 steps or more (`Quantile`), but not for ranges of whole numbers (`at_edges`).
Failure    A type that does not fit is refused by the schema, before anything is charged.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from sfumato.errors import InvalidParameterError
from sfumato.statistics.arrays import Floats, Integers
from sfumato.statistics.columns.columns import MOST_ROWS, STEPS, Bounds
from sfumato.statistics.columns.table_columns import binned, cell_of, column, numeric, steps_of, whole
from sfumato.statistics.contributions.owned_rows import (
    Expression,
    OwnedRows,
    Within,
    is_known,
    number,
    or_null,
)
from sfumato.statistics.groups.group_statistics import step_of
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
    """The counts of a column in even bins over bounds, in each group. Values outside are clipped.

    With `at_edges`, a value at an edge counts in the bin above it, as in a histogram. Otherwise values are
    counted by whole steps, which is faster.
    """

    column: str
    bounds: Bounds
    cells: int
    at_edges: bool = False

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
        np.add.at(found, self.places, self.counts)
        return found


@dataclass(frozen=True, slots=True)
class Found:
    """Exact totals and bins, in the order of the keys. Raw: not a release."""

    size: int
    totals: Mapping[Total, Integers] = field(repr=False)
    bins: Mapping[Bins, list[GroupBins]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Scan:
    """One query: totals of each group, or of each bin of a column in each group. Both also count rows."""

    totals: tuple[Total, ...]
    bins: Bins | None = None

    def named(self) -> dict[Total, str]:
        """Return the name of each total in the result."""
        return {Total(Kind.ROWS): _ROWS} | {each: f"total{i}" for i, each in enumerate(self.totals)}


@dataclass(frozen=True, slots=True)
class _Asked:
    """The queries, and the name of each column in the rows that they share: as a number, or to compare."""

    scans: tuple[_Scan, ...]
    numbers: Mapping[str, str]
    labels: Mapping[str, str]

    @classmethod
    def of(cls, totals: Iterable[Total], bins: Iterable[Bins]) -> "_Asked":
        """Return one query for each histogram and the totals of its column, and one for what is left."""
        wanted = [each for each in dict.fromkeys(totals) if each.kind is not Kind.ROWS]
        counted = tuple(dict.fromkeys(bins))
        first = {each.column: each for each in reversed(counted)}
        home = {each: None if each.kind is Kind.DISTINCT else first.get(each.column or "") for each in wanted}
        added = [each for each in wanted if each.kind is not Kind.KNOWN]  # which a histogram counts anyway
        scans = [_Scan(tuple(t for t in added if home[t] is each), each) for each in counted]
        others = tuple(each for each in wanted if home[each] is None)
        read = [*_numbers(wanted), *first]
        return cls(
            tuple([*scans, *([] if scans and not others else [_Scan(others)])]),
            {name: f"number{i}" for i, name in enumerate(dict.fromkeys(read))},
            {name: f"label{i}" for i, name in enumerate(_compared(wanted))},
        )


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
        """Compute totals and histograms: one query for each histogram. Raw: not a release."""
        asked = _Asked.of(totals, bins)
        rows = self._rows(asked)
        added: dict[Total, Integers] = {}
        binned: dict[Bins, list[GroupBins]] = {}
        for scan in asked.scans:
            found = self.owned.table(self._query(rows, asked, scan, kind="float64"))
            if found[_ROWS].to_numpy().max(initial=0) > MOST_ROWS:
                found = self.owned.table(self._query(rows, asked, scan, kind="int64"))
            owner = self._owner(found)
            added |= {each: _added(found[name], owner, self.size) for each, name in scan.named().items()}
            if scan.bins is not None:
                binned[scan.bins] = groups = _counted(found, owner, self.size, scan.bins.cells)
                added[Total(Kind.KNOWN, scan.bins.column)] = np.array([each.counts.sum() for each in groups])
        return Found(self.size, added, binned)

    def plan(self, totals: Iterable[Total], bins: Iterable[Bins]) -> str:
        """Return the SQL that the engine would run."""
        asked = _Asked.of(totals, bins)
        rows = self._rows(asked)
        queries = (self._query(rows, asked, scan, kind="float64") for scan in asked.scans)
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
            if not _can_be_told(each):
                raise InvalidParameterError(
                    f"the bounds {each.bounds} of {each.column!r} cannot be divided into {each.cells} bins "
                    "of float64. Pass wider bounds."
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

    def _rows(self, asked: _Asked) -> Expression:
        """Return the rows that count, with all columns that the workload reads."""
        read = {to: _number_or_present(self.owned, name) for name, to in asked.numbers.items()}
        binned = {scan.bins.column for scan in asked.scans if scan.bins is not None}
        for name, to in asked.numbers.items():
            if name not in binned:  # a histogram counts known values, and clips what is not a number to null
                read[to] = or_null(read[to])
        read |= {to: or_null(_comparable(self.owned, name)) for name, to in asked.labels.items()}
        values = self._keys() or _every_row()
        only = None if self.groups is None else self._wanted
        return self.owned.kept(values, beside=read, only=only, within=self.within)

    def _query(self, rows: Expression, asked: _Asked, scan: _Scan, *, kind: str) -> Expression:
        rows, places = _with_steps(rows, asked, scan)
        by: list[Any] = list(self._keys())
        if scan.bins is not None:
            narrow = "int16" if scan.bins.cells < 2**15 else "int32"  # DuckDB groups by it faster
            found = _bin_of(rows, places[scan.bins.column, scan.bins.bounds], scan.bins)
            by.append(found.cast(narrow).name(_BIN))
        named = scan.named().items()
        made = {name: _total(rows, each, asked, places, kind) for each, name in named}
        return rows.group_by(by).aggregate(**made) if by else rows.aggregate(**made)

    def _owner(self, found: Any) -> Integers:
        """Return the place of each row of a result among the keys; -1 for another key."""
        if self.groups is None:
            return np.zeros(found.num_rows, dtype=np.int64)
        names, code = list(self._keys()), np.zeros(found.num_rows, dtype=np.int64)
        first = code[:0]
        for name in names:  # equal keys get one code, and are looked up once
            part = found[name].combine_chunks().dictionary_encode()
            code = code * max(1, len(part.dictionary)) + part.indices.to_numpy()
            _, first, code = np.unique(code, return_index=True, return_inverse=True)
        coded = self._coded if self._by_bytes else tuple
        place = {coded(key): i for i, key in enumerate(self.groups.keys)}
        keys = found.select(names).take(first).to_pydict()
        known = [place.get(key, -1) for key in zip(*keys.values(), strict=True)]
        return np.array(known, dtype=np.int64)[code]

    @staticmethod
    def _coded(key: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(part.encode(errors="surrogatepass") if isinstance(part, str) else part for part in key)


@dataclass(frozen=True, slots=True)
class _Place:
    """The names of a column clipped to bounds, and of its steps."""

    inside: str
    steps: str


_Places = Mapping[tuple[str, Bounds], _Place]


def _every_row() -> dict[str, Expression]:
    """Return a column that every row has."""
    import ibis

    return {"every": ibis.literal(1)}


def _with_steps(rows: Expression, asked: _Asked, scan: _Scan) -> tuple[Expression, _Places]:
    """Return the rows with each value clipped, and in steps: computed once for all that is made of it."""
    bounded = [*scan.totals, *([] if scan.bins is None else [scan.bins])]
    pairs = dict.fromkeys(
        (e.column, e.bounds) for e in bounded if e.column is not None and e.bounds is not None
    )
    places = {pair: _Place(f"inside{i}", f"steps{i}") for i, pair in enumerate(pairs)}
    if not places:
        return rows, places
    inside = {to.inside: _inside(rows[asked.numbers[name]], bounds) for (name, bounds), to in places.items()}
    rows = rows.mutate(**inside)
    steps = {to.steps: steps_of(rows[to.inside], bounds) for (_, bounds), to in places.items()}
    return rows.mutate(**steps), places


def _inside(value: Expression, bounds: Bounds) -> Expression:
    """Return values clipped to bounds; null for NaN, which engines order after all numbers."""
    import ibis

    lower, upper = number(bounds[0]), number(bounds[1])
    above = (value > upper) & ~value.isnan()
    # The common case comes first: engines are faster then.
    return ibis.cases((value.between(lower, upper), value), (value < lower, lower), (above, upper))


def _can_be_told(bins: Bins) -> bool:
    """Return whether the engine can tell the bins of all values apart, by their edges alone."""
    apart = bool((np.diff(bins.edges) > 0).all())
    return apart and (not bins.at_edges or binned(number(0.0), bins.edges) is not None)


def _bin_of(rows: Expression, place: _Place, bins: Bins) -> Expression:
    exact = binned(rows[place.inside], bins.edges) if bins.at_edges else None
    return cell_of(rows[place.steps], bins.cells) if exact is None else exact


def _total(rows: Expression, wanted: Total, asked: _Asked, places: _Places, kind: str) -> Expression:
    if wanted.kind is Kind.ROWS or wanted.column is None:
        return rows.count()
    if wanted.kind is Kind.DISTINCT:
        return rows[asked.labels[wanted.column]].nunique()
    if wanted.kind is Kind.KNOWN or wanted.bounds is None:
        return rows[asked.numbers[wanted.column]].count()
    place = places[wanted.column, wanted.bounds]
    if wanted.kind is Kind.GRID:
        return whole(rows[place.inside] * number(1 / step_of(wanted.bounds))).cast(kind).sum()
    steps = rows[place.steps]
    if wanted.kind is Kind.SQUARES:
        steps = whole(steps * steps * number(1 / STEPS))
    return steps.cast(kind).sum()


def _added(numbers: Any, owner: Integers, size: int) -> Integers:
    """Add up whole numbers by group; missing ones are 0."""
    found = np.zeros(size, dtype=np.int64)
    known = owner >= 0
    np.add.at(found, owner[known], numbers.cast("int64").fill_null(0).to_numpy()[known])
    return found


def _counted(found: Any, owner: Integers, size: int, cells: int) -> list[GroupBins]:
    """Return the bins of each group. The upper bound is the end of the last bin, and counts in it."""
    places, counts = (found[name].cast("int64").fill_null(-1).to_numpy() for name in (_BIN, _ROWS))
    group = np.where(places < 0, -1, owner)  # rows without a value are in no bin
    order = np.argsort(group, kind="stable")
    ends = np.searchsorted(group[order], np.arange(size + 1))
    parts = [order[start:end] for start, end in itertools.pairwise(ends)]
    return [GroupBins(np.minimum(places[part], cells - 1), counts[part]) for part in parts]


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
