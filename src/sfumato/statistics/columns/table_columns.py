# SPDX-License-Identifier: Apache-2.0
"""Columns of numbers of a private table, added up and counted by its engine.

Guarantee  The same as for arrays (`columns`): at most `contribution_bound` rows of a unit count
           (`owned_rows`), and sums are exact. The engine rounds values to the grid of `columns.in_steps`, as
           whole numbers in float64, whose sum below 2^53 is the same in any order and on any number of
           threads or machines. For more rows than `MOST_ROWS`, integers of 64 bits are added up instead. This
           is slower and gives the result that float64 would give with more room; which of the two was used
           cannot be observed.
Edge cases x + 1.5 * 2^52 - 1.5 * 2^52 rounds x to the nearest whole number, ties to even, by IEEE 754. So all
           engines and numpy round alike; their own ROUND functions differ. A bin is guessed by rounding to
           the nearest edge, and corrected by one comparison with that edge. Whether this is right for all
           values is decided from the edges, which are public. If it is not, as for uneven edges, values are
           looked up in memory, batch by batch.
Failure    Whether a column is a column of numbers is decided from the schema, which is public, and never from
           the data (`schema`).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np

from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.statistics.arrays import Floats, Integers
from sfumato.statistics.columns.columns import MOST_ROWS, STEPS, Bounds, Moments
from sfumato.statistics.contributions.owned_rows import Expression, OwnedRows, described, number, shown
from sfumato.statistics.sources.collations import told_apart
from sfumato.statistics.sources.engine_values import portable
from sfumato.statistics.sources.pandas_frames import require_written
from sfumato.statistics.sources.schema import not_a_number, plain_type, unfitting

__all__ = [
    "MOST_ORDERED",
    "TableColumn",
    "TableRows",
    "binned",
    "cell_of",
    "clipped",
    "column",
    "fits",
    "labelled",
    "numeric",
    "stepped",
    "steps_of",
    "whole",
]

MOST_ORDERED = 2**28  # values that `ordered` loads into memory: 2 GiB
_INT64 = range(-(2**63), 2**63)
_ROUNDER = 1.5 * 2.0**52  # adding and subtracting it rounds to a whole number


@dataclass(frozen=True, repr=False)
class TableColumn:
    """One column of numbers of a private table."""

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
        return shown(self, "histogram", "moments", "ordered", "owned")

    def moments(self, bounds: Bounds, *, squares: bool = True) -> Moments:
        """Return the sums of clipped values and of their squares (0 if not requested). Raw: not a release."""
        found = self.owned.row(self._moments(bounds, squares=squares, kind="float64"))
        if found["count"] > MOST_ROWS:
            found = self.owned.row(self._moments(bounds, squares=squares, kind="int64"))
        count, total, squared = (int(found[name] or 0) for name in ("count", "total", "squares"))
        return Moments(count=count, total=total, squares=squared)

    def histogram(self, edges: Floats) -> Integers:
        """Count the rows of each bin, by one query. Raw: not a release; that is `statistics.histogram`."""
        known = np.asarray(edges, dtype=np.float64)
        if len(known) == 2:  # values outside count, too: all rows
            return np.array(self.owned.counts(self.contribution_bound, values=self._named()), dtype=np.int64)
        even = _EvenBins.of(known)
        if even is None:
            return self._looked_up(known)
        rows = self._values()
        # DuckDB counts small whole numbers in an array, others in a hash table.
        kind = next(kind for kind in ("int8", "int16", "int32") if len(known) <= np.iinfo(kind).max)
        rows = rows.select(bin=even.bin(rows["value"]).cast(kind))
        found = self.owned.table(rows.group_by("bin").aggregate(count=rows.count()))
        counts = np.zeros(len(known) - 1, dtype=np.int64)
        counts[found["bin"].to_numpy().astype(np.int64)] = found["count"].to_numpy()
        return counts

    def ordered(self, bounds: Bounds) -> Floats:
        """Return all values, clipped and sorted. Raw: not a release.

        They must fit into memory: at most `MOST_ORDERED` values.
        """
        rows = self._values()
        parts, taken = list[Floats](), 0
        for batch in self.owned.batches(rows.select(value=clipped(rows["value"], bounds))):
            taken += batch.num_rows
            if taken > MOST_ORDERED:
                raise QueryFailedError(
                    f"{self.name}: this release needs every value in memory, and there are more than "
                    f"{MOST_ORDERED}. The reserved cost stays spent. Use a release that counts in bins."
                )
            parts.append(batch.column(0).to_numpy(zero_copy_only=False))
        values = np.concatenate(parts) + 0.0 if parts else np.zeros(0)  # as in `batches`
        values.sort()
        return values

    def plan(self) -> str:
        """Return the SQL for the rows that count."""
        return self.owned.sql(self._values())

    def _named(self) -> dict[str, Expression]:
        return {"value": numeric(self.owned, self.name)}

    def _values(self) -> Expression:
        return self.owned.kept(self._named())

    def _moments(self, bounds: Bounds, *, squares: bool, kind: str) -> Expression:
        rows = self._values()
        rows = rows.select(steps=stepped(rows["value"], bounds))
        square = whole(rows["steps"] * rows["steps"] * number(1 / STEPS)).cast(kind).sum()
        return rows.aggregate(
            count=rows.count(),
            total=rows["steps"].cast(kind).sum(),
            squares=square if squares else number(0.0),
        )

    def _looked_up(self, edges: Floats) -> Integers:
        counts = np.zeros(len(edges) - 1, dtype=np.int64)
        for batch in self.owned.batches(self._values().select("value")):
            values = batch.column(0).to_numpy(zero_copy_only=False)
            counts += np.bincount(np.searchsorted(edges[1:-1], values, side="right"), minlength=len(counts))
        return counts


@dataclass(frozen=True, repr=False)
class TableRows:
    """Several columns of numbers of a private table, row by row.

    With `classes`, the last column is a label of any type, converted to the place of its class among them.
    Rows with another label are left out.
    """

    owned: OwnedRows
    names: tuple[str, ...]
    classes: tuple[Any, ...] | None = None

    @property
    def privacy_unit(self) -> str:
        """The privacy unit: who is protected."""
        return self.owned.privacy_unit

    @property
    def contribution_bound(self) -> int:
        """The most rows of one unit that count."""
        return self.owned.contribution_bound

    def __repr__(self) -> str:
        return described(self, *self.names)

    def __dir__(self) -> list[str]:
        return shown(self, "batches", "every_batch", "owned", "read", "read_with_units")

    def batches(self) -> Iterator[Floats]:
        """Yield all rows without missing values, some at a time: [rows, columns]. Raw: not a release."""
        yield from self._matrices(self._values())

    def every_batch(self) -> Iterator[Floats]:
        """Yield the rows of a table that `has_every_row`, NaN for a missing value. Raw: not a release."""
        yield from self._matrices(self.owned.expression.select(**self._named()))

    def has_every_row(self) -> bool:
        """Return whether no row was left out because of its values, so that all rows of the table count."""
        import ibis.expr.operations as ops

        left_out = self.owned.lines_left_out or self.owned.expression.op().find((ops.Filter, ops.DropNull))
        return self.owned.unit is None and not left_out

    def _matrices(self, rows: Expression) -> Iterator[Floats]:
        for batch in self.owned.batches(rows):
            yield _matrix(batch.columns)

    def read(self) -> tuple[Floats, Integers | None]:
        """Return all rows, and the number of each row's owner if there is a unit. Raw: not a release."""
        rows, owners = self.read_with_units()
        seen: dict[Any, int] = {}
        numbers = [seen.setdefault(owner, len(seen)) for owner in owners or ()]
        return rows, None if owners is None else np.array(numbers, dtype=np.int64)

    def read_with_units(self) -> tuple[Floats, list[Any] | None]:
        """Return all rows, and what the unit column says of each if there is one. Raw: not a release."""
        parts, owners = list[Floats](), list[Any]()
        for batch in self.owned.batches(self._with_owners()):
            parts.append(_matrix([batch.column(name) for name in self._named()]))
            owners += [] if self.owned.unit is None else batch.column("unit").to_pylist()
        rows = np.concatenate(parts) if parts else np.zeros((0, len(self.names)))
        return rows, None if self.owned.unit is None else owners

    def require_fitting(self) -> None:
        """Raise if a column has another type than needed, by the schema."""
        self.owned.require_computable(self._named(), *self.names)

    def plan(self) -> str:
        """Return the SQL for the rows that count."""
        return self.owned.sql(self._values())

    def _named(self) -> dict[str, Expression]:
        values = [numeric(self.owned, name) for name in self.names[: None if self.classes is None else -1]]
        if self.classes is not None:
            values.append(labelled(self.owned, self.names[-1], self.classes))
        return {f"value{i}": value for i, value in enumerate(values)}

    def _kept(self) -> Expression:
        return self.owned.kept(self._named())

    def _with_owners(self) -> Expression:
        kept = self._kept()
        if self.owned.unit is None:
            return kept
        return kept.mutate(unit=portable(kept["unit"], engine=self.owned.engine.name))

    def _values(self) -> Expression:
        return self._kept().select(*self._named())


