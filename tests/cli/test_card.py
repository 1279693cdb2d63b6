# SPDX-License-Identifier: Apache-2.0
"""`sfumato card`: a card of what was released, and a clear sentence for what has none."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from sfumato import Budget, Ledger, cli
from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.cli.card import _HUGGING_FACE as RUN_FOLDER
from sfumato.generative.adversarial.networks import NetworkSampler
from sfumato.generative.generator import ImageGenerator
from sfumato.training import train


@pytest.fixture
def asked(monkeypatch, capsys, tmp_path):
    """Run a command, and return its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SFUMATO_LEDGER", raising=False)
    monkeypatch.setenv("COLUMNS", "500")  # no path is broken into lines

    def run(*words):
        monkeypatch.setattr("sys.argv", ["sfumato", *words])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, " ".join(err.split())

    return run


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A finished run in a folder, which is copied for each test."""
    rows = torch.zeros(60, 3), torch.zeros(60, dtype=torch.int64)
    place = tmp_path_factory.mktemp("once") / "run"
    run = train(
        nn.Linear(3, 2),
        rows,
        public_size=60,
        expected_batch_size=20,
        steps=2,
        epsilon=3.0,
        delta=1e-4,
        folder=place,
        progress=False,
    )
    return run, place


@pytest.fixture
def made(once, tmp_path):
    """A finished run in the folder `made`."""
    shutil.copytree(once[1], tmp_path / "made")
    return once[0]


@pytest.fixture
def account(tmp_path):
    account = Ledger(tmp_path / "ledger.db").open(
        "clinic", privacy_unit="patient", budget=Budget(epsilon=2, delta=1e-6)
    )
    with account.spend(PureDpEvent(0.5), relation="add-remove", purpose="mean age"):
        pass
    account.reserve(PureDpEvent(0.5), relation="add-remove", purpose="not begun")
    return account


def test_a_run_has_the_card_that_python_gives(asked, made):
    code, out, _ = asked("card", "made", "--format", "json")
    assert code == 0 and json.loads(out) == json.loads(made.card().to_json())
    assert asked("card", "made")[1].startswith("# Privacy card: Linear, 8 parameters\n")


def test_each_format_is_written_to_a_file(asked, made):
    beginnings = {
        "markdown": "# ",
        "html": "<!doctype",
        "json": "{",
        "metadata": "---\n",
        "model-card": "---\n",
    }
    for written, beginning in beginnings.items():
        code, out, _ = asked("card", "made", "--format", written, "--out", f"cards/{written}", "--title", "T")
        assert code == 0 and f"cards/{written}" in out
        assert Path(f"cards/{written}").read_text().startswith(beginning)
    header = yaml.safe_load(Path("cards/metadata").read_text().removesuffix("---\n"))
    assert header == made.card().metadata()


def test_an_account_and_a_release_have_cards(asked, account):
    code, out, _ = asked("card", "--account", "clinic", "--format", "json")
    assert code == 0 and json.loads(out) == json.loads(account.card().to_json())
    code, out, _ = asked("card", "--account", "clinic", "--release", "1", "--ledger", "ledger.db")
    assert code == 0 and out.startswith("# Privacy card: mean age\n")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("card", "say what the card is about"),
        ("card made --account clinic", "say what the card is about"),
        ("card made --release 1", "--release is a number in an account"),
        ("card nowhere", "no folder or file 'nowhere'"),
        ("card .", "holds no finished run"),
        ("card ledger.db", "not a file of a table generator"),
        ("card --account other", "other"),
        ("card --account clinic --release 2", "has not begun"),
        ("card --account clinic --release 7", "has releases 1 to 2"),
        ("card --account clinic --ledger none.db", "none.db"),
        ("card made --out made/run.json", "belongs to what the card is about"),
        ("card --account clinic --out ledger.db", "belongs to what the card is about"),
        ("card made --out made", "is a folder"),
        ("card made --out made/run.json/card", "cannot be written"),
    ],
)
def test_what_has_no_card_gets_a_sentence_and_changes_nothing(asked, made, account, line, sentence):
    before = {path: path.read_bytes() for path in Path("made").iterdir()}
    rows = account._book.names()[0]
    code, out, err = asked(*line.split())
    assert code == 2 and sentence in err and not out and "Traceback" not in err
    assert {path: path.read_bytes() for path in Path("made").iterdir()} == before
    assert account._book.names()[0] == rows and not Path("none.db").exists()


def changed(name):
    facts = json.loads(Path("made/run.json").read_text())
    if name == "epsilon":
        Path("made/run.json").write_text(json.dumps(facts | {"epsilon": 0.1}))
    elif name == "weights":
        torch.save({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}, "made/model.pt")
    elif name == "damage":
        Path("made/run.json").write_bytes(b"\xff")
    elif name == "no weights":
        Path("made/model.pt").unlink()
    else:  # resealed by hand with another price: the steps still say what they cost
        from sfumato._seal import sealed

        Path("made/run.json").write_text(json.dumps(sealed(facts | {"epsilon": 0.1})))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"epsilon": ', '"epsilon": 0.1'),
        lambda text: text[: text.rindex("{")],
        lambda text: text + text.splitlines()[0] + "\n",
        lambda text: text + '{"step": 8, "epsi',
        lambda text: "",
        lambda text: text.replace("{", '{"step": 9, ', 1),
        lambda text: text + " " * 9999,
    ],
)
def test_a_run_whose_metrics_were_changed_has_no_card_and_says_so(asked, made, change):
    file = Path("made/metrics.jsonl")
    file.write_text(change(before := file.read_text()))
    code, out, err = asked("card", "made")
    assert code == 2 and not out and "metrics.jsonl" in err and "was changed after the run" in err
    file.write_text(before)
    assert asked("card", "made")[0] == 0
    file.unlink()  # run.json has all of it
    assert asked("card", "made")[0] == 0


def test_metrics_that_never_end_are_not_read(asked, made):
    Path("made/metrics.jsonl").unlink()
    os.mkfifo("made/metrics.jsonl")
    assert asked("card", "made")[0] == 2


@pytest.mark.parametrize("name", ["epsilon", "weights", "damage", "no weights", "resealed"])
def test_a_changed_run_has_no_card(asked, made, name):
    changed(name)
    code, out, err = asked("card", "made")
    assert code == 2 and not out and err.startswith("error: ") and "Traceback" not in err


def test_an_unfinished_run_has_no_card_yet(asked, made):
    Path("made/run.json").unlink()
    code, out, err = asked("card", "made")
    assert code == 2 and not out and "is not finished, so it has no card yet" in err


def test_a_generator_has_a_card_unless_it_was_changed(asked, tmp_path):
    sampler = NetworkSampler(architecture="dense", shape=[1, 4, 4], classes=3).eval()
    promise = Guarantee(epsilon=1.0, delta=1e-5, relation=Relation.ADD_REMOVE, privacy_unit="example")
    generator = ImageGenerator(
        sampler=sampler, method="test", classes=3, guarantee=promise, description="It learned."
    )
    generator.save("made")
    code, out, _ = asked("card", "made", "--format", "json")
    assert code == 0 and json.loads(out) == json.loads(generator.card().to_json())
    facts = json.loads(Path("made/generator.json").read_text())
    del facts["sha256"]
    Path("made/generator.json").write_text(json.dumps(facts))
    code, out, err = asked("card", "made")
    assert code == 2 and not out and "does not fit its fingerprint" in err


def test_the_folder_in_an_output_folder_is_the_one_that_the_trainer_writes():
    trainer = pytest.importorskip("sfumato.integrations.hugging_face.trainer")
    assert trainer.RUN_FOLDER == RUN_FOLDER


def test_the_run_of_a_hugging_face_trainer_is_found_in_its_output_folder(asked, made, tmp_path):
    expected = asked("card", "made")[1]
    (tmp_path / "writer").mkdir()
    (tmp_path / "made").rename(tmp_path / "writer" / RUN_FOLDER)
    assert asked("card", "writer")[:2] == (0, expected)
    (tmp_path / "writer" / RUN_FOLDER / "run.json").unlink()
    code, _, err = asked("card", "writer")
    assert code == 2 and "is not finished" in err and "resume_from_checkpoint=True" in err
