# SPDX-License-Identifier: Apache-2.0
"""Diffusion: epsilon covers the start and DP-SGD together, and images come out right."""

import math
from dataclasses import replace

import pytest
import torch

from sfumato.accounting.price import price
from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.generative.generator import ImageGenerator
from sfumato.generative.images.diffusion import Diffusion
from sfumato.generative.images.mixtures import NoisyMixtures

SMALL = Diffusion(
    width=8,
    steps=3,
    expected_batch_size=64,
    start=NoisyMixtures(clusters=1, axes=4, rounds=1),
    start_steps=150,
    start_batch_size=64,
    levels=8,
)
TERMS = {"classes": 2, "public_size": 400, "delta": 1e-5, "progress": False}


def right(made, images, labels):
    """Return the share of draws that are nearest to the mean of their own class."""
    drawn, asked = made.sample(60, seed=0)
    means = torch.stack([images[labels == number].mean(0) for number in (0, 1)])
    near = (drawn[:, None] - means).flatten(2).norm(dim=2).argmin(1)
    return float((near == asked).float().mean())


def test_images_are_of_their_class_at_a_large_epsilon(stripes):
    torch.manual_seed(0)
    made = SMALL.fit(stripes, epsilon=5000.0, **TERMS)
    assert right(made, *stripes) > 0.9
    assert made.epsilon <= 5000 and "mixture" in made.statement()


def test_epsilon_covers_both_mechanisms_and_the_ledger_has_both(stripes, account, tmp_path):
    made = SMALL.fit(stripes, epsilon=2.0, account=account, purpose="look", folder=tmp_path / "g", **TERMS)
    assert [release.purpose for release in account.releases()] == ["look, mixtures", "look, DP-SGD"]
    both = price(account.event(), delta=1e-5).epsilon
    assert 1.9 < made.epsilon <= 2.0 and made.epsilon == pytest.approx(both, rel=1e-6)
    assert torch.equal(ImageGenerator.load(tmp_path / "g").sample(3, seed=1)[0], made.sample(3, seed=1)[0])
    start, run = SMALL.noise(public_size=400, epsilon=2.0, delta=1e-5, mixtures=True)
    alone = price(SMALL.start.event(start), delta=1e-5).epsilon
    assert 0.5 < alone < made.epsilon and price(run.event(), delta=1e-5).epsilon < made.epsilon


def test_if_the_account_cannot_pay_for_both_nothing_is_spent(stripes, account):
    with pytest.raises(BudgetExceededError):
        SMALL.fit(stripes, epsilon=60.0, account=account, purpose="look", **TERMS)
    assert account.releases() == []


def test_public_images_take_the_place_of_the_mixtures(stripes, account):
    torch.manual_seed(0)
    made = SMALL.fit(stripes, public=stripes, epsilon=2.0, account=account, purpose="look", **TERMS)
    assert len(account.releases()) == 1 and "public images" in made.statement()
    assert right(made, *stripes) > 0.9  # they were right already
    start, run = SMALL.noise(public_size=400, epsilon=2.0, delta=1e-5, mixtures=False)
    assert math.isinf(start)
    assert run.noise_multiplier(0) < SMALL.noise(public_size=400, epsilon=2.0, delta=1e-5, mixtures=True)[
        1
    ].noise_multiplier(0)


def test_torchs_generator_does_not_remember_the_sizes_of_batches(stripes):
    images, labels = stripes
    method = replace(SMALL, start=None)
    states = []
    for rows in (0, 1, 399):
        torch.manual_seed(0)
        method.fit((images[:rows], labels[:rows]), epsilon=1.0, **TERMS)
        states.append(torch.get_rng_state())
    assert all(torch.equal(states[0], state) for state in states)


def test_a_folder_with_a_generator_and_a_wrong_audit_cost_nothing(stripes, account, tmp_path):
    terms = {**TERMS, "epsilon": 1.0, "account": account, "purpose": "look", "folder": tmp_path / "g"}
    SMALL.fit(stripes, **terms)
    spent = len(account.releases())
    with pytest.raises(InvalidParameterError, match="paid for"):
        SMALL.fit(stripes, **terms)
    with pytest.raises(InvalidParameterError):
        SMALL.fit(stripes, **{**terms, "folder": None, "audit": "x"})
    assert len(account.releases()) == spent
    files = sorted(path.name for path in (tmp_path / "g").iterdir())
    assert files == ["generator.json", "generator.pt"]  # no other claim than that of both mechanisms


def test_images_that_do_not_fit_cost_nothing(account):
    images, labels = torch.zeros(20, 1, 6, 6), torch.arange(20) % 2
    with pytest.raises(InvalidParameterError, match="multiples of 4"):
        SMALL.fit((images, labels), epsilon=1.0, account=account, purpose="look", **TERMS)
    assert account.releases() == []


@pytest.mark.parametrize("wrong", [{"width": 0}, {"start_share": 1.5}, {"ema_decay": 1.0}, {"views": 0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        Diffusion(**wrong)
