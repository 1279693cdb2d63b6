# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato federate`: simulated clients, one charge, a page, resuming, and plain errors."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sfumato import Budget, Ledger, cli
from sfumato.cli.federation_settings import FederationSettings
from sfumato.cli.settings import keep
from sfumato.datasets import DataNotFoundError, load
from sfumato.training.loop import TrainingLoop

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
    page = Path("page.html").read_text()
    assert "differential privacy for one client" in page and page.count("<svg") >= 2  # the curves
    assert "noisy rounds" in page and "noisy steps" not in page


@pytest.mark.parametrize(
    "flags",
    [
        "--partition dirichlet --alpha 0.1",
        "--adaptive-quantile 0.5",
        "--server momentum --server-learning-rate 0.3",
        "--server adam --proximal 0.1",
        "--bands 2",
        "--noise skellam",
        "--model mlp --full-weight-rows 60 --evaluate-every 3",
        "--model cnn",
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
    assert ("divided by 60, at most 1" in told["statement"]) == ("full-weight" in flags)
    assert [row["step"] for row in told["history"]] == ([3] if "every" in flags else [1, 2, 3])
    assert all(0 < row["epsilon"] <= 8 and row["accuracy"] is not None for row in told["history"])


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


@pytest.mark.slow
def test_roles_of_plays_are_clients_of_an_lstm(says):
    try:
        load("shakespeare")
    except DataNotFoundError:
        pytest.skip("the plays are not here: set SFUMATO_DATA to a folder that holds them")
    code, out, err = says("federate shakespeare --rounds 1 --cohort 5 --epsilon 8 --local-epochs 1 --json")
    assert code == 0, err
    told = json.loads(out)
    assert told["clients"] > 100 and 0 < told["accuracy"] < 1 and told["privacy_unit"] == "client"


class Killed(BaseException):
    """Nobody catches it."""


@pytest.fixture
def account(says):
    budget = Budget(epsilon=20, delta=1e-2)
    return Ledger("ledger.db").open("people", privacy_unit="client", budget=budget)


PAID = f"{LINE} --delta 1e-2 --ledger ledger.db --account people --folder run"


def rows_of(folder="run"):
    """Return the figures of rounds that a folder shows, without their times."""
    rows = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in ("step", "loss", "accuracy")} for row in rows]


@pytest.mark.parametrize("more", ["--seed 3", "--seed 3 --noise skellam", ""])
def test_a_run_that_died_goes_on_with_the_settings_that_its_folder_keeps(says, account, monkeypatch, more):
    take_step = TrainingLoop.take_step

    def dies(loop):
        if loop.step == 2:
            raise Killed
        take_step(loop)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "take_step", dies)
        patch.setattr("sys.argv", ["sfumato", *PAID.split(), *more.split()])
        with pytest.raises(Killed):
            cli.main()
    shown = rows_of()
    code, out, err = says("federate --resume --folder run --json")
    assert code == 0, err
    assert len(account.releases()) == 1  # charged once
    assert len(shown) == 2 and rows_of()[:2] == shown and len(rows_of()) == 3  # nothing is drawn again
    told = json.loads(out)
    assert told["settings"]["clients"] == 20 and told["account"] == "people"
    if more:
        assert says(f"{LINE} --delta 1e-2 --folder whole {more}")[0] == 0
        assert rows_of() == rows_of("whole")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--epsilon 3", "another value of --epsilon"),
        ("mnist", "another value of the data"),
        ("--clients 30", "another value of --clients"),
        ("--noise skellam", "another value of --noise"),
        ("--local-epochs 2", "another value of --local-epochs"),
        ("--seed 4", "another value of --seed"),
    ],
)
def test_flags_that_contradict_the_run_are_refused_by_name(says, flags, said):
    keep(FederationSettings(data="digits", epsilon=8.0, clients=20, local_epochs=1, seed=1), "run")
    code, _, err = says(f"federate {flags} --resume --folder run")
    assert code == 2 and said in " ".join(err.split())


def test_there_is_nothing_to_resume_without_a_folder_or_a_run(says):
    code, _, err = says("federate --resume")
    assert code == 2 and "without --folder" in err
    for line in (LINE, "federate"):
        code, _, err = says(f"{line} --resume --folder none")
        assert code == 2 and "there is no run in 'none'" in err and not Path("none").exists()


HANGS = """
import signal
from pathlib import Path
from sfumato.cli import main
from sfumato.training.loop import TrainingLoop

take_step = TrainingLoop.take_step

def hangs(loop):
    if loop.step == 2:
        Path("hangs").touch()
        signal.pause()
    take_step(loop)

TrainingLoop.take_step = hangs
main()
"""


@pytest.mark.slow
def test_a_process_that_is_killed_in_a_round_is_resumed_and_charged_once(says, account):
    process = subprocess.Popen([sys.executable, "-c", HANGS, *PAID.split()])
    try:
        while not Path("hangs").exists() and process.poll() is None:
            time.sleep(0.05)
    finally:
        process.kill()  # SIGKILL
        assert process.wait() == -signal.SIGKILL
    shown = rows_of()
    again = "from sfumato.cli import main; main()"
    code = subprocess.run([sys.executable, "-c", again, "federate", "--resume", "--folder", "run"]).returncode
    assert code == 0 and len(account.releases()) == 1
    assert len(shown) == 2 and rows_of()[:2] == shown and len(rows_of()) == 3


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


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--cohort 300 --clients 200", "--cohort 300 must be at most --clients 200"),
        ("--cohort 300 --clients 200 --noise skellam", "--cohort 300 must be at most --clients 200"),
        ("--adaptive-quantile 1.5", "--adaptive-quantile must be"),
    ],
)
def test_errors_name_flags(says, flags, said):
    code, _, err = says(f"federate digits --epsilon 8 {flags}")
    assert code == 2 and said in " ".join(err.split())


def test_clients_without_rows_and_the_price_against_the_server_are_told(says):
    line = "federate digits --clients 2000 --cohort 5 --rounds 1 --local-epochs 1 --epsilon 8 --noise skellam"
    code, out, err = says(f"{line} --model linear")
    assert code == 0, err
    text = " ".join(out.split())
    assert "of 2000 clients have no rows" in text and "epsilon against the server" in text
    assert "the number of clients, 2000, is public" in text
    code, out, err = says(f"{line} --json")
    told = json.loads(out)
    assert told["against_server"]["epsilon"] > told["epsilon"]
    assert any("have no rows" in note for note in told["notes"])
