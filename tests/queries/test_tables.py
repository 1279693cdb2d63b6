# SPDX-License-Identifier: Apache-2.0
"""The released table: exports, figures, and what a notebook shows."""

import csv
import io
import json

import pandas as pd
import pytest

import sfumato as sf
from sfumato import queries as q
from sfumato.errors import InvalidParameterError
from sfumato.statistics.sources.tables import private_table
from sfumato.testing import seeded

ROWS = pd.DataFrame({"city": ["Rome", "=1+1"] * 300, "price": [10.0, 30.0] * 300})


@pytest.fixture(scope="module")
def table() -> q.TableRelease:
    clients = sf.open("shops", ROWS, budget=sf.Budget(epsilon=5, delta=1e-6))
    groups = clients.group_by("city", keys=["Rome", "=1+1", "Oslo"])
    query = groups.agg(
        n=q.count(), price=q.mean("price", bounds=(0, 50)), mid=q.median("price", bounds=(0, 50)), epsilon=3
    )
    return query.release()


def test_json_has_every_number_with_its_interval_and_the_guarantee(table, tmp_path):
    path = tmp_path / "table.json"
    told = json.loads(table.to_json(path))
    assert json.loads(path.read_text()) == told
    assert (told["format"], told["version"], told["group_by"]) == ("sfumato table", 1, ["city"])
    first = told["rows"][0]
    assert first["key"] == {"city": "Rome"} and first["n"]["value"] == table.values["n"][0]
    assert first["n"]["lower"] <= first["n"]["value"] <= first["n"]["upper"]
    assert first["mid"]["lower"] is None  # no interval was bought
    assert told["guarantee"]["epsilon"] == table.guarantee.epsilon and told["account"] == "shops"


def test_csv_has_one_row_for_each_key_and_escapes_formulas(table):
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [row["city"] for row in rows] == ["Rome", "'=1+1", "Oslo"]
    assert (
        float(rows[0]["n"]) == table.values["n"][0] and float(rows[0]["epsilon"]) == table.guarantee.epsilon
    )
    assert "\n=1+1" in table.to_csv(escape_formulas=False).replace("\r", "")


def test_pandas_has_columns_for_ends_of_intervals_and_keeps_failures_as_nan(table):
    frame = table.to_pandas()
    ends = [f"{name}{end}" for name in ("n", "price", "mid") for end in ("", "_lower", "_upper")]
    assert list(frame.columns) == ["city", *ends] and len(frame) == 3
    assert frame.dtypes[ends].eq("float64").all() and "differential privacy" in frame.attrs["guarantee"]


def test_json_csv_and_pandas_agree_on_what_holds_for_the_whole_table(table):
    told, noted = json.loads(table.to_json()), table.to_pandas().attrs
    whole = {name: told[name] for name in ("level", "recorded", "account")}
    whole |= {name: value for name, value in told["guarantee"].items() if name != "text"}
    whole |= {"guarantee": told["guarantee"]["text"], "notes": "; ".join(told["notes"])}
    assert noted == whole and whole["recorded"] is False and "not recorded" in whole["notes"]
    for row in csv.DictReader(io.StringIO(table.to_csv())):
        assert {name: row[name] for name in whole} == {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in whole.items()
        }


def test_a_column_that_is_called_as_a_fact_of_the_table_keeps_its_name():
    clients = sf.open("shops", ROWS.assign(account="a"), budget=sf.Budget(epsilon=5, delta=1e-6))
    found = clients.group_by("account", keys=["a"]).agg(notes=q.count(), epsilon=1).release()
    (row,) = csv.DictReader(io.StringIO(found.to_csv()))
    assert (row["account"], row["release_account"]) == ("a", "shops")
    assert float(row["notes"]) == found.values["notes"][0] and "not recorded" in row["release_notes"]


def test_a_failed_number_is_missing_everywhere():
    empty = private_table(ROWS.head(0))
    failed = q.group_by(empty).agg(price=q.mean("price", bounds=(0, 50)), epsilon=1e6).release()
    assert failed.values["price"] == [None] and "failed" in str(failed)
    assert json.loads(failed.to_json())["rows"][0]["price"]["value"] is None
    assert failed.to_pandas()["price"].isna().all() and failed.plot("price") is not None


def test_a_notebook_and_a_terminal_show_numbers_intervals_and_cost(table):
    assert "Rome" in table._repr_html_() and "(3, 0)-differential" in str(table)
    assert "&lt;b&gt;" in _named("<b>")._repr_html_()


def _named(city: str) -> q.TableRelease:
    groups = q.group_by(private_table(ROWS), "city", keys=[city])
    return groups.agg(n=q.count(), epsilon=1).release(generator=seeded(0))


def test_a_figure_has_a_point_and_an_interval_for_each_key(table):
    axes = table.plot("n").axes[0]
    assert len(axes.lines) == 3 and len(axes.collections) == 3
    assert len(table.plot("mid").axes[0].collections) == 0
    with pytest.raises(InvalidParameterError, match="there is no statistic 'm'"):
        table.plot("m")


def test_seeded_noise_is_marked_and_the_card_names_the_cost():
    seeded_table = _named("Rome")
    assert any("for study only" in note for note in seeded_table.notes)
    assert "1" in str(seeded_table.card().guarantee.epsilon)
