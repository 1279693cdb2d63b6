# SPDX-License-Identifier: Apache-2.0
import ibis
import ibis.expr.datatypes as dt
import ibis.expr.operations as ops
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.statistics.filters.row_wise import require_row_wise

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")


@ibis.udf.scalar.python
def doubled(x: float) -> float:
    return 2 * x


@ibis.udf.scalar.builtin
def Abs(x: float) -> float: ...  # named as a class of Ibis that may pass


@ibis.udf.scalar.pyarrow
def centered(x: float) -> float:
    return pc.subtract(x, pc.mean(x))


def in_batches(value):
    """Return what a function of whole batches makes of a column, as Ibis has it for Spark."""
    return ops.ElementWiseVectorizedUDF(
        func=lambda batch: batch - batch.mean(),
        func_args=[value.op()],
        input_type=[value.type()],
        return_type=value.type(),
    ).to_expr()


@pytest.fixture
def people():
    connection = ibis.duckdb.connect()
    connection.raw_sql("CREATE TABLE people AS SELECT 1 AS id, 2.5::DOUBLE AS x, '7' AS text, [1, 2] AS list")
    return connection.table("people")


ALLOWED = {
    "the table itself": lambda t: t,
    "a filter": lambda t: t.filter(t.x > 3, t.text.isin(["a", "b"])),
    "a projection": lambda t: t.select("id", y=t.x * 2 + 1),
    "a new column of one row": lambda t: t.mutate(long=t.text.length() > 3),
    "conditions": lambda t: t.mutate(y=ibis.cases((t.x > 1, t.x.log()), else_=t.x.fill_null(0).abs())),
    "parts of a text": lambda t: t.mutate(y=t.text.re_extract("(a+)", 1).upper() + t.text.substr(0, 2)),
    "elements of a list": lambda t: t.mutate(y=t.list.length() > t.list[0]),
    "a sort": lambda t: t.order_by("x"),
    "a dropped column": lambda t: t.drop("x"),
    "no missing values": lambda t: t.drop_null(),
    "a cast that cannot fail": lambda t: t.mutate(y=t.id.cast("float64"), s=t.x.cast("string")),
    "a cast that makes missing values": lambda t: t.mutate(y=t.text.try_cast("float64")),
}

REFUSED = {
    "a comparison with the mean": lambda t: t.filter(t.x > t.x.mean()),
    "a window": lambda t: t.mutate(y=t.x - t.x.mean().over(group_by="id")),
    "a rank": lambda t: t.mutate(y=t.x.rank()),
    "the row before": lambda t: t.mutate(y=t.x.lag()),
    "a function of each element": lambda t: t.mutate(y=t.list.map(lambda each: each + 1)),
    "what is missing, filled by type": lambda t: t.fill_null({"text": "a"}),
    "a limit": lambda t: t.limit(10),
    "a sample": lambda t: t.sample(0.5),
    "distinct rows": lambda t: t.distinct(),
    "an aggregate": lambda t: t.group_by("id").aggregate(n=t.count()),
    "a join": lambda t: t.join(t.view(), "id"),
    "a union": lambda t: t.union(t),
    "a subquery": lambda t: t.filter(t.id.isin(t.view().x)),
    "several rows of one": lambda t: t.select(y=t.list.unnest()),
    "a random number": lambda t: t.filter(ibis.random() < 0.5),
    "a function of the user's": lambda t: t.filter(doubled(t.x) > 1),
    "a function of the user's, named as one of Ibis": lambda t: t.filter(Abs(t.x) > 1),
    "a function of arrow arrays": lambda t: t.filter(centered(t.x) > 1),
    "a function of batches": lambda t: t.mutate(y=in_batches(t.x)),
    "the number of a row": lambda t: t.filter(t.rowid() % 2 == 0),
    "the number of a row in a new column": lambda t: t.mutate(y=t.rowid()),
    "a parameter": lambda t: t.filter(t.x > ibis.param("float64")),
    "the time now": lambda t: t.mutate(y=ibis.now()),
    "a name for a limit": lambda t: t.limit(1).alias("first"),
    "a sign that may not fit": lambda t: t.filter(t.id.cast("uint64") > 3),
    "a decimal that may not fit": lambda t: t.filter(t.id.cast("decimal(5, 2)") > 3),
    "text as a date": lambda t: t.mutate(y=t.text.as_date("%Y")),
    "SQL text": lambda t: t.get_backend().sql("SELECT id FROM people LIMIT 3", schema={"id": "int32"}),
    "a frame": lambda t: ibis.memtable(pa.table({"x": [1.0]})),
    "text as a number": lambda t: t.filter(t.text.cast("float64") > 3),
    "a number that may not fit": lambda t: t.filter(t.x.cast("int8") > 3),
}


