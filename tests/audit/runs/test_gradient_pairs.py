# SPDX-License-Identifier: Apache-2.0
"""Noise that two steps share is found in the model's own tensors, and fresh noise is never accused."""

import pytest
import torch
from torch import nn

from sfumato.audit.evidence.results import CheckName
from sfumato.audit.runs.canaries import Canaries
from sfumato.audit.runs.gradient_pairs import GradientPairs
from sfumato.audit.runs.noise_log import Energies
from sfumato.testing import seeded
from sfumato.training import Clipping, DpSgd, NoisyStep, PoissonSampling, Trainer
from sfumato.training.privacy.noise import IndependentNoise
from tests.audit.planted.steps import drawn, noise_by

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

WIDTH, STEPS = 500, 12
ALPHA = 1e-7


def p_values(gradient, *, seed=0):
    """Return what pairs of steps show, where `gradient(noise, before)` is what a step releases."""
    draws, pairs, logs = torch.Generator().manual_seed(seed), GradientPairs(), {}
    before = torch.zeros(WIDTH)
    for _ in range(STEPS):
        before = gradient(torch.randn(WIDTH, generator=draws), before)
        for name, energy, size in pairs.add({"w": before}, scale=1.0):
            logs.setdefault(name, Energies(name)).add(energy, size)
    return [found.p_value for log in logs.values() for found in log.findings()]


def test_a_signal_that_takes_back_the_noise_before_is_not_accused():
    """Weights follow that noise, so a loss may: the pair then holds the noise of one step alone."""

    def values(sign, seed):
        return p_values(lambda noise, before: noise + sign * before, seed=seed)

    found = [values(sign, seed) for seed in range(100) for sign in (1, -1)]
    for p in (0.02, 0.1, 0.3):
        assert (torch.tensor(found) <= p).double().mean(0).max() <= p + 4 * (p / 200) ** 0.5


@pytest.mark.parametrize("sign", [1, -1])
def test_shared_noise_under_a_small_signal_is_found(sign):
    kept = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))
    turns = [1.0]

    def gradient(noise, before):
        turns.append(turns[-1] * sign)
        return turns[-1] * kept + 0.2 * noise

    assert min(p_values(gradient)) < ALPHA


def test_pairs_go_on_where_they_were():
    noise, pairs, again = torch.randn(3, WIDTH), GradientPairs(), GradientPairs()
    assert pairs.state_dict() is None
    list(pairs.add({"w": noise[0]}, scale=0.3))
    again.load_state_dict(pairs.state_dict())
    found = [list(each.add({"w": noise[1]}, scale=0.3)) for each in (pairs, again)]
    assert found[0] == found[1] and len(found[0]) == 2


def run(*, noise=1.0, size=40):
    x = torch.randn(size, 6, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    mechanism = DpSgd(
        step=NoisyStep(clipping=Clipping(clip_norm=1.0)),
        sampling=PoissonSampling(sampling_rate=0.5),
        noise=[(noise, 20)],
        relation="add-remove",
    )
    return Trainer(
        nn.Sequential(nn.Linear(6, 100), nn.ReLU(), nn.Linear(100, 2)),
        (x, (x[:, 0] > 0).long()),
        mechanism=mechanism,
        public_size=size,
        delta=1e-5,
        learning_rate=0.1,
        evaluate_every=20,
        progress=False,
        generator=seeded(1),
        audit=Canaries(count=400),
    ).fit()


@pytest.mark.parametrize("sign", [1, -1])
def test_noise_that_counted_steps_share_in_the_model_alone_is_found(sign, monkeypatch):
    """Trials and canaries have fresh noise: only the gradients of steps that count show it."""
    model, forked = slice(401, 401 + 902), IndependentNoise.forked

    def of_a_trial(self, label, index):
        found = forked(self, label, index)
        found.is_trial = True
        return found

    def made(source, sums, stddev, step):
        (noise,) = drawn(source, sums, stddev, step)
        if not hasattr(source, "is_trial"):
            noise[model] = sign**step * drawn(source, sums, stddev, 0)[0][model]
        return [noise]

    assert not run().audit.refuted
    monkeypatch.setattr(IndependentNoise, "forked", of_a_trial)
    noise_by(monkeypatch, made)
    failures = run().audit.failures
    assert [check.name for check in failures] == [CheckName.GRADIENTS]
    assert "the step before" in failures[0].message


def test_steps_whose_noise_is_lost_in_rounding_are_left_out():
    assert not run(noise=1e-9).audit.refuted
