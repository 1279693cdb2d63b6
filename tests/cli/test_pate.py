# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato pate`: named sets, files of the user, one charge, a page, and plain errors."""

import json
from pathlib import Path

import pytest

from sfumato import Budget, Ledger, cli
from sfumato.ledger.state import Progress
from sfumato.pate import ReleasedAnswers
from sfumato.statistics.columns import table_columns

LINE = "pate breast-cancer --teachers 20 --epsilon 8"
OWN = (
    "pate people.csv --target default --label no --label yes --public public.csv --type age=number --type "
    "income=number --teachers 10 --epsilon 30 --delta 1e-4"
)


def people(rows, *, labeled, first=0):
    head = "who,age,income" + (",default" if labeled else "")
    lines = [
        f"p{i // 2},{i * 7 % 100},{i % 13}" + (f",{'yes' if i * 7 % 100 > 50 else 'no'}" if labeled else "")
        for i in range(first, first + rows)
    ]
    return "\n".join([head, *lines]) + "\n"


@pytest.fixture
def says(monkeypatch, capsys, tmp_path):
    """Run the command as a user would: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "people.csv").write_text(people(600, labeled=True))
    (tmp_path / "public.csv").write_text(people(60, labeled=False, first=1000))
    (tmp_path / "test.csv").write_text(people(100, labeled=True, first=2000))

    def run(line):
        monkeypatch.setattr("sys.argv", ["sfumato", *line.split()])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run


def account(unit="example", epsilon=50.0):
    return Ledger("ledger.db").open("people", privacy_unit=unit, budget=Budget(epsilon=epsilon, delta=1e-3))


# --- named sets ---------------------------------------------------------------------------------------------


def test_a_named_set_runs_and_says_what_was_released(says):
    code, out, err = says(LINE)
    assert code == 0, err
    for part in (
        "accuracy",
        "answered",
        "20 teachers",
        "differential privacy for one example",
        "Not recorded",
    ):
        assert part in out
    assert "Delta was not given: 0.001" in out


def test_json_has_the_same_facts(says):
    code, out, err = says(f"{LINE} --delta 1e-4 --json")
    assert code == 0, err
    found = json.loads(out)
    assert found["data"] == "breast-cancer" and found["settings"]["teachers"] == 20
    assert found["guarantee"]["delta"] == 1e-4 and found["guarantee"]["epsilon"] <= 8
    assert set(found["answers_per_class"]) == {"malignant", "benign"}
    assert sum(found["answers_per_class"].values()) == found["answered"] <= found["queries"]
    assert not found["recorded"] and found["notes"] and 0 <= found["accuracy"] <= 1


def test_the_small_command_of_the_documentation_runs(says):
    code, out, err = says("pate digits --teachers 20 --epsilon 8 --json")
    assert code == 0, err
    assert json.loads(out)["accuracy"] > 0.5


@pytest.mark.parametrize(
    "flags, said",
    [
        ("--aggregator lnmax --queries 5", "LNMax (noise of scale 1.6)"),
        ("--aggregator confident --threshold 2 --threshold-noise 9 --noise 8", "threshold 2 with noise 9"),
        ("--noise 7", "GNMax (noise of standard deviation 7)"),
    ],
)
def test_flags_choose_how_votes_become_answers(says, flags, said):
    code, out, err = says(f"{LINE} {flags}")
    assert code == 0, err
    assert said in " ".join(out.split())


def test_agreement_is_tested_where_it_buys_answers(says):
    line = "pate breast-cancer --teachers 100 --noise 6 --agreement 1 --epsilon"
    for epsilon, tested in (("2", True), ("200", False)):
        code, out, err = says(f"{line} {epsilon}")
        assert code == 0, err
        assert ("noisy test" in " ".join(out.split())) is tested


def test_a_seed_repeats_the_noise_and_is_said_to_protect_nobody(says):
    code, out, _ = says(f"{LINE} --seed 3 --json")
    assert code == 0 and "for study only" in json.loads(out)["statement"].lower()


def test_canaries_are_in_the_statement(says):
    code, out, err = says(f"{LINE} --audit 400 --json")
    assert code == 0, err
    assert json.loads(out)["audit"]["refuted"] is False


# --- ledger, folder and page --------------------------------------------------------------------------------


def test_a_job_is_charged_once_with_its_purpose(says):
    one = account()
    code, out, err = says(f"{LINE} --ledger ledger.db --account people --purpose trial --report page.html")
    assert code == 0, err
    (release,) = one.releases()
    assert release.purpose == "trial" and release.progress is Progress.COMMITTED
    assert "charged to 'people'" in out and "trial" in Path("page.html").read_text()


def test_what_the_budget_does_not_cover_is_refused_and_nothing_is_spent(says):
    one = account(epsilon=1.0)
    code, out, err = says(f"{LINE} --ledger ledger.db --account people --report page.html")
    assert code == 2 and out == "" and "Nothing was spent" in err
    assert one.releases() == [] and not Path("page.html").exists()


def test_json_names_the_account(says):
    account()
    code, out, err = says(f"{LINE} --ledger ledger.db --account people --json")
    assert code == 0, err
    assert json.loads(out)["account"] == "people" and json.loads(out)["recorded"] is True


def test_an_account_of_people_cannot_be_charged_for_examples(says):
    account(unit="person")
    code, _, err = says(f"{LINE} --ledger ledger.db --account people")
    assert code == 2 and "protects one 'person'" in " ".join(err.split())


def test_a_folder_keeps_answers_and_refuses_others(says, tmp_path):
    assert says(f"{LINE} --folder run")[0] == 0
    before = (tmp_path / "run" / "answers.npy").read_bytes()
    assert (ReleasedAnswers.load_classes("run") >= -1).all()
    code, _, err = says(f"{LINE} --folder run")
    assert code == 2 and "holds the answers of another job" in " ".join(err.split())
    assert (tmp_path / "run" / "answers.npy").read_bytes() == before


def test_a_page_shows_the_run_and_nothing_private(says):
    code, _, err = says(f"{LINE} --report page.html --audit 400")
    assert code == 0, err
    page = Path("page.html").read_text()
    for part in ("What is promised", "Answers of each class", "malignant", "Epsilon of the first", "Audit"):
        assert part in page


# --- files of the user --------------------------------------------------------------------------------------


def test_own_files_are_learned_from(says):
    code, out, err = says(f"{OWN} --evaluation test.csv --noise 2 --json")
    assert code == 0, err
    found = json.loads(out)
    assert found["accuracy"] > 0.8 and found["guarantee"]["privacy_unit"] == "row"
    assert set(found["answers_per_class"]) == {"no", "yes"}


def test_rows_of_one_owner_are_one_unit_and_all_count(says, monkeypatch):
    seen, read = [], table_columns.TableRows.read_with_units

    def watched(self):
        found = read(self)
        seen.append(found[1])
        return found

    monkeypatch.setattr(table_columns.TableRows, "read_with_units", watched)
    code, out, err = says(f"{OWN} --noise 2 --privacy-unit who --json")
    assert code == 0, err
    assert json.loads(out)["guarantee"]["privacy_unit"] == "who"
    private = [units for units in seen if units is not None]
    assert len(private) == 1 and len(private[0]) == 600 and len(set(private[0])) == 300


def test_an_account_of_the_same_unit_is_charged_before_rows_are_read(says, monkeypatch):
    one = account(unit="who")
    seen, read = [], table_columns.TableRows.read_with_units

    def watched(self):
        if self.owned.unit is not None:
            seen.extend(release.progress for release in one.releases())
        return read(self)

    monkeypatch.setattr(table_columns.TableRows, "read_with_units", watched)
    line = f"{OWN} --noise 2 --ledger ledger.db --account people"
    code, _, err = says(line)
    assert code == 2 and "protects one 'who'" in " ".join(err.split()) and one.releases() == []
    code, _, err = says(f"{line} --privacy-unit who")
    assert code == 0, err
    assert seen == [Progress.BEGUN]


@pytest.mark.parametrize(
    "line, said",
    [
        (
            "p9,,3",
            "row 61 of 'public.csv' (1 is the first after the header) has no number in the column 'age'",
        ),
        ("p9,old,3", "row 61 of 'public.csv'"),
        ("p9,3,inf", "in the column 'income'"),
        ("p9,3", "1 of 61 lines of 'public.csv' are no rows"),
        ("p9,3,4,5", "1 of 61 lines of 'public.csv' are no rows"),
    ],
)
def test_a_public_row_that_cannot_be_used_is_refused_by_its_number(says, tmp_path, line, said):
    one = account(unit="row")
    with (tmp_path / "public.csv").open("a") as file:
        file.write(f"{line}\n")
    code, _, err = says(f"{OWN} --noise 2 --ledger ledger.db --account people")
    assert code == 2 and said in " ".join(err.split())
    assert one.releases() == []


def test_answers_are_in_the_order_of_the_file(says, tmp_path):
    (tmp_path / "public.csv").write_text("age,income\n" + "".join(f"{i},3\n\n" for i in range(100)))
    code, _, err = says(f"{OWN.replace('--epsilon 30', '--epsilon 3000')} --noise 1 --folder run")
    assert code == 0, err
    found = ReleasedAnswers.load_classes("run")
    assert len(found) == 100 and (found[:30] == 0).mean() > 0.9 and (found[-30:] == 1).mean() > 0.9


def test_a_csv_file_without_types_has_no_numbers_to_learn_from(says):
    code, _, err = says(OWN.replace("--type age=number --type income=number ", ""))
    assert code == 2 and "--type" in err


def test_the_unit_that_was_not_given_is_not_named_as_given(says):
    account(unit="who")
    code, _, err = says(f"{OWN} --noise 2 --ledger ledger.db --account people")
    told = " ".join(err.split())
    assert code == 2 and "Pass --privacy-unit, the column" in told and "was given" not in told


def test_a_row_is_an_example_for_an_account_of_examples(says):
    one = account(unit="example")
    code, out, err = says(f"{OWN} --noise 2 --ledger ledger.db --account people --json")
    assert code == 0, err
    assert json.loads(out)["guarantee"]["privacy_unit"] == "example" and len(one.releases()) == 1


@pytest.mark.parametrize(
    "more, said",
    [
        ("--contribution-bound 2", "pass --privacy-unit"),
        ("--public other.csv", "--public was given twice"),
        ("--feature age --feature age", "the column 'age' is used twice"),
        ("--feature age --feature default", "'default' is used twice"),
    ],
)
def test_flags_that_would_be_ignored_are_refused(says, more, said):
    code, _, err = says(f"{OWN} --noise 2 {more}")
    assert code == 2 and said in " ".join(err.split())