def _matrix(columns: Iterable[Any]) -> Floats:
    """Return the columns of a batch as one matrix. Zero has no sign, as rows that differ only in it tie."""
    return np.column_stack([column.to_numpy(zero_copy_only=False) for column in columns]) + 0.0


def numeric(owned: OwnedRows, name: str) -> Expression:
    """Return a column as float64. Raises if its type in the schema is not a number."""
    value = column(owned, name)
    kind = value.type()
    if kind.is_boolean():
        return value.cast("int32").cast("float64")  # PostgreSQL cannot cast booleans to floats
    if kind.is_numeric():
        return value.cast("float64")
    raise not_a_number(name, plain_type(kind))


def labelled(owned: OwnedRows, name: str, classes: Sequence[Any]) -> Expression:
    """Return the place of each label among the classes, or missing. Raises if types differ in the schema."""
    import ibis

    value = column(owned, name)
    kind = value.type()
    known = [_class(label, kind) for label in classes]
    if any(label is None for label in known):
        raise unfitting(name, plain_type(kind), classes, what="class")
    if name in owned.written_alike:
        require_written(name, classes)
    if kind.is_decimal():
        value = numeric(owned, name)
    value = told_apart(value, engine=owned.engine.name)
    places = [(value == label, number(place)) for place, label in enumerate(known)]
    return ibis.cases(*places, else_=ibis.null("float64"))


