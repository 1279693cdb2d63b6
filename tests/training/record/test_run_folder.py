# SPDX-License-Identifier: Apache-2.0
import errno
import importlib.util
import json
import os
import random
import shutil
import signal
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from torch import nn

from sfumato import Budget, Ledger
from sfumato.accounting.events import to_json
from sfumato.errors import InvalidParameterError, LedgerError
from sfumato.ledger.state import Progress
from sfumato.testing import seeded
from sfumato.training import CheckpointError, train
from sfumato.training.record.run_folder import RunFolder

SCRIPT = Path(__file__).parents[1] / "runs.py"
SPEC = importlib.util.spec_from_file_location("training_runs", SCRIPT)
runs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(runs)

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
Y = torch.arange(40) % 2


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def killed(exit_code):
    def run(**asked):
        assert exit_code(SCRIPT, json.dumps(asked)) == -signal.SIGKILL

    return run


def weights(folder):
    return torch.load(Path(folder) / "model.pt", weights_only=True)


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def history(folder):
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def account(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    return ledger.open("data", privacy_unit="example", budget=Budget(epsilon=90, delta=1e-5))


# --- kill -9 ---------------------------------------------------------------------------------------------

KILLS = {
    "between-checkpoints": {"die_at": random.Random(8).choice([2, 5, 7, 8, 10, 11])},
    "while-saving": {"die_in_save": 5},
    "before-the-first-step-ends": {"die_at": 1},
}
SLOW = [pytest.param(where, marks=[pytest.mark.slow] * (i > 1), id=where) for i, where in enumerate(KILLS)]


@pytest.mark.parametrize("where", SLOW)
def test_a_seeded_run_that_was_killed_and_resumed_equals_the_uninterrupted_one(where, tmp_path, killed):
    whole, broken = {"folder": str(tmp_path / "a"), "seed": 4}, {"folder": str(tmp_path / "b"), "seed": 4}
    runs.make(whole).fit()
    killed(**broken, **KILLS[where])
    torch.manual_seed(99)  # the state of torch's own generator comes from the checkpoint
    runs.make(broken).fit(resume=True)
    assert same(weights(whole["folder"]), weights(broken["folder"]))
    assert history(whole["folder"]) == history(broken["folder"])


def test_a_run_with_secure_noise_resumes_with_fresh_noise_and_is_charged_once(tmp_path, account, killed):
    asked = {"folder": str(tmp_path / "a"), "ledger": str(tmp_path / "ledger.db")}
    killed(**asked, die_at=8)
    assert [r.progress for r in account.releases()] == [Progress.BEGUN]
    before = torch.load(tmp_path / "a" / "checkpoint.pt", weights_only=True)
    assert before["step"] == 6
    run = runs.make(asked).fit(resume=True)
    (release,) = account.releases()
    assert release.progress is Progress.COMMITTED and release.event_json == to_json(run.mechanism.event())
    assert not release.seeded and run.study_note is None


def test_what_comes_after_a_resumed_checkpoint_has_other_noise_each_time(tmp_path):
    finals = []
    asked = stopped_run(tmp_path, seed=None, dropout=False)
    for name in ("b", "c"):
        folder = shutil.copytree(tmp_path / "a", tmp_path / name)
        runs.make(asked | {"folder": str(folder)}).fit(resume=True)
        finals.append(weights(folder))
    assert not same(*finals)


def test_two_continuations_of_one_charge_cannot_both_be_finished(tmp_path, account):
    asked = stopped_run(tmp_path, seed=None, ledger=str(tmp_path / "ledger.db"))
    copy = shutil.copytree(tmp_path / "a", tmp_path / "b")
    runs.make(asked).fit(resume=True)
    with pytest.raises(CheckpointError, match="committed"):
        runs.make(asked | {"folder": str(copy)}).fit(resume=True)
    assert len(account.releases()) == 1 and not (copy / "model.pt").exists()


def test_a_crash_between_charge_and_begin_goes_on_under_the_same_charge(tmp_path, account, monkeypatch):
    asked = {"folder": str(tmp_path / "a"), "ledger": str(tmp_path / "ledger.db")}
    trainer = runs.make(asked)
    monkeypatch.setattr(trainer._payment, "begin", lambda **_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert [r.progress for r in account.releases()] == [Progress.RESERVED]
    runs.make(asked).fit(resume=True)
    assert [r.progress for r in account.releases()] == [Progress.COMMITTED]


# --- the folder ------------------------------------------------------------------------------------------


def options(**more):
    sizes = {"public_size": 40, "expected_batch_size": 4, "steps": 4, "noise_multiplier": 2.0, "delta": 1e-5}
    return sizes | {"generator": seeded(0)} | more


def test_a_folder_with_a_run_is_neither_overwritten_nor_resumed_once_it_is_finished(tmp_path):
    train(nn.Linear(3, 2), (X, Y), folder=tmp_path, **options())
    before = weights(tmp_path)
    with pytest.raises(CheckpointError, match="holds a run already"):
        train(nn.Linear(3, 2), (X, Y), folder=tmp_path, **options())
    with pytest.raises(CheckpointError, match="is finished"):
        train(nn.Linear(3, 2), (X, Y), folder=tmp_path, resume=True, **options())
    assert same(before, weights(tmp_path))
    assert json.loads((tmp_path / "run.json").read_text())["steps"] == 4


def test_there_must_be_something_to_resume(tmp_path):
    with pytest.raises(CheckpointError, match="no run"):
        train(nn.Linear(3, 2), (X, Y), folder=tmp_path, resume=True, **options())
    with pytest.raises(InvalidParameterError, match="without a folder"):
        train(nn.Linear(3, 2), (X, Y), resume=True, **options())


def stopped_run(tmp_path, **asked):
    """Leave a run behind that stopped after its second checkpoint."""
    asked = {"folder": str(tmp_path / "a"), "seed": 4} | asked
    trainer = runs.make(asked)
    saved = trainer._save

    def stop(loop):
        saved(loop)
        if loop.step >= 6:
            raise KeyboardInterrupt

    trainer._save = stop
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    return asked


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 5}, "generator"),
        ({"seed": None}, "generator was .* and is now secure"),
        ({"steps": 20}, "steps was 12 and is now 20"),
        ({"adaptive": False}, "event"),
        ({"dtype": "float64"}, "parameters"),
        ({"learning_rate": 0.1}, "optimizer"),
        ({"shuffled": True}, "relation was add-remove and is now zero-out"),
    ],
    ids=["seed", "secure", "steps", "clipping", "dtype", "optimizer", "sampling"],
)
def test_the_checkpoint_of_another_run_is_refused_and_what_differs_is_named(change, named, tmp_path):
    asked = stopped_run(tmp_path)
    before = (tmp_path / "a" / "checkpoint.pt").read_bytes()
    with pytest.raises(InvalidParameterError, match=f"of another run.*{named}"):
        runs.make(asked | change).fit(resume=True)
    assert (tmp_path / "a" / "checkpoint.pt").read_bytes() == before


