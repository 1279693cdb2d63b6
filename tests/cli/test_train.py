# SPDX-License-Identifier: Apache-2.0
import json
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from sfumato import cli
from sfumato.accounting import dp_sgd, price
from sfumato.cli.before_run import begin
from sfumato.cli.settings import TrainSettings
from sfumato.datasets import names
from sfumato.ledger import Budget, Ledger
from sfumato.training.loop import TrainingLoop
from sfumato.training.models.recipes import models_of, recipe
from sfumato.training.record.run_folder import RunFolder

FAST = "--epochs 1 --expected-batch-size 100"


@pytest.fixture
def sfumato_says(monkeypatch, capsys, tmp_path):
    """Run the command as a user would, and return (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    before = torch.get_num_threads()
    torch.set_num_threads(1)

    def run(line: str, *more: str):
        monkeypatch.setattr("sys.argv", ["sfumato", *line.split(), *more])
        with pytest.raises(SystemExit) as stop:
            cli.main()
            raise SystemExit(0)
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    yield run
    torch.set_num_threads(before)


@pytest.fixture
def trained(sfumato_says):
    """Run with --json, and return what was said."""

    def run(line: str):
        code, out, err = sfumato_says(f"train {line} --json")
        assert code == 0, err
        return json.loads(out)

    return run


def test_digits_are_learned_to_the_stated_budget(trained):
    said = trained("digits --epsilon 3")
    assert said["accuracy"] > 0.85
    assert 2.99 < said["epsilon"] <= 3 and said["delta"] == 1e-4
    noise, steps = said["noise"][0]
    assert steps == said["steps"] == 112
    event = dp_sgd(noise_multiplier=noise, sampling_rate=512 / 1437, steps=112)
    assert said["epsilon"] == pytest.approx(price(event, delta=1e-4).epsilon)
    assert said["settings"]["model"] == "mlp"


def test_a_table_says_accuracy_guarantee_and_how_delta_was_chosen(sfumato_says):
    code, out, _ = sfumato_says(f"train breast-cancer --epsilon 2 {FAST}")
    words = " ".join(out.split())
    assert code == 0
    assert "accuracy" in words and "differential privacy for one example, add-remove neighbors" in words
    assert (
        "Delta was not given: 0.001 is the largest power of ten below one over the public size, 455." in words
    )
    assert "Not recorded in a ledger: nothing adds its cost" in words and "│ recorded │ False │" in words
    assert "hyper-parameter tuning is not charged" in words


def test_a_given_delta_is_not_explained(sfumato_says):
    _, out, _ = sfumato_says(f"train breast-cancer --epsilon 2 --delta 1e-4 {FAST}")
    assert "Delta was not given" not in out


def test_flags_are_obeyed(trained):
    said = trained(f"digits --model linear --noise-multiplier 2 --clip-norm 0.5 --learning-rate 0.1 {FAST}")
    assert said["noise"] == [[2.0, 14]]
    assert said["expected_batch_size"] == 100
    settings = said["settings"]
    assert (settings["clip_norm"], settings["learning_rate"], settings["model"]) == (0.5, 0.1, "linear")


def test_epsilon_beside_noise_stops_the_run_before_it_is_exceeded(trained):
    said = trained("digits --epsilon 1 --noise-multiplier 2 --epochs 20 --expected-batch-size 100")
    assert said["steps"] < 287 and said["epsilon"] <= 1
    whole = dp_sgd(noise_multiplier=2, sampling_rate=100 / 1437, steps=said["steps"] + 1)
    assert price(whole, delta=1e-4).epsilon > 1


def test_a_file_says_more_and_flags_go_before_it(trained, tmp_path):
    (tmp_path / "run.toml").write_text(
        'data = "digits"\nmodel = "mlp"\nepsilon = 3\nsteps = 4\noptimizer = "adam"\nwidth = 2\n'
        'per_layer = true\nrelation = "replace-one"\nmicrobatch_size = 64\n'
    )
    said = trained("--config run.toml --epsilon 2")
    assert said["steps"] == 4 and said["epsilon"] <= 2 and said["relation"] == "replace-one"
    assert "layer by layer" in said["statement"]


def test_a_run_is_charged_to_an_account(trained, tmp_path):
    account = Ledger(tmp_path / "l.db").open(
        "a", privacy_unit="example", budget=Budget(epsilon=2, delta=1e-5)
    )
    said = trained(f"digits --ledger l.db --account a --epsilon 1 {FAST}")
    assert said["delta"] == 1e-5 and said["account"] == "a"
    (release,) = account.releases()
    assert release.purpose == "train mlp on digits" and release.spent and not release.seeded
    rest = trained(f"digits --ledger l.db --account a {FAST}")
    assert rest["epsilon"] > 0.3 and len(account.releases()) == 2


def test_a_run_that_is_too_dear_is_refused_and_nothing_is_spent(sfumato_says, tmp_path):
    account = Ledger(tmp_path / "l.db").open(
        "a", privacy_unit="example", budget=Budget(epsilon=1, delta=1e-5)
    )
    code, _, err = sfumato_says(f"train digits --ledger l.db --account a --epsilon 2 {FAST} --folder run")
    assert code == 2 and "error:" in err
    assert not any(release.spent for release in account.releases())


def test_noise_from_a_seed_is_said_to_protect_nobody(trained, sfumato_says):
    line = f"digits --epsilon 2 --seed 7 {FAST}"
    first = trained(line)
    torch.rand(3)  # the first weights come from the seed too, whatever else was drawn
    second = trained(line)
    assert [row["loss"] for row in first["history"]] == [row["loss"] for row in second["history"]]
    assert "the noise was seeded" in first["study_note"]
    assert "the noise was seeded" in sfumato_says(f"train {line}")[1]


def test_a_page_is_written(trained, tmp_path):
    trained(f"digits --epsilon 2 {FAST} --report pages/digits.html")
    text = (tmp_path / "pages" / "digits.html").read_text()
    assert "<svg" in text and "digits, learned privately" in text and "expected batch size" in text
    assert "not protect anyone" not in text


def test_a_page_of_a_charged_run_has_the_ledgers_statement(trained, tmp_path):
    Ledger(tmp_path / "l.db").open("a", privacy_unit="example", budget=Budget(epsilon=2, delta=1e-5))
    trained(f"digits --ledger l.db --account a {FAST} --report r.html")
    assert "Privacy statement of account" in (tmp_path / "r.html").read_text()


def test_a_page_that_cannot_be_written_is_refused_before_the_run_is_paid_for(sfumato_says, tmp_path):
    account = Ledger(tmp_path / "l.db").open(
        "a", privacy_unit="example", budget=Budget(epsilon=2, delta=1e-5)
    )
    (tmp_path / "taken").write_text("a file")
    code, _, err = sfumato_says(f"train digits --ledger l.db --account a {FAST} --report taken/x.html")
    assert code == 2 and "cannot be written" in err
    assert len(account.releases()) == 0


class Killed(BaseException):
    """Nobody catches it."""


def test_a_killed_run_goes_on_with_the_settings_it_was_started_with(
    trained, sfumato_says, monkeypatch, tmp_path
):
    account = Ledger(tmp_path / "l.db").open(
        "a", privacy_unit="example", budget=Budget(epsilon=2, delta=1e-5)
    )
    run = f"digits --model linear --noise-multiplier 4 --seed 3 --delta 1e-5 {FAST}"
    take_step = TrainingLoop.take_step

    def dies(session):
        if session.step == 7:
            raise Killed
        take_step(session)

    monkeypatch.setattr(TrainingLoop, "take_step", dies)
    with pytest.raises(Killed):
        cli_train(monkeypatch, f"{run} --ledger l.db --account a --folder killed")
    monkeypatch.setattr(TrainingLoop, "take_step", take_step)
    resumed = trained("--resume --folder killed")
    whole = trained(f"{run} --folder whole")
    assert [row["loss"] for row in resumed["history"]] == [row["loss"] for row in whole["history"]]
    (release,) = account.releases()
    assert release.progress.value == "committed" and release.seeded
    assert (tmp_path / "killed" / "model.pt").exists()


def cli_train(monkeypatch, line):
    monkeypatch.setattr("sys.argv", ["sfumato", "train", *line.split()])
    cli.main()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("train", "pass what to train on"),
        ("train digits", "pass how private the run must be"),
        ("train letters --epsilon 3", "unknown data set 'letters'"),
        ("train digits --model lstm --epsilon 3", "no model 'lstm' for the data set 'digits'"),
        ("train breast-cancer --model cnn --epsilon 3", "Use one of: linear, mlp"),
        ("train digits --epsilon 0", "epsilon"),
        ("train digits --epsilon nan", "epsilon"),
        ("train digits --epsilon 3 --delta 1", "delta must be a number strictly between 0 and 1"),
        ("train digits --epsilon 3 --clip-norm 0", "--clip-norm must be"),
        ("train digits --epsilon 3 --learning-rate -1", "--learning-rate must be"),
        ("train digits --epsilon 3 --expected-batch-size 2000", "at most --public-size 1437"),
        ("train digits --epsilon 3 --ledger l.db", "give both --ledger and --account"),
        ("train digits --account a", "give both --ledger and --account"),
        ("train digits --ledger l.db --account a", "there is no ledger at"),
        ("train digits --epsilon 3 --resume", "without --folder"),
        ("train digits --epsilon 3 --resume --folder none", "there is no run in"),
        ("train --resume --folder none", "there is no run in"),
        ("train digits --epsilon 3 --device toaster", "unknown device 'toaster'"),
        ("train digits --epsilon 3 --config none.toml", "cannot be read"),
        ("train digits --epsilon 1e-9 --noise-multiplier 1", "does not pay for one step"),
    ],
)
def test_an_error_is_one_paragraph_with_exit_code_2(sfumato_says, line, says):
    code, out, err = sfumato_says(line)
    assert code == 2, out
    assert says in " ".join(err.split())
    assert out == "" and "Traceback" not in err


def held(place):
    """Return the bytes of all files in a folder."""
    return {file: file.read_bytes() for file in sorted(place.rglob("*")) if file.is_file()}


@pytest.mark.parametrize(
    ("again", "says"),
    [
        (f"digits --epsilon 1 {FAST} --folder run --report page.html", "holds a run already"),
        (f"digits --epsilon 1 {FAST} --folder run --report run/page.html", "which is finished"),
        ("--folder run --resume", "is finished"),
        ("digits --private labels --epsilon 1 --folder run", "which is finished"),
    ],
    ids=["page", "page within", "resume", "labels"],
)
def test_a_folder_that_holds_a_finished_run_is_refused_as_it_was(
    sfumato_says, trained, tmp_path, again, says
):
    trained(f"digits --model linear --epsilon 2 {FAST} --folder run --report page.html")
    shutil.copy(tmp_path / "page.html", tmp_path / "run" / "page.html")
    before = held(tmp_path)
    code, _, err = sfumato_says(f"train {again}")
    assert code == 2 and says in " ".join(err.split())
    assert held(tmp_path) == before


def test_a_folder_that_another_process_trains_in_is_refused_as_it_was(sfumato_says, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "settings.json").write_text("{}")
    folder = RunFolder(tmp_path / "run")
    with folder.taken(resume=False):
        for line in (f"digits --epsilon 1 {FAST} --folder run", "digits --epsilon 1 --folder run --resume"):
            before = held(tmp_path)
            code, _, err = sfumato_says(f"train {line} --report page.html")
            assert code == 2 and "another process trains in" in " ".join(err.split())
            assert held(tmp_path) == before
            folder.save({})  # for the second


@pytest.mark.parametrize("rank", ["0", "1"])
def test_only_the_first_of_all_processes_begins_the_folder(monkeypatch, tmp_path, rank):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("LOCAL_RANK", "0")  # of the second of two machines, too
    settings = TrainSettings(data="digits", folder=str(tmp_path / "run"), report=str(tmp_path / "page.html"))
    with RunFolder(tmp_path / "run").taken(resume=False) if rank == "1" else nullcontext():
        begin(settings, resume=False)
    assert (tmp_path / "run" / "settings.json").exists() is (rank == "0")
    assert not (tmp_path / "page.html").exists()
    begin(settings, resume=rank == "1")  # there is nothing to resume, as on a machine that shares no folder


def test_a_page_is_tried_by_two_processes_at_once(monkeypatch, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("an earlier run")
    touch = Path.touch

    def taken_away(self, *args, **named):
        touch(self, *args, **named)
        self.unlink()  # by the other

    monkeypatch.setattr(Path, "touch", taken_away)
    begin(TrainSettings(data="digits", report=str(page)), resume=False)
    assert page.read_text() == "an earlier run"


@pytest.mark.parametrize("flags", ["", " --resume"])
def test_a_folder_that_cannot_be_used_is_said_to_be_so(sfumato_says, tmp_path, flags):
    code, _, err = sfumato_says(f"train digits --epsilon 1 {FAST} --folder {'a' * 300}{flags}")
    assert code == 2 and err.startswith("error:") and "File name too long" in " ".join(err.split())


def test_settings_that_cannot_be_written_are_said_to_be_so(sfumato_says, tmp_path):
    (tmp_path / "run" / "settings.json").mkdir(parents=True)
    code, _, err = sfumato_says(f"train digits --epsilon 1 {FAST} --folder run")
    assert code == 2 and "the settings cannot be written" in " ".join(err.split())


def test_a_folder_with_weights_of_unknown_origin_is_refused_as_it_was(sfumato_says, tmp_path):
    (tmp_path / "run").mkdir()
    torch.save({"weight": torch.ones(2)}, tmp_path / "run" / "model.pt")
    before = held(tmp_path)
    code, _, err = sfumato_says(f"train digits --epsilon 1 {FAST} --folder run")
    assert code == 2 and "only weights are left" in " ".join(err.split())
    assert held(tmp_path) == before


def test_a_page_that_is_there_stays_until_there_is_another(sfumato_says, trained, tmp_path):
    trained(f"digits --model linear --epsilon 2 {FAST} --report page.html")
    before = held(tmp_path)
    code, _, err = sfumato_says(f"train digits --epsilon 1 {FAST} --device toaster --report page.html")
    assert code == 2 and "unknown device" in err and held(tmp_path) == before
    trained(f"digits --model linear --epsilon 1 {FAST} --report page.html")
    assert held(tmp_path) != before


def test_asking_for_other_commands_does_not_load_torch():
    code = "import sys, sfumato.cli.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_what_the_page_says_of_flags_is_so():
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    for data in names():
        if data == "fashion-mnist":
            assert "| `fashion-mnist` | as `mnist` |" in page
            continue
        for model in models_of(data):
            settings = recipe(data, model)
            told = f"`{model}`: {settings.expected_batch_size}, {settings.epochs:g}, {settings.clip_norm:g}, "
            assert f"{told}{settings.learning_rate:g}" in page, (data, model)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("digits --private names --epsilon 1", "rows or labels"),
        ("digits --method altconv --epsilon 1", "--private labels"),
    ],
)
def test_what_is_secret_is_rows_or_labels(sfumato_says, line, advice):
    code, _, err = sfumato_says(f"train {line}")
    assert code == 2 and advice in err
