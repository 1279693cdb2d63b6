# SPDX-License-Identifier: Apache-2.0
"""The check that an engine can compute a query on columns of these types, before the query is charged.

Ibis has its own names for the types of an engine, and some types of PostgreSQL behave differently: an `oid`
cannot be cast like a number, `json` cannot be compared. Without this check a release would fail after it was
charged.

Guarantee  The engine prepares the query, and reads no row for that. PostgreSQL resolves types for PREPARE,
           and no more; planning would read statistics of values. Spark analyzes a query, and DuckDB binds it,
           when its schema is requested.
Failure    The engine's error is not passed on.
"""

import uuid
from collections.abc import Callable
from typing import Any

from sfumato.errors import InvalidParameterError

__all__ = ["require_prepared"]

Expression = Any


def require_prepared(engine: Any, expression: Expression, kinds: str = "") -> None:
    """Raise if the engine does not accept an expression; `kinds` names the types of its columns."""
    try:
        _PREPARE.get(engine.name, _compiled)(engine, expression)
        return
    except Exception:  # of an engine: its message is about SQL that the user did not write
        pass
    raise InvalidParameterError(
        f"{engine.name} refuses this query before it reads a row, most likely because of the types of the "
        f"columns{f' ({kinds})' if kinds else ''}. Convert the column to numbers, text or dates in a view in "
        "the engine, and open that."
    )


def _compiled(engine: Any, expression: Expression) -> None:
    engine.compile(expression)


def _bound(engine: Any, expression: Expression) -> None:
    engine.con.sql(engine.compile(expression))


def _prepared(engine: Any, expression: Expression) -> None:
    query, name = engine.compile(expression), f"sfumato_{uuid.uuid4().hex}"
    with engine.con.transaction():
        engine.con.execute(f"PREPARE {name} AS {query}")
        engine.con.execute(f"DEALLOCATE {name}")


def _analyzed(engine: Any, expression: Expression) -> None:
    engine.raw_sql(engine.compile(expression)).schema  # noqa: B018 - reading it makes Spark analyze the query


_PREPARE: dict[str, Callable[[Any, Expression], None]] = {
    "duckdb": _bound,
    "postgres": _prepared,
    "pyspark": _analyzed,
}
