# SPDX-License-Identifier: Apache-2.0
"""Removal of collations from text, so that texts are equal only if all their bytes are.

In an engine with a collation, "Ann" and "ANN" may be equal. As keys or categories they would be one, and a
single row could decide which of them names it. As units they would be one as well, so that without "ANN"
other rows of "Ann" would count. Text is converted to bytes and back, in DuckDB, PostgreSQL and Spark.
PostgreSQL sorts by the language of its database; by bytes it sorts like the other engines.

Edge cases Spark keeps any bytes as text, and Python would fail to read them. Text that is not UTF-8 is
           missing: it changes when it is converted to UTF-16 and back.
Failure    In any other engine text is refused as a key, a category or a unit, because it is not known whether
           the engine has a collation.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from sfumato.errors import InvalidParameterError

__all__ = ["by_bytes", "in_bytes", "told_apart"]

Expression = Any


def told_apart(value: Expression, *, engine: str) -> Expression:
    """Return texts without their collation; values of other types are unchanged.

    Raises for text in an engine for which this is not known to work.
    """
    if not value.type().is_string():
        return value
    if engine == "pyspark":
        return _in_unicode(value)
    if engine not in ("duckdb", "postgres"):
        raise InvalidParameterError(
            f"{value.get_name()!r} is text, and in {engine} different texts may be equal by an unknown "
            "collation. Use a column of numbers or dates, or copy the table to DuckDB (such as a Parquet "
            "file), PostgreSQL or Spark."
        )
    to_bytes, to_text = _through_bytes(engine)
    return to_text(to_bytes(value))


def by_bytes(value: Expression, *, engine: str) -> Expression:
    """Return a sort key that orders texts by their bytes; values of other types are unchanged."""
    if engine == "postgres" and value.type().is_string():
        return _through_bytes(engine)[0](value)
    return value


def in_bytes(value: Expression) -> Expression:
    """Return texts of DuckDB as their bytes, which are compared without a collation, and at no cost."""
    return _through_bytes("duckdb")[0](value)


def _in_unicode(value: Expression) -> Expression:
    """Return Spark's texts converted to bytes and back, missing if they are not UTF-8."""
    import ibis

    to_bytes, to_text = _through_bytes("pyspark")
    data = value.cast("binary")
    same = to_text(to_bytes(value)).cast("binary") == data
    return ibis.ifelse(same, data.cast("string"), ibis.null("string"))


@lru_cache(maxsize=3)
def _through_bytes(engine: str) -> tuple[Callable[[Expression], Expression], ...]:
    """Return the built-in functions of the engine from text to bytes, and back."""
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
