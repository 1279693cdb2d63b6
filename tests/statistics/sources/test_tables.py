# SPDX-License-Identifier: Apache-2.0
"""Private tables: what may be asked, what it costs, and what happens when the engine dies."""

import numpy as np
import pandas as pd
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.statistics.sources.private_tables import PrivateTable
from sfumato.statistics.sources.tables import private_table

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")


SECRET = "patient-zero"


def visits() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "patient": [SECRET, SECRET, "b", "c", None],
            "cost": [10.0, 30.0, 20.0, np.nan, 50.0],
            "ward": ["x", "y", "x", "x", "y"],
        }
    )


@pytest.fixture
def table() -> PrivateTable:
    return private_table(visits(), privacy_unit="patient", contribution_bound=2)


def test_a_table_shows_its_schema_and_no_row(table):
    assert repr(table) == (
        "<PrivateTable in duckdb; unit: patient, of at most 2 row(s); "
        "patient: string, cost: float64, ward: string>"
    )
    assert SECRET not in repr(table.owned.kept({"x": table.owned.expression["cost"]})) + repr(table["cost"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"privacy_unit": "nobody"}, "no column 'nobody'"),
        ({"privacy_unit": "patient", "contribution_bound": 0}, "contribution_bound"),
        ({"contribution_bound": 3}, "privacy_unit="),
        ({"privacy_unit": "row", "contribution_bound": 3}, "privacy_unit="),
        ({"table": "people"}, "URL"),
    ],
    ids=["unknown unit", "no rows", "bound without unit", "bound for each row", "table without URL"],
)
def test_a_table_that_makes_no_sense_is_refused(arguments, words):
    with pytest.raises(InvalidParameterError, match=words):
        private_table(visits(), **arguments)


def test_row_is_the_unit_of_each_row_and_never_a_column():
    frame = pd.DataFrame({"row": ["a", "a"], "x": [1.0, 2.0]})
    assert private_table(frame[["x"]], privacy_unit="row").owned.unit is None
    assert private_table(frame).owned.unit is None  # nothing says that the column is meant
    with pytest.raises(InvalidParameterError, match="Rename the column"):
        private_table(frame, privacy_unit="row")
    with pytest.raises(InvalidParameterError, match="Rename the column"):
        private_table(frame, privacy_unit="row").count(epsilon=1.0)
