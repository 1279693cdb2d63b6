# SPDX-License-Identifier: Apache-2.0
"""Opening a private table from a file, a frame, a database or an Ibis table.

Unit       "row": each row is a unit. Otherwise a column that names the unit of each row; that column may not
           be called "row".
Failure    A source, a unit or a type that does not fit is refused by the schema, before any row is read.
Not here   The table itself (`private_tables`), and how each kind of source is read (`table_sources`).
"""

from collections.abc import Sequence
from os import PathLike
from typing import Any

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.table_columns import column
from sfumato.statistics.contributions.owned_rows import OwnedRows
from sfumato.statistics.contributions.unit_draws import seed
from sfumato.statistics.filters.column_names import alike
from sfumato.statistics.filters.row_wise import require_row_wise
from sfumato.statistics.sources.pandas_frames import is_pandas, read_alike, typed_by_values, written_alike
from sfumato.statistics.sources.private_tables import PrivateTable
from sfumato.statistics.sources.schema import Types, read_types
from sfumato.statistics.sources.table_sources import is_lines, opened

__all__ = ["PrivateTable", "private_table"]

_ROW = "row"  # the unit if each row is one


def private_table(
    source: Any | str | PathLike[str],
    *,
    privacy_unit: str | None = None,
    contribution_bound: int = 1,
    types: Types | None = None,
    table: str | None = None,
    engine: Any = None,
) -> PrivateTable:
    """Open a private table from a file, a frame, a database or an Ibis table.

    Args:
        source: The path of a CSV or Parquet file (`*` for many files), a pandas, polars or pyarrow frame, an
            Ibis table, or the URL of a database.
        privacy_unit: The column that names the unit of each row. None, or "row", means that each row is a
            unit.
        contribution_bound: The most rows of one unit that count in a release.
        types: The types of columns, as in `{"age": "number", "since": "date"}`, or the path of a TOML file
            with them. Columns of a CSV file without a declared type are text (`schema`).
        table: The name of a table, if the source is a database.
        engine: The Ibis backend that reads a path. None means DuckDB.

    Returns:
        The private table. No row has been read.

    Raises:
        InvalidParameterError: If the source cannot be opened, or the unit or a type does not fit its schema.

    >>> import pandas as pd
    >>> visits = pd.DataFrame({"patient": ["a", "a", "b"], "cost": [10.0, 30.0, 20.0]})
    >>> private_table(visits, privacy_unit="patient", contribution_bound=2)
    <PrivateTable in duckdb; unit: patient, of at most 2 row(s); patient: string, cost: float64>
    """
    _check.count(contribution_bound=contribution_bound)
    if privacy_unit in (None, _ROW) and contribution_bound != 1:
        raise InvalidParameterError(
            "a contribution_bound above 1 needs the column that names the unit of each row: pass "
            "privacy_unit=..."
        )
    known = read_types(types)
    readable = read_alike(source, unit=privacy_unit, types=known)
    _require_names_apart(source)
    expression, backend = opened(readable, engine=engine, table=table, types=known)
    require_row_wise(expression, engine=backend.name)
    unit = _unit(privacy_unit, expression.columns)
    owned = OwnedRows(
        expression=expression,
        engine=backend,
        unit=unit,
        contribution_bound=contribution_bound,
        lines_left_out=is_lines(source),
        floats_may_be_whole=is_pandas(source),
        typed_by_values=typed_by_values(source, types=known),
        written_alike=written_alike(source, types=known) - {unit},
        untyped=frozenset(expression.columns) - set(known) if is_lines(source) else frozenset(),
    )
    if unit is not None:
        _check_unit(owned, unit)
    return PrivateTable(owned)


def _require_names_apart(source: Any) -> None:
    """Refuse a frame in which names differ only by case: DuckDB would rename one of the columns."""
    names = source.columns if is_pandas(source) else getattr(source, "column_names", ())
    pair = alike(map(str, names))
    if pair:
        raise InvalidParameterError(
            f"the columns {pair[0]!r} and {pair[1]!r} differ only by upper and lower case, or by spaces, and "
            "an engine may take one for the other. Rename one of them."
        )


def _check_unit(owned: OwnedRows, unit: str) -> None:
    kind = column(owned, unit).type()
    plain = kind.is_string() or kind.is_numeric() or kind.is_boolean() or kind.is_uuid() or kind.is_binary()
    if not (plain or kind.is_date() or kind.is_timestamp()):
        raise InvalidParameterError(
            f"column {unit!r} has type {kind}, but a unit must be text, a number, a date or a time. Name "
            "another column, or convert it in the source."
        )
    # Raises for text in an engine with unknown collations, and for types that the engine cannot sort or for
    # which it has no draw.
    owned.require_computable({}, unit)
    seed(owned.owner(unit), engine=owned.engine.name)


def _unit(privacy_unit: str | None, columns: Sequence[str]) -> str | None:
    """Return the column of units; None if each row is a unit. "row" is never a column."""
    if privacy_unit != _ROW:
        return privacy_unit
    if _ROW in columns:
        raise InvalidParameterError(
            'privacy_unit="row" means that each row is a unit, but a column is called "row", too. Rename the '
            "column if it names the unit of a row; remove privacy_unit if each row is a unit."
        )
    return None
