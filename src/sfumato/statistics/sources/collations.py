# SPDX-License-Identifier: Apache-2.0
"""Texts without their collation: different if they differ at all.

Why        To an engine with a collation, "Ann" and "ANN" may be equal. As keys or categories they would be
           one, and a single row could decide which of them names it. As units they would be one as well, so
           that with "ANN" gone other rows of "Ann" would count.
How        Through bytes and back, in DuckDB, PostgreSQL and Spark. In any other engine text is refused where
           rows are told apart by it: whether it has a collation is not known here.
Order      A server of PostgreSQL sorts by the language of its database. By bytes it sorts as all others do.
Not UTF-8  Spark keeps any bytes as text, and Python would fail to read them. Such text is missing: what comes
           back from UTF-16 is not what it was.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from sfumato.errors import InvalidParameterError

__all__ = ["by_bytes", "told_apart"]

Expression = Any


def told_apart(value: Expression, *, engine: str) -> Expression:
    """Return texts without their collation, or refuse them in an engine where that is not known to work.

    Values of other types stay as they are.
    """
    if not value.type().is_string():
        return value
    if engine == "pyspark":
        return _in_unicode(value)
    if engine not in ("duckdb", "postgres"):
        raise InvalidParameterError(
            f"{value.get_name()!r} is text, and in {engine} different texts may be equal, by a collation "
            "that is not known here. Tell rows apart by a number or a date, or have the table in DuckDB (a "
            "Parquet file, say), PostgreSQL or Spark."
        )
    to_bytes, to_text = _through_bytes(engine)
    return to_text(to_bytes(value))


def by_bytes(value: Expression, *, engine: str) -> Expression:
    """Return what sorts texts that are `told_apart` by their bytes; values of other types as they are."""
    if engine == "postgres" and value.type().is_string():
        return _through_bytes(engine)[0](value)
    return value


def _in_unicode(value: Expression) -> Expression:
    """Return Spark's texts through bytes and back, missing where they are not UTF-8."""
    import ibis

    to_bytes, to_text = _through_bytes("pyspark")
    data = value.cast("binary")
    same = to_text(to_bytes(value)).cast("binary") == data
    return ibis.ifelse(same, data.cast("string"), ibis.null("string"))


@lru_cache(maxsize=3)
def _through_bytes(engine: str) -> tuple[Callable[[Expression], Expression], ...]:
    """Return the engine's own functions from text to its bytes, and back."""
    from ibis import udf

    builtin: Any = udf.scalar.builtin

    def plain(value: Any) -> Any: ...
    def coded(value: Any, code: Any) -> Any: ...

    if engine == "duckdb":
        to_bytes = builtin(plain, name="encode", signature=(("string",), "binary"))
        return to_bytes, builtin(plain, name="decode", signature=(("binary",), "string"))
    names = {"postgres": ("convert_to", "convert_from", "UTF8"), "pyspark": ("encode", "decode", "UTF-16BE")}
    into, back, code = names[engine]
    to_bytes = builtin(coded, name=into, signature=(("string", "string"), "binary"))
    to_text = builtin(coded, name=back, signature=(("binary", "string"), "string"))
    return partial(_in_code, to_bytes, code), partial(_in_code, to_text, code)


def _in_code(function: Any, code: str, value: Expression) -> Expression:
    return function(value, code)
