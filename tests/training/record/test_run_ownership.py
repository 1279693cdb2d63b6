# SPDX-License-Identifier: Apache-2.0
"""One charge gives one model: copies, backups, kills and processes that wake up late."""

import importlib.util
import json
import shutil
import signal
from pathlib import Path

import pytest
import torch

from sfumato import Budget, Ledger
from sfumato.errors import ClaimedElsewhereError
from sfumato.ledger.state import Progress
from sfumato.training import CheckpointError
from sfumato.training.record.run_folder import RunFolder

SCRIPT = Path(__file__).parents[1] / "runs.py"
SPEC = importlib.util.spec_from_file_location("training_runs_claimed", SCRIPT)
runs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(runs)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def account(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    return ledger.open("data", privacy_unit="example", budget=Budget(epsilon=90, delta=1e-5))


@pytest.fixture
def killed(exit_code):
    def run(**asked):
        assert exit_code(SCRIPT, json.dumps(asked)) == -signal.SIGKILL

    return run


def files(folder):
    """Return all that anybody can see of a run, but for the lock."""
    return {file.name: file.read_bytes() for file in Path(folder).iterdir() if file.name != ".lock"}


def accuracies(folder):
    return [json.loads(row)["accuracy"] for row in files(folder)["metrics.jsonl"].splitlines()]


def weights(folder):
    return torch.load(Path(folder) / "model.pt", weights_only=True)


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


# --- copies ----------------------------------------------------------------------------------------------


def test_copies_of_a_killed_runs_folder_give_one_model_for_one_charge(tmp_path, account, killed):
    asked = {"folder": str(tmp_path / "a"), "ledger": str(tmp_path / "ledger.db")}
    killed(**asked, die_at=8)
    copies = [shutil.copytree(tmp_path / "a", tmp_path / name) for name in ("b", "c")]
    before = files(copies[1])
    runs.make(asked | {"folder": str(copies[0])}).fit(resume=True)
    for folder in (copies[1], tmp_path / "a"):
        with pytest.raises(CheckpointError, match=r"not the last one of its run|committed"):
            runs.make(asked | {"folder": str(folder)}).fit(resume=True)
    assert files(copies[1]) == before
    assert [release.progress for release in account.releases()] == [Progress.COMMITTED]


def test_a_second_copy_is_refused_while_the_first_is_still_at_work(tmp_path, account, killed):
    asked = {"folder": str(tmp_path / "a"), "ledger": str(tmp_path / "ledger.db")}
    killed(**asked, die_at=8)
    copy = shutil.copytree(tmp_path / "a", tmp_path / "b")
    killed(**asked, resume=True, die_at=9)  # it took the run over, and did not get to a checkpoint
    before = files(copy)
    with pytest.raises(CheckpointError, match="not the last one of its run"):
        runs.make(asked | {"folder": str(copy)}).fit(resume=True)
    assert files(copy) == before
    runs.make(asked).fit(resume=True)
    assert [release.progress for release in account.releases()] == [Progress.COMMITTED]


def test_of_two_copies_that_are_resumed_at_the_same_time_one_finishes(
    tmp_path, account, killed, start_script
):
    asked = {"folder": str(tmp_path / "a"), "ledger": str(tmp_path / "ledger.db")}
    killed(**asked, die_at=8)
    names = ("a", "b", "c")
    for name in names[1:]:
        shutil.copytree(tmp_path / "a", tmp_path / name)
    processes = [
        start_script(SCRIPT, json.dumps(asked | {"folder": str(tmp_path / name), "resume": True}))
        for name in names
    ]
    for process in processes:
        process.join(240)
    codes = [process.exitcode for process in processes]
    assert sorted(code == 0 for code in codes) == [False, False, True]
    models = [name for name in names if (tmp_path / name / "model.pt").exists()]
    assert models == [names[codes.index(0)]]
    steps = [torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["step"] for name in names]
    assert sorted(steps) == [6, 6, 12]
    assert [release.progress for release in account.releases()] == [Progress.COMMITTED]


def test_an_old_backup_of_a_folder_cannot_be_continued(tmp_path, account, killed):
    asked = {"folder": str(tmp_path / "a"), "ledger": str(tmp_path / "ledger.db")}
    killed(**asked, die_at=8)
    backup = shutil.copytree(tmp_path / "a", tmp_path / "backup")
    killed(**asked, resume=True, die_at=11)
    assert torch.load(tmp_path / "a" / "checkpoint.pt", weights_only=True)["step"] == 9
    with pytest.raises(CheckpointError, match="not the last one of its run"):
        runs.make(asked | {"folder": str(backup)}).fit(resume=True)
    runs.make(asked).fit(resume=True)
    assert len(account.releases()) == 1


def test_a_process_that_wakes_up_late_shows_nothing_of_its_steps(tmp_path, account):
    asked = {"folder": str(tmp_path / "a"), "ledger": str(tmp_path / "ledger.db")}
    late = runs.make(asked)
    save, seen = late._save, []

    def overtaken(loop):
        if loop.step == 8:  # asleep since the checkpoint of step 6; meanwhile a copy goes on
            copy = shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns(".lock"))
            runs.make(asked | {"folder": str(copy)}).fit(resume=True)
            seen.append(files(tmp_path / "a"))
        save(loop)

    late._save = overtaken
    with pytest.raises(ClaimedElsewhereError, match="committed"):
        late.fit()
    assert files(tmp_path / "a") == seen[0]
    held = torch.load(tmp_path / "a" / "checkpoint.pt", weights_only=True)
    assert held["step"] == 6 and same(held["model"], late._model.state_dict())
    assert len(account.releases()) == 1


