# SPDX-License-Identifier: Apache-2.0
"""The same questions on a cluster: a local Spark stands for it."""

import warnings

import numpy as np
import pandas as pd
import pytest

from sfumato.statistics.columns import column_of
from sfumato.statistics.tables import private_table

# A virtual machine of Java starts, and pyspark 4.3 warns about pandas 3 at every step.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

VALUES = [*range(30), float("nan"), float("inf"), -float("inf"), 0.3, 1e300]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ibis
        from pyspark.sql import SparkSession

        quiet = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.host": "localhost",
        }
        building = SparkSession.builder.master("local[1]").config(map=quiet)
        session = building.config(
            "spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("spark"))
        ).getOrCreate()
        yield ibis.pyspark.connect(session)
        session.stop()


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "people.parquet"
    frame = pd.DataFrame({"x": np.array(VALUES, dtype=float)})
    frame = frame.assign(who=np.arange(len(VALUES)) % 7, k=[f"k{i % 3}" for i in range(len(VALUES))])
    pd.concat([frame, pd.DataFrame({"x": [None], "who": [1], "k": [None]})]).to_parquet(path)
    return str(path)


def test_a_cluster_gives_what_memory_gives(engine, parquet):
    column = private_table(parquet, engine=engine)["x"]
    expected = column_of(VALUES)
    assert column.moments((0, 20)) == expected.moments((0, 20))
    for edges in (np.linspace(0, 20, 9), np.array([0.0, 1.0, 7.0, 30.0])):
        assert column.histogram(edges).tolist() == expected.histogram(edges).tolist()
    assert column.ordered((0, 20)).tolist() == expected.ordered((0, 20)).tolist()


def test_units_are_bounded_and_groups_and_keys_found(engine, parquet):
    table = private_table(parquet, engine=engine, privacy_unit="who", contribution_bound=2)
    assert table["x"].moments((0, 20)).count == 14
    grouped = table.group_by("k", keys=["k0", "k1", "k2", "none"])
    counts = grouped.count(epsilon=1e3).release().value
    assert sum(counts.values()) == 14 and counts["none"] == 0
    rows = private_table(parquet, engine=engine)
    means = rows.group_by("k", keys=["k0"]).mean("x", bounds=(0, 20), epsilon=1e4).release().value
    local = private_table(parquet).group_by("k", keys=["k0"]).mean("x", bounds=(0, 20), epsilon=1e4)
    assert means["k0"] == pytest.approx(local.release().value["k0"], abs=0.1)
    assert rows.keys("k", epsilon=20.0, delta=0.01).release().value == ["k0", "k1", "k2"]
    assert "ROW_NUMBER()" in grouped.count(epsilon=1.0).plan()


def test_a_csv_file_is_text_there_too(engine, tmp_path):
    (tmp_path / "t.csv").write_text("who,age\na,30\nb,secret\nc,\n")
    table = private_table(tmp_path / "t.csv", engine=engine)
    assert table.schema == {"who": "string", "age": "string"}
    assert table["age"].ordered((0, 100)).tolist() == [30.0]
