# SPDX-License-Identifier: Apache-2.0
"""Mixtures: right at little noise; one image moves each release by at most 1; the noise is what is said."""

import math

import pytest
import torch

from sfumato.accounting.price import price
from sfumato.datasets import load
from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.generative.images import mixtures
from sfumato.generative.images.image_rows import ImageRows
from sfumato.generative.images.mixtures import NoisyMixtures
from sfumato.testing import seeded

SMALL = NoisyMixtures(clusters=3, axes=6, rounds=2)


def rows_of(images, labels):
    return ImageRows.of((images, labels), classes=2, public_size=max(1, len(labels)), conditional=True)


def test_draws_look_like_the_images_at_little_noise(stripes):
    images, labels = stripes
    sampler = SMALL.fitted(rows_of(images, labels), noise_multiplier=1e-4, generator=seeded(1))
    drawn = sampler.sample(torch.arange(200) % 2, torch.Generator().manual_seed(0))
    for number in (0, 1):
        expected, found = images[labels == number].mean(0), drawn[number::2].mean(0)
        assert float((expected - found).abs().max()) < 0.05
    assert float((images[labels == 0].std(0) - drawn[::2].std(0)).abs().max()) < 0.05


def test_skewed_classes_are_drawn_as_asked():
    images = torch.cat([torch.zeros(390, 1, 4, 4), torch.ones(10, 1, 4, 4)])
    labels = torch.tensor([0] * 390 + [1] * 10)
    sampler = SMALL.fitted(rows_of(images, labels), noise_multiplier=1e-4, generator=seeded(1))
    drawn = sampler.sample(torch.tensor([0, 1] * 20), torch.Generator().manual_seed(0))
    assert float(drawn[::2].mean()) < 0.1 and float(drawn[1::2].mean()) > 0.8


@pytest.mark.parametrize("change", ["remove", "bright", "other"])
def test_one_image_moves_every_release_by_at_most_one(stripes, change, monkeypatch):
    """Each release is compared with that of the neighbor, given the same released numbers before."""
    images, labels = stripes
    seen = []

    def record(total, *, stddev, generator):
        seen.append(total.clone())
        return total  # no noise: what is compared are the sums

    monkeypatch.setattr(mixtures.tensors, "add_gaussian_", record)
    extra = {"remove": images[:1], "bright": torch.full((1, 1, 8, 8), 1e9), "other": 1 - images[:1]}[change]
    whole = rows_of(torch.cat([images[1:], extra]), torch.cat([labels[1:], labels[:1]]))
    SMALL.fitted(whole, noise_multiplier=1.0, generator=None)
    first, seen[:] = list(seen), []
    replies = iter(first)

    def answered(total, *, stddev, generator):
        seen.append(total.clone())
        return next(replies).clone()  # what the other data set released: adaptive composition

    monkeypatch.setattr(mixtures.tensors, "add_gaussian_", answered)
    SMALL.fitted(rows_of(images[1:], labels[1:]), noise_multiplier=1.0, generator=None)
    assert len(first) == len(seen) == len(SMALL.multipliers(1.0)) == 5
    for before, after in zip(first, seen, strict=True):
        assert float((before - after).norm()) <= 1 + 1e-9
    assert max(float((a - b).norm()) for a, b in zip(first, seen, strict=True)) > 0.5


def test_the_noise_is_that_of_the_event(stripes, monkeypatch):
    images, labels = stripes
    scales = []
    original = mixtures.tensors.add_gaussian_

    def record(total, *, stddev, generator):
        scales.append(stddev)
        before = total.clone()
        noisy = original(total, stddev=stddev, generator=generator)
        if noisy.numel() > 500:
            assert float((noisy - before).std()) == pytest.approx(stddev, rel=0.15)
        return noisy

    monkeypatch.setattr(mixtures.tensors, "add_gaussian_", record)
    SMALL.fitted(rows_of(images, labels), noise_multiplier=3.0, generator=None)
    assert tuple(scales) == SMALL.multipliers(3.0)
    assert sum(s**-2 for s in scales) == pytest.approx(3.0**-2)
    assert {e.noise_multiplier for e in _leaves(SMALL.event(3.0))} == set(scales)


def _leaves(event):
    inner = getattr(event, "events", None)
    if inner is not None:
        return [leaf for part in inner for leaf in _leaves(part)]
    return _leaves(event.event) if hasattr(event, "event") else [event]


def test_a_fit_is_one_release_with_the_stated_price(stripes, account):
    images, labels = stripes
    made = SMALL.fit(
        (images, labels), classes=2, public_size=400, epsilon=2.0, delta=1e-5, account=account, purpose="look"
    )
    (release,) = account.releases()
    assert release.purpose == "look" and made.guarantee.privacy_unit == "example"
    assert 1.99 < made.epsilon <= 2.0
    assert made.epsilon == pytest.approx(price(account.event(), delta=1e-5).epsilon)
    assert "add-remove" in made.statement() and "'a'" in made.statement()


def test_a_collapsed_generator_says_so(account):
    same = torch.full((400, 1, 8, 8), 0.5), torch.arange(400) % 2
    terms = {"classes": 2, "public_size": 400, "delta": 1e-5}
    made = SMALL.fit(same, epsilon=1e6, **terms)
    assert made.findings and made.findings[0] in made.statement()


def test_a_good_generator_has_no_findings():
    digits = load("digits")
    made = NoisyMixtures(clusters=4, axes=24).fit(digits, epsilon=10.0)
    assert made.findings == ()


def test_what_cannot_be_paid_or_used_costs_nothing(stripes, account):
    terms = {"classes": 2, "public_size": 400, "delta": 1e-5, "account": account, "purpose": "look"}
    with pytest.raises(BudgetExceededError):
        SMALL.fit(stripes, epsilon=50.0, **terms)
    for wrong in ({"epsilon": -1.0}, {"epsilon": 1.0, "public": stripes}, {"epsilon": 1.0, "audit": 1}):
        with pytest.raises(InvalidParameterError):
            SMALL.fit(stripes, **terms, **wrong)
    assert account.releases() == []


@pytest.mark.parametrize(
    "wrong", [{"clusters": 0}, {"shares": (0.5, 0.5, 0.1, 0.1)}, {"norm": -1.0}, {"norm": 1e-320}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        NoisyMixtures(**wrong)


def test_no_images_raise_nothing():
    empty = rows_of(torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64))
    assert math.isfinite(float(SMALL.fitted(empty, noise_multiplier=1.0, generator=None).means.sum()))
