# SPDX-License-Identifier: Apache-2.0
import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

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
    lit = trainer(private(public_evaluation=True), tmp_path, num_sanity_val_steps=sanity)
    with pytest.raises(InvalidParameterError, match="rows of the private training data"):
        lit.fit(Classifier(), loader(data), loader(data, shuffle=False))


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
