# SPDX-License-Identifier: Apache-2.0
"""Rows in a query engine and the units that own them, bounded before anything is computed.

Guarantee  Whatever is computed from `kept` counts at most `contribution_bound` rows of one unit. Which rows
           of a unit count depends only on that unit and the multiset of its rows, and each row counts with
           the same probability, whatever its values are (`contribution_bound`). So neighbors differ in at
           most that many rows that count. An array in memory keeps the same rows.
           Rows are bounded after missing and unselected rows are left out, and before anything is computed.
           So a row that does not count never displaces one that does.
           Results of this module are exact. They are not releases, and must not be shown to the analyst.
           Objects that users hold need them from one another, but tab completion does not offer them
           (`shown`).
Edge cases Null and NaN are missing values. A row with a missing value in a column that the question reads is
           left out. So is a row without a unit, because nobody could be protected by it; refusing the table
           would reveal that it has such rows.
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
    """A table expression, its engine, and the column of units; None means that each row is a unit."""

    expression: Expression
    engine: Any  # an Ibis backend
    unit: str | None
    contribution_bound: int
    lines_left_out: bool = False  # in a CSV file, lines that are not rows are left out
    floats_may_be_whole: bool = False  # in a pandas frame, one missing value makes whole numbers floats
    typed_by_values: frozenset[str] = frozenset()  # columns whose types pandas chose by looking at the values
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
        only: Callable[[Expression], Sequence[Expression]] | None = None,
        distinct: bool = False,
    ) -> Expression:
        """Return the named values of the rows that count: rows with all values, at most k for each unit.

        `only` selects rows. With `distinct`, equal rows of one unit count once.
        """
        rows = self._known(values)
        if only is not None:
            rows = rows.filter(*only(rows))
        if self.unit is None:
            return rows
        return self._bounded(rows.distinct() if distinct else rows)

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

    def _known(self, values: Mapping[str, Expression]) -> Expression:
        owner = {} if self.unit is None else {_UNIT: self.owner(self.unit)}
        rows = self.expression.select(**owner, **values)
        return rows.filter(reduce(and_, (is_known(rows[name]) for name in rows.columns)))

    def owner(self, unit: str) -> Expression:
        """Return the owner of each row in a comparable form. Raises if owners cannot be compared."""
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


def is_known(value: Expression) -> Expression:
    """Return whether a value is not missing: neither null nor NaN."""
    # Both checks: for null, Spark's isnan is false and DuckDB's is null.
    known = value.notnull()
    return known & ~value.isnan() if value.type().is_floating() else known
