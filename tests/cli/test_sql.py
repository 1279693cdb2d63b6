# SPDX-License-Identifier: Apache-2.0
"""`sfumato sql` asks what `sfumato.queries.sql` answers, with keys, bounds and tables given as options."""

import json
import shlex

import pandas as pd
import pytest

from sfumato import Budget, Ledger, cli

TYPES = "--type age=number --type day=date --type client_id=integer"
ROWS = pd.DataFrame(
    {
        "client_id": range(2000),
        "age": [20 + i % 60 for i in range(2000)],
        "city": ["Rome" if i % 4 else "Oslo" for i in range(2000)],
        "day": [f"2024-0{1 + i % 2}-15" for i in range(2000)],
    }
)


@pytest.fixture
def says(monkeypatch, capsys, tmp_path):
    """Run `sfumato sql people.csv` in a folder, and return (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    ROWS.to_csv("people.csv", index=False)
    pd.DataFrame({"city": ["Rome", "Oslo"], "area": ["south", "north"]}).to_csv("areas.csv", index=False)

    def run(statement: str, options: str):
        words = ["sfumato", "sql", "people.csv", statement, *shlex.split(options)]
        monkeypatch.setattr("sys.argv", words)
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, " ".join(err.split())

    return run


def rows_of(said) -> list[dict]:
    code, out, err = said
    assert code == 0, err
    return json.loads(out)["rows"]


def test_groups_are_those_of_the_data_at_a_large_epsilon(says):
    asks = "SELECT city, COUNT(*) AS n, AVG(age) AS mean FROM people p WHERE p.age >= 30 GROUP BY city"
    options = f"{TYPES} --bounds age=0,100 --key Oslo --key Rome --epsilon 1e6 --json"
    truth = ROWS[ROWS.age >= 30].groupby("city").age.agg(["size", "mean"])
    for row in rows_of(says(asks, options)):
        city = row["key"]["city"]
        assert row["n"]["value"] == truth["size"][city]
        assert row["mean"]["value"] == pytest.approx(truth["mean"][city], abs=0.01)


def test_keys_have_the_names_and_the_types_of_the_statement(says):
    asks = "SELECT DATE_TRUNC('month', day) AS month, city, COUNT(*) AS n FROM data GROUP BY 1, 2"
    keys = "--key month=2024-02-01 --key city=Rome --key city=Oslo"
    assert [row["n"]["value"] for row in rows_of(says(asks, f"{TYPES} {keys} --epsilon 1e6 --json"))] == [
        1000, 0,
    ]  # fmt: skip
    asks = "SELECT DATE_TRUNC('month', day), COUNT(*) AS n FROM data GROUP BY 1"
    said = rows_of(says(asks, f"{TYPES} --key 2024-01-01 --epsilon 1e6 --json"))
    assert said[0]["n"]["value"] == 1000
    said = rows_of(says(asks, f"{TYPES} --epsilon 5 --delta 1e-6 --json"))
    assert [list(row["key"].values()) for row in said] == [["2024-01-01"], ["2024-02-01"]]


def test_a_public_table_is_joined(says):
    asks = "SELECT area, COUNT(*) AS n FROM data JOIN areas USING (city) GROUP BY area"
    said = rows_of(says(asks, "--table areas=areas.csv --key north --key south --epsilon 1e6 --json"))
    assert [row["n"]["value"] for row in said] == [500, 1500]


def test_a_public_table_is_not_written_over(says):
    asks = "SELECT area, COUNT(*) AS n FROM data JOIN areas USING (city) GROUP BY area"
    options = f"{TYPES} --table areas=areas.csv --key south --epsilon 1 --out areas.csv"
    assert says(asks, options)[0] != 0
    assert list(pd.read_csv("areas.csv")) == ["city", "area"]


def test_a_statement_is_one_charge_and_a_plan_is_none(says, tmp_path):
    Ledger("people.db").open("people", privacy_unit="client_id", budget=Budget(epsilon=2, delta=1e-6))
    asks = "SELECT COUNT(*) AS n, SUM(age) AS total FROM data"
    options = (
        f"{TYPES} --bounds total=0,100 --privacy-unit client_id --contribution-bound 2 --epsilon 1.5 "
        "--ledger people.db --account people --out table.csv"
    )
    code, out, err = says(asks, f"{options} --plan")
    assert code == 0 and "fits the budget: yes" in out and "Nothing is spent" in out, err
    assert not Ledger("people.db").account("people").releases() and not (tmp_path / "table.csv").exists()
    code, out, err = says(asks, options)
    assert code == 0 and (tmp_path / "table.csv").read_text().startswith("n,n_lower,n_upper,total"), err
    assert len(Ledger("people.db").account("people").releases()) == 1
    code, out, err = says(asks, f"{options} --plan --json")
    assert json.loads(out)["fits the budget"] is False
    code, out, err = says(asks, options)
    assert code == 2 and "fits with --epsilon 0.5" in err and not out
    code, out, err = says(
        asks, options.replace("--epsilon 1.5", "--epsilon 0.1").replace("table.csv", "people.csv")
    )
    assert code == 2 and "--out" in err


def test_bounds_of_the_settings_file_hold_unless_an_option_has_others(says, tmp_path):
    (tmp_path / "sfumato.toml").write_text(
        'data = "people.csv"\n[types]\nage = "number"\n[bounds]\nage = [0, 30]\n'
    )
    clipped = ROWS.age.clip(0, 30).sum()
    for options, truth in (("", clipped), ("--bounds age=0,100", ROWS.age.sum())):
        said = rows_of(says("SELECT SUM(age) AS total FROM data", f"{options} --epsilon 1e7 --json"))
        assert said[0]["total"]["value"] == pytest.approx(truth, abs=1)


def test_numbers_of_a_public_file_are_numbers(says, tmp_path):
    (tmp_path / "rates.csv").write_text("city,zip,rate\nRome,00100,20.5\nOslo,0150,7\n")
    asks = "SELECT COUNT(*) AS n, SUM(rate) AS total FROM data JOIN rates USING (city) WHERE rate > 10"
    rome = int((ROWS.city == "Rome").sum())
    (row,) = rows_of(says(asks, "--table rates=rates.csv --bounds rate=0,100 --epsilon 1e6 --json"))
    assert row["n"]["value"] == rome and row["total"]["value"] == pytest.approx(20.5 * rome, abs=0.1)
    asks = "SELECT zip, COUNT(*) AS n FROM data JOIN rates USING (city) GROUP BY zip"
    (row,) = rows_of(says(asks, "--table rates=rates.csv --key 00100 --epsilon 1e6 --json"))
    assert row["key"] == {"zip": "00100"} and row["n"]["value"] == rome


def test_two_bounds_of_a_unit_are_options(says):
    options = "--privacy-unit client_id --contribution-bound 4 --rows-per-group 2 --groups-per-unit 2"
    asks = "SELECT city, COUNT(*) AS n FROM data GROUP BY city"
    code, out, err = says(asks, f"{options} --key Rome --key Oslo --epsilon 1 --plan --json")
    assert code == 0 and "at most 2 rows of each client_id in each of at most 2 groups" in out, err
    code, out, err = says(asks, f"{options} --key Rome --epsilon 1 --plan --groups-per-unit 3")
    assert code == 2 and "twice" in err


@pytest.mark.parametrize(
    ("statement", "options", "said"),
    [
        ("SELECT AVG(age) FROM data", "--type age=number", "pass --bounds age=LOWER,UPPER"),
        ("SELECT AVG(age * 2) FROM data", "--type age=number", "--bounds 'age * 2=LOWER,UPPER'"),
        ("SELECT AVG(age) FROM data", "--bounds age=0,99", "--type age=number"),
        ("SELECT AVG(age) FROM data", "--type age=number --bounds age", "COLUMN=LOWER,UPPER"),
        ("SELECT AVG(age) FROM data", "--type age=number --bounds age=0", "COLUMN=LOWER,UPPER"),
        ("SELECT AVG(age) FROM data", "--type age=number --bounds age=9,0", "lower < upper"),
        ("SELECT AVG(age) FROM data", "--type age=number --bounds age=nan,1", "finite"),
        ("SELECT COUNT(*) FROM data", "--bounds aeg=0,9", "no such column or alias"),
        ("SELECT COUNT(*) FROM data", "--key Rome", "needs GROUP BY"),
        ("SELECT city, COUNT(*) FROM data GROUP BY city", "", "is private. Give --key"),
        ("SELECT age, COUNT(*) FROM data GROUP BY 1", "--type age=integer --key x", "cannot be a value"),
        ("SELECT city, age, COUNT(*) FROM data GROUP BY 1, 2", "--key Rome", "column=value"),
        (
            "SELECT area, COUNT(*) FROM data JOIN areas USING (city) GROUP BY 1",
            "--key a",
            "--table zips=zips.csv",
        ),
        ("SELECT COUNT(*) FROM data JOIN z USING (city)", "--table z", "NAME=FILE"),
        ("SELECT COUNT(*) FROM data JOIN z USING (city)", "--table z=none.csv", "none.csv"),
        ("SELECT COUNT(*) FROM data JOIN z USING (city)", "--table z=./people.csv", "is the private data"),
        ("SELECT COUNT(*) FROM areas", "", "FROM areas"),
        ("SELECT MAX(age) FROM data", "", "not answered privately"),
        ("SELECT COUNT(*) FROM data WHERE age > (SELECT 1)", "", "WHERE"),
        ("SELECT COUNT(*) FROM data; DROP TABLE data", "", "one SELECT"),
        ("SELEC 1", "", "not SQL"),
        ("", "", "one SELECT"),
        ("SELECT COUNT(*) FROM data", "--out table.txt", ".json or .csv"),
        ("SELECT COUNT(*) FROM data", "--delta 2", "delta"),
        ("SELECT COUNT(*) FROM data", "--ledger people.db", "--account"),
    ],
)
def test_what_does_not_fit_is_refused(says, statement, options, said):
    code, out, err = says(statement, f"{options} --epsilon 1")
    assert code == 2 and said in err and not out
    assert "Traceback" not in err
