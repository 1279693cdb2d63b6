# SPDX-License-Identifier: Apache-2.0
"""Rows in an engine, and the units that own them: at most so many rows of each are ever computed on.

Guarantee  Whatever is computed from `kept` counts at most `contribution_bound` rows of one unit. Which rows
           of a unit those are depends on that unit and its own rows alone, as a multiset, and each of them
           counts with the same probability, whatever its values are (`bounding`). So neighbors differ in
           at most that many rows that count. An array keeps the same rows.
Order      Bounding comes after what is missing, or not asked about, was left out, and before anything is
           computed: a row that does not count takes no place of one that does.
Missing    Null and NaN are missing values; a row with one in a column that is asked for is left out. So is a
           row whose unit is missing: it belongs to nobody who could be protected. Refusing such a table would
           tell that it has such rows.
Total      No row stops a query (`row_wise`), because of `guards`, applied to all that is computed, nor on its
           way out of the engine (`leaving`).
Memory     Engines aggregate where the rows are. `batches` streams.
Raw        What is computed here is exact: no release, and not for the eyes of who asks. Objects that users
           hold need it from one another, but do not offer it by tab completion (`shown`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import and_
from typing import Any

from sfumato.statistics.contributions.contribution_bound import is_kept
from sfumato.statistics.contributions.unit_draws import drawn, seed
from sfumato.statistics.filters.total_functions import guarded
from sfumato.statistics.sources.collations import by_bytes
from sfumato.statistics.sources.engine_values import comparable
from sfumato.statistics.sources.type_checks import require_prepared

__all__ = ["OwnedRows", "described", "is_known", "number", "shown"]

Expression = Any  # Ibis is imported only when a table is made
Batch = Any  # a pyarrow.RecordBatch
_BATCH = 1 << 18  # rows
_UNIT, _PLACE, _ROWS, _SEED = "unit", "place", "rows", "seed"


@dataclass(frozen=True, kw_only=True, repr=False)
class OwnedRows:
    """A table expression, the engine that computes it, and whose rows they are; None means each its own."""

    expression: Expression
    engine: Any  # an Ibis backend
    unit: str | None
    contribution_bound: int
    lines_left_out: bool = False  # as in a CSV file, where a line that is no row is none
    floats_may_be_whole: bool = False  # as in a pandas frame, where one missing value makes floats of them

    @property
    def privacy_unit(self) -> str:
        """Who is protected."""
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
        only: Callable[[Expression], Sequence[Expression]] | None = None,
        distinct: bool = False,
    ) -> Expression:
        """Return the named values of the rows that count: those with all of them, at most k for each unit.

        `only` leaves out rows that are not asked about. With `distinct`, equal rows of one unit count once.
        """
        rows = self._known(values)
        if only is not None:
            rows = rows.filter(*only(rows))
        if self.unit is None:
            return rows
        return self._bounded(rows.distinct() if distinct else rows)

    def counts(self, *bounds: int, values: Mapping[str, Expression] | None = None) -> list[int]:
        """Count the rows, those with all of the values: at most so many of each unit, bound by bound. Raw."""
        found = self.row(self.count(*bounds, values=values))
        return [int(found[name] or 0) for name in found]

    def count(self, *bounds: int, values: Mapping[str, Expression] | None = None) -> Expression:
        """Return the query for `counts`, for which no row needs a place among those of its unit."""
        import ibis

        rows = self._known({"row": ibis.literal(1)} if values is None else values)
        if self.unit is None:
            return rows.aggregate(**{f"count{i}": rows.count() for i, _ in enumerate(bounds)})
        units = rows.group_by(_UNIT).aggregate(**{_ROWS: rows.count()})
        of_unit: list[Expression] = [ibis.least(units[_ROWS], bound) for bound in bounds]
        return units.aggregate(**{f"count{i}": counted.sum() for i, counted in enumerate(of_unit)})

    def _known(self, values: Mapping[str, Expression]) -> Expression:
        owner = {} if self.unit is None else {_UNIT: self.owner(self.unit)}
        rows = self.expression.select(**owner, **values)
        return rows.filter(reduce(and_, (is_known(rows[name]) for name in rows.columns)))

    def owner(self, unit: str) -> Expression:
        """Return who owns each row, as they are told apart; refused where that cannot be done."""
        owner = self.expression[unit]
        known = comparable(owner, engine=self.engine.name)
        kind = owner.type()
        return known.cast("string") if kind.is_temporal() or kind.is_uuid() else known

    def _bounded(self, rows: Expression) -> Expression:
        import ibis

        engine = self.engine.name
        values = [by_bytes(rows[name], engine=engine) for name in rows.columns if name != _UNIT]
        window = ibis.window(group_by=_UNIT, order_by=values, preceding=None, following=None)
        beside = {
            _PLACE: ibis.row_number().over(window),
            _ROWS: rows.count().over(window),
            _SEED: seed(rows[_UNIT], engine=engine),
        }
        rows = rows.mutate(**beside)
        draw = drawn(rows[_SEED], engine=engine)
        place = rows[_PLACE].cast("int64")  # Spark numbers rows in 32 bits
        kept = is_kept(place, rows=rows[_ROWS], draw=draw, bound=self.contribution_bound)
        return rows.filter(kept).drop(*beside)

    def row(self, expression: Expression) -> dict[str, Any]:
        """Compute an expression of one row. Raw: not a release."""
        return self.table(expression).to_pylist()[0]

    def table(self, expression: Expression) -> Any:
        """Compute an expression of few rows, as a pyarrow table. Raw: not a release."""
        total = self._total(expression)
        if self.engine.name == "duckdb":  # not by Ibis, which takes as long as a short query does
            return self._duckdb(total).to_arrow_table()
        if self.engine.name == "pyspark":  # not by Ibis, which lets pandas choose types by the values
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
        """Take partition after partition to the driver: Ibis would take all of them at once."""
        import pyarrow as pa

        schema = expression.schema().to_pyarrow()
        rows = self.engine.raw_sql(self.engine.compile(expression)).toLocalIterator()
        while some := [row.asDict() for row in islice(rows, chunk_size)]:
            yield pa.RecordBatch.from_pylist(some, schema=schema)

    def require_computable(self, values: Mapping[str, Expression], *names: str) -> None:
        """Refuse values of columns that the engine cannot compute with because of their types."""
        # DuckDB's types are what Ibis says they are, but for times of day; those of others need not be.
        if self.engine.name != "duckdb" or any(value.type().is_time() for value in values.values()):
            self.require_prepared(self.kept(values), *names)

    def require_prepared(self, expression: Expression, *names: str) -> None:
        """Refuse an expression that the engine cannot compute because of the types of columns."""
        kinds = ", ".join(f"{name}: {self.expression[name].type()}" for name in names)
        require_prepared(self.engine, self._total(expression), kinds)

    def sql(self, expression: Expression) -> str:
        """Return what the engine would run."""
        return str(self.engine.compile(self._total(expression), pretty=True))

    def _total(self, expression: Expression) -> Expression:
        """Return an expression that no row stops."""
        return guarded(expression, engine=self.engine.name)


def _together(batches: Iterator[Batch], expression: Expression) -> Any:
    import pyarrow as pa

    return pa.Table.from_batches(batches, schema=expression.schema().to_pyarrow())


def shown(holder: object, *raw: str) -> list[str]:
    """Return the names that an object offers: all but those that give raw rows, or exact sums of them.

    >>> [name for name in shown(1 + 2j, "conjugate") if not name.startswith("_")]
    ['real', 'imag']
    """
    return [name for name in object.__dir__(holder) if name not in raw]


def described(holder: Any, *names: str) -> str:
    """Return what an object of private rows prints: names, and never a row, which Ibis would show."""
    unit, bound = holder.privacy_unit, holder.contribution_bound
    return f"<{type(holder).__name__} of {', '.join(names)}; unit: {unit}, of at most {bound} row(s)>"


def number(value: float) -> Expression:
    """Return a literal that every engine reads as this very float64; bare digits are decimals to some."""
    import ibis

    return ibis.literal(repr(float(value))).cast("float64")


def is_known(value: Expression) -> Expression:
    """Return whether a value is there: neither null nor NaN."""
    # Both: Spark says that null is not NaN, DuckDB that it is unknown.
    known = value.notnull()
    return known & ~value.isnan() if value.type().is_floating() else known
