# SPDX-License-Identifier: Apache-2.0
"""A run that stops, that is resumed, and that public figures end."""

import copy
import multiprocessing
import os
import shutil
import signal
from functools import partialmethod

import pytest
import torch
from lightning.pytorch import callbacks

from sfumato import Budget, Ledger
from sfumato.errors import SfumatoError
from sfumato.training import CheckpointError, TrainingRun

from .modules import WARNINGS, Classifier, loader, private, public, same, trainer
from .test_held_loggers import Recorder

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]


class Stop(callbacks.Callback):
    """Interrupts a run at a step, before or after it."""

    def __init__(self, step: int, hook: str) -> None:
        self._step = step
        setattr(self, hook, self._stop)

    def _stop(self, trainer, *given):
        if trainer.global_step == self._step:
            raise RuntimeError("stop")


class Stateful(callbacks.Callback):
    """Counts epochs, and keeps the count."""

    epochs = 0

    def on_train_epoch_end(self, trainer, pl_module):
        self.epochs += 1

    def state_dict(self):
        return {"epochs": self.epochs}

    def load_state_dict(self, state):
        self.epochs = state["epochs"]


@pytest.fixture
def account(tmp_path):
    return Ledger(tmp_path / "ledger.db").open(
        "data", privacy_unit="example", budget=Budget(epsilon=50, delta=1e-5)
    )


def run(folder, parts=(), account=None, **keywords):
    """Train for two epochs of four steps; return module, strategy and trainer."""
    if account is not None:
        keywords |= {"account": account, "purpose": "a test", "delta": None}
    module, strategy = Classifier(), private(public_evaluation=True, folder=folder, **keywords)
    files = any(isinstance(part, callbacks.ModelCheckpoint) for part in parts)
    lit = trainer(strategy, folder, callbacks=list(parts), enable_checkpointing=files)
    lit.fit(module, loader(), public())
    return module, strategy, lit


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The module of a run that nothing interrupts."""
    return run(tmp_path_factory.mktemp("whole") / "run")[0]


class Diary(callbacks.Callback):
    """Notes what Lightning did, and keeps it."""

    def __init__(self):
        self.seen = []

    def _note(self, trainer, *given, name):
        self.seen.append((name, trainer.global_step, trainer.current_epoch))

    on_train_epoch_start = partialmethod(_note, name="epoch begins")
    on_train_batch_end = partialmethod(_note, name="batch")
    on_validation_end = partialmethod(_note, name="validation")
    on_train_epoch_end = partialmethod(_note, name="epoch ends")

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = [tuple(note) for note in state["seen"]]


class Waiting(Classifier):
    """Lowers its rate after each epoch, by a figure of validation."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1e9, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}


def told(folder, parts=(), **options):
    """Train with a logger; return the diary, the figures that the logger got, and the module."""
    diary, logger, module = Diary(), Recorder(), Waiting()
    keywords = {"folder": folder, "checkpoint_every": 100, "public_evaluation": True}
    lit = trainer(
        private(**keywords, resume=options.pop("resume", False)),
        folder,
        callbacks=[diary, *parts],
        logger=logger,
        **options,
    )
    lit.fit(module, loader(), public())
    return diary.seen, [given for kind, given in logger.got if kind == "metrics"], module


INTERRUPTED = [
    ("on_validation_start", 4),
    ("on_validation_end", 2),
    ("on_validation_end", 8),
    ("on_train_epoch_end", 4),
    ("on_train_batch_end", 6),
    ("on_train_batch_start", 5),
    ("on_train_end", 8),
]


@pytest.mark.filterwarnings("ignore:Found .* module.s. in eval mode")
@pytest.mark.parametrize(("hook", "step"), INTERRUPTED)
def test_a_resumed_run_misses_no_validation_no_figure_and_no_hook(hook, step, tmp_path, whole_diary):
    with pytest.raises(RuntimeError, match="stop"):
        told(tmp_path / "run", [Stop(step, hook)], val_check_interval=2)
    seen, figures, module = told(tmp_path / "run", resume=True, val_check_interval=2)
    assert seen == whole_diary[0]
    assert figures == whole_diary[1] and any("val_loss" in metrics for _, metrics in figures)
    assert same(module, whole_diary[2])


@pytest.fixture(scope="module")
def whole_diary(tmp_path_factory):
    return told(tmp_path_factory.mktemp("whole") / "run", val_check_interval=2)


