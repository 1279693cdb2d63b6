# SPDX-License-Identifier: Apache-2.0
import copy
import logging
import math
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset, TensorDataset

from sfumato import Budget, Ledger
from sfumato.errors import BudgetExceededError, InvalidParameterError, NotPrivateError
from sfumato.testing import seeded
from sfumato.training import Runtime, train

from . import architectures
from .modules import (
    BATCH,
    ROWS,
    WARNINGS,
    Classifier,
    loader,
    private,
    public,
    rows,
    same,
    trainer,
)

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]


def loss(model, x, y):
    return F.cross_entropy(model(x), y).reshape(1)  # of one row


def our_own(module, data, **options):
    """Train a module as the strategy does, without Lightning."""
    return train(
        module,
        data,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5),
        noise_multiplier=1.0,
        delta=1e-5,
        public_size=ROWS,
        expected_batch_size=BATCH,
        steps=8,
        generator=seeded(1),
        progress=False,
        **options,
    )


@pytest.mark.parametrize("name", architectures.MODELS)
def test_lightning_gives_the_weights_of_our_own_trainer_bit_for_bit(name, tmp_path):
    shape = architectures.shape(name)
    module = Classifier(architectures.model(name))
    other = copy.deepcopy(module)
    began = copy.deepcopy(module)
    strategy = private()
    trainer(strategy, tmp_path).fit(module, loader(TensorDataset(*rows(*shape))))

    own = our_own(other, rows(*shape))
    assert same(module, other)
    assert not same(module, began)
    assert strategy.run is not None and strategy.run.guarantee == own.guarantee
    assert strategy.run.mechanism == own.mechanism and strategy.run.model is module


def test_a_run_is_charged_as_a_whole_before_it_begins(tmp_path):
    account = Ledger(tmp_path / "ledger.db").open(
        "data", privacy_unit="example", budget=Budget(epsilon=3, delta=1e-5)
    )
    strategy = private(account=account, purpose="a test", delta=None, noise_multiplier=None)
    trainer(strategy, tmp_path).fit(Classifier(), loader())
    assert strategy.run is not None and strategy.run.recorded
    assert account.spent().epsilon == pytest.approx(3, rel=0.05)
    again = private(account=account, purpose="another", delta=None)
    module = Classifier()
    before = copy.deepcopy(module)
    with pytest.raises(BudgetExceededError):
        trainer(again, tmp_path).fit(module, loader())
    assert same(module, before) and again.run is None
    assert len(list(account.releases())) == 1


def test_the_statement_says_what_was_done(tmp_path):
    strategy = private(privacy_unit="patient")
    trainer(strategy, tmp_path).fit(Classifier(), loader())
    assert strategy.run is not None
    text = strategy.run.statement()
    assert "8 noisy steps" in text and "each patient with probability 0.25" in text
    assert "evaluation data" not in text


@pytest.mark.filterwarnings("ignore:.*Skipping val loop")
def test_validation_is_shown_and_training_is_not(tmp_path):
    strategy = private(public_evaluation=True)
    lit = trainer(strategy, tmp_path)
    lit.fit(Classifier(), loader(), public())
    shown = {**lit.callback_metrics, **lit.logged_metrics, **lit.progress_bar_metrics}
    assert sorted(shown) == ["val_accuracy", "val_loss"]
    assert math.isfinite(shown["val_loss"])
    assert strategy.run is not None and strategy.run.evaluated


def test_validation_data_must_be_declared_as_public(tmp_path):
    with pytest.raises(InvalidParameterError, match="public_evaluation=True"):
        trainer(private(), tmp_path).fit(Classifier(), loader(), public())


@pytest.mark.parametrize("sanity", [0, 2])
def test_validation_on_private_rows_is_refused(sanity, tmp_path):
    data = TensorDataset(*rows())
    account = Ledger(tmp_path / "ledger.db").open(
        "data", privacy_unit="example", budget=Budget(epsilon=30, delta=1e-5)
    )
    strategy = private(public_evaluation=True, account=account, purpose="a test", delta=None)
    lit = trainer(strategy, tmp_path, num_sanity_val_steps=sanity)
    with pytest.raises(InvalidParameterError, match="rows of the private training data"):
        lit.fit(Classifier(), loader(data), loader(data, shuffle=False))
    assert account.spent().epsilon == 0


