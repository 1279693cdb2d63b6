# SPDX-License-Identifier: Apache-2.0
import copy

import lightning.pytorch as lightning
import pytest
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.profilers import SimpleProfiler

from sfumato import Budget, Ledger
from sfumato.errors import InvalidParameterError, NotPrivateError
from sfumato.integrations.lightning.refusals import sees_each_step

from .modules import WARNINGS, Classifier, loader, private, public, same, trainer

pytestmark = [
    *(pytest.mark.filterwarnings(text) for text in WARNINGS),
    pytest.mark.filterwarnings("ignore:.*fast_dev_run.*"),
]


@pytest.fixture
def account(tmp_path):
    return Ledger(tmp_path / "ledger.db").open(
        "data", privacy_unit="example", budget=Budget(epsilon=50, delta=1e-5)
    )


def refused(word, account, folder, module=None, fit=None, keywords=None, **options):
    """Whether a run is refused with a word, costs nothing and leaves the module as it was."""
    module = Classifier() if module is None else module
    before = copy.deepcopy(module)
    strategy = private(account=account, purpose="a test", delta=None, **keywords or {})
    with pytest.raises(InvalidParameterError, match=word):
        trainer(strategy, folder, **options).fit(module, *(fit or (loader(),)))
    assert strategy.run is None and same(module, before)
    assert not list(account.releases()) or account.spent().epsilon == 0


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_clip_val": 1.0},
        {"accumulate_grad_batches": 2},
        {"overfit_batches": 2},
        {"limit_train_batches": 2},
        {"limit_train_batches": 0.5},
        {"fast_dev_run": True},
        {"reload_dataloaders_every_n_epochs": 1},
        {"profiler": "simple"},
        {"detect_anomaly": True},
        {"val_check_interval": "00:00:01:00"},
        {"precision": "16-true"},
        {"precision": "bf16-true"},
        {"precision": "64-true"},
        {"max_time": "00:00:01:00"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_setting_of_the_trainer_that_breaks_the_claim_is_refused_by_name(options, account, tmp_path):
    (name,) = options
    word = {"max_time": "Timer"}.get(name, name)
    refused(word, account, tmp_path, **options)


class Timed(callbacks.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen = outputs["loss"]


class Reader(callbacks.Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        return len(batch)


@pytest.mark.parametrize(
    ("callback", "word"),
    [
        (callbacks.DeviceStatsMonitor(), "DeviceStatsMonitor"),
        (callbacks.Timer(duration="00:00:01:00"), "Timer"),
        (callbacks.GradientAccumulationScheduler({0: 1}), "GradientAccumulationScheduler"),
        (callbacks.BatchSizeFinder(), "BatchSizeFinder"),
        (callbacks.LearningRateFinder(), "LearningRateFinder"),
        (callbacks.BackboneFinetuning(), "BackboneFinetuning"),
        (callbacks.ThroughputMonitor(batch_size_fn=len), "ThroughputMonitor"),
        (type("__MlflowPLCallback", (callbacks.Callback,), {})(), "mlflow.autolog"),
        (Timed(), "reads 'outputs'"),
        (Reader(), "reads 'batch'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_callback_that_breaks_the_claim_is_refused_by_name(callback, word, account, tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    refused(word, account, tmp_path, callbacks=[callback], logger=CSVLogger(tmp_path))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_autolog_of_mlflow_is_refused(account, tmp_path):
    from mlflow.pytorch import _lightning_autolog

    kind = getattr(_lightning_autolog, "__MlflowPLCallback")
    refused("mlflow.autolog", account, tmp_path, callbacks=[kind.__new__(kind)])


def with_hook(name, hook):
    return type("Hooked", (Classifier,), {name: hook})()


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("backward", lambda self, loss: loss.backward()),
        ("configure_gradient_clipping", lambda self, optimizer, *given, **options: None),
        ("on_before_batch_transfer", lambda self, batch, dataloader_idx: batch),
        ("on_after_batch_transfer", lambda self, batch, dataloader_idx: batch),
        ("transfer_batch_to_device", lambda self, batch, device, dataloader_idx: batch),
        ("on_train_batch_start", lambda self, batch, batch_idx: len(batch)),
        ("on_train_batch_end", lambda self, outputs, batch, batch_idx: outputs["loss"]),
        ("on_train_batch_end", lambda self, outputs, rows, batch_idx: rows[0]),
    ],
)
def test_a_hook_of_the_module_that_breaks_the_claim_is_refused_by_name(name, hook, account, tmp_path):
    refused(name, account, tmp_path, with_hook(name, hook))


class Data(lightning.LightningDataModule):
    def train_dataloader(self):
        return loader()

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch


def test_a_hook_of_the_data_module_is_refused_too(account, tmp_path):
    strategy = private(account=account, purpose="a test", delta=None)
    with pytest.raises(InvalidParameterError, match=r"Data\.on_after_batch_transfer"):
        trainer(strategy, tmp_path).fit(Classifier(), datamodule=Data())


def test_manual_optimization_is_refused(account, tmp_path):
    module = Classifier()
    module.automatic_optimization = False
    refused("automatic_optimization", account, tmp_path, module)


def test_a_loader_with_a_sampler_of_its_own_is_refused(account, tmp_path):
    sampler = torch.utils.data.WeightedRandomSampler([1.0] * 48, 48)
    refused("sampler", account, tmp_path, fit=(loader(shuffle=False, sampler=sampler),))


def test_several_loaders_are_refused(account, tmp_path):
    refused("several training loaders", account, tmp_path, fit=([loader(), loader()],))


@pytest.mark.parametrize("end", ["", "_epoch"])
def test_nothing_may_wait_for_what_training_step_logs(end, account, tmp_path):
    stop = callbacks.EarlyStopping(monitor=f"train_loss{end}")
    refused("EarlyStopping monitors 'train_loss", account, tmp_path, callbacks=[stop])


def test_a_schedule_that_waits_for_the_training_loss_is_refused(account, tmp_path):
    def configured(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "train_loss"}}

    refused(
        "schedule monitors 'train_loss'", account, tmp_path, with_hook("configure_optimizers", configured)
    )


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_closure_that_is_not_called_once_a_batch_is_refused(account, tmp_path):
    def twice(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure)
        optimizer.step(closure=optimizer_closure)

    hooks = {"optimizer_step": (twice, "asked for twice")}
    hooks["on_train_batch_start"] = lambda self, batch, batch_idx: -1, "not followed by a step"
    for name, (hook, word) in hooks.items():
        module = with_hook(name, hook)
        with pytest.raises(InvalidParameterError, match=word):
            trainer(private(), tmp_path).fit(module, loader())
        assert same(module, Classifier())  # the run was undone


class Gradients(callbacks.Callback):
    def on_after_backward(self, trainer, pl_module):
        """See the noisy gradient."""


def test_a_hook_that_sees_gradients_is_refused_where_a_run_can_be_resumed(account, tmp_path):
    options = {"keywords": {"folder": tmp_path / "run"}, "callbacks": [Gradients()]}
    refused("on_after_backward", account, tmp_path, **options)
    trainer(private(), tmp_path, callbacks=[Gradients()]).fit(Classifier(), loader())


def test_hooks_of_an_object_alone_are_seen(account, tmp_path):
    reads = callbacks.LambdaCallback(on_train_batch_end=lambda t, m, outputs, batch, i: outputs["loss"])
    refused("reads 'outputs'", account, tmp_path, callbacks=[reads])
    sees = callbacks.LambdaCallback(on_before_optimizer_step=lambda *given: None)
    folder = {"folder": tmp_path / "run"}
    refused("on_before_optimizer_step", account, tmp_path, callbacks=[sees], keywords=folder)
    module = Classifier()
    module.configure_gradient_clipping = lambda *given, **options: None
    with pytest.raises(InvalidParameterError, match="configure_gradient_clipping"):
        trainer(private(), tmp_path).fit(module, loader())
    watch = callbacks.LambdaCallback(on_train_batch_end=lambda *given: None)
    assert sees_each_step(Classifier(), [watch]) and not sees_each_step(Classifier(), [])


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("optimizer_step", lambda self, epoch, i, optimizer, closure: optimizer.step(closure=closure)),
        ("lr_scheduler_step", lambda self, scheduler, metric: scheduler.step()),
    ],
)
def test_a_hook_between_gradient_and_checkpoint_is_refused_where_a_run_can_be_resumed(
    name, hook, account, tmp_path
):
    refused(name, account, tmp_path, with_hook(name, hook), keywords={"folder": tmp_path / "run"})
    trainer(private(), tmp_path).fit(with_hook(name, hook), loader())


def test_a_callback_whose_state_is_in_files_of_lightning_is_refused_with_a_folder(account, tmp_path):
    average = callbacks.EMAWeightAveraging(decay=0.5)
    options = {"keywords": {"folder": tmp_path / "run"}, "callbacks": [average]}
    refused("EMAWeightAveraging keeps a state", account, tmp_path, **options)
    trainer(private(), tmp_path, callbacks=[average]).fit(Classifier(), loader())


class Changes(callbacks.Callback):
    """Changes the trainer after it was looked at."""

    def __init__(self, change):
        self.on_fit_start = lambda trainer, module: change(trainer)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda trainer: setattr(trainer, "accumulate_grad_batches", 2), "accumulate_grad_batches"),
        (lambda trainer: trainer.callbacks.append(Timed()), "reads 'outputs'"),
    ],
)
def test_what_a_hook_changes_before_the_run_is_looked_at_again(change, word, account, tmp_path):
    refused(word, account, tmp_path, callbacks=[Changes(change)])


def test_several_processes_are_refused(account, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused("one process", account, tmp_path)


def test_a_hook_on_a_gradient_is_refused(account, tmp_path):
    """So does wandb.watch look at gradients."""
    module = Classifier()
    handle = module.network.weight.register_hook(lambda grad: None)
    with pytest.raises(NotPrivateError, match=r"network\.weight"):
        trainer(private(account=account, purpose="a test", delta=None), tmp_path).fit(module, loader())
    assert account.spent().epsilon == 0
    handle.remove()
    trainer(private(), tmp_path).fit(module, loader())


class Quiet(callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.steps += 1


def test_hooks_that_leave_the_batch_alone_may_stay(tmp_path):
    quiet = Quiet()
    lit = trainer(
        private(public_evaluation=True),
        tmp_path,
        callbacks=[quiet, callbacks.EarlyStopping("val_loss"), callbacks.ModelCheckpoint(tmp_path / "files")],
        enable_checkpointing=True,
    )
    lit.fit(Classifier(), loader(), public())
    assert quiet.steps == 8
    assert len(list((tmp_path / "files").iterdir())) == 1


def test_a_profiler_object_is_refused(account, tmp_path):
    refused("profiler", account, tmp_path, profiler=SimpleProfiler())
