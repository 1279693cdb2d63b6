# SPDX-License-Identifier: Apache-2.0
import ibis
import numpy as np
import pyarrow as pa
import pytest

from sfumato.statistics.contributions.float_units import apart, told_apart


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_below_the_first_number_each_whole_number_has_a_float_of_its_own(kind):
    first = int(apart(np.dtype(kind).itemsize))
    below = [first - 3, first - 2, first - 1]
    assert [int(kind(number)) for number in below] == below
    assert kind(first) == kind(first + 1)


@pytest.mark.parametrize(("kind", "first"), [(pa.float32(), 2.0**24), (pa.float64(), 2.0**53)])
def test_an_engine_leaves_out_floats_that_stand_for_several_units(kind, first):
    units = pa.array([first - 1, 1 - first, 7.5, first, -first, np.inf, np.nan, None], kind)
    engine = ibis.duckdb.connect()
    table = engine.create_table("visits", pa.table({"who": units}))
    found = engine.con.sql(engine.compile(table.select(who=told_apart(table.who)))).fetchall()
    known = [who for (who,) in found if who is not None and not np.isnan(who)]
    assert known == [first - 1, 1 - first, 7.5]


def test_other_types_stay_as_they_are():
    table = ibis.table({"who": "int64"}, name="visits")
    assert told_apart(table.who).equals(table.who)