POISON = {
    "huge": lambda x: x.fill_(1e30),
    "infinite": lambda x: x.fill_(math.inf),
    "not a number": lambda x: x.fill_(math.nan),
    "negative": lambda x: x.fill_(-1e30),
}


@pytest.mark.parametrize("kind", POISON)
def test_one_row_moves_a_step_by_at_most_its_clipped_gradient(kind, tmp_path):
    x, y = rows()
    moved = x.clone()
    POISON[kind](moved[7])
    ends = []
    for given in (x, moved):
        module = Classifier()
        module.configure_optimizers = lambda module=module: torch.optim.SGD(module.parameters(), lr=1.0)
        # all rows are in the only step, and the noise is that of a seed
        strategy = private(noise_multiplier=0.5, clip_norm=1e-2, public_size=BATCH)
        lit = trainer(strategy, tmp_path, max_epochs=-1, max_steps=1)
        lit.fit(module, loader(TensorDataset(given[:BATCH], y[:BATCH])))
        ends.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert (ends[0] - ends[1]).norm() <= 2 * 1e-2 / BATCH * (1 + 1e-3)
    assert ends[1].isfinite().all()


@pytest.mark.parametrize("label", [3, -1, 1_000_000])
def test_a_row_on_which_training_step_fails_contributes_nothing_and_stops_nothing(label, tmp_path):
    x, y = rows()
    y[5] = label
    module = Classifier()
    strategy = private()
    trainer(strategy, tmp_path).fit(module, loader(TensorDataset(x, y)))
    assert strategy.run is not None and all(p.isfinite().all() for p in module.parameters())


class Panic(BaseException):
    """Like `pyo3_runtime.PanicException`, of polars and tokenizers."""


def panics(module):
    raise Panic("row 7")


ODD = {
    "another shape": lambda x, y: (x[:3], y),
    "another type": lambda x, y: (x * 1j, y),
    "a label of another type": lambda x, y: (x, y + 0.5),
    "a text": lambda x, y: (x, "a"),
    "nothing": lambda x, y: None,
    "a large number": lambda x, y: (x, 10**30),
    "an error": lambda x, y: [][1],
    "the end of the program": lambda x, y: sys.exit("row 7"),
    "a panic": lambda x, y: panics(None),
    "a warning": lambda x, y: (warnings.warn("row 7", stacklevel=1), sys.stdout.write("row 7"), (x, y))[-1],
}


class Listed(Dataset):
    """Examples, of which one is odd."""

    def __init__(self, odd):
        (self.x, self.y), self.odd = rows(), odd

    def __len__(self):
        return BATCH

    def __getitem__(self, number):
        x, y = self.x[number], int(self.y[number])
        return self.odd(x, y) if number == 7 else (x, y)


@pytest.mark.parametrize("kind", ODD)
def test_a_row_that_cannot_be_read_moves_a_step_by_its_own_gradient_and_is_not_told_of(
    kind, tmp_path, capsys, recwarn
):
    ends = []
    for odd in (lambda x, y: (x, y), ODD[kind]):
        module = Classifier()
        module.configure_optimizers = lambda module=module: torch.optim.SGD(module.parameters(), lr=1.0)
        strategy = private(noise_multiplier=0.5, clip_norm=1e-2, public_size=BATCH)
        trainer(strategy, tmp_path, max_epochs=-1, max_steps=1).fit(module, loader(Listed(odd)))
        ends.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert (ends[0] - ends[1]).norm() <= 1e-2 / BATCH * (1 + 1e-3)
    assert (ends[0] - ends[1]).norm() > 0 or kind == "a warning"
    assert "row 7" not in "".join(capsys.readouterr()) + str([str(each.message) for each in recwarn])


class Conditional(Classifier):
    """Does something for a row that is not finite, and for no other."""

    def __init__(self, act):
        super().__init__()
        vars(self)["act"] = act  # no attribute that training_step could change

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss if bool(loss.isfinite()) else self.act(self)


def fails(module):
    raise SystemExit(3)


