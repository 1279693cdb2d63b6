# SPDX-License-Identifier: Apache-2.0
"""Rows in a query engine and the units that own them, bounded before anything is computed.

Guarantee  Whatever is computed from `kept` counts at most `contribution_bound` rows of one unit. Which rows
           of a unit count depends only on that unit and the multiset of its rows, and each row counts with
           the same probability, whatever its values are (`contribution_bound`). So neighbors differ in at
           most that many rows that count. An array in memory keeps the same rows.
           Rows are bounded after missing and unselected rows are left out, and before anything is computed.
           So a row that does not count never displaces one that does. `Within` bounds twice: the groups that
           a unit is in, then its rows in each of them, by a draw of their own for each group; never more
           rows in all than the bound of the table.
           Results of this module are exact. They are not releases, and must not be shown to the analyst.
           Objects that users hold need them from one another, but tab completion does not offer them
           (`shown`).
Edge cases Null and NaN are missing values. A row with a missing value in a column that the question reads is
           left out. So is a row without a unit, because nobody could be protected by it; refusing the table
           would reveal that it has such rows. So is one whose unit is a float that stands for several whole
           numbers (`float_units`).
Failure    No row can make a query fail: `total_functions` is applied to everything that is computed
           (`row_wise`), and `engine_values` to what leaves the engine.
Not here   Large results: engines aggregate where the rows are, and `batches` streams.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import and_
from typing import Any

from sfumato.errors import InvalidParameterError
from sfumato.statistics.contributions.contribution_bound import is_kept
from sfumato.statistics.contributions.float_units import told_apart
from sfumato.statistics.contributions.unit_draws import drawn, redrawn, seed
from sfumato.statistics.filters.total_functions import guarded
from sfumato.statistics.sources.collations import by_bytes
from sfumato.statistics.sources.engine_values import comparable
from sfumato.statistics.sources.type_checks import require_prepared

__all__ = ["OwnedRows", "Within", "described", "is_known", "number", "or_null", "shown"]

Expression = Any  # Ibis is imported only when a table is made
Batch = Any  # a pyarrow.RecordBatch
_BATCH = 1 << 18  # rows
_UNIT, _PLACE, _ROWS, _SEED, _GROUP = "unit", "place", "rows", "seed", "group"


@dataclass(frozen=True, kw_only=True, slots=True)
class Within:
    """Two bounds of one unit: the groups that it counts in, and its rows that count in each of them.

    Args:
        keys: The names of the columns that are the key of a group.
        groups: The most groups of one unit.
        rows: The most rows of one unit in one group.
    """

    keys: tuple[str, ...]
    groups: int
    rows: int


@dataclass(frozen=True, kw_only=True, repr=False)
class OwnedRows:
    """A table expression, its engine, and the column of units; None means that each row is a unit."""

    expression: Expression
    engine: Any  # an Ibis backend
    unit: str | None
    contribution_bound: int
    lines_left_out: bool = False  # in a CSV file, lines that are not rows are left out
    floats_may_be_whole: bool = False  # in a pandas frame, one missing value makes whole numbers floats
    typed_by_values: frozenset[str] = frozenset()  # columns whose types pandas chose by looking at the values
    written_alike: frozenset[str] = frozenset()  # columns of text in a pandas frame: "01" is written as 1
    untyped: frozenset[str] = frozenset()  # columns of a CSV file whose type nobody declared: they are text

    @property
    def privacy_unit(self) -> str:
        """The privacy unit: who is protected."""
        return self.unit or "row"

    def __repr__(self) -> str:
        return described(self, *self.expression.columns)

    def __dir__(self) -> list[str]:
        return shown(
            self, "batches", "count", "counts", "engine", "expression", "kept", "owner", "row", "table"
        )

    def kept(
        self,
        values: Mapping[str, Expression],
        *,
        beside: Mapping[str, Expression] | None = None,
        only: Callable[[Expression], Sequence[Expression]] | None = None,
        distinct: bool = False,
        within: Within | None = None,
    ) -> Expression:
        """Return the named values of the rows that count: rows with all values, at most k for each unit.

        Values `beside` may be missing: null then, or NaN if each row is a unit. `only` selects rows. With
        `distinct`, equal rows of one unit count once. `within` bounds groups, and rows in each, in place of
        rows in all.
        """
        rows = self._known(values, beside or {})
        if only is not None:
            rows = rows.filter(*only(rows))
        if self.unit is None:
            return rows
        return self._bounded(rows.distinct() if distinct else rows, beside=tuple(beside or ()), within=within)

    def counts(self, *bounds: int, values: Mapping[str, Expression] | None = None) -> list[int]:
        """Count the rows with all of the values, up to each bound for each unit. Raw: not a release."""
        found = self.row(self.count(*bounds, values=values))
        return [int(found[name] or 0) for name in found]

    def count(self, *bounds: int, values: Mapping[str, Expression] | None = None) -> Expression:
        """Return the query for `counts`, which does not need to order the rows of a unit."""
        import ibis

        rows = self._known({"row": ibis.literal(1)} if values is None else values)
        if self.unit is None:
            return rows.aggregate(**{f"count{i}": rows.count() for i, _ in enumerate(bounds)})
        units = rows.group_by(_UNIT).aggregate(**{_ROWS: rows.count()})
        of_unit: list[Expression] = [ibis.least(units[_ROWS], bound) for bound in bounds]
        return units.aggregate(**{f"count{i}": counted.sum() for i, counted in enumerate(of_unit)})

    def _known(
        self, values: Mapping[str, Expression], beside: Mapping[str, Expression] | None = None
    ) -> Expression:
        owner = {} if self.unit is None else {_UNIT: self.owner(self.unit)}
        others = dict(beside or {})
        if self.unit is not None:  # rows of a unit are put in order, in which NaN has no place of its own
            others = {name: or_null(value) for name, value in others.items()}
        rows = self.expression.select(**owner, **values, **others)
        needed = [is_known(rows[name]) for name in rows.columns if name not in others]
        return rows.filter(reduce(and_, needed)) if needed else rows

    def owner(self, unit: str) -> Expression:
        """Return the owner of each row in a comparable form. Raises if owners cannot be compared."""
        owner = told_apart(self.expression[unit])
        known = comparable(owner, engine=self.engine.name)
        kind = owner.type()
        return known.cast("string") if kind.is_temporal() or kind.is_uuid() else known

    def _bounded(
        self, rows: Expression, *, beside: Sequence[str] = (), within: Within | None = None
    ) -> Expression:
        order: list[Expression] = []
        for name in rows.columns:
            if name in beside:
                order.append(rows[name].isnull())  # missing values come last, in every engine
            if name != _UNIT:
                order.append(by_bytes(rows[name], engine=self.engine.name))
        if within is None:
            return self._at_most(self.contribution_bound, rows, of=(_UNIT,), order=order)
        if within.groups * within.rows > self.contribution_bound:  # so no caller can widen what was opened
            raise InvalidParameterError("a bound within groups must not exceed the contribution bound.")
        few = self._in_few_groups(rows, within)
        found = self._at_most(within.rows, few, of=(_UNIT, *within.keys), order=order, place=_GROUP)
        return found.drop(_GROUP)

    def _at_most(
        self,
        bound: int,
        rows: Expression,
        *,
        of: Sequence[str],
        order: Sequence[Expression],
        place: str | None = None,
    ) -> Expression:
        """Return at most so many rows of each unit, or in each group, whose number is in `place`."""
        import ibis

        window = ibis.window(group_by=list(of), order_by=list(order), preceding=None, following=None)
        beside = {
            _PLACE: ibis.row_number().over(window),
            _ROWS: rows.count().over(window),
            _SEED: seed(rows[_UNIT], engine=self.engine.name),
        }
        return self._spaced(bound, rows.mutate(**beside), again=place).drop(*beside)

    def _in_few_groups(self, rows: Expression, within: Within) -> Expression:
        """Return the rows of a few groups of each unit, spread evenly over the keys that it has.

        The place of the key among those of the unit stays beside the rows: it draws the rows within a group.
        """
        import ibis

        keys = [by_bytes(rows[name], engine=self.engine.name) for name in within.keys]
        ranked = ibis.window(group_by=_UNIT, order_by=keys)
        whole = ibis.window(group_by=_UNIT, preceding=None, following=None)
        rows = rows.mutate(**{_GROUP: ibis.dense_rank().over(ranked)})
        beside = {
            _PLACE: rows[_GROUP],
            _ROWS: (rows[_GROUP].max() + 1).over(whole),
            _SEED: seed(rows[_UNIT], engine=self.engine.name),
        }
        return self._spaced(within.groups, rows.mutate(**beside)).drop(*beside)

    def _spaced(self, bound: int, rows: Expression, *, again: str | None = None) -> Expression:
        """Return the rows at evenly spaced places, at most so many, by the draw of their unit.

        With `again`, by another draw for each of these numbers: the draw that selected the first group would
        select the first rows in it.
        """
        draw = drawn(rows[_SEED], engine=self.engine.name)
        if again is not None:
            draw = redrawn(draw, self._whole(rows[again]))
        place, among = (self._whole(rows[name]) for name in (_PLACE, _ROWS))
        return rows.filter(is_kept(place, rows=among, draw=draw, bound=bound))

    def _whole(self, number: Expression) -> Expression:
        """Return a number of a window in 64 bits.

        Spark's have 32. Ibis takes them for 64 and leaves out a plain cast, so products would overflow.
        """
        wide = number.cast("float64") if self.engine.name == "pyspark" else number
        return wide.cast("int64")

    def row(self, expression: Expression) -> dict[str, Any]:
        """Compute an expression of one row. Raw: not a release."""
        return self.table(expression).to_pylist()[0]

    def table(self, expression: Expression) -> Any:
        """Compute an expression of few rows, as a pyarrow table. Raw: not a release."""
        total = self._total(expression)
        if self.engine.name == "duckdb":  # not through Ibis, which takes as long as a short query
            return self._duckdb(total).to_arrow_table()
        if self.engine.name == "pyspark":  # not through Ibis, which lets pandas choose types by the values
            return _together(self._spark_batches(total, chunk_size=_BATCH), total)
        return self.engine.to_pyarrow(total)

    def batches(self, expression: Expression) -> Iterator[Batch]:
        """Compute an expression of many rows, some at a time. Raw: not a release."""
        readers: dict[str, Callable[..., Iterator[Batch]]]
        readers = {"duckdb": self._duckdb_batches, "pyspark": self._spark_batches}
        read = readers.get(self.engine.name) or self.engine.to_pyarrow_batches
        yield from read(self._total(expression), chunk_size=_BATCH)

    def _duckdb_batches(self, expression: Expression, *, chunk_size: int) -> Iterator[Batch]:
        # Ibis 12 calls a method here that DuckDB 2 no longer has.
        relation = self._duckdb(expression)
        read = getattr(relation, "to_arrow_reader", None) or relation.fetch_record_batch
        return iter(read(chunk_size))

    def _duckdb(self, expression: Expression) -> Any:
        return self.engine.con.sql(self.engine.compile(expression))

    def _spark_batches(self, expression: Expression, *, chunk_size: int) -> Iterator[Batch]:
        """Fetch one partition after the other to the driver. Ibis would fetch all of them at once."""
        import pyarrow as pa

        schema = expression.schema().to_pyarrow()
        rows = self.engine.raw_sql(self.engine.compile(expression)).toLocalIterator()
        while some := [row.asDict() for row in islice(rows, chunk_size)]:
            yield pa.RecordBatch.from_pylist(some, schema=schema)

    def require_computable(self, values: Mapping[str, Expression], *names: str) -> None:
        """Refuse values of columns that the engine cannot compute with because of their types."""
        # Ibis knows DuckDB's types, except for times of day, but not all types of other engines.
        if self.engine.name != "duckdb" or any(value.type().is_time() for value in values.values()):
            self.require_prepared(self.kept(values), *names)

    def require_prepared(self, expression: Expression, *names: str) -> None:
        """Refuse an expression that the engine cannot compute because of the types of columns."""
        kinds = ", ".join(f"{name}: {self.expression[name].type()}" for name in names)
        require_prepared(self.engine, self._total(expression), kinds)

    def sql(self, expression: Expression) -> str:
        """Return the SQL that the engine would run."""
        return str(self.engine.compile(self._total(expression), pretty=True))

    def _total(self, expression: Expression) -> Expression:
        """Return an expression that no row can make fail."""
        return guarded(expression, engine=self.engine.name)


def _together(batches: Iterator[Batch], expression: Expression) -> Any:
    import pyarrow as pa

    return pa.Table.from_batches(batches, schema=expression.schema().to_pyarrow())


def shown(holder: object, *raw: str) -> list[str]:
    """Return the names for tab completion: all but those that return raw rows, or exact sums of them.

    >>> [name for name in shown(1 + 2j, "conjugate") if not name.startswith("_")]
    ['real', 'imag']
    """
    return [name for name in object.__dir__(holder) if name not in raw]


def described(holder: Any, *names: str) -> str:
    """Return the repr of an object with private rows: names only. Ibis would show rows."""
    unit, bound = holder.privacy_unit, holder.contribution_bound
    return f"<{type(holder).__name__} of {', '.join(names)}; unit: {unit}, of at most {bound} row(s)>"


def number(value: float) -> Expression:
    """Return a literal that every engine reads as exactly this float64; some read bare digits as decimals."""
    import ibis

    return ibis.literal(repr(float(value))).cast("float64")


def or_null(value: Expression) -> Expression:
    """Return a value, or null where it is missing: engines add up NaN, but leave out null."""
    import ibis

    may_be_nan = value.type().is_floating() and not _of_whole_numbers(value)
    return ibis.ifelse(is_known(value), value, None) if may_be_nan else value


def _of_whole_numbers(value: Expression) -> bool:
    """Return whether floats are whole numbers that were cast, which cannot be NaN."""
    import ibis.expr.operations as ops

    made = value.op()
    return isinstance(made, ops.Cast) and made.arg.dtype.is_integer()


def is_known(value: Expression) -> Expression:
    """Return whether a value is not missing: neither null nor NaN."""
    # Both checks: for null, Spark's isnan is false and DuckDB's is null.
    known = value.notnull()
    return known & ~value.isnan() if value.type().is_floating() else known
