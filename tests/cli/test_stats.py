# SPDX-License-Identifier: Apache-2.0
import csv
import json

import pytest

from sfumato import Budget, Ledger, cli

ROWS = 2000
AGE = "--type age=number"
BOTH = f"{AGE} --type income=number"


@pytest.fixture
def says(monkeypatch, capsys, tmp_path):
    """Run a command beside people.csv, and return (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    rows = [
        f"{i},{20 + i % 60},{1000 + 37 * (i % 60)},{'Rome' if i % 4 else 'Oslo'},{int(i % 60 > 30)}"
        for i in range(ROWS)
    ]
    (tmp_path / "people.csv").write_text("\n".join(["client_id,age,income,city,default", *rows]))

    def run(line: str):
        monkeypatch.setattr("sys.argv", ["sfumato", *line.split()])
        with pytest.raises(SystemExit) as stop:
            cli.main()
            raise SystemExit(0)
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run


@pytest.mark.parametrize(
    ("asked", "expected", "within"),
    [
        ("count", ROWS, 20),
        ("count age", ROWS, 20),
        ("sum age --bounds 0 100", 49.5 * ROWS, 2500),
        ("mean age --bounds 0 100", 49.5, 2),
        ("mean age --bounds 0 100 --population", 49.5, 3),
        ("variance age --bounds 0 100", 300, 60),
        ("standard-deviation age --bounds 0 100", 17.3, 2),
        ("median age --bounds 0 100", 49.5, 3),
    ],
)
def test_a_statistic_is_near_the_truth_and_carries_its_guarantee(says, asked, expected, within):
    code, out, err = says(f"stats people.csv {asked} {AGE} --epsilon 2 --privacy-unit client_id --json")
    assert code == 0, err
    said = json.loads(out)
    assert said["value"] == pytest.approx(expected, abs=within)
    assert said["guarantee"]["epsilon"] <= 2 and said["guarantee"]["privacy_unit"] == "client_id"
    if said["interval"] is not None:
        assert said["interval"]["lower"] < said["value"] < said["interval"]["upper"]
    assert (said["recorded"], said["account"]) == (False, None)


def test_the_rows_that_have_a_value_of_any_type_are_counted(says):
    for column in ("city", "client_id"):
        code, out, err = says(f"stats people.csv count {column} --epsilon 9 --privacy-unit client_id --json")
        assert code == 0, err
        assert json.loads(out)["value"] == pytest.approx(ROWS, abs=9)


def test_quantiles_histograms_bounds_and_keys_are_lists_of_named_numbers(says):
    def value(asked):
        return json.loads(says(f"stats people.csv {asked} --epsilon 2 --json")[1])["value"]

    quantiles = value(f"quantiles age {AGE} --q 0.1 --q 0.9 --bounds 0 99")
    assert [entry["q"] for entry in quantiles] == [0.1, 0.9]
    assert all(isinstance(entry["value"], float) for entry in quantiles)
    bins = value(f"histogram age {AGE} --edge 0 --edge 50 --edge 99")
    assert [(entry["bin_lower"], entry["bin_upper"]) for entry in bins] == [(0, 50), (50, 99)]
    rome, lima = value("histogram city --category Rome --category Lima")
    assert rome["category"] == "Rome" and rome["value"] == pytest.approx(1500, abs=20)
    assert 0 <= lima["interval"]["lower"] < 20 and lima["interval"]["covers"] == ["noise"]
    assert [entry["bound"] for entry in value(f"bounds age {AGE}")] == ["lower", "upper"]
    assert value("keys city --delta 1e-6") == [{"key_city": "Oslo"}, {"key_city": "Rome"}]


def test_people_see_the_same_numbers_in_tables(says, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = says("stats people.csv histogram city --category Rome --epsilon 2")
    assert "│ Rome" in out and "(95%, noise)" in out and "│ epsilon" in out
    _, out, _ = says(f"stats people.csv mean age {AGE} --bounds 0 100 --epsilon 2")
    assert "│ interval" in out and " to " in out


@pytest.mark.parametrize("command", ["stats people.csv count", "fit people.csv theil-sen"])
def test_whether_a_ledger_keeps_it_is_said_to_people_and_programs(says, tmp_path, command):
    Ledger(tmp_path / "l.db").open("p", privacy_unit="client_id", budget=Budget(epsilon=9, delta=0))
    line = f"{BOTH} --target income --feature age --feature-bounds 0 100 --target-bounds 0 5000"
    ask = f"{command} --epsilon 1 --privacy-unit client_id {line if command.startswith('fit') else ''}"
    note = "not recorded in a ledger: nothing adds its cost to that of other releases"
    assert note.split(":")[0] in says(ask)[1]
    told = json.loads(says(f"{ask} --json")[1])
    assert (told["recorded"], told["account"], told["notes"][-1]) == (False, None, note)
    ask += " --ledger l.db --account p"
    assert "not recorded" not in says(ask)[1]
    told = json.loads(says(f"{ask} --json")[1])
    assert (told["recorded"], told["account"]) == (True, "p") and note not in told["notes"]


def test_an_answer_is_written_as_json_or_csv(says, tmp_path):
    ask = "stats people.csv histogram city --category Rome --category Lima --epsilon 2 --json"
    _, out, _ = says(f"{ask} --out answer.json")
    assert json.loads((tmp_path / "answer.json").read_text()) == json.loads(out)
    _, out, _ = says(f"{ask} --out answer.CSV")
    with (tmp_path / "answer.CSV").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["category"], int(row["value"])) for row in rows] == [
        (entry["category"], entry["value"]) for entry in json.loads(out)["value"]
    ]


@pytest.mark.parametrize("place", ["none/answer.json", "people.csv/answer.csv"])
@pytest.mark.parametrize("command", ["stats people.csv count", "fit people.csv theil-sen"])
def test_a_file_that_cannot_be_written_is_found_before_anything_is_paid(says, tmp_path, command, place):
    account = Ledger(tmp_path / "l.db").open("p", privacy_unit="client_id", budget=Budget(epsilon=9, delta=0))
    line = f"{BOTH} --target income --feature age --feature-bounds 0 100 --target-bounds 0 5000"
    ask = f"{command} --epsilon 1 --privacy-unit client_id {line if command.startswith('fit') else ''}"
    code, out, err = says(f"{ask} --ledger l.db --account p --out {place}")
    assert code == 2 and out == "" and "cannot be written" in err and not account.releases()


def test_an_answer_that_is_refused_leaves_no_file_and_keeps_what_is_there(says, tmp_path):
    Ledger(tmp_path / "l.db").open("p", privacy_unit="client_id", budget=Budget(epsilon=1, delta=0))
    (tmp_path / "old.json").write_text("old")
    ask = "stats people.csv count --epsilon 5 --privacy-unit client_id --ledger l.db --account p"
    for name in ("new.json", "old.json"):
        assert says(f"{ask} --out {name}")[0] == 2
    assert not (tmp_path / "new.json").exists() and (tmp_path / "old.json").read_text() == "old"
    code, _, err = says("stats people.csv count --epsilon 1 --out answer.txt")
    assert code == 2 and "--out must end in .json or .csv" in err


def test_the_share_of_rows_left_out_can_be_asked_for(says, tmp_path):
    (tmp_path / "visits.csv").write_text("\n".join(["who,cost", *(f"{i // 4},1" for i in range(8000))]))
    ask = "stats visits.csv left-out-share --privacy-unit who --epsilon 2"
    said = json.loads(says(f"{ask} --most-rows 6 --json")[1])
    assert said["value"] == pytest.approx(0.75, abs=0.05) and said["interval"]["upper"] > 0.7
    assert "at most 6 rows of each who count" in said["notes"]
    assert "at most 10 row(s) of each who" in says(f"{ask} --plan")[1]
    for wrong, words in {
        f"{ask} --most-rows 1": "above the contribution bound",
        f"{ask} --bounds 0 1": "takes no --bounds",
        ask.replace("share", "share cost"): "leave the column out",
        "stats visits.csv left-out-share --epsilon 2": "no row is left out",
        "stats visits.csv mean cost --bounds 0 1 --epsilon 2 --most-rows 3": "takes no --most-rows",
    }.items():
        code, _, err = says(wrong)
        assert code == 2 and words in " ".join(err.split())


def test_a_count_says_what_it_counts(says, tmp_path):
    (tmp_path / "visits.csv").write_text("\n".join(["who,cost", *(f"{i // 4},1" for i in range(800))]))
    said = json.loads(says("stats visits.csv count --privacy-unit who --epsilon 5 --json")[1])
    assert said["value"] == pytest.approx(200, abs=10)
    assert said["notes"][0] == "at most 1 row of each who counts"
    assert "number of units (who)" in says("stats visits.csv count --privacy-unit who --epsilon 5")[1]


def test_an_answer_is_charged_to_the_account_and_a_plan_is_not(says, tmp_path):
    ledger = Ledger(tmp_path / "l.db")
    account = ledger.open("people", privacy_unit="client_id", budget=Budget(epsilon=1, delta=1e-6))
    ask = f"stats people.csv mean age {AGE} --bounds 0 100 --privacy-unit client_id"
    ask += " --ledger l.db --account people"
    assert says(f"{ask} --epsilon 0.75 --plan")[0] == 0 and not account.releases()
    assert says(f"{ask} --epsilon 0.75 --purpose report")[0] == 0
    assert [release.purpose for release in account.releases()] == ["report"]
    code, _, err = says(f"{ask} --epsilon 0.75")
    assert code == 2 and "budget" in err and len(account.releases()) == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("mean age", "needs --bounds"),
        ("mean", "needs the name of a column"),
        ("mean nothing --bounds 0 1", "there is no column"),
        ("quantiles age --bounds 0 1", "needs --q"),
        ("histogram age", "needs --edge"),
        ("count --bounds 0 1", "takes no --bounds"),
        ("mean age --bounds 0 1 --category x", "takes no --category"),
        ("mean age --bounds 5 1", "lower < upper"),
        ("mean age --bounds 0 1 --ledger l.db", "both --ledger and --account"),
    ],
)
def test_what_makes_no_sense_is_one_paragraph(says, asked, said):
    code, out, err = says(f"stats people.csv {asked} {AGE} --epsilon 1")
    assert code == 2 and not out and said in " ".join(err.split())


def test_a_model_is_fitted_charged_and_written(says, tmp_path):
    account = Ledger(tmp_path / "l.db").open("p", privacy_unit="client_id", budget=Budget(epsilon=9, delta=0))
    model = "logistic-regression --clip-norm 100 --label 0 --label 1"
    ask = f"fit people.csv {model} --target default --feature age {AGE}"
    code, out, err = says(
        f"{ask} --epsilon 5 --privacy-unit client_id --ledger l.db --account p --out model.json --json"
    )
    assert code == 0, err
    said = json.loads(out)
    assert said == json.loads((tmp_path / "model.json").read_text())
    assert len(said["coefficients"]) == 1 and said["guarantee"]["epsilon"] <= 5 + 1e-9
    assert len(account.releases()) == 1


def test_a_line_is_fitted_without_an_account(says):
    bounds = "--feature-bounds 0 100 --target-bounds 0 5000"
    code, out, err = says(
        f"fit people.csv theil-sen --target income --type income=number --feature age {AGE} {bounds} "
        "--epsilon 5 --json"
    )
    assert code == 0, err
    assert json.loads(out)["coefficients"][0] == pytest.approx(37, abs=8)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("logistic-regression --target default", "needs --clip-norm, --label"),
        ("theil-sen --target income --feature age", "needs --feature-bounds, --target-bounds"),
        ("tukey-em --target income --clip-norm 1", "takes no --clip-norm"),
        ("tukey-em --target income", "needs --delta: public, not read from the data, such as --delta 1e-6"),
        ("ada-ssp --target income --delta 0", "needs --delta, --clip-norm, --target-bounds"),
    ],
)
def test_a_fit_without_its_public_facts_is_one_paragraph(says, asked, said):
    code, out, err = says(f"fit people.csv {asked} --epsilon 1")
    assert code == 2 and not out and said in " ".join(err.split())
