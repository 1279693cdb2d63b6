# SPDX-License-Identifier: Apache-2.0
"""A run that stops, that is resumed, and that public figures end."""

import copy
import shutil

import pytest
import torch
from lightning.pytorch import callbacks

from sfumato import Budget, Ledger
from sfumato.errors import SfumatoError
from sfumato.training import CheckpointError, TrainingRun

from .modules import WARNINGS, Classifier, loader, private, public, same, trainer

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