@pytest.mark.filterwarnings("ignore:torch.func.vmap cannot run this model")
@pytest.mark.parametrize(
    "act",
    [
        lambda module: None,
        lambda module: setattr(module.trainer, "should_stop", True),
        lambda module: module.logger.log_metrics({"row": 7.0}),
        lambda module: (
            warnings.warn("row 7", stacklevel=1),
            sys.stdout.write("row 7"),
            logging.error("row 7"),
        )[0],
        fails,
        panics,
    ],
)
def test_what_training_step_does_for_one_row_stops_nothing_and_is_not_told(act, tmp_path, capsys, recwarn):
    x, y = rows()
    x[7] = math.nan
    strategy = private()
    lit = trainer(strategy, tmp_path)
    lit.fit(Conditional(act), loader(TensorDataset(x, y)))
    assert strategy.run is not None and strategy.run.stopped_after is None and not lit.should_stop
    assert "row 7" not in "".join(capsys.readouterr()) + str([str(each.message) for each in recwarn])


def test_hooks_of_a_batch_log_without_its_size(tmp_path):
    class Logs(Classifier):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.log("bias", self.network.bias.sum(), on_epoch=True)

    lit = trainer(private(), tmp_path)
    lit.fit(Logs(), loader())
    assert math.isfinite(lit.callback_metrics["bias_epoch"])


class Keeper(Classifier):
    def training_step(self, batch, batch_idx):
        self.seen = batch[0]
        return super().training_step(batch, batch_idx)


def test_a_module_that_keeps_rows_is_refused_before_it_is_charged(tmp_path):
    account = Ledger(tmp_path / "ledger.db").open(
        "data", privacy_unit="example", budget=Budget(epsilon=30, delta=1e-5)
    )
    module = Keeper()
    with pytest.raises(NotPrivateError):
        trainer(private(account=account, purpose="a test", delta=None), tmp_path).fit(module, loader())
    assert account.spent().epsilon == 0 and not hasattr(module, "seen")


def test_a_module_is_left_as_it_was_but_for_its_weights(tmp_path):
    module = Classifier()
    names = set(vars(module))
    lit = trainer(private(), tmp_path)
    lit.fit(module, loader())
    assert set(vars(module)) - {"_hparams"} == names  # which Lightning sets for every module
    assert "run" not in vars(lit.fit_loop) and module.trainer.global_step == 8


def test_a_trainer_validates_and_tests_without_a_run(tmp_path):
    lit = trainer(private(), tmp_path)
    (figures,) = lit.validate(Classifier(), public(), verbose=False)
    assert set(figures) == {"val_loss", "val_accuracy"}


def test_bfloat16_is_the_autocast_of_our_own_trainer(tmp_path):
    module, other, exact = Classifier(), Classifier(), Classifier()
    trainer(private(), tmp_path, precision="bf16-mixed").fit(module, loader())
    our_own(other, rows(), runtime=Runtime(autocast=torch.bfloat16))
    trainer(private(), tmp_path).fit(exact, loader())
    assert same(module, other) and not same(module, exact)


@pytest.mark.parametrize("name", ["learning_rate", "optimizer", "loss", "evaluate_every"])
def test_what_belongs_to_the_module_is_refused(name):
    with pytest.raises(InvalidParameterError, match=name):
        private(**{name: 1})


@pytest.mark.parametrize("name", ["last", "best", "hpc", "registry:model", "none.ckpt"])
def test_names_of_files_are_refused_whether_or_not_there_is_one(name, tmp_path):
    with pytest.raises(InvalidParameterError, match=f"ckpt_path='{name}'.*resume=True"):
        trainer(private(), tmp_path).fit(Classifier(), loader(), ckpt_path=name)


def test_private_rows_are_not_evaluated_after_the_run_either(tmp_path):
    lit, data = trainer(private(), tmp_path), TensorDataset(*rows())
    lit.fit(Classifier(), loader(data))
    for work in (lit.validate, lit.predict):
        with pytest.raises(InvalidParameterError, match="rows of the private training data"):
            work(Classifier(), loader(data, shuffle=False))
    lit.validate(Classifier(), public(), verbose=False)


def test_ckpt_path_is_refused(tmp_path):
    first = trainer(private(), tmp_path)
    first.fit(Classifier(), loader())
    first.save_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(InvalidParameterError, match="resume=True"):
        trainer(private(), tmp_path).fit(Classifier(), loader(), ckpt_path=tmp_path / "a.ckpt")


def test_a_trainer_is_used_once(tmp_path):
    lit = trainer(private(), tmp_path)
    lit.fit(Classifier(), loader())
    lit.fit_loop.epoch_loop.max_steps = 16
    lit.fit_loop.max_epochs = 4
    with pytest.raises(InvalidParameterError, match="new lightning Trainer"):
        lit.fit(Classifier(), loader())