def test_a_run_is_resumed_only_with_the_account_it_was_charged_to(tmp_path, account):
    asked = stopped_run(tmp_path, ledger=str(tmp_path / "ledger.db"))
    with pytest.raises(InvalidParameterError, match="account was 'data' and is now None"):
        runs.make({k: v for k, v in asked.items() if k != "ledger"}).fit(resume=True)
    other = Ledger(tmp_path / "other.db")
    elsewhere = other.open("data", privacy_unit="example", budget=Budget(epsilon=90, delta=1e-5))
    with pytest.raises(LedgerError, match="no reservation"):
        runs.make(asked | {"ledger": str(tmp_path / "other.db")}).fit(resume=True)
    elsewhere.reserve(runs.mechanism(False), purpose="another event")
    with pytest.raises(CheckpointError, match="another event"):
        runs.make(asked | {"ledger": str(tmp_path / "other.db")}).fit(resume=True)
    assert runs.make(asked).fit(resume=True).reservation == account.releases()[0].reservation


def test_a_shuffled_epoch_goes_on_in_its_own_order(tmp_path):
    asked = stopped_run(tmp_path, shuffled=True, seed=None)
    state = torch.load(tmp_path / "a" / "checkpoint.pt", weights_only=True)
    assert state["sampler"]["epoch"] == 1
    trainer = runs.make(asked)
    assert trainer.fit(resume=True).history[-1].step == 12


def test_torn_and_lost_lines_of_the_metrics_are_gone_after_a_resume(tmp_path):
    asked = stopped_run(tmp_path)
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "epsi')
    runs.make(asked).fit(resume=True)
    assert [row["step"] for row in history(tmp_path / "a")] == [4, 8, 12]


def test_nothing_is_shown_before_a_checkpoint_holds_it(tmp_path, monkeypatch):
    held = []

    def append(self, row):
        state = torch.load(tmp_path / "a" / "checkpoint.pt", weights_only=True)
        held.append(state["step"] == row.step)

    monkeypatch.setattr("sfumato.training.record.metrics.MetricsFile.append", append)
    runs.make({"folder": str(tmp_path / "a")}).fit()
    assert held == [True, True, True]


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint", None], ids=["empty", "text", "cut"])
def test_a_damaged_checkpoint_is_refused(damage, tmp_path):
    asked = stopped_run(tmp_path)
    path = tmp_path / "a" / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:-1000] if damage is None else damage)
    with pytest.raises(CheckpointError, match="cannot be read"):
        runs.make(asked).fit(resume=True)