CASTS_THAT_CANNOT_FAIL = [
    ("int8", "int64"),
    ("uint8", "uint8"),
    ("uint8", "int16"),
    ("boolean", "int8"),
    ("boolean", "float64"),
    ("uint64", "float64"),
    ("decimal(38, 9)", "float64"),
    ("float32", "float64"),
    ("date", "string"),
    ("!int64", "int64"),
]
CASTS_THAT_MAY_FAIL = [
    ("int64", "int32"),
    ("int64", "uint64"),
    ("int8", "uint16"),
    ("uint64", "int64"),
    ("int64", "decimal(5, 2)"),
    ("float64", "decimal(18, 2)"),
    ("float64", "float32"),
    ("float64", "int64"),
    ("string", "float64"),
    ("string", "uuid"),
    ("date", "timestamp"),  # dates of DuckDB and PostgreSQL reach further
    ("timestamp", "date"),
    ("string", "json"),
]


def cast(given: str, to: str):
    # The node itself: Ibis leaves out a cast that it takes for none.
    value = ibis.table({"x": given}, name="t").x
    return ibis.table({"x": given}, name="t").select(y=ops.Cast(value.op(), dt.dtype(to)).to_expr())


@pytest.mark.parametrize(("given", "to"), CASTS_THAT_CANNOT_FAIL)
def test_a_cast_to_a_type_that_has_every_value_passes(given, to):
    require_row_wise(cast(given, to), engine="postgres")


@pytest.mark.parametrize(("given", "to"), CASTS_THAT_MAY_FAIL)
def test_a_cast_that_some_value_does_not_survive_is_refused(given, to):
    with pytest.raises(InvalidParameterError, match="may fail on a row"):
        require_row_wise(cast(given, to), engine="duckdb")


@pytest.mark.parametrize("name", ALLOWED)
def test_what_makes_each_row_from_one_row_passes(name, people):
    require_row_wise(ALLOWED[name](people), engine="duckdb")


@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_rows_or_may_fail_on_one_is_refused(name, people):
    with pytest.raises(InvalidParameterError, match="row by row"):
        require_row_wise(REFUSED[name](people), engine="duckdb")


def test_a_refused_cast_says_what_to_do(people):
    with pytest.raises(InvalidParameterError, match=r"from string to float64 may fail .* use try_cast"):
        require_row_wise(people.filter(people.text.cast("float64") > 3), engine="duckdb")


@pytest.mark.parametrize(
    ("given", "to", "soft"),
    [
        ("date", "timestamp(6)", True),
        ("date", "timestamp('UTC')", False),  # DuckDB fails on the year 5874897
        ("timestamp(6)", "date", True),
        ("timestamp(6)", "time", False),  # on an infinite one
        ("timestamp(6)", "timestamp(9)", False),  # on the year 2500
        ("timestamp(3)", "date", False),  # on what does not fit microseconds
        ("timestamp('UTC', 6)", "timestamp(6)", False),
        ("unknown", "float64", False),
        ("unknown", "string", False),
        ("string", "date", True),
        ("float64", "int8", True),
    ],
)
def test_a_soft_cast_of_duckdb_is_refused_where_it_fails(given, to, soft):
    kind = dt.unknown if given == "unknown" else dt.dtype(given)
    value = ibis.table({"x": kind}, name="t").x
    tried = ibis.table({"x": kind}, name="t").select(y=ops.TryCast(value.op(), dt.dtype(to)).to_expr())
    if soft:
        require_row_wise(tried, engine="duckdb")
        return
    with pytest.raises(InvalidParameterError, match="may fail on a row in duckdb"):
        require_row_wise(tried, engine="duckdb")


@pytest.mark.parametrize("engine", ["postgres", "pyspark", "duckdb"])
@pytest.mark.parametrize(
    "make", [lambda x: x.like("a\\"), lambda x: x.ilike("a\\b"), lambda x: x.substr(1, -1) == ""]
)
def test_patterns_and_places_that_some_engines_fail_on_are_refused_there(make, engine):
    table = ibis.table({"x": "string"}, name="t")
    if engine == "duckdb":  # which has no escapes, and takes negative lengths
        require_row_wise(table.filter(make(table.x)), engine=engine)
        return
    with pytest.raises(InvalidParameterError, match="reveal"):
        require_row_wise(table.filter(make(table.x)), engine=engine)


def test_where_a_cast_cannot_fail_softly_it_is_refused(people):
    tried = people.mutate(y=people.text.try_cast("float64"))
    require_row_wise(tried, engine="duckdb")
    with pytest.raises(InvalidParameterError, match="may fail on a row in postgres"):
        require_row_wise(tried, engine="postgres")


def test_a_remainder_of_whole_numbers_by_minus_one_or_by_a_column_is_refused():
    # The least whole number overflows there, and one such row would stop the query.
    connection = ibis.duckdb.connect()
    connection.raw_sql("create table t (m bigint, n bigint, x double)")
    table = connection.table("t")
    for wrong in (table.m % -1, table.m % 1, table.m % table.n):
        with pytest.raises(InvalidParameterError, match="overflow"):
            require_row_wise(table.mutate(z=wrong), engine="duckdb")
    for right in (table.m % 2, table.x % 2.0, table.x % table.x):
        require_row_wise(table.mutate(z=right), engine="duckdb")
