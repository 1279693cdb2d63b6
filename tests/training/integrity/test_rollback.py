# SPDX-License-Identifier: Apache-2.0
"""Whatever stops a run, memory holds what its last checkpoint holds, or what was there before."""

import copy
import os
import signal
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from sfumato import Budget, Ledger
from sfumato.errors import InvalidParameterError
from sfumato.ledger.state import Progress
from sfumato.testing import seeded
from sfumato.training import Clipping, DpSgd, NoisyStep, PoissonSampling, Trainer
from sfumato.training.integrity import rollback
from sfumato.training.record.run_folder import RunFolder

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
Y = torch.arange(40) % 2
STEPS, EVERY, STOP = 10, 3, 8


class Stop(Exception):
    """What a callback of a user's own may raise."""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Counting(torch.optim.lr_scheduler.LambdaLR):
    """A schedule that may stop the run, as any code of a user's may, after a number of steps."""

    def __init__(self, optimizer, stop):
        self.stop = stop
        super().__init__(optimizer, lambda step: 0.9**step)

    def step(self, epoch=None):
        super().step(epoch)
        if self.stop is not None and self.last_epoch == STOP:
            raise self.stop

    def state_dict(self):
        return {name: value for name, value in super().state_dict().items() if name != "stop"}


def mechanism():
    return DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=PoissonSampling(sampling_rate=0.5),
        noise=[(2.0, STEPS)],
        relation="add-remove",
    )


def made(folder=None, *, stop=None, ema_decay=None, seed=0, **more):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    trainer = Trainer(
        model,
        (X, Y),
        mechanism=mechanism(),
        public_size=40,
        delta=1e-5,
        optimizer=optimizer,
        schedule=lambda o: Counting(o, stop),
        ema_decay=ema_decay,
        evaluate_every=STEPS,
        checkpoint_every=EVERY,
        folder=folder,
        generator=seeded(seed),
        progress=False,
        **more,
    )
    return model, optimizer, trainer


def state_of(model, optimizer):
    return copy.deepcopy((model.state_dict(), optimizer.state_dict()))


def agree(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(agree(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(agree, one, other))
    return one == other


REASONS = [KeyboardInterrupt, Stop, SystemExit, GeneratorExit]


@pytest.mark.parametrize("ema_decay", [None, 0.9], ids=["plain", "averaged"])
@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.__name__)
def test_a_run_that_is_stopped_leaves_the_weights_of_its_last_checkpoint(reason, ema_decay, tmp_path):
    model, optimizer, trainer = made(tmp_path / "run", stop=reason(), ema_decay=ema_decay)
    with pytest.raises(reason) as stopped:
        trainer.fit()
    assert stopped.value.__notes__ == [
        "Stopped. The model is back at step 6, that of the last checkpoint. Continue with resume=True."
    ]
    held = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert held["step"] == STOP // EVERY * EVERY == 6
    assert agree(state_of(model, optimizer), (held["model"], held["optimizer"]))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.__name__)
def test_without_a_folder_it_leaves_the_weights_from_before_the_run(reason):
    model, optimizer, trainer = made(stop=reason())
    before = state_of(model, optimizer)
    with pytest.raises(reason) as stopped:
        trainer.fit()
    (note,) = stopped.value.__notes__
    assert note.startswith("Stopped. The model is what it was before the run.")
    now = state_of(model, optimizer)
    assert agree(before[0], now[0]) and now[1]["state"] == {}
    assert now[1]["param_groups"][0]["lr"] == before[1]["param_groups"][0]["lr"]
    assert all(parameter.grad is None for parameter in model.parameters())


class Interrupting:
    """A function of a user's own that is interrupted at one of its calls."""

    def __init__(self, when, work=lambda *_: None):
        self._left, self._work = when, work

    def __call__(self, *given):
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt
        return self._work(*given)


def loss(model, x, y):
    return nn.functional.cross_entropy(model(x), y, reduction="none")


@pytest.mark.parametrize("where", ["loss", "optimizer", "augment"])
def test_wherever_a_run_is_interrupted_its_steps_are_undone(where):
    options = {
        "loss": {"loss": Interrupting(18, loss)},
        "augment": {"augment": Interrupting(6, lambda r, _: r)},
    }
    model, optimizer, trainer = made(**options.get(where, {}))
    if where == "optimizer":
        optimizer.register_step_post_hook(Interrupting(5))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert agree(before, model.state_dict())


@pytest.mark.parametrize("where", [0, 4, 12])
def test_a_handler_of_sigterm_that_ends_the_program_does_so_in_the_middle_of_a_pass(where):
    calls = []

    def terminated(model, x, y):
        calls.append(1)
        if len(calls) == where + 1:
            signal.raise_signal(signal.SIGTERM)
        return loss(model, x, y)

    def handler(number, frame):
        sys.exit(143)

    model, _, trainer = made(loss=terminated)
    before = copy.deepcopy(model.state_dict())
    previous = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(SystemExit) as ended:
            trainer.fit()
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert ended.value.code == 143 and agree(before, model.state_dict())


