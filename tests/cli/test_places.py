# SPDX-License-Identifier: Apache-2.0
"""Places that a command writes to: apart from each other and from what it reads; devices that are here."""

import os
from pathlib import Path

import pytest

from sfumato import Budget, Ledger, cli
from sfumato.cli.devices import device_named
from sfumato.cli.places import begin_page, require_apart, require_public
from sfumato.errors import InvalidParameterError


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("data/a").mkdir(parents=True)
    Path("data/b").mkdir()
    Path("people.csv").write_text("city\nRome\n")
    Path("link.html").symlink_to("page.html")
    Path("folder").symlink_to("data")
    Path("there.html").write_text("old")
    os.link("there.html", "hard.html")


@pytest.mark.parametrize(
    ("out", "report"),
    [
        ("page.html", "page.html"),
        ("page.html", "./data/../page.html"),
        ("page.html", "link.html"),
        ("there.html", "hard.html"),
        ("data", "folder"),
    ],
)
def test_two_outputs_in_one_place_are_refused(here, out, report):
    with pytest.raises(InvalidParameterError, match="--out and --report would write to one place"):
        require_apart([("--out", out), ("--report", report)], {})


@pytest.mark.parametrize("out", ["people.csv", "data", "data/made", "folder/made/deep", "data/../people.csv"])
def test_an_output_over_what_is_read_or_in_it_is_refused(here, out):
    with pytest.raises(InvalidParameterError, match="which is the private data or in it"):
        require_apart([("--out", out)], {"the private data": "people.csv" if "csv" in out else "data"})


def test_outputs_beside_what_is_read_are_fine(here):
    require_apart([("--out", "."), ("--out", "x"), ("--report", "page.html")], {"the private data": "data"})
    require_apart([("--out", "people.csv.html"), ("--report", None)], {"the private data": "people.csv"})


def test_a_page_that_is_tried_leaves_nothing(here):
    begin_page("pages/new.html")
    begin_page("there.html")
    assert list(Path("pages").iterdir()) == [] and Path("there.html").read_text() == "old"
    with pytest.raises(InvalidParameterError, match="it is a folder"):
        begin_page("data")


@pytest.mark.parametrize("name", ["tpu", "moon", "meta", "cuda:99", "cpu:x"])
def test_a_device_that_is_not_here_is_told(name):
    with pytest.raises(InvalidParameterError, match="device"):
        device_named(name)
    assert device_named(None) is None and str(device_named("cpu")) == "cpu"


FAST = "--epsilon 1 --ledger ledger.db --account a"
ROWS = f"synthesize people.csv --delta 1e-4 {FAST}"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"synthesize digits {FAST} --out made --report made", "one place"),
        (f"synthesize digits {FAST} --out made --report made/images.npz", "one place"),
        (f"synthesize digits {FAST} --out made --report ledger.db", "the ledger"),
        (f"synthesize digits {FAST} --out made --device tpu", "device 'tpu'"),
        (
            f"synthesize data {FAST} --out data/x --label a --label b --image-size 8 --public-size 9",
            "private",
        ),
        (f"{ROWS} --out made.csv --report made.csv", "one place"),
        (f"{ROWS} --out made.csv --report ./data/../made.generator.npz", "one place"),
        (f"{ROWS} --out made.csv --report people.csv", "the private data"),
        (f"train digits {FAST} --folder run --report run/run.json", "one place"),
        (f"train digits {FAST} --report ledger.db", "the ledger"),
        (f"train digits {FAST} --device tpu --report page.html", "device 'tpu'"),
        (f"federate digits {FAST} --folder run --report run/model.pt", "one place"),
        (f"federate digits {FAST} --device tpu --report page.html", "device 'tpu'"),
        (f"pate digits {FAST} --folder run --report run", "one place"),
        (f"pate digits {FAST} --report ledger.db", "the ledger"),
        ("pate digits --epsilon 1 --purpose trial", "--purpose is written into an account"),
        ("train digits --epsilon 1 --purpose trial", "--purpose is written into an account"),
        ("federate digits --epsilon 1 --purpose trial", "--purpose is written into an account"),
        ("synthesize digits --epsilon 1 --out made --purpose trial", "--purpose is written into an account"),
        (
            "synthesize people.csv --epsilon 1 --delta 1e-4 --out made.csv --purpose trial",
            "--purpose is written into an account",
        ),
        (f"train digits {FAST} --epsilon 50 --report page.html", "epsilon"),
        (f"federate digits {FAST} --epsilon 50 --report page.html", "epsilon"),
        (f"{ROWS} --epsilon 50 --out made.csv --report page.html", "epsilon"),
    ],
)
def test_each_command_refuses_before_the_charge_and_leaves_no_page(here, monkeypatch, capsys, line, said):
    pytest.importorskip("PIL")
    unit = "client" if line.startswith("federate") else "example" if "digits" in line else "row"
    account = Ledger("ledger.db").open("a", privacy_unit=unit, budget=Budget(epsilon=9, delta=1e-2))
    if "--epsilon 50" in line:
        line = line.replace("--epsilon 1 ", "")
    monkeypatch.setattr("sys.argv", ["sfumato", *line.split()])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    err = " ".join(capsys.readouterr().err.split())
    assert stop.value.code == 2 and said in err, err
    assert account.releases() == [] and not Path("page.html").exists()
    assert Path("people.csv").read_text() == "city\nRome\n"


@pytest.mark.parametrize(
    ("private", "public"),
    [
        ("people.csv", "data/../people.csv"),
        ("there.html", "hard.html"),
        ("folder", "data/a"),
        ("data", "data"),
    ],
)
def test_private_data_are_refused_where_they_must_be_public(here, private, public):
    with pytest.raises(InvalidParameterError, match="--evaluation must be public"):
        require_public(private, {"--evaluation": public})
    require_public(private, {"--evaluation": "other.csv", "--public": None})
    require_public(None, {"--evaluation": public})


COMMANDS = {
    "synthesize": "synthesize people.csv --epsilon 1 --out made.csv",
    "train": "train people.csv --target city --feature age --classes 2 --public-size 9 --epsilon 1",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_its_own_data_as_evaluation(here, command, capsys, monkeypatch):
    Path("people.csv").write_text("age,city\n30,Rome\n")
    monkeypatch.setattr("sys.argv", ["sfumato", *COMMANDS[command].split(), "--evaluation", "people.csv"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code
    assert "--evaluation must be public" in " ".join(capsys.readouterr().err.split())
