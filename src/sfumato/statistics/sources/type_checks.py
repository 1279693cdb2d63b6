# SPDX-License-Identifier: Apache-2.0
"""Queries that an engine cannot compute because of the types of columns, refused before they are paid for.

Promise    The engine is asked to prepare a query, for which it reads no row. What it says is not passed on.
Why        Ibis knows the types of an engine by its own names. Some of PostgreSQL's are not what these say: an
           `oid` is no number to its casts, `json` cannot be compared. A release would then fail once it is
           paid for.
How        PostgreSQL resolves types for PREPARE, and no more: to plan a query, it would look at statistics of
           values. Spark analyzes a query, and DuckDB binds it, when asked for its schema.
"""

import uuid
from collections.abc import Callable
from typing import Any

from sfumato.errors import InvalidParameterError

__all__ = ["require_prepared"]

Expression = Any


def require_prepared(engine: Any, expression: Expression, kinds: str = "") -> None:
    """Raise unless the engine accepts an expression; `kinds` has the types of columns that it is about."""
    try:
        _PREPARE.get(engine.name, _compiled)(engine, expression)
        return
    except Exception:  # of an engine: its words are about SQL that nobody here wrote
        pass
    raise InvalidParameterError(
        f"{engine.name} refuses this query before it reads a row, most likely because of the types of the "
        f"columns{f' ({kinds})' if kinds else ''}. Make a number, a text or a date of the column, in a view "
        "in the engine, and open that."
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
    engine.raw_sql(engine.compile(expression)).schema  # noqa: B018 - asking for it has the query analyzed


_PREPARE: dict[str, Callable[[Any, Expression], None]] = {
    "duckdb": _bound,
    "postgres": _prepared,
    "pyspark": _analyzed,
}
