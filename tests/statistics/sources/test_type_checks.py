# SPDX-License-Identifier: Apache-2.0
"""What an engine cannot compute because of types is refused before it is paid for, without its words."""

import ibis
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.statistics.sources.tables import private_table
from sfumato.statistics.sources.type_checks import require_prepared

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")


@pytest.fixture
def zoned():
    connection = ibis.duckdb.connect()
    connection.raw_sql("CREATE TABLE t AS SELECT TIMETZ '10:00:00+01' AS v, 1.0 AS x")
    return private_table(connection.table("t"))


@pytest.mark.parametrize(
    "ask", [lambda t: t.categories("v"), lambda t: t.filter(lambda row: row.v.cast("string") == "a")]
)
def test_times_of_day_with_a_zone_are_refused_by_duckdb(zoned, ask, account):
    with pytest.raises(
        InvalidParameterError, match="duckdb refuses this query before it reads a row"
    ) as error:
        ask(zoned)
    assert error.value.__cause__ is None and error.value.__context__ is None
    assert "Binder" not in str(error.value) and "SELECT" not in str(error.value)
    assert zoned["x"].moments((0, 2)).count == 1


def test_the_types_of_the_columns_are_told(zoned):
    with pytest.raises(InvalidParameterError, match=r"types of the columns \(v: time\)"):
        zoned.categories("v")


def test_no_row_is_read():
    connection = ibis.duckdb.connect()
    connection.raw_sql("CREATE VIEW t AS SELECT error('a row was read') AS v, 1.0 AS x")
    require_prepared(connection, connection.table("t").select("x", "v"))
    with pytest.raises(Exception, match="a row was read"):
        connection.table("t").execute()
