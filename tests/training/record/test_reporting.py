# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato import Budget, Ledger
from sfumato.errors import SfumatoError
from sfumato.ledger.state import Progress
from sfumato.testing import seeded
from sfumato.training import Trainer, TrainingRun

ROWS = torch.randn(20, 3), torch.arange(20) % 2


class Stopping:
    """Notes what it is called for, and stops after some steps."""

    evaluated = False

    def __init__(self, last, fails=None):
        self.calls, self.last, self.fails, self.stopped = [], last, fails, False

    def note(self, name, loop):
        self.calls.append((name, loop.step))
        if (name, loop.step) == self.fails:
            raise KeyboardInterrupt

    def try_out(self, loop):
        self.note("try out", loop)

    def begin(self, loop):
        self.note("begin", loop)

    def before(self, loop):
        self.note("before", loop)

    def after(self, loop):
        self.stopped = loop.step == self.last
        self.note("after", loop)

    def due(self, loop):
        return loop.step == 2

    def make(self, loop, bar):
        self.note("make", loop)

    def finish(self, loop):
        self.note("finish", loop)

    def rewrite(self, loop):
        self.note("rewrite", loop)

    def state(self):
        return {"stopped": str(self.stopped)}

    def load_state(self, state):
        self.stopped = state["stopped"] == "True"


def trainer(**more):
    torch.manual_seed(0)
    given = {"noise_multiplier": 1.0, "delta": 1e-3, "public_size": 20, "steps": 4, "expected_batch_size": 5}
    return Trainer(nn.Linear(3, 2), ROWS, generator=seeded(1), progress=False, **given | more)


def test_it_is_called_around_each_step():
    reporting = Stopping(last=9)
    trainer().fit(reporting=reporting)
    steps = [(name, step + (name == "after")) for step in range(4) for name in ("before", "after")]
    steps.insert(4, ("make", 2))
    assert reporting.calls == [("try out", 0), ("begin", 0), *steps, ("finish", 4)]


def test_a_run_that_is_stopped_is_charged_whole_and_says_so(tmp_path):
    account = Ledger(tmp_path / "l.db").open("a", privacy_unit="row", budget=Budget(epsilon=50, delta=1e-2))
    paid = trainer(account=account, purpose="test", folder=tmp_path / "run", delta=None)
    run = paid.fit(reporting=Stopping(last=3))
    assert (
        run.stopped_after == 3
        and "stopped after 3 of these steps; all of them are charged" in run.statement()
    )
    assert run.epsilon == paid.mechanism.price(delta=run.price.delta).epsilon
    kept = TrainingRun.load(tmp_path / "run")
    assert (kept.stopped_after, kept.statement()) == (3, run.statement())
    (release,) = account.releases()
    assert release.progress is Progress.COMMITTED


def test_a_run_that_is_not_stopped_says_nothing_of_it():
    run = trainer().fit(reporting=Stopping(last=9))
    assert run.stopped_after is None and "stopped" not in run.statement()


def test_a_stopped_run_that_dies_at_the_end_is_handed_over_without_a_step(tmp_path):
    account = Ledger(tmp_path / "l.db").open("a", privacy_unit="row", budget=Budget(epsilon=50, delta=1e-2))
    given = {"account": account, "purpose": "test", "folder": tmp_path / "run", "delta": None}
    with pytest.raises(KeyboardInterrupt):
        trainer(**given).fit(reporting=Stopping(last=3, fails=("finish", 3)))
    again = Stopping(last=9)
    run = trainer(**given).fit(resume=True, reporting=again)
    assert run.stopped_after == 3
    assert [name for name, _ in again.calls] == ["rewrite", "begin", "finish"]
    assert len(list(account.releases())) == 1


def test_steps_that_are_missing_without_a_stop_are_a_bug():
    paid = trainer()
    loop = paid._loop()
    loop.take_step()
    loop.require_paid_steps(stopped=True)
    with pytest.raises(SfumatoError, match="bug of sfumato"):
        loop.require_paid_steps()
