# SPDX-License-Identifier: Apache-2.0
"""Types of public CSV files: those that all of their values have, and zeros before digits stay."""

import pandas as pd
import polars as pl
import pytest

import sfumato as sf
from sfumato.errors import InvalidParameterError
from sfumato.statistics.sources.private_tables import PrivateTable
from sfumato.statistics.sources.tables import private_table

VISITS = pd.DataFrame({"zip": ["01", "02", "02", "99"], "area": [1, 2, 2, 9], "cost": [1.0, 2.0, 3.0, 4.0]})
COLUMNS = {
    "whole": (["1", "-2"], "int64"),
    "with a sign and spaces": (["+1", " 2 "], "int64"),
    "with a missing one": (["1", ""], "int64"),
    "numbers": (["1", "2.5"], "float64"),
    "with exponents": (["1e3", ".5"], "float64"),
    "zip codes": (["01", "10"], "string"),
    "zeros before points": (["0.5", "00.5"], "string"),
    "numbers of accounts": (["12345678901234567890", "2"], "string"),
    "accounts beside fractions": (["12345678901234567890", "2.5"], "string"),
    "beyond all floats": (["1e999", "1"], "string"),
    "one word": (["1", "NA"], "string"),
    "truths": (["true", "False"], "boolean"),
    "dates": (["2024-02-29", "1999-01-01"], "date"),
    "no dates": (["2024-02-30", "1999-01-01"], "string"),
    "times": (["2024-02-29 10:30", "1999-01-01T00:00:00.5"], "timestamp(6)"),
    "nothing": (["", ""], "string"),
    "yes and no": (["yes", "no"], "string"),
}


def joined(folder, values: list[str], **columns: list[str]) -> PrivateTable:
    public = pd.DataFrame({"zip": ["01", "02"], "value": values, **columns})
    public.to_csv(folder / "public.csv", index=False)
    return private_table(VISITS).join(folder / "public.csv", on="zip")


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_has_the_type_of_all_its_values(name, tmp_path):
    values, kind = COLUMNS[name]
    assert joined(tmp_path, values).schema["value"] == kind


def test_a_key_is_compared_with_texts_as_it_is_written_and_with_numbers_as_a_number(tmp_path):
    path = tmp_path / "areas.csv"
    path.write_text("area,rate\n01,10\n2,20\n")
    assert private_table(VISITS.astype({"area": str})).join(path, on="area").schema["rate"] == "int64"
    with pytest.raises(InvalidParameterError, match="integer in the private table"):
        private_table(VISITS).join(path, on="area")
    path.write_text("area,rate\n1,10\n2,20\n")
    for frame in (VISITS, pl.from_pandas(VISITS)):
        data = sf.open("visits", frame, budget=sf.Budget(epsilon=1e7, delta=1e-6))
        asks = "SELECT COUNT(*) AS n, SUM(rate) AS total FROM data JOIN areas USING (area) WHERE rate > 15"
        terms = {"bounds": {"rate": (0, 100)}, "tables": {"areas": path}}
        found = data.sql(asks, epsilon=1e6, **terms).release()
        assert found.values["n"] == [2] and found.values["total"][0] == pytest.approx(40, abs=0.1)


def test_columns_of_a_private_file_are_text_unless_they_are_declared(tmp_path):
    VISITS.to_csv(tmp_path / "visits.csv", index=False)
    assert set(private_table(tmp_path / "visits.csv").schema.values()) == {"string"}
