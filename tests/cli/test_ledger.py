# SPDX-License-Identifier: Apache-2.0
"""What `sfumato ledger show` prints fits a terminal of 80 columns, and no number is broken."""

import json
import re

import pytest
from rich.console import Console

from sfumato import Budget, Ledger, cli
from sfumato.accounting.events import PureDpEvent, dp_sgd
from sfumato.cli import show
from sfumato.ledger import role_rights
from sfumato.testing import seeded

WIDTH = 80
LONG = "a purpose that goes on for so long that no terminal could ever show it in one line of its own " * 3
UNBREAKABLE = "x" * 200
EPSILON, DELTA = 1.2345678912e-5, 1.23456789e-10  # as many digits as a figure is ever shown with


@pytest.fixture
def narrow(monkeypatch, capsys, tmp_path):
    """Run a command in a terminal of 80 columns, and return the lines that it prints."""
    monkeypatch.chdir(tmp_path)

    def run(line, *more):
        monkeypatch.setattr(show, "_out", Console(highlight=False, width=WIDTH))
        monkeypatch.setattr("sys.argv", ["sfumato", *line.split(), *more])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert not stop.value.code
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def ledger(tmp_path):
    """A ledger whose names, purposes and numbers are as long as they get."""
    ledger = Ledger(tmp_path / "ledger.db")
    for name in ("credit", f"credit {UNBREAKABLE}"):
        budget = Budget(epsilon=12345.678, delta=DELTA)
        account = ledger.open(name, privacy_unit=f"client {UNBREAKABLE}", budget=budget)
        for purpose in ("mean", LONG, UNBREAKABLE):
            with account.spend(PureDpEvent(EPSILON), relation="add-remove", purpose=purpose):
                pass
    run = dp_sgd(noise_multiplier=4.0, sampling_rate=0.01, steps=50)
    account.reserve(run, relation="add-remove", purpose="a run", generator=seeded(1))
    return ledger


def numbers(lines):
    return set(re.findall(r"(?<![\w.])\d[\d.]*(?:e-?\d+)?(?![\w.])", "\n".join(lines)))


def test_the_list_of_accounts_fits_and_breaks_no_number(ledger, narrow):
    lines = narrow("ledger show")
    assert max(map(len, lines)) <= WIDTH
    assert {"12345.7", "1.23457e-10", "3", "4"} <= numbers(lines)
    assert "…" not in "\n".join(lines)


def test_the_releases_of_an_account_fit_and_break_no_number(ledger, narrow):
    (name,) = (account.name for account in ledger.accounts() if account.name != "credit")
    for account in ("credit", name):
        lines = narrow("ledger show", account)
        assert max(map(len, lines)) <= WIDTH
        assert {"1", "2", "3", "1.23457e-05", "12345.7", "1.23457e-10"} <= numbers(lines)
        text = "\n".join(lines)
        assert "…" not in text and "DpEvent" not in text and "{" not in text
        day = ledger.account(account).releases()[0].reserved_at[:10]
        assert text.count(day) == len(ledger.account(account).releases())


def test_who_and_when_stands_beside_each_release_and_each_grant(ledger, narrow):
    account = Ledger(ledger.location, person="Ada Lovelace").account("credit")
    with account.spend(PureDpEvent(0.1), relation="add-remove", purpose="median"):
        pass
    assert "Grants" not in "\n".join(narrow("ledger show credit"))
    account.grant(epsilon=0.5, reason="second study")
    lines = narrow("ledger show credit")
    (release,) = (line for line in lines if "median" in line)
    (grant,) = (line for line in lines if "second" in line)
    day = account.grants()[0].written_at[:10]
    assert day in release and "Ada" in release and day in grant and "Ada" in grant and "0.5" in grant
    assert max(map(len, lines)) <= WIDTH and "…" not in "\n".join(lines)
    shown = json.loads("\n".join(narrow("ledger show credit --json")))
    assert [each["person"] for each in shown["grants"]] == ["Ada Lovelace"]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_the_head_can_be_copied_whole_from_any_terminal(ledger, narrow, monkeypatch, width):
    monkeypatch.setitem(globals(), "WIDTH", width)
    assert f"head {ledger.head()}" in narrow("ledger verify")
    assert json.loads("\n".join(narrow("ledger verify --json")))["head"] == str(ledger.head())


def test_roles_prints_what_the_function_returns(narrow):
    lines = narrow("ledger roles --charging ben --charging cleo --granting", "Ada B")
    assert "\n".join(lines) == role_rights(charging=["ben", "cleo"], granting=["Ada B"]).rstrip()


def test_roles_without_a_role_is_refused(ran):
    assert ran("ledger roles")[0] == 2 and "no role was given" in ran("ledger roles")[2]


def test_a_release_for_study_says_so(ledger, narrow):
    account = ledger.account("credit")
    account.reserve(PureDpEvent(0.1), relation="add-remove", purpose="seeded", generator=seeded(1))
    assert "study" in "".join(narrow("ledger show credit"))


def test_programs_see_all_of_a_release(ledger, narrow):
    shown = json.loads("\n".join(narrow("ledger show credit --json")))
    assert [release["number"] for release in shown["releases"]] == [1, 2, 3]
    assert [release["epsilon"] for release in shown["releases"]] == [EPSILON] * 3
    assert shown["releases"][1]["purpose"] == LONG.strip()
    assert shown["releases"][0]["event"] == {"type": "PureDpEvent", "epsilon": EPSILON}


@pytest.mark.parametrize(
    "line", ["init a --privacy-unit u --epsilon 1 --delta 0.5", "grant credit --delta 0.5 --reason r"]
)
def test_a_delta_that_promises_nothing_is_refused(ledger, monkeypatch, capsys, tmp_path, line):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["sfumato", "ledger", *line.split()])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2 and "delta must be at most 0.1" in " ".join(capsys.readouterr().err.split())


def test_a_large_delta_is_noted(narrow, tmp_path):
    said = json.loads("\n".join(narrow("ledger init a --privacy-unit u --epsilon 1 --delta 0.05 --json")))
    assert said["notes"] == ["delta 0.05 is large: it allows a release that reveals this share of all units"]
