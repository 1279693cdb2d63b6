# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys
from pathlib import Path

import pytest

import sfumato
from sfumato import cli

RUN = "account --noise-multiplier 1.1 --sampling-rate 0.01 --steps 1000 --delta 1e-5"


@pytest.fixture
def sfumato_says(monkeypatch, capsys, tmp_path):
    """Run the command as a user would, and return (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("SFUMATO_LEDGER", raising=False)

    def run(line: str, *more: str):
        monkeypatch.setattr("sys.argv", ["sfumato", *line.split(), *more])
        with pytest.raises(SystemExit) as stop:
            cli.main()
            raise SystemExit(0)
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run


def test_account_prints_epsilon_its_bounds_accountant_and_relation(sfumato_says):
    code, out, _ = sfumato_says(f"{RUN} --json")
    said = json.loads(out)
    expected = sfumato.price(
        sfumato.accounting.dp_sgd(noise_multiplier=1.1, sampling_rate=0.01, steps=1000), delta=1e-5
    )
    assert code == 0
    assert said["epsilon"] == said["upper"] == expected.upper
    assert said["lower"] == expected.lower
    assert 0 < said["upper"] - said["lower"] < 0.01
    assert (said["accountant"], said["relation"], said["delta"]) == ("pld", "add-remove", 1e-5)


def test_a_table_never_shows_less_epsilon_than_was_computed(sfumato_says):
    exact = json.loads(sfumato_says(f"{RUN} --json")[1])
    _, out, _ = sfumato_says(RUN)
    shown = {name.strip(" │"): value.strip(" │") for name, value in _rows(out)}
    assert exact["epsilon"] <= float(shown["epsilon"]) < exact["epsilon"] + 1e-4
    assert exact["lower"] - 1e-4 < float(shown["lower"]) <= exact["lower"]


def _rows(table: str) -> list[list[str]]:
    return [line.strip("│").split("│") for line in table.splitlines() if line.startswith("│")]


def test_relation_and_accountant_are_obeyed(sfumato_says):
    doubled = json.loads(sfumato_says(f"{RUN} --relation replace-one --json")[1])
    loose = json.loads(sfumato_says(f"{RUN} --accountant rdp --json")[1])
    tight = json.loads(sfumato_says(f"{RUN} --json")[1])
    assert doubled["epsilon"] > tight["epsilon"]
    assert loose["accountant"] == "rdp" and loose["epsilon"] > tight["epsilon"]


def test_any_event_can_be_priced(sfumato_says):
    _, out, _ = sfumato_says("account --delta 1e-9 --json --event", '{"type": "PureDpEvent", "epsilon": 0.5}')
    assert json.loads(out)["epsilon"] == pytest.approx(0.5, abs=1e-6)


def test_an_infinite_epsilon_is_null_in_json(sfumato_says):
    _, out, _ = sfumato_says("account --delta 1e-9 --json --event", '{"type": "NonPrivateDpEvent"}')
    assert json.loads(out)["epsilon"] is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("account --noise-multiplier nan --delta 1e-5", "--noise-multiplier must be a finite number above 0"),
        ("account --noise-multiplier 0 --delta 1e-5", "--noise-multiplier must be a finite number above 0"),
        ("account --noise-multiplier -1 --delta 1e-5", "--noise-multiplier must be a finite number above 0"),
        ("account --noise-multiplier inf --delta 1e-5", "--noise-multiplier must be a finite number above 0"),
        ("account --noise-multiplier 1 --delta 0", "--delta must be a number strictly between 0 and 1"),
        ("account --noise-multiplier 1 --delta 1", "--delta must be a number strictly between 0 and 1"),
        ("account --noise-multiplier 1 --delta nan", "--delta must be a number strictly between 0 and 1"),
        ("account --noise-multiplier 1 --sampling-rate 1.5 --delta 1e-5", "at most 1, but 1.5 was given"),
        ("account --noise-multiplier 1 --steps 0 --delta 1e-5", "--steps must be a whole number, 1 or more"),
        ("account --noise-multiplier 1 --delta 1e-5 --relation neighbor", "unknown relation 'neighbor'"),
        ("account --delta 1e-5", "give either --noise-multiplier or --event"),
        ("account --delta 1e-5 --event {}", "not an event in JSON"),
        ("plan --epsilon 3 --delta 1e-5", "leave exactly one of"),
        ("plan --epsilon 3 --sampling-rate 0.1 --steps 10", "Give --delta, well below"),
        ("plan --epsilon 1e-9 --delta 1e-5 --noise-multiplier 1 --sampling-rate 1", "cannot be met"),
        ("plan --ledger ledger.db --public-size 10 --expected-batch-size 1 --epochs 1", "both --ledger and"),
        ("ledger show", "there is no ledger at"),
        ("ledger statement credit", "there is no ledger at"),
    ],
)
def test_an_error_is_one_paragraph_with_exit_code_2(sfumato_says, line, says):
    code, out, err = sfumato_says(line)
    assert code == 2
    assert says in " ".join(err.split())
    assert out == ""
    assert "Traceback" not in err


def test_an_error_shows_what_was_typed_and_not_as_markup(sfumato_says):
    code, _, err = sfumato_says("account --noise-multiplier 1 --delta 1e-5 --relation", "[red]x[/red]")
    assert code == 2 and "[red]x[/red]" in err


def test_asking_about_a_ledger_does_not_make_one(sfumato_says, tmp_path):
    sfumato_says("ledger show")
    assert list(tmp_path.iterdir()) == []


def test_plan_finds_noise_that_meets_the_budget(sfumato_says):
    _, out, _ = sfumato_says(
        "plan --epsilon 3 --public-size 60000 --expected-batch-size 1024 --epochs 30 --json"
    )
    said = json.loads(out)
    assert said["steps"] == 1758 and said["delta"] == 1e-5
    assert 2.99 < said["epsilon"] <= 3


@pytest.fixture
def credit(sfumato_says):
    sfumato_says("ledger init credit --privacy-unit client_id --epsilon 3 --delta 1e-6")
    return sfumato_says


def test_an_account_is_opened_shown_granted_and_verified(credit):
    assert json.loads(credit("ledger show --json")[1])[0]["budget_epsilon"] == 3
    credit("ledger grant credit --epsilon 1 --reason study")
    shown = json.loads(credit("ledger show credit --json")[1])
    assert shown["budget_epsilon"] == 4 and shown["releases"] == []
    assert shown["largest_next_epsilon"] <= 4
    verified = json.loads(credit("ledger verify --json")[1])
    assert verified["holds"] and verified["accounts"] == ["credit"] and verified["overspent"] == []


def test_a_cut_ledger_does_not_verify_against_an_earlier_head(credit, tmp_path):
    before = (tmp_path / "ledger.db").read_bytes()
    credit("ledger grant credit --epsilon 1 --reason study")
    head = json.loads(credit("ledger verify --json")[1])["head"]
    (tmp_path / "ledger.db").write_bytes(before)
    code, _, err = credit(f"ledger verify --head {head}")
    assert code == 2 and "error:" in err


def test_a_plan_within_an_account_is_admitted_and_no_smaller_noise_is(credit, tmp_path):
    from sfumato.accounting import dp_sgd

    flags = "--public-size 60000 --expected-batch-size 1024 --epochs 30"
    said = json.loads(credit(f"plan --ledger ledger.db --account credit {flags} --json")[1])
    account = sfumato.Ledger(tmp_path / "ledger.db").account("credit")

    def run(noise):
        return dp_sgd(noise_multiplier=noise, sampling_rate=said["sampling_rate"], steps=said["steps"])

    assert account.admits(run(said["noise_multiplier"]))
    assert not account.admits(run(said["noise_multiplier"] * 0.999))


def test_a_statement_reads_as_text_and_as_json(credit):
    assert "Privacy statement of account 'credit'" in credit("ledger statement credit")[1]
    assert json.loads(credit("ledger statement credit --json")[1])["account"] == "credit"


def test_a_corrupt_ledger_is_an_error_and_stays_as_it_is(sfumato_says):
    Path("ledger.db").write_bytes(b"not a database at all")
    code, _, err = sfumato_says("ledger show")
    assert code == 2 and "Traceback" not in err
    assert Path("ledger.db").read_bytes() == b"not a database at all"


def test_the_version_is_the_packages(sfumato_says):
    assert sfumato.__version__ in sfumato_says("--version")[1]


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "sfumato", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("sfumato ")