# --- killed at any moment --------------------------------------------------------------------------------

MOMENTS = [("claim", 2), ("promote", 3), ("commit", 1), ("finish", 1)]
SOME = [
    pytest.param(moment, marks=[pytest.mark.slow] * (moment[0] == "claim"), id=f"{moment[0]}-{moment[1]}")
    for moment in MOMENTS
]


@pytest.mark.parametrize("moment", SOME)
def test_a_run_that_was_killed_while_it_published_goes_on_and_is_charged_once(
    moment, tmp_path, account, killed
):
    whole = {"folder": str(tmp_path / "a"), "seed": 4, "ledger": str(tmp_path / "ledger.db")}
    runs.make(whole).fit()
    broken = whole | {"folder": str(tmp_path / "b")}
    killed(**broken, die_before=moment)
    runs.make(broken).fit(resume=True)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert accuracies(tmp_path / "a") == accuracies(tmp_path / "b")
    assert [release.progress for release in account.releases()] == [Progress.COMMITTED] * 2


def test_what_was_committed_and_not_handed_over_is_the_same_model_in_every_copy(tmp_path, account, killed):
    asked = {"folder": str(tmp_path / "a"), "ledger": str(tmp_path / "ledger.db")}
    killed(**asked, die_before=("finish", 1))
    assert not (tmp_path / "a" / "model.pt").exists()
    assert [release.progress for release in account.releases()] == [Progress.COMMITTED]
    copy = shutil.copytree(tmp_path / "a", tmp_path / "b")
    for folder in (tmp_path / "a", copy):
        runs.make(asked | {"folder": str(folder)}).fit(resume=True)
    assert same(weights(tmp_path / "a"), weights(copy))
    assert len(account.releases()) == 1


def test_nothing_of_the_last_weights_is_seen_before_the_run_is_committed(tmp_path, account, monkeypatch):
    asked = {"folder": str(tmp_path / "a"), "ledger": str(tmp_path / "ledger.db")}
    trainer = runs.make(asked)
    seen, finish = [], RunFolder.finish

    def note(what):
        seen.append((what, account.releases()[0].progress is Progress.COMMITTED))

    def finishing(self, weights):
        note("weights")
        finish(self, weights)

    monkeypatch.setattr(RunFolder, "finish", finishing)
    make = trainer._reports.make
    monkeypatch.setattr(trainer._reports, "make", lambda loop, bar: (note(loop.step), make(loop, bar)))
    trainer.fit()
    assert seen == [(4, False), (8, False), (12, True), ("weights", True)]


# --- without an account, and from older versions ----------------------------------------------------------


def test_without_an_account_a_folder_still_refuses_a_checkpoint_that_is_not_its_last(tmp_path, killed):
    asked = {"folder": str(tmp_path / "a"), "seed": 4}
    killed(**asked, die_at=8)
    old = (tmp_path / "a" / "checkpoint.pt").read_bytes()
    killed(**asked, resume=True, die_at=11)
    (tmp_path / "a" / "checkpoint.pt").write_bytes(old)
    with pytest.raises(CheckpointError, match="not the last one of its run"):
        runs.make(asked).fit(resume=True)
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "checkpoint.pt").write_bytes(old)
    with pytest.raises(CheckpointError, match="not the last one of its run"):
        runs.make(asked | {"folder": str(alone)}).fit(resume=True)


def test_without_an_account_a_process_that_lost_its_folder_stops(tmp_path):
    asked = {"folder": str(tmp_path / "a"), "seed": 4}
    trainer = runs.make(asked)
    save = trainer._save

    def lost(loop):
        if loop.step == 8:
            RunFolder(tmp_path / "a").write_claim("of another process")
        save(loop)

    trainer._save = lost
    with pytest.raises(CheckpointError, match="continued by another process"):
        trainer.fit()
    assert not (tmp_path / "a" / "checkpoint.pt.part").exists()


def test_a_checkpoint_of_an_older_version_is_continued_once(tmp_path, account, killed):
    asked = {"folder": str(tmp_path / "a"), "ledger": str(tmp_path / "ledger.db")}
    killed(**asked, die_at=8)
    old = account.reserve(runs.mechanism(True), purpose="by an older version")
    old.begin()
    path = tmp_path / "a" / "checkpoint.pt"
    state = torch.load(path, weights_only=True)
    del state["claim"]
    torch.save(state | {"reservation": old.number}, path)
    copy = shutil.copytree(tmp_path / "a", tmp_path / "b")
    runs.make(asked).fit(resume=True)
    with pytest.raises(CheckpointError, match="committed"):
        runs.make(asked | {"folder": str(copy)}).fit(resume=True)
    assert [release.progress for release in account.releases()] == [Progress.BEGUN, Progress.COMMITTED]
