# SPDX-License-Identifier: Apache-2.0
"""A pseudorandom number for each privacy unit, the same in memory and in a query engine.

`draw_of` and `drawn` map a unit to a whole number from 0 to `DRAWS` - 1. The number depends only on the unit,
so no other unit changes it, and it is always the same. Over many units the numbers are spread like uniform
random ones, also if units are numbered consecutively. Anybody can compute them: they decide which rows count,
and no privacy depends on them.

- A unit that is a whole number of 64 bits is cubed modulo primes, and the upper bits of a last product are
  its number. No product exceeds 63 bits, beyond which engines fail. Engines have different hash functions;
  here numpy and Ibis run the same lines.
- Any other unit is written as text, and four bytes of its MD5 digest are used.

Edge cases Equal units have one number: zero has no sign, and decimals have no trailing zeros. Otherwise
           `contribution_bound` would count more rows than allowed. 7, 7.0, "7" and "7.0" have one number, in
           memory and in DuckDB: a pandas column of whole numbers becomes floats if a unit is missing, and
           text if a unit is too large, and that must not change the numbers of all other units. In other
           engines only columns of whole numbers are treated as whole numbers.
"""

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from hashlib import md5
from typing import Any

from sfumato.errors import InvalidParameterError
from sfumato.statistics.sources.engine_values import portable

__all__ = ["DRAWS", "draw_of", "drawn", "redrawn", "seed", "whole_draw"]

Expression = Any
DRAWS = 2**30  # times the rows of a unit, up to 2^33, it fits into 64 bits
_POSITIVE = 2**63 - 1
_WORD = 2**32 - 1
# The first primes above words of SHA-256, below 2^31; the other constants are digits of pi.
_PRIMES = (0x6A09E671, 0x5BE0CD21, 0x510E528B)
_ADDED, _FACTOR = 0x243F6A88, 0x38D01377
_INT64 = range(-(2**63), 2**63)
_FIRST = frozenset("-0123456789")  # characters that a whole number starts with
_LONGEST = 22  # characters of a whole number of 64 bits, written as a float


def whole_draw(number: Any) -> Any:
    """Return the draw of whole numbers of 64 bits: a Python int, an array of numpy or an expression of Ibis.

    >>> [whole_draw(number) for number in (0, 1, 2, -1)]
    [761795359, 364837021, 758076559, 106317072]
    """
    first, second, third = _PRIMES
    shifted = (number & _POSITIVE) % first + _ADDED
    cubed = shifted * shifted % second * shifted % third
    return (cubed * _FACTOR & _WORD) >> 2


def redrawn(draw: Any, place: Any) -> Any:
    """Return further draws of a unit, one for each whole number from 0 to 2^32, as if drawn independently.

    >>> [redrawn(761795359, place) for place in (0, 1)]
    [260573384, 491825215]
    """
    return whole_draw(draw + (place + 1) * DRAWS)


# --- in memory --------------------------------------------------------------------------------------------


def draw_of(unit: object) -> int:
    """Return the draw of one unit of any type. Units that are equal in Python have one draw.

    >>> draw_of(7) == draw_of(7.0) == draw_of("7"), draw_of("7") == draw_of("07")
    (True, False)
    """
    if isinstance(unit, str) and unit[:1] not in _FIRST:  # not a number: most text units
        return _of_bytes(unit.encode(errors="surrogatepass"))
    if isinstance(unit, bytes):
        return _of_bytes(unit)
    whole = _whole(unit)
    return whole_draw(whole) if whole is not None else _of_bytes(_text(unit).encode(errors="surrogatepass"))


def _of_bytes(name: bytes) -> int:
    return int.from_bytes(md5(name, usedforsecurity=False).digest()[-4:], "little") >> 2


def _whole(unit: Any) -> int | None:
    """Return a unit that is, or reads as, a whole number of 64 bits."""
    try:
        whole = int(unit.removesuffix(".0") if isinstance(unit, str) else unit)
        same = unit in (str(whole), f"{whole}.0") if isinstance(unit, str) else bool(whole == unit)
    except Exception:  # the unit is not a number; the message may quote it
        return None
    return whole if same and whole in _INT64 else None


def _text(unit: Any) -> str:
    if isinstance(unit, Decimal):
        return repr(float(unit))  # equal to that of an equal float
    return unit.isoformat(" ") if isinstance(unit, datetime) else str(unit)


# --- in an engine -----------------------------------------------------------------------------------------


