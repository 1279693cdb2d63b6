# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest
import torch
from torch import nn

from sfumato.experiments import Scale
from sfumato.experiments.r3.federations import (
    base,
    differences,
    federated_run,
    images,
    is_clear,
    noisy_run,
    unprotected,
    with_seed,
)

QUICK = Scale(quick=True)


@pytest.fixture(scope="module")
def recipe():
    return replace(base(QUICK), rounds=2)


def test_a_seed_decides_a_run_and_its_cost_is_that_of_its_noise(recipe):
    runs = [noisy_run(images(QUICK), recipe, noise=2, seed=1, device="cpu") for _ in range(2)]
    assert runs[0].accuracy == runs[1].accuracy
    assert runs[0].guarantee.privacy_unit == "client"
    assert runs[0].mechanism.noise_multiplier(0) == 2


def test_without_privacy_nothing_is_clipped_and_hardly_any_noise_is_added(recipe):
    run = noisy_run(images(QUICK), recipe, noise=0, seed=1, device="cpu")
    assert run.mechanism.noise_multiplier(0) < 1e-5 and run.epsilon > 1e6
    assert unprotected(recipe).clip_norm > 100 * recipe.clip_norm


def test_a_budget_and_uneven_clients_can_be_asked_for(recipe):
    run = federated_run(images(QUICK), recipe, seed=1, alpha=0.3, epsilon=8, device="cpu")
    assert 7 < run.epsilon <= 8 and run.study_note is None


def test_first_weights_depend_on_the_seed_and_leave_the_state_of_torch():
    before = torch.get_rng_state()
    first, same, other = (with_seed(lambda: nn.Linear(2, 2), seed).weight for seed in (0, 0, 1))
    assert first.equal(same) and not first.equal(other)
    assert torch.get_rng_state().equal(before)


def test_a_difference_is_clear_only_if_its_interval_leaves_out_zero():
    found = {"a": [0.5, 0.6, 0.7], "b": [0.4, 0.5, 0.61], "c": [0.6, 0.5, 0.75]}
    assert is_clear(differences(found, "a", "b"))
    assert not is_clear(differences(found, "a", "c"))
