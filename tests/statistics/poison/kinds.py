# SPDX-License-Identifier: Apache-2.0
"""Types of each engine, with usual values and extreme ones."""

from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import pyarrow as pa

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True)
class Kind:
    """A type, in the words of an engine, with usual values and extreme ones, as texts that are cast to it.

    A value that begins with "=" is SQL as it is. `named` are the usual values as a caller would name them.
    Values of an Arrow type (`arrow`) are the numbers or the bytes in memory that stand for them.
    """

    name: str
    usual: tuple[Any, ...]
    extreme: tuple[Any, ...]
    named: tuple[Any, ...] = ()
    collation: str = ""
    arrow: Any = None

    @property
    def title(self) -> str:
        """What the type is called."""
        return f"{self.name} {self.collation}".strip()

    @property
    def names(self) -> tuple[Any, ...]:
        """What a caller names as categories and keys: the usual values, or what does not fit the type."""
        return self.named or tuple(map(str, self.usual))

    def sql(self, value: str | None) -> str:
        """Return a value of this type in SQL."""
        if value is None:
            return f"CAST(NULL AS {self.name})"
        if value.startswith("="):
            return value[1:]
        quoted = value.replace("'", "''")
        return f"CAST('{quoted}' AS {self.name}) {self.collation}"

    def array(self, values: list[Any]) -> Any:
        """Return values of this type as an Arrow array, whether or not they mean anything."""
        if pa.types.is_string(self.arrow):
            return pa.array(values, type=pa.binary()).view(pa.string())
        width = {32: pa.int32(), 64: pa.int64()}[self.arrow.bit_width]
        return pa.array(values, type=width).view(self.arrow)


# --- types and their extreme values -----------------------------------------------------------------------

_FLOATS = ("nan", "inf", "-inf", "-0.0", "1e308", "-1e308", "5e-324", "4e-310", "1e-300")
_NUMBERS = ("1", "2", "3.5")
_WHOLE, _NAMED_WHOLE = ("1", "2", "3"), (1, 2, 3)
_INT64 = ("9223372036854775807", "-9223372036854775808", "0", "-1", "9007199254740993")
_TEXTS, _NAMED_TEXTS = ("ann", "bob", "cid"), ("ann", "bob", "cid")
_STRANGE = (
    "",
    " ",
    "ANN",
    "ann ",
    "nan",
    "1e309",
    "infinity",
    "0001-01-01",
    "'",
    '"',
    "\\",
    "%",
    "_",
    "(",
    "é" * 3000,
    "\u202e",
    "\U0001f600",
    "e\u0301",
    "\ufffe",
    "a\nb",
)
_DATES = ("2020-01-01", "2021-06-30", "1999-12-31")
_NAMED_DATES = tuple(map(date.fromisoformat, _DATES))
_TIMES = ("2020-01-01 10:00:00", "2021-06-30 23:59:59", "1999-12-31 00:00:00")
_CLOCK = ("10:00:00", "23:59:59", "00:00:01")
_UUIDS = tuple(f"00000000-0000-0000-0000-00000000000{i}" for i in range(1, 4))
_UUID_ENDS = ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff")
_BYTES = ("=CAST('a' AS {})", "=CAST('b' AS {})")

_BOOLEAN = Kind("BOOLEAN", ("true", "false"), ("false",), (True, False))
_BIGINT = Kind("BIGINT", _WHOLE, _INT64, _NAMED_WHOLE)
_SMALLINT = Kind("SMALLINT", _WHOLE, ("32767", "-32768", "0"), _NAMED_WHOLE)
_DOUBLE = Kind("DOUBLE PRECISION", _NUMBERS, _FLOATS, (1.0, 2.0, 3.5))