def _class(label: Any, kind: Any) -> Expression | None:
    """Return a class as a literal for comparison with a column of this type; None if it does not fit."""
    import ibis

    plain = label.item() if isinstance(label, np.generic) else label
    if kind.is_decimal() or kind.is_floating():
        found = number(plain) if isinstance(plain, int | float) else None
        return found.cast("float32") if found is not None and kind.is_float32() else found
    if kind.is_integer() and isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    if kind.is_boolean() and plain in (0, 1):
        plain = bool(plain)
    return ibis.literal(plain) if fits(plain, kind, whole=True) else None


def column(owned: OwnedRows, name: str) -> Expression:
    """Return a column. Raises with the list of columns if there is no such one."""
    if name not in owned.expression.columns:
        raise InvalidParameterError(
            f"there is no column {name!r}. The table has: {', '.join(owned.expression.columns)}."
        )
    return owned.expression[name]


def fits(value: Any, kind: Any, *, whole: bool) -> bool:
    """Return whether a caller's value can be compared with a column of this type without a cast.

    A float can be compared with a column of floats, unless `whole` is set.
    """
    if kind.is_boolean():
        return isinstance(value, bool)
    if kind.is_floating() and not whole:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind.is_integer():
        return isinstance(value, int) and not isinstance(value, bool) and value in _INT64
    if kind.is_date():
        return type(value) is date
    return kind.is_string() and isinstance(value, str) and _is_writable(value)


