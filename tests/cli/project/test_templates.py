# SPDX-License-Identifier: Apache-2.0
import csv
import io
import tomllib

import pytest

from sfumato.cli.project import templates


def test_the_settings_are_toml_whatever_the_names():
    found = tomllib.loads(
        templates.settings_text(ledger='a"b\\c.db', name="Umfrage für alle", unit="client id")
    )
    assert (found["ledger"], found["account"]) == ('a"b\\c.db', "Umfrage für alle")
    assert found["privacy_unit"] == "client id" and found["data"] == templates.EXAMPLE
    assert set(found["types"]) == set(found["bounds"]) == {"age", "income"}


def test_the_table_is_made_up_and_fits_its_bounds():
    rows = list(csv.DictReader(io.StringIO(templates.example_table("client id"))))
    assert len(rows) == 1000 and list(rows[0]) == ["client id", *templates.COLUMNS]
    assert len({row["client id"] for row in rows}) == 1000
    bounds = tomllib.loads(templates.settings_text(ledger="l", name="n", unit="u"))["bounds"]
    for column, (lower, upper) in bounds.items():
        values = [float(row[column]) for row in rows]
        assert lower <= min(values) < max(values) <= upper and len(set(values)) > 30
    assert {row["city"] for row in rows} == {"Lima", "Oslo", "Rome"}
    assert templates.example_table("u") == templates.example_table("u")


@pytest.mark.parametrize(
    ("ledger", "place"),
    [("ledger.db", 'HERE / settings["ledger"]'), ("postgresql://host/db", 'settings["ledger"]')],
)
def test_the_script_is_python_and_opens_the_ledger(ledger, place):
    text = templates.script(ledger=ledger, epsilon=1.0)
    compile(text, "first_release.py", "exec")
    assert f"ledger={place}," in text and "epsilon=0.1)" in text


def test_lines_are_added_to_what_git_ignores_and_nothing_is_taken_away():
    text, added = templates.with_lines("")
    assert added == list(templates.IGNORED) and text.endswith("runs/\n")
    again, none = templates.with_lines(text)
    assert again == text and none == []
    kept, more = templates.with_lines("*.csv\nmine")
    assert kept.startswith("*.csv\nmine\n") and "*.csv" not in more and "*.db" in more
