# SPDX-License-Identifier: Apache-2.0
"""No row stops a query: every function that may be used has an answer for every value."""

import datetime

import ibis
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.statistics import stable_histogram
from sfumato.statistics.filters import row_wise
from sfumato.statistics.filters.row_wise import require_row_wise
from sfumato.statistics.sources.tables import private_table

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")

ROWS = """
(1.0::DOUBLE, 1::BIGINT, 'a', DATE '2020-01-01', TIMESTAMP '2020-01-01 10:00:00', [1, 2], 1.5::FLOAT, '2020-01-01'),
(-1.0, -9223372036854775808, '(', DATE '5874897-12-31', TIMESTAMP '294247-01-10 04:00:54', [], 'inf', '1677-09-23'),
('inf', 9223372036854775807, '', DATE '5877642-06-25 (BC)', TIMESTAMP '290309-12-22 (BC)', [NULL], 'nan', '2262-04-11'),
('-inf', 0, 'x' || chr(0), DATE 'infinity', TIMESTAMP 'infinity', NULL, 3e38, 'infinity'),
('nan', -1, '\\', DATE '-infinity', TIMESTAMP '-infinity', [1], -3e38, '-infinity'),
(1e308, 64, '%', NULL, NULL, [1], 1e-45, NULL), (5e-324, 63, repeat('é', 3000), NULL, NULL, [1], 0, NULL),
(0.0, NULL, NULL, NULL, NULL, NULL, NULL, NULL), (-0.0, 3, '#', '0001-01-01', '0001-01-01', [1], -0.0, NULL)
"""  # noqa: E501

