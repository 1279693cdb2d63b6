# SPDX-License-Identifier: Apache-2.0
import itertools

import torch
from scipy.stats import kstest, norm

from sfumato.mechanisms.random import SecureGenerator
from sfumato.testing import seeded
from sfumato.training.privacy.noise import IndependentNoise

ALPHA = 1e-6  # chance that correct code fails one check on a fresh seed


def drawn(source, step=0, stddev=1.0, sizes=(20_000, 5)):
    sums = [torch.zeros(size) for size in sizes]
    source.add_(sums, stddev=stddev, step=step)
    return torch.cat(sums)


def test_every_coordinate_gets_noise_of_the_stated_stddev():
    noise = drawn(IndependentNoise(seeded(0)), stddev=2.5).numpy()
    assert kstest(noise, norm(scale=2.5).cdf).pvalue > ALPHA
    assert kstest(noise, norm(scale=2.75).cdf).pvalue < ALPHA  # 10% off is caught: the test has power


def test_noise_is_added_to_what_is_there():
    sums = [torch.full((1000,), 100.0)]
    IndependentNoise(seeded(0)).add_(sums, stddev=1.0, step=0)
    assert 95 < float(sums[0].mean()) < 105 and float(sums[0].std()) > 0.5


def test_no_two_steps_share_noise_and_a_seeded_step_can_be_repeated():
    source = IndependentNoise(seeded(0))
    steps = [drawn(source, step, sizes=(50,)) for step in range(4)]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(steps, 2))
    assert torch.equal(drawn(IndependentNoise(seeded(0)), 2, sizes=(50,)), steps[2])


def test_the_default_is_secure_and_never_repeats_even_for_the_same_step():
    source = IndependentNoise()
    assert isinstance(source.generator, SecureGenerator)
    assert not torch.equal(drawn(source, 0, sizes=(50,)), drawn(source, 0, sizes=(50,)))
