# SPDX-License-Identifier: Apache-2.0
"""Which rows count: at most so many of each unit, chosen by that unit's rows alone."""

import collections

import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.statistics.columns.table_columns import numeric
from sfumato.statistics.contributions.owned_rows import number
from sfumato.statistics.sources.tables import private_table

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")

ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(-3, 3)), max_size=30)


def kept(frame: pd.DataFrame | pa.Table, bound: int) -> list[tuple[str, float]]:
    owned = private_table(frame, privacy_unit="unit", contribution_bound=bound).owned
    found = owned.table(owned.kept({"value": numeric(owned, "value")})).to_pydict()
    return sorted(zip(found["unit"], found["value"], strict=True))


def table(rows: list[tuple[str, float]]) -> pd.DataFrame:
    units, values = zip(*rows, strict=True) if rows else ((), ())
    return pd.DataFrame({"unit": pd.array(units, dtype="string"), "value": np.array(values, dtype=float)})


@settings(max_examples=15, deadline=None)
@given(rows=ROWS, bound=st.integers(1, 3))
def test_of_each_unit_as_many_rows_count_as_it_has_and_may_have(rows, bound):
    have = collections.Counter(unit for unit, _ in rows)
    counted = collections.Counter(unit for unit, _ in kept(table(rows), bound))
    assert counted == {unit: min(n, bound) for unit, n in have.items()}


@settings(max_examples=15, deadline=None)
@given(rows=ROWS, bound=st.integers(1, 3), order=st.randoms(use_true_random=False))
def test_without_a_unit_the_rows_of_all_others_stay_as_they_were(rows, bound, order):
    before = kept(table(rows), bound)
    others = [row for row in rows if row[0] != "a"]
    order.shuffle(others)  # nor does the order in which they lie matter
    assert kept(table(others), bound) == [row for row in before if row[0] != "a"]


def test_a_row_without_a_unit_is_left_out():
    frame = pd.DataFrame({"unit": ["a", None, "b", None], "value": [1.0, 2.0, 3.0, 4.0]})
    assert kept(frame, 2) == [("a", 1.0), ("b", 3.0)]
    numbers = pa.table({"unit": [1.0, float("nan"), None, 2.0], "value": [1.0, 2.0, 3.0, 4.0]})
    assert kept(numbers, 2) == [(1.0, 1.0), (2.0, 4.0)]


def test_a_row_with_a_missing_value_takes_no_place():
    frame = pa.table({"unit": ["a"] * 4, "value": [None, float("nan"), 5.0, None]})
    assert kept(frame, 1) == [("a", 5.0)]


@pytest.mark.parametrize("prefix", ["", "p"])
def test_rows_are_kept_and_not_values(prefix):
    rows = [(f"{prefix}{unit}", float(row == 0)) for unit in range(2000) for row in range(10)]
    ones = sum(value for _, value in kept(table(rows), 2))
    assert 300 < ones < 500  # 400 of 4000, as of all rows; were values drawn and not rows it would be 2000


@settings(max_examples=15, deadline=None)
@given(rows=ROWS, bounds=st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_rows_are_counted_as_they_are_kept(rows, bounds):
    owned = private_table(table(rows), privacy_unit="unit").owned
    have = collections.Counter(unit for unit, _ in rows).values()
    assert owned.counts(*bounds) == [sum(min(n, bound) for n in have) for bound in bounds]
    known = private_table(table(rows).assign(value=np.nan), privacy_unit="unit")
    assert known.owned.counts(1, values={"value": numeric(known.owned, "value")}) == [0]
    assert private_table(table(rows)).owned.counts(1) == [len(rows)]


KINDS = {
    "BOOLEAN": "i % 2 = 0", "SMALLINT": "i % 9", "UBIGINT": "18446744073709551600 + i % 9",
    "HUGEINT": "1000000000000000000000000 * (i % 9)", "FLOAT": "(i % 9) / 2.0",
    "DOUBLE": "CASE WHEN i % 9 > 0 THEN i % 9 WHEN i % 2 = 0 THEN -0.0 ELSE 0.0 END",
    "DECIMAL(9, 3)": "(i % 9) / 4.0", "DATE": "DATE '2020-01-01' + (i % 9)::INT",
    "TIMESTAMP": "TIMESTAMP '2020-01-01' + (i % 9) * INTERVAL 1 SECOND", "UUID": "md5((i % 9)::TEXT)",
    "BLOB": "encode('x' || i % 9)", "VARCHAR": "i % 9",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bound", [1, 3])
def test_units_of_every_type_are_bounded(kind, bound):
    engine = ibis.duckdb.connect()
    unit = f"CAST({KINDS[kind]} AS {kind}) AS unit"
    engine.raw_sql(f"CREATE TABLE v AS SELECT {unit}, random() AS value FROM range(300) AS t(i)")
    table = private_table(engine.table("v"), privacy_unit="unit", contribution_bound=bound)
    counted = collections.Counter(table.rows("value").read()[1].tolist())
    assert sorted(counted.values()) == [bound] * (2 if kind == "BOOLEAN" else 9)


@pytest.mark.parametrize("value", [0.1 + 0.2, 1e-300, -1e300, 5e-324, 123456789.123456789, 2.0**53])
def test_a_literal_is_the_very_number(value):
    owned = private_table(pd.DataFrame({"x": [0.0]})).owned
    assert owned.row(owned.expression.select(y=number(value)))["y"] == value


def test_many_rows_come_in_batches():
    owned = private_table(pd.DataFrame({"x": np.arange(600_000.0)})).owned
    sizes = [batch.num_rows for batch in owned.batches(owned.kept({"x": owned.expression["x"]}))]
    assert sum(sizes) == 600_000 and max(sizes) <= 2**18