class Kill(Stop):
    """Ends the process as `kill -9` does."""

    def _stop(self, trainer, *given):
        if trainer.global_step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_run_that_was_killed_misses_no_figure_either(tmp_path, whole_diary):
    folder = tmp_path / "run"
    fork = multiprocessing.get_context("fork")
    killed = fork.Process(
        target=told, args=(folder, [Kill(6, "on_validation_end")]), kwargs={"val_check_interval": 2}
    )
    killed.start()
    killed.join(300)
    assert killed.exitcode == -signal.SIGKILL
    seen, figures, module = told(folder, resume=True, val_check_interval=2)
    assert (seen, figures) == whole_diary[:2] and same(module, whole_diary[2])


def test_a_schedule_that_waits_for_a_figure_has_it_after_a_resumption(tmp_path):
    options = {"val_check_interval": 3, "check_val_every_n_epoch": None}
    with pytest.raises(RuntimeError, match="stop"):
        told(tmp_path / "run", [Stop(4, "on_train_epoch_end")], **options)
    resumed, _, module = told(tmp_path / "run", resume=True, **options)
    seen, _, other = told(tmp_path / "other", **options)
    assert resumed == seen and same(module, other)


@pytest.mark.parametrize("hook", ["on_validation_start", "on_train_epoch_end", "on_train_epoch_start"])
@pytest.mark.parametrize("step", [4, 8])
def test_a_run_that_stops_and_is_resumed_ends_with_the_same_weights(hook, step, account, tmp_path, whole):
    if (hook, step) == ("on_train_epoch_start", 8):
        pytest.skip("no epoch begins after the last step")
    with pytest.raises(RuntimeError, match="stop"):
        run(tmp_path / "run", [Stop(step, hook), Stateful()], account)
    spent = account.spent().epsilon
    counter = Stateful()
    module, strategy, lit = run(tmp_path / "run", [counter], account, resume=True)
    assert same(module, whole)
    assert account.spent().epsilon == spent and len(list(account.releases())) == 1
    assert strategy.run is not None and strategy.run.stopped_after is None
    if step == 4:
        assert lit.global_step == 8 and lit.optimizers[0].param_groups[0]["lr"] == 0.5 / 2**4


@pytest.mark.parametrize("every", [1, 3])
def test_a_run_that_stops_inside_of_an_epoch_is_resumed(every, account, tmp_path, whole):
    def stopping(self, batch, batch_idx):
        if self.global_step == 6:
            raise RuntimeError("stop")

    module = Classifier()
    module.on_train_batch_start = stopping.__get__(module)
    before = copy.deepcopy(module.network)
    strategy = private(
        public_evaluation=True,
        folder=tmp_path / "run",
        checkpoint_every=every,
        account=account,
        purpose="a test",
        delta=None,
    )
    with pytest.raises(RuntimeError, match="stop"):
        trainer(strategy, tmp_path).fit(module, loader(), public())
    # what is left in memory is the last checkpoint
    kept = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert kept["step"] == 6
    assert torch.equal(module.network.weight, kept["model"]["network.weight"])
    assert not torch.equal(module.network.weight, before.weight)
    resumed, _, lit = run(tmp_path / "run", account=account, resume=True, checkpoint_every=every)
    assert same(resumed, whole) and lit.current_epoch == 2


def test_a_run_without_a_folder_that_stops_leaves_the_module_as_it_was(tmp_path):
    module = Classifier()
    with pytest.raises(RuntimeError, match="stop"):
        trainer(private(), tmp_path, callbacks=[Stop(4, "on_train_epoch_end")]).fit(module, loader())
    assert same(module, Classifier()) and all(p.grad is None for p in module.parameters())


