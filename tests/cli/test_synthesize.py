# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato synthesize`: named sets, an .npz file, one charge, a page, and plain errors."""

import json
from pathlib import Path

import numpy as np
import pytest

from sfumato import Budget, Ledger, cli
from sfumato.generative import ImageGenerator

LINE = "synthesize digits --method mixtures --epsilon 10 --out made --count 300"
OWN = "synthesize own.npz --method mixtures --epsilon 10 --classes 2 --public-size 200 --out made --count 40"


@pytest.fixture
def says(monkeypatch, capsys, tmp_path):
    """Run the command as a user would: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    y = np.arange(200) % 2
    x = np.zeros((200, 8, 8), dtype=np.uint8)
    x[y == 1, 2:6] = 255
    np.savez("own.npz", x=x, y=y)
    np.savez("test.npz", x=x[:40], y=y[:40])

    def run(line):
        monkeypatch.setattr("sys.argv", ["sfumato", *line.split()])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run


def test_a_named_set_is_learned_drawn_and_evaluated(says):
    code, out, err = says(f"{LINE} --report page.html")
    assert code == 0, err
    for part in (
        "mixtures",
        "epsilon",
        "logistic regression",
        "AUROC",
        "(10, 0.0001)-differential privacy",
        "Tuning",
    ):
        assert part in out or part in " ".join(out.split()), part
    drawn = np.load("made/images.npz")
    assert drawn["x"].shape == (300, 1, 8, 8) and set(drawn["y"].tolist()) == set(range(10))
    assert Path("made/grid.svg").read_text().startswith("<svg")
    assert ImageGenerator.load("made").classes == 10
    page = Path("page.html").read_text()
    assert "Synthetic images of digits" in page and "differential privacy" in page


def test_own_images_are_learned_and_charged_once(says):
    account = Ledger("ledger.db").open("a", privacy_unit="example", budget=Budget(epsilon=20.0, delta=1e-3))
    code, out, err = says(f"{OWN} --holdout test.npz --ledger ledger.db --account a --json")
    assert code == 0, err
    told = json.loads(out)
    assert told["recorded"] and told["account"] == "a" and len(account.releases()) == 1
    assert told["evaluation"]["scores"][0]["accuracy"] > 0.9
    drawn = np.load("made/images.npz")
    assert drawn["x"][drawn["y"] == 1][:, :, 3].mean() > 0.5 > drawn["x"][drawn["y"] == 0].mean()


def test_a_folder_with_a_generator_is_refused_unchanged(says):
    assert says(OWN)[0] == 0
    before = Path("made/generator.json").read_text()
    code, _, err = says(OWN)
    assert code == 2 and "paid for" in err and Path("made/generator.json").read_text() == before


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("synthesize", "pass what to learn"),
        ("synthesize digits --out made", "--epsilon"),
        ("synthesize digits --epsilon 1", "--out"),
        ("synthesize digits --epsilon 0 --out made", "epsilon must be"),
        ("synthesize digits --epsilon 1 --out made --method vae", "unknown method"),
        ("synthesize letters --epsilon 1 --out made", "unknown data"),
        ("synthesize digits --epsilon 1 --out made --classes 3", "not for a public data set"),
        ("synthesize own.npz --epsilon 1 --out made", "--classes and --public-size"),
        ("synthesize other.npz --epsilon 1 --out made --classes 2 --public-size 9", "no .npz file"),
        ("synthesize digits --epsilon 1 --out own.npz", "nothing can be written"),
        ("synthesize digits --epsilon 1 --out made --ledger ledger.db", "both --ledger and --account"),
        ("synthesize digits --epsilon 1 --out made --method mixtures --audit 100", "no use for audit"),
    ],
)
def test_wrong_lines_are_told_and_nothing_is_made(says, line, said):
    code, _, err = says(line)
    assert code == 2 and said in " ".join(err.split()), err
    assert not Path("made/generator.json").exists()


def test_an_evaluation_that_does_not_fit_costs_nothing(says):
    account = Ledger("ledger.db").open("a", privacy_unit="example", budget=Budget(epsilon=20.0, delta=1e-3))
    for x, y in ((np.zeros((4, 6, 6)), [0, 1, 0, 1]), (np.zeros((4, 8, 8)), [7, 7, 7, 7])):
        np.savez("wrong.npz", x=x, y=y)
        code, _, err = says(f"{OWN} --holdout wrong.npz --ledger ledger.db --account a")
        assert code == 2 and "--holdout must have" in err
    assert account.releases() == []


def test_a_damaged_file_is_told_without_its_content(says):
    Path("bad.npz").write_bytes(b"secret rows")
    code, _, err = says("synthesize bad.npz --epsilon 1 --out made --classes 2 --public-size 9")
    assert code == 2 and "cannot be read" in err and "secret" not in err
