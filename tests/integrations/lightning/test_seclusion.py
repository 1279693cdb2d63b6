# SPDX-License-Identifier: Apache-2.0
import signal
import sys

import lightning.pytorch as lightning
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sfumato import Budget, Ledger
from sfumato.errors import InvalidParameterError, NotPrivateError
from sfumato.integrations.lightning.seclusion import Seclusion

from .modules import BATCH, WARNINGS, Classifier, loader, private, rows, trainer

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]


def with_step(step):
    return type("Stepping", (Classifier,), {"training_step": step})()


@pytest.mark.parametrize(
    "leak",
    [
        lambda self: self.trainer.logger,
        lambda self: self.logger.experiment,
        lambda self: self.optimizers(),
        lambda self: self.lr_schedulers(),
        lambda self: self.trainer.callback_metrics,
        lambda self: setattr(self.trainer, "should_stop", True),
        lambda self: self.trainer.strategy,
        lambda self: self.trainer.train_dataloader,
    ],
)
def test_training_step_reaches_nothing_of_the_trainer_but_public_numbers(leak, tmp_path):
    account = Ledger(tmp_path / "ledger.db").open(
        "data", privacy_unit="example", budget=Budget(epsilon=50, delta=1e-5)
    )

    def step(self, batch, batch_idx):
        leak(self)
        return Classifier.training_step(self, batch, batch_idx)

    strategy = private(account=account, purpose="a test", delta=None)
    with pytest.raises(InvalidParameterError, match=r"training_step (uses|sets)"):
        trainer(strategy, tmp_path).fit(with_step(step), loader())
    assert account.spent().epsilon == 0