DATE_PARTS = ["year", "month", "day", "quarter", "week_of_year", "day_of_year", "epoch_seconds", "iso_year"]
TIME_PARTS = ["hour", "minute", "second", "microsecond", "millisecond"]
FUNCTIONS = {
    "Abs Add Divide Multiply Negate Subtract": lambda t: (t.x + t.x * t.n - t.x / t.n).abs() + -t.f,
    "Alias": lambda t: t.x.name("z"),
    "Cast": lambda t: t.n.cast("float64") + t.f.cast("float64"),
    "TryCast": lambda t: t.s.try_cast("float64") + t.x.try_cast("int64").cast("float64"),
    "Cast to text": lambda t: t.d.cast("string") + t.ts.cast("string") + t.l.cast("string"),
    "Sqrt twice": lambda t: t.x.sqrt() + t.x.sqrt() + t.n.sqrt(),
    "Ln Log Log2 Log10 twice": lambda t: t.x.ln() + t.x.ln() + t.n.log2() + t.x.log10() + t.x.log(3),
    "Exp Power": lambda t: t.x.exp() + t.x**t.x + t.x**0.5 + t.n**t.n,
    "Ceil": lambda t: t.x.ceil() == t.n.ceil(),
    "Floor": lambda t: t.x.floor() == t.f.floor(),
    "Round": lambda t: (t.x.round() == t.n.round(-3)) | (t.x.round(2) > 0) | (t.x.round(300) > 0),
    "Modulus": lambda t: (t.x % t.x > 0) | (t.n % 7 > 0),
    "FloorDivide": lambda t: t.n // 2,
    "Sign Degrees Radians Atan Atan2 E Pi": lambda t: (
        t.x.sign() + t.x.degrees() + t.x.radians() + t.x.atan() + t.x.atan2(t.n) + ibis.e + ibis.pi
    ),
    "Bucket": lambda t: t.x.bucket([0, 1, 2]),
    "BitwiseAnd BitwiseOr BitwiseXor BitwiseNot": lambda t: ~((t.n & 7) | (t.n ^ 1)),
    "Clip Coalesce Greatest Least NullIf": lambda t: ibis.greatest(
        ibis.least(t.x.clip(0, 1), t.n), ibis.coalesce(t.x, 0), t.x.nullif(3)
    ),
    "And Or Not Xor IsNull NotNull IsInf IsNan": lambda t: (
        ((t.x.isnan() & t.x.isinf()) | ~t.x.isnull()) ^ t.n.notnull()
    ),
    "Equals NotEquals Greater GreaterEqual Less LessEqual": lambda t: (
        (t.x == 1) | (t.n != 1.5) | (t.x > t.n) | (t.x >= 1) | (t.f < 1) | (t.s <= "b")
    ),
    "Between IdenticalTo InValues": lambda t: (
        t.x.between(0, 1) | t.s.identical_to("a") | t.n.isin([1, 2]) | t.d.isin(["2020-01-01"])
    ),
    "IfElse SearchedCase SimpleCase": lambda t: (
        ibis.cases((t.x > 0, t.x.sqrt()), else_=t.x)
        + (t.x > 1).ifelse(1.0, t.x)
        + t.s.cases(("a", 1.0), else_=2.0)
    ),
    "Hash HexDigest": lambda t: (t.s.hash() > 3) | (t.s.hexdigest("md5") == "a"),
    "Lowercase Uppercase Reverse Strip LStrip RStrip Capitalize StringConcat StringJoin": lambda t: (
        ibis.literal(",").join(
            [t.s.lower() + t.s.upper(), t.s.reverse().strip().lstrip().rstrip(), t.s.capitalize()]
        )
    ),
    "StringLength StringFind StringAscii StringContains StartsWith EndsWith": lambda t: (
        (t.s.length() > t.s.find("a"))
        | (t.s.ascii_str() > 3)
        | t.s.contains(t.s)
        | t.s.startswith(t.s)
        | t.s.endswith("a")
    ),
    "StringSQLLike StringSQLILike RegexSearch": lambda t: (
        t.s.like("%a") | t.s.ilike("a_") | t.s.re_search("a+")
    ),
    "Substring StrRight StringSlice StringReplace Translate RegexExtract RegexReplace": lambda t: (
        t.s.substr(0, 2)
        + t.s.right(2)
        + t.s[1:3]
        + t.s.replace("a", "b").translate("a", "b")
        + t.s.re_extract("(a+)", 1)
        + t.s.re_replace("a", "b")
    ),
    "StringSplit ArrayIndex": lambda t: t.s.split("a")[-7],
    "ArrayContains ArrayLength": lambda t: t.l.contains(1) | (t.l.length() > t.l[3]),
    "StructField": lambda t: t.both.k + 1.0,
    "DateAdd DateSub DateDelta": lambda t: (
        (t.d + ibis.interval(years=100_000)).delta(t.d - ibis.interval(days=9), unit="day")
    ),
    "TimestampAdd TimestampSub": lambda t: (
        (t.ts + ibis.interval(years=100_000) > t.ts - ibis.interval(hours=1))
        | (t.ns + ibis.interval(days=3) > "2020-01-01")
    ),
    "DateTruncate TimestampTruncate": lambda t: (
        (t.d.truncate("M") > "2020-01-01") | (t.ts.truncate("h") > "2020-01-01")
    ),
    "Date Time Strftime": lambda t: (
        (t.ts.date() == t.ns.date())
        | (t.ts.time() == t.ns.time())
        | (t.d.strftime("%Y") == t.ts.strftime("%Y"))
        | (t.ns.strftime("%Y") == "2020")
    ),
    "DayOfWeekIndex DayOfWeekName": lambda t: (
        (t.d.day_of_week.index() == t.ts.day_of_week.index()) | (t.d.day_of_week.full_name() == "Monday")
    ),
    **{f"parts: {part}": lambda t, part=part: getattr(t.ts, part)() > getattr(t.ns, part)()
       for part in DATE_PARTS + TIME_PARTS},
    **{f"parts of a date: {part}": lambda t, part=part: getattr(t.d, part)() > 3 for part in DATE_PARTS},
}  # fmt: skip


@pytest.fixture(scope="module")
def nasty():
    connection = ibis.duckdb.connect()
    connection.raw_sql(
        f"CREATE TABLE t AS SELECT *, n8::TIMESTAMP_NS AS ns, {{'k': x}} AS both "
        f"FROM (VALUES {ROWS}) AS v(x, n, s, d, ts, l, f, n8)"
    )
    return connection.table("t")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_value_stops_a_function_that_may_be_used(name, nasty):
    function = FUNCTIONS[name]
    for given in (nasty.mutate(y=function), nasty.filter(lambda t: function(t).notnull())):
        owned = private_table(given).owned
        owned.table(given.select(given.columns[-1]))


def test_every_function_that_may_be_used_is_tried():
    import ibis.expr.operations as ops

    tried = {type(node) for make in FUNCTIONS.values() for node in make(tables()).op().find(ops.Node)}
    listed = row_wise._classes(row_wise._OF_ENGINE["duckdb"])
    assert listed - tried == {ops.SortKey}