def test_an_interrupt_from_the_keyboard_undoes_the_run(tmp_path):
    class Interrupt(callbacks.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            raise KeyboardInterrupt

    module = Classifier()
    with pytest.raises(SystemExit), pytest.warns(UserWarning, match="what it was before the run"):
        trainer(private(), tmp_path, callbacks=[Interrupt()]).fit(module, loader())  # so does Lightning end
    assert same(module, Classifier())
    strategy = private(folder=tmp_path / "run")
    words = r"back at step 4, that of the last checkpoint. Continue with PrivateStrategy\(resume=True, ...\)"
    with pytest.raises(SystemExit), pytest.warns(UserWarning, match=words):
        trainer(strategy, tmp_path, callbacks=[Interrupt()]).fit(Classifier(), loader())


def test_a_copy_of_a_folder_cannot_be_resumed_as_well(account, tmp_path):
    with pytest.raises(RuntimeError, match="stop"):
        run(tmp_path / "run", [Stop(4, "on_train_epoch_end")], account)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    run(tmp_path / "run", account=account, resume=True)
    with pytest.raises(SfumatoError):
        run(tmp_path / "copy", account=account, resume=True)


def test_a_finished_run_is_loaded_from_its_folder(tmp_path):
    module, strategy, _ = run(tmp_path / "run")
    loaded = TrainingRun.load(tmp_path / "run", Classifier())
    assert same(loaded.model, module) and strategy.run is not None
    assert loaded.statement() == strategy.run.statement() and loaded.evaluated
    with pytest.raises(CheckpointError, match="finished"):
        run(tmp_path / "run", resume=True)


def test_weights_are_seen_only_after_a_checkpoint_holds_them(tmp_path):
    """Validation, epochs' ends, files and hooks of each step: whatever happens then, none of it is lost."""
    seen = []

    class See(callbacks.Callback):
        def _see(self, trainer, pl_module, *given):
            kept = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
            seen.append((kept["step"], trainer.global_step))
            assert torch.equal(kept["model"]["network.weight"], pl_module.network.weight)

        on_validation_start = on_train_epoch_end = on_validation_end = on_train_batch_end = _see

    run(tmp_path / "run", [See(), callbacks.ModelCheckpoint(tmp_path / "files", every_n_train_steps=3)])
    assert seen and all(step == counted for step, counted in seen)
    assert {step for step, _ in seen} == set(range(1, 9))


def test_hooks_that_save_see_weights_that_a_checkpoint_holds(tmp_path):
    seen = []

    class Save(callbacks.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            trainer.strategy._session.each_step = False  # so that only the file asks for a checkpoint
            if trainer.global_step == 3:
                trainer.save_checkpoint(tmp_path / "a.ckpt")

        def on_save_checkpoint(self, trainer, pl_module, checkpoint):
            kept = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
            seen.append((kept["step"], trainer.global_step))

    run(tmp_path / "run", [Save()], checkpoint_every=100)
    assert seen == [(3, 3)]


def test_files_of_lightning_hold_weights_that_a_checkpoint_holds(tmp_path):
    class Saves(callbacks.ModelCheckpoint):
        def _save_checkpoint(self, trainer, filepath):
            super()._save_checkpoint(trainer, filepath)
            kept = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
            assert kept["step"] == trainer.global_step

    run(tmp_path / "run", [Saves(tmp_path / "files", every_n_train_steps=3, save_top_k=-1)])
    assert len(list((tmp_path / "files").iterdir())) == 2


def test_a_run_that_a_public_figure_ends_is_charged_as_a_whole(account, tmp_path):
    stop = callbacks.EarlyStopping("val_loss", stopping_threshold=1e9)  # satisfied at once
    module, strategy, _ = run(tmp_path / "run", [stop], account)
    ended = strategy.run
    assert ended is not None and ended.stopped_after == 4 and ended.mechanism.steps == 8
    assert "stopped after 4 of these steps; all of them are charged" in ended.statement()
    assert account.spent().epsilon >= ended.epsilon == ended.mechanism.price(delta=1e-5).epsilon
    loaded = TrainingRun.load(tmp_path / "run", Classifier())
    assert loaded.stopped_after == 4 and same(loaded.model, module)


def test_a_budget_stop_ends_lightning_too(tmp_path):
    """Epsilon and noise together: the run ends before the first step that would exceed epsilon."""
    full = private()
    trainer(full, tmp_path).fit(Classifier(), loader())
    assert full.run is not None
    less = private(epsilon=full.run.epsilon * 0.8)
    lit = trainer(less, tmp_path)
    lit.fit(Classifier(), loader())
    assert less.run is not None and lit.global_step == less.run.mechanism.steps < 8
    assert less.run.stopped_after is None and lit.max_steps == -1


def test_the_order_of_the_callbacks_is_given_back(tmp_path):
    mine = Stateful()
    lit = trainer(private(), tmp_path, callbacks=[mine])
    before = list(lit.callbacks)
    lit.fit(Classifier(), loader())
    assert lit.callbacks == before and mine.epochs == 2