def test_an_evaluation_that_is_interrupted_sees_what_the_checkpoint_holds(tmp_path):
    score = Interrupting(3, lambda model, x, y: y * 0.0)  # the first call is a rehearsal
    more = {"evaluation": (X, Y), "score": score}
    model, _, trainer = made(tmp_path / "run", ema_decay=0.9, **more)
    trainer._reports._every = 2
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    held = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert held["step"] == 4 and agree(model.state_dict(), held["model"])


def test_an_interrupted_run_in_a_notebook_is_continued_as_if_nothing_had_happened(tmp_path):
    whole, *_, trainer = made(tmp_path / "a")
    trainer.fit()
    model, _, trainer = made(tmp_path / "b", stop=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    trainer._optimization = replace(trainer._optimization, schedule=lambda o: Counting(o, None))
    trainer.fit(resume=True)  # the same object, in the same process
    assert agree(whole.state_dict(), model.state_dict())


def test_a_second_interrupt_does_not_keep_weights_that_nobody_paid_for(tmp_path, monkeypatch):
    model, _, trainer = made(tmp_path / "run", stop=KeyboardInterrupt())
    load, interrupts = RunFolder.load, []

    def interrupted_again(self):
        if trainer._ownership.held and not interrupts:
            interrupts.append(1)
            os.kill(os.getpid(), signal.SIGINT)
        return load(self)

    monkeypatch.setattr(RunFolder, "load", interrupted_again)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    held = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert interrupts and agree(model.state_dict(), held["model"])
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_before_anything_was_undone_is_kept_out_too(tmp_path, monkeypatch):
    model, _, trainer = made(tmp_path / "run", stop=KeyboardInterrupt())
    main, interrupts = rollback.threading.main_thread, []

    def interrupted_again():
        if len(interrupts) < 2:
            interrupts.append(1)
            raise KeyboardInterrupt
        return main()

    monkeypatch.setattr(rollback.threading, "main_thread", interrupted_again)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    held = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert len(interrupts) == 2 and agree(model.state_dict(), held["model"])


def test_where_the_checkpoint_is_gone_memory_goes_back_to_the_start(tmp_path):
    model, _, trainer = made(tmp_path / "run", stop=Stop())
    before = copy.deepcopy(model.state_dict())
    save = trainer._save

    def lost(loop):
        save(loop)
        (tmp_path / "run" / "checkpoint.pt").write_bytes(b"")

    trainer._save = lost
    with pytest.raises(Stop):
        trainer.fit()
    assert agree(before, model.state_dict())


def test_a_resume_that_is_refused_leaves_the_model_as_it_was(tmp_path):
    _, _, trainer = made(tmp_path / "run", stop=Stop())
    with pytest.raises(Stop):
        trainer.fit()
    model, optimizer, other = made(tmp_path / "run", seed=1)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InvalidParameterError, match="of another run") as refused:
        other.fit(resume=True)
    assert not hasattr(refused.value, "__notes__")  # nothing of the run was touched
    assert agree(before, model.state_dict()) and optimizer.state_dict()["state"] == {}


def test_weights_that_are_committed_stay_although_their_file_cannot_be_written(tmp_path, monkeypatch):
    account = Ledger(tmp_path / "ledger.db").open(
        "data", privacy_unit="example", budget=Budget(epsilon=90, delta=1e-5)
    )
    model, _, trainer = made(tmp_path / "run", account=account, purpose="a test")
    finish = RunFolder.finish
    monkeypatch.setattr(RunFolder, "finish", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full") as stopped:
        trainer.fit()
    assert "the model has the weights of the run; the charge stays" in stopped.value.__notes__[0]
    assert account.releases()[0].progress is Progress.COMMITTED
    held = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert held["step"] == STEPS and agree(model.state_dict(), held["model"])
    monkeypatch.setattr(RunFolder, "finish", finish)
    trainer.fit(resume=True)
    assert agree(torch.load(tmp_path / "run" / "model.pt", weights_only=True), held["model"])
    assert len(account.releases()) == 1


# --- a claim that cannot be edited ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mechanism", "delta", "privacy_unit", "expected_batch_size"])
def test_what_a_trainer_was_made_for_cannot_be_changed(name):
    _, _, trainer = made()
    with pytest.raises(AttributeError):
        setattr(trainer, name, getattr(trainer, name))


def test_a_finished_run_says_what_was_done_whatever_changes_later():
    noise = [(2.0, STEPS)]
    run = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=PoissonSampling(sampling_rate=0.5),
        noise=noise,
        relation="add-remove",
    )
    done = Trainer(nn.Linear(3, 2), (X, Y), mechanism=run, public_size=40, delta=1e-5, progress=False).fit()
    before = done.guarantee, done.statement(), done.to_json()
    noise[:] = [(50.0, 1)]
    assert (done.guarantee, done.statement(), done.to_json()) == before
    with pytest.raises(AttributeError):
        done.price = None