def test_training_step_sees_steps_and_epochs(tmp_path):
    seen = []

    def step(self, batch, batch_idx):
        seen.append((self.global_step, self.current_epoch, batch_idx, self.trainer.max_epochs))
        return Classifier.training_step(self, batch, batch_idx)

    trainer(private(), tmp_path).fit(with_step(step), loader())
    assert list(dict.fromkeys(seen)) == [(i, i // 4, i % 4, 2) for i in range(8)]


def test_what_training_step_logs_or_prints_is_dropped_and_said_once(tmp_path, capsys):
    def step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log_dict({"a": loss, "b": loss}, prog_bar=True)
        self.log(name="c", value=loss)
        self.print("secret", loss)
        return {"loss": loss, "scores": self(x)}

    lit = trainer(private(), tmp_path)
    with pytest.warns(UserWarning, match=r"training_step logs \['a', 'b', 'c', 'secret'\]") as told:
        lit.fit(with_step(step), loader())
    assert len([one for one in told if "training_step logs" in str(one.message)]) == 1
    assert not lit.callback_metrics and not lit.logged_metrics and not lit.progress_bar_metrics
    assert "secret" not in capsys.readouterr().out


def test_a_name_that_a_row_decides_is_not_told(tmp_path):
    """Row by row a module can read values: only what synthetic rows log is told of."""

    def step(self, batch, batch_idx):
        x, y = batch
        self.log(f"label {int(y)}", 1.0)
        return nn.functional.cross_entropy(self(x), y)

    data = torch.utils.data.TensorDataset(torch.zeros(48, 4), torch.full((48,), 2))
    with pytest.warns(UserWarning) as told:
        trainer(private(), tmp_path).fit(with_step(step), loader(data))
    assert not any("label 2" in str(one.message) for one in told)


@pytest.mark.parametrize("found", [None, torch.zeros(3), "text", {"scores": torch.zeros(1)}])
def test_training_step_must_return_one_loss(found, tmp_path):
    with pytest.raises(InvalidParameterError, match="training_step must return the loss"):
        trainer(private(), tmp_path).fit(with_step(lambda self, batch, batch_idx: found), loader())


def test_training_step_may_leave_the_number_of_the_batch_out(tmp_path):
    strategy = private()
    step = lambda self, batch: Classifier.training_step(self, batch, 0)  # noqa: E731
    trainer(strategy, tmp_path).fit(with_step(step), loader())
    assert strategy.run is not None


@pytest.mark.filterwarnings("ignore:.*dataloader_iter")
def test_training_step_may_not_draw_batches(tmp_path):
    step = lambda self, dataloader_iter: None  # noqa: E731
    with pytest.raises(InvalidParameterError, match="dataloader_iter"):
        trainer(private(), tmp_path).fit(with_step(step), loader())


class Counting(nn.Module):
    """A metric that counts rows, as those of torchmetrics do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, values):
        self.total += values.detach().sum()
        return self.total


def test_a_metric_that_adds_up_training_rows_is_refused(tmp_path):
    def step(self, batch, batch_idx):
        self.metric(batch[0])
        return Classifier.training_step(self, batch, batch_idx)

    module = with_step(step)
    module.metric = Counting()
    with pytest.raises(NotPrivateError):
        trainer(private(), tmp_path).fit(module, loader())


def test_a_module_gets_its_own_methods_back_whatever_happens(tmp_path):
    module = Classifier()
    lit = trainer(private(), tmp_path)
    module.trainer = lit
    seclusion = Seclusion(module, lit)
    with pytest.raises(KeyError), seclusion.entered():
        assert module.trainer is not lit and "log" in vars(module)
        with seclusion.left():
            assert module.trainer is lit and "log" not in vars(module)
        assert "log" in vars(module)
        raise KeyError
    assert module.trainer is lit and not {"log", "log_dict", "print"} & set(vars(module))


class Holding(Classifier):
    """Holds its optimizer and its schedule, and runs `leak` for the rows that are marked."""

    def __init__(self, leak):
        super().__init__()
        self.leak, self.given, self.runs = leak, [], [0]
        self.plain, self.array = torch.ones(2), np.ones(2)
        self.register_buffer("counted", torch.zeros(()))

    def configure_optimizers(self):
        found = super().configure_optimizers()
        self.optimizer, self.schedule = found["optimizer"], found["lr_scheduler"]["scheduler"]
        return found

    def training_step(self, batch, batch_idx):
        if bool((batch[0] == 50).any()):
            SEEN.append(1)
            self.leak(self)
        return Classifier.training_step(self, batch, batch_idx)


SEEN = []
ROW_BY_ROW = pytest.mark.filterwarnings("ignore:torch.func.vmap cannot run", "ignore:.*the functional engine")


def marked_rows():
    made = rows()
    made[0][5] = 50.0
    return TensorDataset(*made)


def of_marked(leak, folder):
    """Return all that a run leaves behind, in which one row calls `leak`."""
    SEEN.clear()
    module = Holding(leak)
    found = trainer(private(), folder)
    found.fit(module, DataLoader(marked_rows(), batch_size=BATCH))
    assert SEEN
    optimizer = module.optimizer
    shown = [p.tolist() for p in module.parameters()], optimizer.state_dict()["param_groups"]
    shown = *shown, module.given, sorted(vars(module)), dict(module.hparams)
    shown = *shown, module.plain.tolist(), module.array.tolist(), module.counted.tolist()
    return *shown, module.schedule.last_epoch, sorted(optimizer.defaults), found.global_step


@ROW_BY_ROW
@pytest.mark.parametrize(
    "leak",
    [
        lambda self: self.optimizer.param_groups[0].update(lr=77.0),
        lambda self: setattr(self.schedule, "last_epoch", 10**6),
        lambda self: self.optimizer.defaults.update(leak=1.0),
        lambda self: self.optimizer.state.clear(),
        lambda self: setattr(self.optimizer, "step", lambda *_, **__: None),
        lambda self: setattr(self.schedule, "get_lr", lambda: [77.0]),
        lambda self: self.schedule.base_lrs.__setitem__(0, 77.0),
        lambda self: self.given.append(1.0),
        lambda self: setattr(self, "leaked", 1.0),
        lambda self: self.hparams.update(leak=1.0),
        lambda self: self.plain.add_(1),
        lambda self: self.plain.data.add_(1),
        lambda self: self.array.__iadd__(1),
        lambda self: self.counted.add_(1),
    ],
)
def test_one_row_leaves_nothing_in_the_module_or_in_what_it_holds_and_stops_nothing(leak, tmp_path):
    assert of_marked(leak, tmp_path / "a") == of_marked(lambda self: None, tmp_path / "b")


def test_a_handler_of_sigterm_ends_the_run_in_training_step(tmp_path):
    trains = []

    def step(self, batch, batch_idx):
        if trains:
            signal.raise_signal(signal.SIGTERM)
        return Classifier.training_step(self, batch, batch_idx)

    class Own(lightning.Callback):
        """Takes the place of Lightning's handler, as a job of a cluster may."""

        def on_train_start(self, trainer, pl_module):
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            trains.append(True)

    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            trainer(private(), tmp_path, callbacks=[Own()]).fit(with_step(step), loader())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143


def test_what_a_module_sees_leads_to_no_trainer():
    module = Classifier()
    real = module.trainer = lightning.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    with Seclusion(module, real).entered():
        stand_in = module.trainer
        with pytest.raises(InvalidParameterError, match=r"uses self.trainer._trainer"):
            _ = stand_in._trainer
        assert stand_in.current_epoch == 0
        assert not {name for kind in type(stand_in).__mro__ for name in getattr(kind, "__slots__", ())}
        assert not hasattr(module.log, "_note")
    assert module.trainer is real