def tables():
    kinds = {
        "x": "float64", "n": "int64", "s": "string", "d": "date", "ts": "timestamp(6)", "l": "array<int32>",
        "f": "float32", "ns": "timestamp(9)", "both": "struct<k: float64>",
    }  # fmt: skip
    return ibis.table(kinds, name="t")


def test_what_would_fail_is_missing_and_only_that():
    connection = ibis.duckdb.connect()
    connection.raw_sql("CREATE TABLE t AS SELECT unnest([4.0, -4.0, 0.0, 'inf'::DOUBLE]) AS x")
    table = private_table(connection.table("t"))
    roots = table.mutate(y=lambda row: row.x.sqrt())["y"]
    assert roots.ordered((0.0, 9.0)).tolist() == [0.0, 2.0, 9.0]
    assert table.mutate(y=lambda row: row.x.floor())["y"].ordered((-9.0, 9.0)).tolist() == [-4.0, 0.0, 4.0]
    assert "CASE WHEN" in table.filter(lambda row: row.x.ln() > 0).count(epsilon=1.0).plan()


FAILING = {
    "whole numbers that overflow": lambda t: t.n * t.n,
    "the size of the least whole number": lambda t: t.n.abs(),
    "a whole number beyond 64 bits": lambda t: t.x // 7,
    "division by a column": lambda t: t.n // t.n,
    "a pattern from a column": lambda t: t.s.re_search(t.s),
    "a shift": lambda t: t.n << t.n,
    "a repeated text": lambda t: t.s.repeat(t.n),
    "a sine": lambda t: t.x.sin(),
    "an arc cosine": lambda t: t.x.acos(),
    "a logarithm to the base of a column": lambda t: t.x.log(t.x),
    "a date from numbers": lambda t: ibis.date(t.n, t.n, t.n),
    "a date moved by a column": lambda t: t.d + t.n.as_interval("D"),
    "a date moved too far": lambda t: t.d + ibis.interval(years=10**6),
    "a map with one key twice": lambda t: ibis.map([t.s, "a"], [1, 2]).length(),
    "text among numbers": lambda t: t.s.isin([1, 2]),
    "text and a number": lambda t: t.s.identical_to(1),
    "text or a number": lambda t: t.s.cases((1, True), else_=False),
    "text and a date": lambda t: t.s.isin([__import__("datetime").date(2020, 1, 1)]),
    "a date and no date": lambda t: t.d > "oops",
    "a date and a time": lambda t: t.d > t.ts,
    "numbers among text": lambda t: ibis.array([1, 2]).contains(t.s),
}


@pytest.mark.parametrize("name", FAILING)
def test_what_a_row_could_stop_is_refused_before_anything_is_charged(name):
    table = tables()
    try:
        given = table.mutate(y=FAILING[name](table))
    except Exception:  # Ibis itself will have none of it
        return
    with pytest.raises(InvalidParameterError, match="row by row"):
        require_row_wise(given, engine="duckdb")


def test_other_engines_have_a_shorter_list():
    table = tables()
    for engine in ("postgres", "mysql"):
        require_row_wise(table.filter(table.x > 3, table.s.lower().isin(["a"])), engine=engine)
        for value in (table.x + 1, table.x / 2, table.x.sqrt(), table.d.year(), table.s.re_search("a")):
            with pytest.raises(InvalidParameterError, match=f"in {engine}"):
                require_row_wise(table.mutate(y=value), engine=engine)
    require_row_wise(table.mutate(y=table.x * 2 + 1, z=table.d.year()), engine="pyspark")
    with pytest.raises(InvalidParameterError, match="in pyspark"):
        require_row_wise(table.mutate(y=table.x / 2), engine="pyspark")


def test_a_date_that_python_has_no_year_for_counts_as_missing(tmp_path):
    path = tmp_path / "days.csv"
    path.write_text("day,v\n" + "2024-01-01,1\n" * 200 + "20240-01-01,1\n")
    table = private_table(str(path), types={"day": "date"})
    release = stable_histogram(table.categories("day"), epsilon=1.0, delta=1e-6)
    assert release.value.categories == (datetime.date(2024, 1, 1),)
    owned = private_table(str(path), types={"day": "date", "v": "number"}, privacy_unit="day")
    _, owners = owned.rows("v").read()
    assert owners.tolist() == [0]  # a date may be a unit: one row of each that there is
