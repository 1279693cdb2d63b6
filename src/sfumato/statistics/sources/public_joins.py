# SPDX-License-Identifier: Apache-2.0
"""Public columns beside private rows: a table that is joined by a key that is unique in the public table.

Guarantee  Every row of the private table stays one row of the same unit, and its new columns depend on that
           row alone: each key has at most one row in the public table. That is checked on a copy of the
           public table that nothing changes later, with the comparison that the join uses. So all
           sensitivities stay as they are.
Edge cases A row whose key is missing, or is not in the public table, has missing values in the new columns;
           or it is left out, like a row that a filter does not select. Public rows without a key are left
           out. Columns of a public CSV file have the types of all their values (`public_types`). Its key is
           text beside a private key of text.
Failure    Nothing private is read. Keys of different types are refused, as an engine would cast one of them,
           which may fail on a row. The join itself fails on no row: the private side is `total_functions`.
Not here   Engines other than DuckDB, where a copy would be written into the user's database: make a view
           there. Two private tables: `unit_joins`.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sfumato.errors import InvalidParameterError
from sfumato.statistics.contributions.owned_rows import OwnedRows
from sfumato.statistics.filters.column_names import alike
from sfumato.statistics.filters.total_functions import guarded
from sfumato.statistics.groups.key_discovery import key_columns
from sfumato.statistics.sources.public_types import inferred
from sfumato.statistics.sources.schema import plain_type
from sfumato.statistics.sources.table_sources import is_lines, opened

__all__ = ["On", "joined", "viewed"]

On = str | Sequence[str] | Mapping[str, str]

_MOST_ROWS = 10_000_000


def joined(owned: OwnedRows, public: Any, *, on: On, keep_unmatched: bool) -> OwnedRows:
    """Return the rows with the columns of a public table.

    Args:
        owned: The private rows.
        public: A pandas, polars or pyarrow frame, or the path of a Parquet or CSV file.
        on: The column or columns of the key; a mapping from private to public names if they differ.
        keep_unmatched: Whether rows without a match stay, with missing values.

    Returns:
        The rows, in the same engine.

    Raises:
        InvalidParameterError: If a key is not unique in the public table, or does not fit.
    """
    if owned.engine.name != "duckdb":
        raise InvalidParameterError(
            f"public tables are joined in DuckDB, not in {owned.engine.name}. Make a view in the database, "
            "in which each row belongs to one unit, and open the view."
        )
    names = _names(on)
    keys = key_columns(owned, list(names))
    copied, added = _copied(owned, public, names, [value.type() for value in keys.values()])
    rows = owned.expression
    beside = rows.mutate(**{f"{copied}_{key}": value for key, value in keys.items()})
    right = owned.engine.table(copied)
    found = beside.left_join(right, [beside[f"{copied}_{key}"] == right[key] for key in keys])
    if not keep_unmatched:
        found = found.filter(found["key0"].notnull())
    view = viewed(owned, found.select(*rows.columns, *added))
    return replace(
        owned,
        expression=view,
        lines_left_out=owned.lines_left_out or not keep_unmatched or _has_filter(rows),
    )


def _names(on: On) -> dict[str, str]:
    """Return the columns of the key: public names by private ones."""
    if isinstance(on, Mapping):
        names = dict(on)
    else:
        names = {name: name for name in ([on] if isinstance(on, str) else on)}
    if not names or len(set(names.values())) < len(names):
        raise InvalidParameterError(
            "on names one or more columns, each once, as in on='zip', on=['zip', 'year'] or "
            "on={'zip': 'code'} for a private column 'zip' and a public one 'code'."
        )
    return names


def _copied(
    owned: OwnedRows, public: Any, names: Mapping[str, str], kinds: Sequence[Any]
) -> tuple[str, list[str]]:
    """Copy a public table into the engine, with keys as key0 and so on; return its name and new columns."""
    found, backend = opened(_as_arrow(public), engine=None, table=None, types={})
    absent = [name for name in names.values() if name not in found.columns]
    if absent:
        raise InvalidParameterError(
            f"the public table has no column {absent[0]!r}. It has: {', '.join(found.columns)}."
        )
    if is_lines(public):
        texts = {of_public for of_public, kind in zip(names.values(), kinds, strict=True) if kind.is_string()}
        typed = inferred(found, backend)  # a key is compared with texts as it is written
        found = typed.mutate(**{name: found[name] for name in texts}) if texts else typed
    added = [name for name in found.columns if name not in names.values()]
    twice = alike([*owned.expression.columns, *added])
    if twice or not added:
        raise InvalidParameterError(
            f"the columns {twice[0]!r} and {twice[1]!r} have one name for the engine: rename the public one."
            if twice
            else "the public table has no column beside its key, so nothing would be added."
        )
    keys = {
        f"key{i}": _key(found[public], kind, private)
        for i, ((private, public), kind) in enumerate(zip(names.items(), kinds, strict=True))
    }
    for name in added:
        _require_plain(name, found[name].type())
    rows = found.select(**keys, **{name: found[name] for name in added})
    rows = rows.filter(*(rows[key].notnull() for key in keys))
    read = backend.to_pyarrow(rows.limit(_MOST_ROWS + 1))
    if read.num_rows > _MOST_ROWS:
        raise InvalidParameterError(f"a public table that is joined has at most {_MOST_ROWS} rows.")
    table, connection = f"sfumato_{uuid.uuid4().hex}", owned.engine.con
    connection.register(f"{table}_read", read)
    connection.execute(f"CREATE TEMPORARY TABLE {table} AS SELECT * FROM {table}_read")
    connection.unregister(f"{table}_read")
    _require_unique(connection, table, list(keys), list(names.values()))
    return table, added


def _as_arrow(public: Any) -> Any:
    """Return a pandas frame as an Arrow table, with types by all of its values: they are public."""
    if not type(public).__module__.startswith("pandas"):
        return public
    import pyarrow as pa

    try:
        return pa.Table.from_pandas(public, preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError):
        pass
    raise InvalidParameterError(
        "a column of the public table has values of several types. Give each column one type."
    )


def _key(value: Any, kind: Any, private: str) -> Any:
    """Return a column of the public table as one that is compared with private keys of a type."""
    given = value.type()
    if kind.is_integer() and given.is_floating():  # pandas: whole numbers beside a missing one
        whole = value.try_cast("int64")
        return (whole.cast("float64") == value).ifelse(whole, None)
    alike = (
        (kind.is_integer() and given.is_integer())
        or (kind.is_string() and given.is_string())
        or (kind.is_boolean() and given.is_boolean())
        or (kind.is_date() and given.is_date())
    )
    if not alike:
        raise InvalidParameterError(
            f"column {private!r} is {plain_type(kind)} in the private table, and {value.get_name()!r} is "
            f"{plain_type(given)} in the public one. Convert the public column."
        )
    return value


def _require_plain(name: str, kind: Any) -> None:
    plain = kind.is_string() or kind.is_numeric() or kind.is_boolean() or kind.is_date()
    if not (plain or kind.is_timestamp()):
        raise InvalidParameterError(
            f"column {name!r} of the public table has type {kind}. Columns of text, numbers, true or false, "
            "dates and times are joined: remove it, or convert it."
        )


def _require_unique(connection: Any, table: str, keys: list[str], names: list[str]) -> None:
    listed = ", ".join(keys)
    repeated = connection.execute(
        f"SELECT {listed} FROM {table} GROUP BY {listed} HAVING count(*) > 1 LIMIT 1"
    ).fetchone()
    if repeated is not None:
        connection.execute(f"DROP TABLE {table}")
        raise InvalidParameterError(
            f"the public table has several rows for {', '.join(names)} = {', '.join(map(repr, repeated))}. A "
            "join would multiply private rows: keep one public row of each key."
        )


def viewed(owned: OwnedRows, found: Any) -> Any:
    """Return a view of a query, so that later filters and columns are checked like those of any table."""
    name = f"sfumato_{uuid.uuid4().hex}"
    query = owned.engine.compile(guarded(found, engine=owned.engine.name))
    owned.engine.raw_sql(f"CREATE TEMPORARY VIEW {name} AS {query}")
    return owned.engine.table(name)


def _has_filter(rows: Any) -> bool:
    import ibis.expr.operations as ops

    return bool(rows.op().find((ops.Filter, ops.DropNull)))
