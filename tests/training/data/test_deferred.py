# SPDX-License-Identifier: Apache-2.0
"""Rows that are read once they are paid for: in `training.data.units`, `loop` and `trainer`."""

import pytest
import torch
from torch import nn

from sfumato import Budget, Ledger
from sfumato.errors import BudgetExceededError, QueryFailedError
from sfumato.ledger.state import Progress
from sfumato.testing import seeded
from sfumato.training import Clipping, DpSgd, NoisyStep, PoissonSampling, Trainer
from sfumato.training.data.units import Deferred, Units
from sfumato.training.loop import TrainingLoop

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
Y = torch.arange(40) % 2
BLANK = (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))


class Reading:
    """A reader that notes what the ledger says while it reads."""

    def __init__(self, account=None, *, owners=None, fails=False):
        self.account, self.owners, self.fails = account, owners, fails
        self.seen = []

    def __call__(self):
        self.seen.append([] if self.account is None else [r.progress for r in self.account.releases()])
        if self.fails:
            raise QueryFailedError("the rows could not be read.")
        return (X, Y), self.owners


@pytest.fixture
def account(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    return ledger.open("rows", privacy_unit="example", budget=Budget(epsilon=50, delta=1e-5))


def trainer(data, account=None, *, model=None, noise=1.0, **more):
    mechanism = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=PoissonSampling(sampling_rate=0.5),
        noise=[(noise, 4)],
        relation="add-remove",
    )
    paid = {"delta": 1e-5} if account is None else {"account": account, "purpose": "a run"}
    torch.manual_seed(0)
    model = nn.Linear(3, 2) if model is None else model
    return Trainer(model, data, mechanism=mechanism, public_size=40, progress=False, **paid, **more)


def test_rows_are_read_once_and_only_after_the_run_has_begun(account):
    reading = Reading(account)
    trainer(Deferred(blank=BLANK, read=reading), account).fit()
    assert reading.seen == [[Progress.BEGUN]]
    assert [release.progress for release in account.releases()] == [Progress.COMMITTED]


def test_rows_that_cannot_be_read_leave_the_run_spent(account):
    with pytest.raises(QueryFailedError):
        trainer(Deferred(blank=BLANK, read=Reading(fails=True)), account).fit()
    assert [release.progress for release in account.releases()] == [Progress.BEGUN]
    assert account.spent().epsilon > 0


def test_what_is_refused_beforehand_costs_nothing_and_reads_nothing(account):
    reading = Reading()
    with pytest.raises(BudgetExceededError):
        trainer(Deferred(blank=BLANK, read=reading), account, noise=0.01).fit()
    with pytest.raises(RuntimeError, match="shapes"):
        trainer(Deferred(blank=BLANK, read=reading), account, model=nn.Linear(7, 2)).fit()
    assert reading.seen == []
    assert not any(release.spent for release in account.releases())


def test_deferred_rows_train_as_rows_in_memory_do():
    weights = []
    for data in ((X, Y), Deferred(blank=BLANK, read=Reading())):
        run = trainer(data, generator=seeded(3)).fit()
        weights.append(run.model.weight.detach().clone())
    assert torch.equal(*weights)


def test_owners_are_deferred_with_their_rows():
    owners = torch.arange(40) // 4
    units = Units(Deferred(blank=BLANK, read=Reading(owners=owners), by_owner=True), contribution_bound=2)
    assert units.by_owner
    units.open()
    assert units.num_units == 10
    assert units.take(torch.tensor([0, 3])).rows_per_unit == 2


def test_a_deferred_run_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    whole = trainer(Deferred(blank=BLANK, read=Reading()), generator=seeded(3)).fit()
    reading = Reading()
    folder = tmp_path / "run"

    def cut():
        return trainer(
            Deferred(blank=BLANK, read=reading), generator=seeded(3), folder=folder, checkpoint_every=1
        )

    step = TrainingLoop.take_step

    def dies(loop):
        if loop.step == 2:
            raise KeyboardInterrupt
        step(loop)

    monkeypatch.setattr(TrainingLoop, "take_step", dies)
    with pytest.raises(KeyboardInterrupt):
        cut().fit()
    monkeypatch.setattr(TrainingLoop, "take_step", step)
    resumed = cut().fit(resume=True)
    assert len(reading.seen) == 2
    assert torch.equal(resumed.model.weight, whole.model.weight)


def test_the_first_process_reads_for_all_so_that_all_number_units_alike(monkeypatch):
    asked = []

    def first_decides(decide):
        asked.append(decide)
        return decide()

    monkeypatch.setattr("sfumato.training.data.units.distributed.first_decides", first_decides)
    reading = Reading()
    Units(Deferred(blank=BLANK, read=reading)).open()
    assert asked == [reading]
