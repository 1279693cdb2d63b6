# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded
from sfumato.training import (
    Clipping,
    CyclicBatches,
    DpSgd,
    FixedSizeSampling,
    NoisyStep,
    PoissonSampling,
    ShuffledBatches,
    Trainer,
    TruncatedPoissonSampling,
    distributed,
)
from sfumato.training.loop import TrainingLoop

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
Y = torch.arange(40) % 2
SAMPLINGS = {
    "poisson": PoissonSampling(sampling_rate=0.25),
    "truncated": TruncatedPoissonSampling(sampling_rate=0.25, batch_size=20, public_size=40),
    "fixed": FixedSizeSampling(batch_size=10, public_size=40),
    "shuffled": ShuffledBatches(batch_size=10, public_size=40),
    "cyclic": CyclicBatches(batch_size=10, public_size=40),
}


class Halving:
    """A denoiser that halves what it gets, remembers how often, and keeps what it saw."""

    def __init__(self, *, reveals=False):
        self.reveals_batches = reveals
        self.times, self.seen = 0, []

    def __repr__(self):
        return f"Halving(reveals={self.reveals_batches})"

    def denoise(self, model, gradient, *, rows, generator):
        self.times += 1
        self.seen.append(rows)
        return {name: part / 2 for name, part in gradient.items()}

    def statement(self):
        return "Gradients were halved."

    def state_dict(self):
        return {"times": self.times}

    def load_state_dict(self, state):
        self.times = state["times"]


def trainer(denoiser, *, sampling="poisson", relation="replace-label", learning_rate=0.1, steps=4, **more):
    mechanism = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=SAMPLINGS[sampling],
        noise=[(2.0, steps)],
        relation=relation,
    )
    torch.manual_seed(0)
    return Trainer(
        nn.Linear(3, 2),
        (X, Y),
        mechanism=mechanism,
        public_size=40,
        delta=1e-5,
        learning_rate=learning_rate,
        denoiser=denoiser,
        progress=False,
        generator=seeded(5),
        **more,
    )


def test_the_optimizer_gets_what_the_denoiser_returns():
    denoised = trainer(Halving(), learning_rate=0.2).fit()
    plain = trainer(None, learning_rate=0.1).fit()
    assert torch.allclose(denoised.model.weight, plain.model.weight, atol=1e-6)
    assert denoised.guarantee == plain.guarantee
    assert "Gradients were halved." in denoised.statement()


@pytest.mark.parametrize("relation", ["add-remove", "replace-one", "zero-out"])
def test_where_features_are_protected_a_denoiser_is_refused(relation):
    with pytest.raises(InvalidParameterError, match="replace-label"):
        trainer(Halving(), relation=relation)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_a_denoiser_that_knows_the_batch_is_refused_where_rows_are_protected(relation):
    denoiser = Halving(reveals=True)
    denoiser.holds_rows = False
    with pytest.raises(InvalidParameterError):
        trainer(denoiser, relation=relation, sampling="shuffled")


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_a_denoiser_that_holds_no_rows_is_post_processing(relation):
    denoiser = Halving()
    denoiser.holds_rows = False
    trainer(denoiser, relation=relation).fit()
    assert len(denoiser.seen) == 4


@pytest.mark.parametrize("sampling", ["poisson", "truncated", "fixed"])
def test_a_denoiser_that_shows_the_batch_is_refused_where_batches_are_priced_as_secret(sampling):
    with pytest.raises(InvalidParameterError, match="not secret"):
        trainer(Halving(reveals=True), sampling=sampling)
    trainer(Halving(), sampling=sampling)


@pytest.mark.parametrize("sampling", ["shuffled", "cyclic"])
def test_with_known_batches_it_gets_the_numbers_of_the_rows_and_no_row(sampling):
    denoiser = Halving(reveals=True)
    trainer(denoiser, sampling=sampling).fit()
    assert all(seen.shape == (10,) and seen.dtype is torch.int64 for seen in denoiser.seen)
    assert torch.equal(torch.cat(denoiser.seen).sort().values, torch.arange(40))  # 4 steps are one epoch


def test_owners_and_views_come_as_the_numbers_of_their_rows():
    denoiser = Halving(reveals=True)
    owners = torch.arange(40) // 2
    mechanism = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=CyclicBatches(batch_size=10, public_size=20),
        noise=[(2.0, 2)],
        relation="replace-label",
    )
    Trainer(
        nn.Linear(3, 2),
        (X, Y),
        mechanism=mechanism,
        owners=owners,
        contribution_bound=2,
        augment=lambda rows, generator: rows,
        views=2,
        public_size=20,
        delta=1e-5,
        denoiser=denoiser,
        progress=False,
    ).fit()
    assert torch.equal(torch.cat(denoiser.seen).sort().values, torch.arange(40))


def test_a_denoiser_that_does_not_need_the_batch_does_not_get_it():
    denoiser = Halving()
    trainer(denoiser).fit()
    assert denoiser.seen == [None] * 4


def test_what_needs_the_whole_batch_is_refused_in_several_processes(monkeypatch):
    monkeypatch.setattr(distributed, "size", lambda: 2)
    with pytest.raises(InvalidParameterError, match="torchrun"):
        trainer(Halving(reveals=True), sampling="shuffled")


def test_a_run_that_died_goes_on_with_what_its_denoiser_remembers(tmp_path, monkeypatch):
    step = TrainingLoop.take_step

    def dies(loop):
        if loop.step == 2:
            raise KeyboardInterrupt
        step(loop)

    monkeypatch.setattr(TrainingLoop, "take_step", dies)
    with pytest.raises(KeyboardInterrupt):
        trainer(Halving(), folder=tmp_path / "run", checkpoint_every=1).fit()
    monkeypatch.setattr(TrainingLoop, "take_step", step)
    denoiser = Halving()
    trainer(denoiser, folder=tmp_path / "run", checkpoint_every=1).fit(resume=True)
    assert denoiser.times == 4