DUCKDB = (
    _BOOLEAN,
    Kind("TINYINT", _WHOLE, ("127", "-128", "0"), _NAMED_WHOLE),
    _SMALLINT,
    _BIGINT,
    Kind("UBIGINT", _WHOLE, ("18446744073709551615", "0"), _NAMED_WHOLE),
    Kind(
        "HUGEINT",
        _WHOLE,
        (
            "170141183460469231731687303715884105727",
            "-170141183460469231731687303715884105728",
            "0",
            "1" + "0" * 38,
        ),
    ),
    Kind("UHUGEINT", _WHOLE, ("340282366920938463463374607431768211455", "0")),
    Kind("BIGNUM", _WHOLE, ("1" + "0" * 400, "-1" + "0" * 400, "0")),
    Kind("DECIMAL(38, 0)", _WHOLE, ("9" * 38, "-" + "9" * 38)),
    Kind("DECIMAL(38, 37)", _NUMBERS, ("9." + "9" * 37, "0." + "0" * 36 + "1")),
    Kind("DECIMAL(5, 2)", _NUMBERS, ("999.99", "-999.99", "0.01")),
    Kind("FLOAT", _NUMBERS, ("nan", "inf", "-inf", "-0.0", "3.4e38", "1e-45"), (1.0, 2.0, 3.5)),
    _DOUBLE,
    Kind("VARCHAR", _TEXTS, (*_STRANGE, "=chr(0)", "='a' || chr(0)"), _NAMED_TEXTS),
    Kind("VARCHAR", ("ann", "bob", "cid"), ("ANN", "Bob", ""), _NAMED_TEXTS, "COLLATE nocase"),
    Kind("BLOB", ("a", "b"), ("\\xFF\\xFE", "\\x00", "")),
    Kind("BIT", ("101", "001"), ("0", "1" * 300)),
    Kind("UUID", _UUIDS, _UUID_ENDS),
    Kind(
        "DATE",
        _DATES,
        (
            "infinity",
            "-infinity",
            "0044-03-15 (BC)",
            "20000-01-01",
            "5874897-12-31",
            "5877642-06-25 (BC)",
            "0001-01-01",
            "9999-12-31",
            "10000-01-01",
        ),
        _NAMED_DATES,
    ),
    Kind(
        "TIMESTAMP",
        _TIMES,
        (
            "infinity",
            "-infinity",
            "0044-03-15 (BC) 00:00:00",
            "20000-01-01 00:00:00",
            "294247-01-10 04:00:54.775806",
            "290309-12-22 (BC) 00:00:00",
            "0001-01-01 00:00:00",
            "9999-12-31 23:59:59.999999",
            "1969-12-31 23:59:59.999999",
        ),
    ),
    Kind(
        "TIMESTAMP_S",
        _TIMES,
        (
            "infinity",
            "-infinity",
            "20000-01-01 00:00:00",
            "0044-03-15 (BC) 00:00:00",
            "9999-12-31 23:59:59",
            "294247-01-10 04:00:54",
        ),
    ),
    Kind(
        "TIMESTAMP_MS",
        _TIMES,
        (
            "infinity",
            "-infinity",
            "20000-01-01 00:00:00",
            "0044-03-15 (BC) 00:00:00",
            "9999-12-31 23:59:59.999",
            "294247-01-10 04:00:54",
        ),
    ),
    Kind(
        "TIMESTAMP_NS",
        _TIMES,
        ("infinity", "-infinity", "1677-09-22 00:00:00", "2262-04-11 23:47:16.854775806"),
    ),
    Kind(
        "TIMESTAMPTZ",
        _TIMES,
        (
            "infinity",
            "-infinity",
            "0044-03-15 (BC) 00:00:00",
            "20000-01-01 00:00:00",
            "9999-12-31 23:59:59.999999",
            "0001-01-01 00:00:00",
        ),
    ),
    Kind("TIME", _CLOCK, ("24:00:00", "23:59:59.999999", "00:00:00")),
    Kind("TIMETZ", _CLOCK, ("24:00:00", "00:00:00+15:59:59", "23:59:59.999999-15:59:59")),
    Kind("INTERVAL", ("1 day", "2 days"), ("178956970 years", "-1 month", "0 days", "999999999 days")),
    Kind("ENUM('ann', 'bob', 'cid', '')", _TEXTS, ("",), _NAMED_TEXTS),
    Kind("INTEGER[]", ("[1]", "[2]"), ("[]", "[NULL]", "[2147483647]")),
    Kind("DOUBLE[2]", ("[1, 2]", "[2, 3]"), ("[NULL, 'nan']", "['inf', '-inf']")),
    Kind("STRUCT(a DOUBLE)", ("{'a': 1}", "{'a': 2}"), ("{'a': nan}", "{'a': NULL}")),
    Kind("MAP(VARCHAR, INTEGER)", ("{a=1}", "{b=2}"), ("{}",)),
    Kind(
        "UNION(n INTEGER, s VARCHAR)",
        ("=1::UNION(n INTEGER, s VARCHAR)",),
        ("='x'::UNION(n INTEGER, s VARCHAR)",),
    ),
    Kind("JSON", ("1", '{"a": 2}'), ("null", '""', "1e400")),
)

