# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato federate`: simulated clients, one charge, a page, resuming, and plain errors."""

import json
from pathlib import Path

import pytest

from sfumato import Budget, Ledger, cli

LINE = "federate digits --clients 20 --cohort 10 --rounds 3 --local-epochs 1 --epsilon 8"


@pytest.fixture
def says(monkeypatch, capsys, tmp_path):
    """Run the command as a user would: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(line):
        monkeypatch.setattr("sys.argv", ["sfumato", *line.split()])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run


def test_a_federation_is_simulated_with_a_page(says):
    code, out, err = says(f"{LINE} --report page.html")
    assert code == 0, err
    for part in ("clients", "20", "accuracy", "0.01)-differential privacy for one client", "update"):
        assert part in out
    assert "differential privacy for one client" in Path("page.html").read_text()


@pytest.mark.parametrize(
    "flags",
    [
        "--partition dirichlet --alpha 0.1",
        "--adaptive-quantile 0.5",
        "--server momentum --server-learning-rate 0.3",
        "--server adam --proximal 0.1",
        "--bands 2",
        "--noise skellam",
        "--audit 60",
    ],
)
def test_each_way_to_federate_is_told(says, flags):
    code, out, err = says(f"{LINE} {flags} --json")
    assert code == 0, err
    told = json.loads(out)
    assert told["clients"] == 20 and told["privacy_unit"] == "client"
    assert 0.0 <= told["accuracy"] <= 1.0 and told["epsilon"] <= 8.0
    assert ("taken back" in told["statement"]) == ("bands" in flags)


def test_a_run_is_charged_once_and_refused_beyond_the_budget(says):
    Ledger("ledger.db").open("people", privacy_unit="client", budget=Budget(epsilon=9, delta=1e-2))
    charged = f"{LINE} --delta 1e-2 --ledger ledger.db --account people"
    code, _, err = says(charged)
    assert code == 0, err
    code, _, err = says(charged)
    assert code != 0 and "epsilon" in err


def test_a_finished_folder_is_refused_and_an_unfinished_one_needs_a_run(says):
    code, _, err = says(f"{LINE} --folder run --seed 1")
    assert code == 0, err
    code, _, err = says(f"{LINE} --folder run --seed 1 --resume")
    assert code != 0 and "finished" in err
    code, _, err = says(f"{LINE} --folder none --seed 1 --resume")
    assert code != 0 and "no run" in err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("federate", "pass what to learn from"),
        ("federate adult --epsilon 1", "unknown data"),
        ("federate digits", "--epsilon"),
        ("federate digits --epsilon 0", "epsilon must be"),
        ("federate digits --epsilon 1 --clients 0", "--clients must be"),
        ("federate digits --epsilon 1 --partition random", "unknown partition"),
        ("federate digits --epsilon 1 --partition by-user", "no user ids"),
        ("federate digits --epsilon 1 --alpha 0.3", "--alpha is for"),
        ("federate digits --epsilon 1 --cohort 900", "must be at most"),
        ("federate digits --epsilon 1 --rounds 0", "rounds must be"),
        ("federate digits --epsilon 1 --server lion", "unknown server"),
        ("federate digits --epsilon 1 --server-learning-rate 0", "--server-learning-rate must"),
        ("federate digits --epsilon 1 --model lstm", "no model"),
        ("federate digits --epsilon 1 --local-epochs 0", "epochs must be"),
        ("federate digits --epsilon 1 --proximal -1", "proximal must"),
        ("federate digits --epsilon 1 --noise laplace", "unknown noise"),
        ("federate digits --epsilon 1 --noise skellam --bands 2", "has no meaning"),
        ("federate digits --epsilon 1 --device moon", "unknown device"),
        ("federate digits --epsilon 1 --bands 0", "bands must be"),
        ("federate digits --epsilon 1 --ledger ledger.db", "both --ledger and --account"),
        ("federate digits --epsilon 1 --clip-norm 0", "--clip-norm must"),
    ],
)
def test_wrong_commands_say_what_to_do(says, line, said):
    code, _, err = says(line)
    assert code != 0 and said in " ".join(err.split()) and "Traceback" not in err
