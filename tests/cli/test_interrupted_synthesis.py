# SPDX-License-Identifier: Apache-2.0
"""`sfumato synthesize` that was interrupted, or failed once the generator was paid for."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sfumato import Budget, Ledger, cli
from sfumato.cli import synthesis_run
from sfumato.generative import DPCGAN, ImageGenerator, TableGenerator
from sfumato.generative.adversarial import dp_gan

OWN = "synthesize own.npz --epsilon 10 --classes 2 --public-size 200 --out made --count 40"
CHARGED = "--ledger ledger.db --account a"
ROWS = (
    f"synthesize people.csv --domain people.toml --epsilon 5 --delta 1e-4 --out made.csv --count 50 {CHARGED}"
)


class Killed(BaseException):
    """Nobody catches it."""


@pytest.fixture
def says(monkeypatch, capsys, tmp_path):
    """Run the command as a user would: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    y = np.arange(200) % 2
    x = np.zeros((200, 8, 8), dtype=np.uint8)
    x[y == 1, 2:6] = 255
    np.savez("own.npz", x=x, y=y)
    Path("people.csv").write_text("city\n" + "Rome\nOslo\n" * 100)
    Path("people.toml").write_text('[city]\nvalues = ["Rome", "Oslo"]\n')
    small = DPCGAN(architecture="dense", steps=6, expected_batch_size=40)
    usual = synthesis_run.image_method

    def method(name, **more):
        return small if name == "dp-cgan" else usual(name, **more)

    monkeypatch.setattr("sfumato.cli.synthesis_run.image_method", method)

    def run(line):
        monkeypatch.setattr("sys.argv", ["sfumato", *line.split()])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, " ".join(err.split())

    return run


@pytest.fixture
def account(says):
    return Ledger("ledger.db").open("a", privacy_unit="row", budget=Budget(epsilon=20.0, delta=1e-3))


@pytest.fixture
def dies(monkeypatch):
    """Let the third step of a GAN die, once."""
    original, calls = dp_gan.Game.denoise, []

    def denoise(self, *arguments, **more):
        calls.append(1)
        if len(calls) == 3:
            raise Killed
        return original(self, *arguments, **more)

    monkeypatch.setattr(dp_gan.Game, "denoise", denoise)


# --- resume -----------------------------------------------------------------------------------------------


def test_a_run_that_died_is_resumed_from_its_folder_alone_and_charged_once(says, account, dies):
    with pytest.raises(Killed):
        says(f"{OWN} {CHARGED}")
    code, _, err = says(f"{OWN} {CHARGED}")
    assert code == 2 and "not finished" in err and "`sfumato synthesize --resume --out made`" in err
    code, _, err = says("synthesize --resume --out made --epsilon 3")
    assert code == 2 and "another value of --epsilon" in err
    code, out, err = says("synthesize --resume --out made --json")
    assert code == 0, err
    told = json.loads(out)
    assert told["settings"]["epsilon"] == 10 and told["account"] == "a" and len(account.releases()) == 1
    with np.load("made/images.npz") as images:
        assert images["x"].shape == (40, 1, 8, 8)
    code, _, err = says("synthesize --resume --out made")
    assert code == 2 and "is finished" in err


def test_a_run_that_died_before_its_images_were_drawn_draws_them(says, account, monkeypatch):
    line = f"{OWN} --method mixtures {CHARGED}"
    with monkeypatch.context() as patch:
        patch.setattr("sfumato.cli.synthesis_run._write_images", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            says(line)
    code, _, err = says("synthesize --resume --out made --count 7")
    assert code == 0, err
    with np.load("made/images.npz") as images:
        assert len(images["x"]) == 7 and len(account.releases()) == 1


def test_a_method_that_cannot_be_resumed_says_that_the_budget_is_spent(says, account, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(
            "sfumato.generative.images.mixtures.NoisyMixtures.fitted",
            lambda *_, **__: (_ for _ in ()).throw(Killed),
        )
        with pytest.raises(Killed):
            says(f"{OWN} --method mixtures {CHARGED}")
    code, _, err = says("synthesize --resume --out made")
    assert code == 2 and "mixtures cannot be resumed" in err and "is spent" in err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("synthesize --resume", "without --out"),
        ("synthesize --resume --out none", "there is no run in 'none'"),
        ("synthesize --resume --out made.csv", "rows cannot be resumed"),
        ("synthesize people.csv --resume --out made", "rows cannot be resumed"),
    ],
)
def test_what_cannot_be_resumed_is_told(says, line, said):
    code, _, err = says(line)
    assert code == 2 and said in err and not Path("none").exists()