def _is_writable(text: str) -> bool:
    """Return whether a text can stand in a query: UTF-8 without the character NUL."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def clipped(value: Expression, bounds: Bounds) -> Expression:
    """Return values clipped to the bounds."""
    import ibis

    lower, upper = number(bounds[0]), number(bounds[1])
    # Engines compute this faster than GREATEST and LEAST. Missing values were left out before.
    return ibis.cases((value < lower, lower), (value > upper, upper), else_=value)


def whole(value: Expression) -> Expression:
    """Return float64 values, less than 2^51 in size, rounded to whole numbers as numpy.rint does."""
    return value + number(_ROUNDER) - number(_ROUNDER)


def stepped(value: Expression, bounds: Bounds) -> Expression:
    """Return the result of `columns.in_steps`, in the engine."""
    return steps_of(clipped(value, bounds), bounds)


def steps_of(inside: Expression, bounds: Bounds) -> Expression:
    """Return clipped values in whole steps from the middle of the bounds, from -STEPS to STEPS."""
    lower, upper = float(bounds[0]), float(bounds[1])
    middle, half = lower / 2 + upper / 2, upper / 2 - lower / 2
    steps = whole((inside - number(middle)) * number(STEPS / half))
    # Rounding is monotone: if the ends stay within STEPS, so do all values between them.
    ends = np.rint((np.array([lower, upper]) - middle) * (STEPS / half))
    return steps if np.abs(ends).max() <= STEPS else clipped(steps, (-STEPS, STEPS))


def binned(value: Expression, edges: Floats) -> Expression | None:
    """Return the bin of each value as a float64, or None if the engine cannot find it from these edges."""
    even = _EvenBins.of(edges)
    return None if even is None else even.bin(value)


def cell_of(steps: Expression, cells: int) -> Expression:
    """Return floor((steps + STEPS) * cells / (2 * STEPS)), from 0 to `cells`, which has STEPS alone.

    Float64 is exact here, for up to 2^16 cells: the product has 37 bits. The sum is half a cell, less half of
    the smallest fraction, below what is rounded down, so it is never a tie.
    """
    smallest = 1 / (2 * STEPS)
    return whole(steps * number(cells * smallest) + number((cells - 1 + smallest) / 2))


@dataclass(frozen=True)
class _EvenBins:
    """Bins whose edge i is i * width + lower in float64, as `numpy.linspace` computes it."""

    lower: float
    top: float  # larger values count as this one, which is in the last bin
    width: float

    @classmethod
    def of(cls, edges: Floats) -> "_EvenBins | None":
        """Return the bins between edges, if `bin` is right for all values; otherwise None."""
        bins = len(edges) - 1
        lower, upper = float(edges[0]), float(edges[-1])
        width = (upper - lower) / bins
        place = np.arange(bins + 1, dtype=np.float64)
        with np.errstate(all="ignore"):  # values that overflow fail the checks
            formed = place * width + lower
            # The guess is monotone. So if it is i at each edge i, it is i or i + 1 in between.
            right = bool((np.rint((edges - lower) * (1 / np.float64(width))) == place).all())
        top = math.nextafter(min(upper, float(formed[-1])), -math.inf)
        if not (right and bool((formed[:-1] == edges[:-1]).all()) and top >= edges[-2]):
            return None
        return cls(lower, top, width)

    def bin(self, value: Expression) -> Expression:
        """Return the bin of each value, a whole number in float64; values outside count in the end bins."""
        import ibis

        inside = clipped(value, (self.lower, self.top))
        guess = whole((inside - number(self.lower)) * number(1 / self.width))
        edge = guess * number(self.width) + number(self.lower)
        return guess - ibis.ifelse(inside < edge, number(1.0), number(0.0))