POSTGRESQL = (
    _BOOLEAN,
    _SMALLINT,
    _BIGINT,
    Kind(
        "NUMERIC",
        _NUMBERS,
        (
            "1e309",
            "-1e309",
            "1e-400",
            "-1e-400",
            "1e131000",
            "NaN",
            "Infinity",
            "-Infinity",
            "1.000",
            "0.000",
            "1.7976931348623159e308",
            "1.7976931348623157e308",
            "4e-324",
            "2e-324",
            "9" * 60 + "." + "9" * 60,
        ),
    ),
    Kind("NUMERIC(38, 9)", _NUMBERS, ("99999999999999999999999999999.999999999", "0.000000001", "NaN")),
    Kind("NUMERIC(1000, 600)", _NUMBERS, ("9" * 400, "=(1e-600)::NUMERIC(1000, 600)", "NaN")),
    Kind("MONEY", _NUMBERS, ("92233720368547758.07", "-92233720368547758.08", "0")),
    Kind("REAL", _NUMBERS, ("nan", "inf", "-inf", "-0.0", "3.4e38", "1e-45"), (1.0, 2.0, 3.5)),
    _DOUBLE,
    Kind("TEXT", _TEXTS, (*_STRANGE, "=chr(1)"), _NAMED_TEXTS),
    Kind("VARCHAR(5)", _TEXTS, ("", "     ", "ANN", "ééééé"), _NAMED_TEXTS),
    Kind("CHAR(5)", _TEXTS, ("", "ANN", "ééééé"), _NAMED_TEXTS),
    Kind("BYTEA", ("a", "b"), ("\\xfffe", "\\x00", "")),
    Kind("UUID", _UUIDS, _UUID_ENDS),
    Kind(
        "DATE",
        _DATES,
        (
            "infinity",
            "-infinity",
            "0044-03-15 BC",
            "20000-01-01",
            "5874897-12-31",
            "4713-11-24 BC",
            "0001-01-01",
            "9999-12-31",
            "10000-01-01",
        ),
        _NAMED_DATES,
    ),
    Kind(
        "TIMESTAMP",
        _TIMES,
        (
            "infinity",
            "-infinity",
            "0044-03-15 00:00:00 BC",
            "20000-01-01",
            "294276-12-31 23:59:59",
            "4713-11-24 00:00:00 BC",
            "0001-01-01",
            "9999-12-31 23:59:59.999999",
            "1600-01-01",
        ),
    ),
    Kind(
        "TIMESTAMPTZ",
        _TIMES,
        (
            "infinity",
            "-infinity",
            "0044-03-15 00:00:00 BC",
            "20000-01-01",
            "0001-01-01",
            "9999-12-31 23:59:59.999999+00",
        ),
    ),
    Kind("TIME", _CLOCK, ("24:00:00", "23:59:59.999999", "00:00:00")),
    Kind("TIMETZ", _CLOCK, ("24:00:00+15:59:59", "24:00:00", "00:00:00-15:59:59")),
    Kind("INTERVAL", ("1 day", "2 days"), ("178000000 years", "-1 month", "0 days")),
    Kind("JSON", ("1", '{"a": 2}'), ("null", '""', "1e400")),
    Kind("JSONB", ("1", '{"a": 2}'), ("null", '""', "1e400")),
    Kind("INET", ("10.0.0.1", "10.0.0.2"), ("::", "0.0.0.0/0", "ffff::/16")),
    Kind("BIT(3)", ("101", "001"), ("000",)),
    Kind("INTEGER[]", ("{1}", "{2}"), ("{}", "{NULL}", "{{1,2},{3,4}}", "[5:5]={1}")),
    Kind("NUMERIC[]", ("{1}", "{2}"), ("{NaN}", "{1e400}")),
    Kind("INT4RANGE", ("[1,2)", "[2,3)"), ("empty", "(,)")),
    Kind("POINT", ("(1,2)", "(2,3)"), ("(inf,nan)",)),
    Kind("OID", _WHOLE, ("4294967295", "0")),
)