def seed(unit: Expression, *, engine: str) -> Expression:
    """Return what `drawn` takes: the unit, or its digest in PostgreSQL.

    PostgreSQL computes an expression each time it is written, but a column beside a window only once.
    """
    if engine == "postgres" and not _is_whole(unit.type()):
        return _postgres_digest(_written(unit, engine))
    if not (engine in _DIGESTS or _is_whole(unit.type())):
        raise InvalidParameterError(
            f"in {engine} a unit must be a whole number. Name a column of whole numbers, or copy the table "
            "to DuckDB (such as a Parquet file), PostgreSQL or Spark."
        )
    return unit


def drawn(seed: Expression, *, engine: str) -> Expression:
    """Return the draw of each unit, given its seed."""
    import ibis

    kind = seed.type()
    if kind.is_boolean():  # PostgreSQL cannot cast it
        return ibis.ifelse(seed, whole_draw(1), whole_draw(0))
    if _is_whole(kind):
        return whole_draw(seed.cast("int64"))
    text = _DIGESTS[engine](_written(seed, engine))
    if engine != "duckdb" or not (kind.is_floating() or kind.is_uint64() or kind.is_string()):
        return text
    whole = seed.try_cast("int64")
    if kind.is_floating():
        return ibis.ifelse(whole.cast("float64") == seed, whole_draw(whole), text)
    if kind.is_uint64():
        return ibis.ifelse(whole.notnull(), whole_draw(whole), text)
    # Text that begins with a letter, or is longer, is not a number. Trying to cast it would take time.
    written = whole.cast("string")
    reads = (seed.length() <= _LONGEST) & ((written == seed) | (written + ".0" == seed))
    return ibis.cases((seed >= ":", text), (reads, whole_draw(whole)), else_=text)


def _is_whole(kind: Any) -> bool:
    return kind.is_boolean() or (kind.is_integer() and not kind.is_uint64())


def _written(unit: Expression, engine: str) -> Expression:
    """Return a unit as text or bytes; equal units are written alike."""
    kind = unit.type()
    if kind.is_string() or kind.is_binary():
        return unit
    if kind.is_floating():
        return (unit + 0.0).cast("string")  # -0.0 + 0.0 is 0.0
    return portable(unit, engine=engine).cast("string")  # which writes 1.0 and 1.00 alike


def _duckdb_draw(text: Expression) -> Expression:
    # DuckDB returns the digest as a number of 128 bits, with the last byte highest; old versions with a sign.
    upper = _builtin("md5_number", _kind(text), returned="uint64")(text) >> 98
    return upper.cast("int32").cast("int64") & (DRAWS - 1)


def _postgres_digest(text: Expression) -> Expression:
    digits = _builtin("md5", _kind(text), returned="string")(text)
    return _builtin("decode", "string", "string", returned="binary")(digits, "hex")


def _postgres_draw(digest: Expression) -> Expression:
    byte = _builtin("get_byte", "binary", "int32", returned="int32")
    return _joined([byte(digest, place).cast("int64") for place in _LAST])


def _spark_draw(text: Expression) -> Expression:
    digits = _builtin("md5", _kind(text), returned="string")(text)
    byte = _builtin("conv", "string", "int32", "int32", returned="string")
    return _joined([byte(digits.substr(2 * place, 2), 16, 10).cast("int64") for place in _LAST])


def _joined(parts: list[Expression]) -> Expression:
    """Return the draw from four bytes, of which the first is the lowest."""
    first, second, third, fourth = parts
    return (first + second * 2**8 + third * 2**16 + fourth * 2**24) >> 2


_LAST = (12, 13, 14, 15)  # bytes of a digest
_DIGESTS = {"duckdb": _duckdb_draw, "postgres": _postgres_draw, "pyspark": _spark_draw}


def _kind(text: Expression) -> str:
    return "string" if text.type().is_string() else "binary"


@lru_cache(maxsize=32)
def _builtin(name: str, *given: str, returned: str) -> Callable[..., Expression]:
    """Return a built-in function of the engine."""
    from ibis import udf

    def of_one(a: Any) -> Any: ...
    def of_two(a: Any, b: Any) -> Any: ...
    def of_three(a: Any, b: Any, c: Any) -> Any: ...

    builtin: Any = udf.scalar.builtin
    return builtin((of_one, of_two, of_three)[len(given) - 1], name=name, signature=(given, returned))