def test_a_charge_that_is_refused_leaves_no_page_and_a_folder_that_can_be_used(says, account):
    line = OWN.replace("--epsilon 10", "--epsilon 50")
    code, _, err = says(f"{line} {CHARGED} --report page.html")
    assert code == 2 and "epsilon" in err and account.releases() == [] and not Path("page.html").exists()
    code, _, err = says("synthesize --resume --out made")
    assert code == 2 and "did not take a step" in err
    assert says(f"{OWN} {CHARGED} --report page.html")[0] == 0


@pytest.mark.slow
def test_a_process_that_is_killed_is_resumed(says, account):
    line = f"{OWN} {CHARGED}".split()
    process = subprocess.Popen([sys.executable, "-c", "from sfumato.cli import main; main()", *line])
    try:
        while len(list(Path("made/progress").glob("step-*"))) < 2 and process.poll() is None:
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    again = [
        sys.executable,
        "-c",
        "from sfumato.cli import main; main()",
        *["synthesize", "--resume", "--out", "made"],
    ]
    assert subprocess.run(again, capture_output=True).returncode == 0
    assert len(account.releases()) == 1 and ImageGenerator.load("made").classes == 2


# --- a failure after the charge ---------------------------------------------------------------------------


def fails(error):
    def failing(*_, **__):
        raise error

    return failing


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("generative.generator.ImageGenerator.sample", MemoryError(), "not enough memory"),
        ("cli.synthesis_run._write_images", OSError(28, "No space left on device"), "No space left"),
        ("cli.synthesis_run._write_images", RuntimeError("x"), "(RuntimeError)"),
    ],
)
def test_images_that_cannot_be_drawn_leave_a_generator_and_a_sentence(
    says, account, monkeypatch, name, error, said
):
    with monkeypatch.context() as patch:
        patch.setattr(f"sfumato.{name}", fails(error))
        code, _, err = says(f"{OWN} --method mixtures {CHARGED}")
    assert (
        code == 2 and said in err and "`sfumato.generative.ImageGenerator.load('made').sample(1000)`" in err
    )
    assert account.spent().epsilon > 9 and len(ImageGenerator.load("made").sample(3)[0]) == 3


def test_rows_that_cannot_be_drawn_leave_a_generator_and_a_sentence(says, account, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(TableGenerator, "sample", fails(MemoryError()))
        code, _, err = says(ROWS)
    assert code == 2 and "not enough memory" in err and "TableGenerator.load('made.generator.npz')" in err
    assert len(account.releases()) == 1 and len(TableGenerator.load("made.generator.npz").sample(3)) == 3


def test_a_generator_that_cannot_be_saved_is_one_sentence(says, account, monkeypatch):
    monkeypatch.setattr(TableGenerator, "save", fails(OSError(28, "No space left on device")))
    code, _, err = says(ROWS)
    assert code == 2 and "is paid for, but cannot be written" in err


@pytest.mark.parametrize("line", [f"{OWN} --method mixtures {CHARGED}", ROWS])
def test_more_draws_than_a_machine_holds_are_refused_before_the_charge(says, account, line):
    line = line.replace("--count 40", "").replace("--count 50", "")
    code, _, err = says(f"{line} --count 10000000000")
    assert code == 2 and "--count must be at most" in err and account.releases() == []