SPARK = (
    _BOOLEAN,
    Kind("TINYINT", _WHOLE, ("127", "-128", "0"), _NAMED_WHOLE),
    _BIGINT,
    Kind("DECIMAL(38, 0)", _WHOLE, ("9" * 38, "-" + "9" * 38)),
    Kind("DECIMAL(38, 37)", _NUMBERS, ("9." + "9" * 37, "0." + "0" * 36 + "1")),
    Kind("FLOAT", _NUMBERS, ("nan", "inf", "-inf", "-0.0", "3.4e38", "1e-45"), (1.0, 2.0, 3.5)),
    replace(_DOUBLE, name="DOUBLE"),
    Kind(
        "STRING",
        _TEXTS,
        (
            *_STRANGE[:10],
            *_STRANGE[11:],
            "=char(0)",
            "=CAST(X'fffe' AS STRING)",
            "=CAST(X'c3' AS STRING)",
            "=CAST(X'eda080' AS STRING)",
            "=CAST(X'616e6eff' AS STRING)",
        ),
        _NAMED_TEXTS,
    ),
    Kind("BINARY", ("a", "b"), ("=X'fffe'", "=X'00'", "")),
    Kind(
        "DATE",
        _DATES,
        (
            "=make_date(10000, 1, 1)",
            "=make_date(20000, 1, 1)",
            "=make_date(0, 1, 1)",
            "=make_date(-43, 3, 15)",
            "0001-01-01",
            "9999-12-31",
            "1500-02-28",
            "=date_add(DATE'5881000-01-01', 0)",
        ),
        _NAMED_DATES,
    ),
    Kind(
        "TIMESTAMP_NTZ",
        _TIMES,
        (
            "=make_timestamp_ntz(20000, 1, 1, 0, 0, 0)",
            "=make_timestamp_ntz(-43, 3, 15, 0, 0, 0)",
            "0001-01-01 00:00:00",
            "9999-12-31 23:59:59.999999",
            "=make_timestamp_ntz(294247, 1, 10, 4, 0, 54)",
        ),
    ),
    Kind(
        "TIMESTAMP",
        _TIMES,
        (
            "=make_timestamp(20000, 1, 1, 0, 0, 0)",
            "=make_timestamp(-43, 3, 15, 0, 0, 0)",
            "0001-01-01 00:00:00",
            "9999-12-31 23:59:59.999999",
            "1500-02-28 00:00:00",
        ),
    ),
    # Not intervals: Ibis opens no table in Spark that has them.
    Kind("ARRAY<INT>", ("=array(1)", "=array(2)"), ("=array()", "=array(CAST(NULL AS INT))")),
    Kind(
        "STRUCT<a: DOUBLE>",
        ("=named_struct('a', 1.0D)", "=named_struct('a', 2.0D)"),
        ("=named_struct('a', CAST('nan' AS DOUBLE))",),
    ),
    Kind("MAP<STRING, INT>", ("=map('a', 1)", "=map('b', 2)"), ("=map()",)),
)

_MOST, _DAY = 2**63 - 1, 86_400


def _of_arrow(
    kind: Any, usual: tuple[Any, ...], extreme: tuple[Any, ...], named: tuple[Any, ...] = ()
) -> Kind:
    return Kind(str(kind), usual, extreme, named, arrow=kind)


def _times(make: Any, units: tuple[str, ...], *zone: str) -> tuple[Kind, ...]:
    ends = (_MOST, -_MOST, _MOST - 1, 0, -1, 2**62)
    return tuple(_of_arrow(make(unit, *zone), (_DAY, 2 * _DAY), ends) for unit in units)


PARQUET = (  # what a file keeps as it is
    *_times(pa.timestamp, ("ms", "us", "ns")),
    *_times(pa.timestamp, ("ms", "us", "ns"), "UTC"),
    _of_arrow(pa.date32(), (1, 2), (2**31 - 1, -(2**31), 2**31 - 2, 0), (date(1970, 1, 2), date(1970, 1, 3))),
    _of_arrow(pa.time32("ms"), (1000, 2000), (_DAY * 1000, 2**31 - 1, -1, 0)),
    _of_arrow(pa.time64("us"), (10**6, 2 * 10**6), (_DAY * 10**6, _MOST, -1, 0)),
    _of_arrow(pa.time64("ns"), (10**9, 2 * 10**9), (_DAY * 10**9, _MOST, -1, 0)),
)
ARROW = (
    *PARQUET,
    *_times(pa.timestamp, ("s",)),
    *_times(pa.timestamp, ("s",), "UTC"),
    *_times(pa.duration, ("s", "ms", "us", "ns")),
    _of_arrow(pa.time32("s"), (1, 2), (_DAY, 2**31 - 1, -1, 0)),
    _of_arrow(pa.date64(), (0, _DAY * 1000), (_MOST, -_MOST, 1), (date(1970, 1, 1), date(1970, 1, 2))),
    _of_arrow(
        pa.string(), (b"ann", b"bob"), (b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"", b"\0"), ("ann", "bob")
    ),
)

KINDS = {"duckdb": DUCKDB, "arrow": ARROW, "parquet": PARQUET, "postgres": POSTGRESQL, "pyspark": SPARK}
