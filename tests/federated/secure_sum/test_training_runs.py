# SPDX-License-Identifier: Apache-2.0
"""Training runs whose sums have their noise already: trainer, price, checkpoints and resuming."""

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import nn

from sfumato.accounting import events
from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.secure_sum import IntegerNoise, SecureSum
from sfumato.federated.secure_sum.simulated import SimulatedSums
from sfumato.testing import seeded
from sfumato.training import (
    Clipping,
    DpSgd,
    NoisyStep,
    PassSettings,
    PoissonSampling,
    PrivateGradients,
    Runtime,
    TrainingRun,
    train,
)

ALPHA = 1e-6


class Fixed:
    """Gives unit i the vector of its number."""

    def __init__(self, vectors):
        self.vectors = torch.as_tensor(vectors, dtype=torch.float32)
        self.steps = []

    def __repr__(self):
        return f"Fixed({len(self.vectors)})"

    def statement(self):
        return "A fixed vector."

    def contributions(self, model, batch, *, step):
        self.steps.append(step)
        return {"weight": self.vectors[batch[0]][:, None]}


class Dying(Fixed):
    def contributions(self, model, batch, *, step):
        if step >= 3:
            raise KeyboardInterrupt
        return super().contributions(model, batch, step=step)


def secure(**options):
    facts = {"dimension": 2, "clip_norm": 1.0, "noise_multiplier": 1.0, "cohort": 8, "least_survivors": 6}
    return SecureSum(**{**facts, **options})


def run_of(summation, noise=1.0, **options):
    facts = {"sampling": PoissonSampling(sampling_rate=0.5), "noise": [(noise, 6)], "relation": "add-remove"}
    step = NoisyStep(clipping=Clipping(clip_norm=1.0), summation=summation)
    return DpSgd(step=step, **{**facts, **options})


def trained(vectors, mechanism, folder=None, *, kind=Fixed, **options):
    torch.manual_seed(0)
    contributor = kind(vectors)
    summation = options.pop("summation", mechanism.step.summation)
    engine = SimulatedSums(contributor, summation, generator=seeded(9)) if summation else contributor
    settings = {"public_size": 8, "delta": 1e-3, "progress": False, "generator": seeded(5), "folder": folder}
    model = nn.Linear(2, 1, bias=False)
    data = (torch.arange(8),)
    return train(model, data, mechanism=mechanism, runtime=Runtime(engine=engine), **settings | options)


VECTORS = torch.arange(16.0).reshape(8, 2) / 16


@pytest.mark.parametrize("noise", list(IntegerNoise))
def test_a_run_is_priced_by_the_event_of_its_sums(noise):
    mechanism = run_of(secure(noise=noise))
    run = trained(VECTORS, mechanism)
    assert run.price.epsilon == mechanism.price(delta=1e-3).epsilon
    (leaf,) = {e.event for e in events.leaves(mechanism.event())}
    assert leaf == secure(noise=noise).event()
    assert "noise of the clients" in run.statement() and "Gaussian noise of 1 " not in run.statement()


@pytest.mark.parametrize("noise", list(IntegerNoise))
def test_a_run_in_a_folder_is_read_back_with_its_sums(tmp_path, noise):
    run = trained(VECTORS, run_of(secure(noise=noise)), tmp_path / "run")
    found = TrainingRun.load(tmp_path / "run", nn.Linear(2, 1, bias=False))
    assert found.mechanism == run.mechanism and found.price.epsilon == run.price.epsilon
    assert found.against_server == run.against_server and found.against_server is not None


def test_calibration_finds_the_noise_of_a_gaussian_run_and_a_run_with_it_works():
    secure_run = run_of(secure()).calibrated(epsilon=2.0, delta=1e-3)
    gaussian = run_of(None).calibrated(epsilon=2.0, delta=1e-3)
    assert (
        gaussian.noise_multiplier(0) <= secure_run.noise_multiplier(0) < 1.01 * gaussian.noise_multiplier(0)
    )
    assert trained(VECTORS, secure_run).epsilon <= 2.0


def test_the_sum_has_the_noise_of_the_clients_and_no_other():
    size = 512
    found = secure(dimension=size)
    model = nn.Linear(size, 1, bias=False)
    private = PrivateGradients(
        model,
        noise_multiplier=1.0,
        expected_batch_size=1.0,
        clip_norm=1.0,
        passes=PassSettings(engine=SimulatedSums(Fixed(torch.zeros(8, size)), found, generator=seeded(1))),
        generator=seeded(2),
    )
    draws = []
    for turn in range(4):  # a batch without units is noise alone, too
        private.accumulate(torch.arange(turn))
        private.finish()
        draws.append(model.weight.grad.double().numpy().copy())
    ratio = np.sum(np.square(draws)) / (8 * found.share_stddev**2 / found.scale**2)
    assert chi2.ppf(ALPHA, 4 * size) < ratio < chi2.isf(ALPHA, 4 * size)
    assert private.steps == 4


def test_at_huge_epsilon_the_run_is_that_of_central_noise():
    quiet = secure(noise_multiplier=1e-4, bits=24)
    shown = trained(VECTORS, run_of(quiet, noise=1e-4)).model.weight
    central = trained(VECTORS, run_of(None, noise=1e-9)).model.weight
    assert torch.allclose(shown, central, atol=1e-2)


def test_a_run_of_sums_resumes_where_it_stopped(tmp_path):
    mechanism = run_of(secure())
    whole = trained(VECTORS, mechanism, tmp_path / "whole", checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        trained(VECTORS, mechanism, tmp_path / "died", kind=Dying, checkpoint_every=1)
    with pytest.raises(InvalidParameterError):  # another contributor is another run
        trained(VECTORS[:7], mechanism, tmp_path / "died", resume=True, checkpoint_every=1)
    resumed = trained(VECTORS, mechanism, tmp_path / "died", resume=True, checkpoint_every=1)
    assert torch.equal(whole.model.weight, resumed.model.weight)
    assert whole.price.epsilon == resumed.price.epsilon


def test_sums_that_are_not_those_of_the_mechanism_are_refused():
    with pytest.raises(InvalidParameterError, match="not those of the mechanism"):
        trained(VECTORS, run_of(None), summation=secure())
    with pytest.raises(InvalidParameterError, match="not those of the mechanism"):
        trained(VECTORS, run_of(secure()), summation=secure(least_survivors=1))
    with pytest.raises(InvalidParameterError, match="not those of the mechanism"):
        trained(VECTORS, run_of(secure()), summation=None)


def test_sums_with_seeded_noise_need_a_run_that_says_so():
    assert "For study only" in trained(VECTORS, run_of(secure())).statement()
    with pytest.raises(InvalidParameterError, match="for study only"):
        trained(VECTORS, run_of(secure()), generator=None)


def test_noise_that_the_bits_do_not_hold_is_refused_before_the_run_is_paid_for():
    with pytest.raises(InvalidParameterError, match="do not fit"):
        trained(VECTORS, run_of(secure(), noise=1e6))