def test_a_checkpoint_cannot_run_code(tmp_path):
    asked = stopped_run(tmp_path)
    path = tmp_path / "a" / "checkpoint.pt"
    state = torch.load(path, weights_only=True)
    torch.save(state | {"history": Path}, path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        runs.make(asked).fit(resume=True)


class OddSchedule(torch.optim.lr_scheduler.LambdaLR):
    def state_dict(self):
        return {"odd": Path("x")}


def test_what_could_not_be_read_later_is_known_before_the_run_begins(tmp_path, account):
    with pytest.raises(CheckpointError, match="cannot be read"):
        train(
            nn.Linear(3, 2),
            (X, Y),
            folder=tmp_path / "a",
            schedule=lambda o: OddSchedule(o, lambda step: 1.0),
            account=account,
            purpose="odd",
            **options(),
        )
    assert [r.progress for r in account.releases()] == [Progress.REFUNDED]
    assert not (tmp_path / "a" / "checkpoint.pt").exists()


def test_one_process_at_a_time_uses_a_folder(tmp_path, account):
    folder = RunFolder(tmp_path / "a")
    with folder.taken(resume=False), pytest.raises(CheckpointError, match="another process"):
        train(nn.Linear(3, 2), (X, Y), folder=tmp_path / "a", account=account, purpose="two", **options())
    assert account.releases() == []
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be used: Not a directory"):
        train(nn.Linear(3, 2), (X, Y), folder=tmp_path / "file" / "a", **options())


def denied(*args, **named):
    raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("what", [(Path, "exists"), (Path, "mkdir"), (FileLock, "acquire")])
def test_a_folder_that_may_not_be_used_is_said_to_be_so(tmp_path, monkeypatch, what, resume):
    folder = RunFolder(tmp_path)
    if resume:
        folder.save({})
    monkeypatch.setattr(*what, denied)
    with (
        pytest.raises(CheckpointError, match="cannot be used: Permission denied"),
        folder.taken(resume=resume),
    ):
        pass


def test_a_name_that_is_too_long_for_a_folder_is_said_to_be_so(tmp_path):
    for resume in (False, True):
        with pytest.raises(CheckpointError, match="cannot be used: File name too long"):
            train(nn.Linear(3, 2), (X, Y), folder=tmp_path / ("a" * 300), resume=resume, **options())


def test_what_a_run_raises_is_not_taken_for_trouble_with_its_folder(tmp_path):
    with pytest.raises(PermissionError), RunFolder(tmp_path).taken(resume=False):
        denied()


def test_a_folder_is_not_made_where_there_is_nothing_to_resume(tmp_path):
    with pytest.raises(CheckpointError, match="no run in"):
        train(nn.Linear(3, 2), (X, Y), folder=tmp_path / "typo", resume=True, **options())
    assert not (tmp_path / "typo").exists()


def test_what_is_said_of_a_run_is_on_disk_before_it_counts(tmp_path, monkeypatch):
    done, sync = [], os.fsync
    replace = Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append("disk"), sync(handle)))
    monkeypatch.setattr(Path, "replace", lambda part, place: (done.append(place.name), replace(part, place)))
    folder = RunFolder(tmp_path)
    folder.write_report("{}")
    assert done == ["disk", "run.json", "disk"] and folder.report.read_text() == "{}\n"  # file and folder


def test_a_checkpoint_of_another_layout_is_of_another_version(tmp_path):
    folder = RunFolder(tmp_path)
    folder.save({"step": 3})
    assert folder.load()["step"] == 3
    state = torch.load(folder.checkpoint, weights_only=True)
    torch.save(state | {"format": 1}, folder.checkpoint)  # before what audits see was kept in few bytes
    with pytest.raises(CheckpointError, match="written by another version"):
        folder.load()


def test_a_run_that_took_what_its_account_had_left_resumes_with_the_noise_it_began_with(tmp_path, account):
    asked = options(account=account, purpose="all", folder=tmp_path / "a", delta=None)
    del asked["noise_multiplier"]

    def failing(model, x, y):
        if (tmp_path / "a" / "checkpoint.pt").exists():  # not in passes over synthetic rows
            raise KeyboardInterrupt
        return nn.functional.cross_entropy(model(x), y, reduction="none")

    failing.__qualname__ = "loss"

    def loss(model, x, y):
        return nn.functional.cross_entropy(model(x), y, reduction="none")

    loss.__qualname__ = "loss"
    asked["expected_batch_size"] = 40
    with pytest.raises(KeyboardInterrupt):
        train(nn.Linear(3, 2), (X, Y), loss=failing, checkpoint_every=1, **asked)
    assert account.remaining().fraction < 0.01
    run = train(nn.Linear(3, 2), (X, Y), loss=loss, resume=True, **asked)
    (release,) = account.releases()
    assert release.progress is Progress.COMMITTED and release.event_json == to_json(run.mechanism.event())
