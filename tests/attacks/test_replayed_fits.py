# SPDX-License-Identifier: Apache-2.0
"""Every generator is replayed on neighbors: only noisy results leave it, and noise is what is charged."""

from functools import cache

import pytest
import torch

from attacks.replayed_fits import replayed
from sfumato import generative

torch.set_num_threads(1)  # the tests run in several processes: threads would only wait for one another

FITS = {one.audits: one for one in replayed()}
PRICED = ("DPGAN", "DPCGAN", "Diffusion")  # each time, which takes a second
QUICK = [(name, pair) for name, one in FITS.items() for pair in one.pairs if name not in PRICED]
QUICK += [(name, "an odd image") for name in PRICED]
SLOW = [(name, pair) for name in PRICED for pair in FITS[name].pairs if pair != "an odd image"]


@cache
def noises(name, pair):
    return FITS[name].check(pair)


@pytest.mark.parametrize(("name", "pair"), QUICK)
def test_only_noisy_results_leave_a_fit(name, pair):
    assert noises(name, pair)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pair"), SLOW)
def test_only_noisy_results_leave_a_fit_that_is_priced_each_time(name, pair):
    assert noises(name, pair)


def test_every_generator_is_replayed():
    assert set(FITS) == {name for name in generative.__all__ if hasattr(getattr(generative, name), "fit")}


def test_each_kind_of_noise_is_seen():
    kinds = {name: {use.kind for use in noises(name, next(iter(one.pairs)))} for name, one in FITS.items()}
    assert kinds["PateCGAN"] == {"sums", "teachers", "comparison", "votes"}
    assert kinds["NoisyMarginals"] == {"counts", "choice"}
    assert kinds["Diffusion"] == {"sums", "gradients"}
    assert kinds["DPGAN"] == kinds["DPCGAN"] == {"gradients"}
    assert kinds["KernelMean"] == kinds["NoisyMixtures"] == {"sums"}
