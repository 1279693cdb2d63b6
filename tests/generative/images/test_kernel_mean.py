# SPDX-License-Identifier: Apache-2.0
"""Kernel means: right at a large epsilon; one image moves the release by 1; one charge before any image."""

import pytest
import torch

from sfumato.accounting.price import price
from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.generative.generator import ImageGenerator
from sfumato.generative.images import kernel_mean
from sfumato.generative.images.image_rows import ImageRows
from sfumato.generative.images.kernel_mean import KernelMean
from sfumato.testing import seeded

SMALL = KernelMean(features=200, architecture="dense", latent=4, steps=3, rows=4)
TERMS = {"classes": 2, "public_size": 400, "delta": 1e-5, "progress": False}


def rows_of(images, labels):
    return ImageRows.of((images, labels), classes=2, public_size=400, conditional=True)


def test_images_are_of_their_class_at_a_large_epsilon(stripes):
    torch.manual_seed(0)
    images, labels = stripes
    method = KernelMean(features=500, architecture="dense", latent=4, steps=300, rows=10, learning_rate=0.01)
    drawn, asked = method.fit(stripes, epsilon=1e4, generator=seeded(0), **TERMS).sample(60, seed=0)
    means = torch.stack([images[labels == number].mean(0) for number in (0, 1)])
    near = (drawn[:, None] - means).flatten(2).norm(dim=2).argmin(1)
    assert float((near == asked).float().mean()) > 0.95
    assert float((drawn - means[asked]).abs().mean()) < 0.1


def test_released_means_are_the_true_ones_at_little_noise(stripes):
    images, labels = stripes
    found = SMALL.means(rows_of(images, labels), noise_multiplier=1e-6, generator=seeded(0))
    features = kernel_mean.FourierFeatures(64, count=200, bandwidths=SMALL.bandwidths)
    expected = torch.stack([features.of(images[labels == k].double()).mean(0) for k in (0, 1)])
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.5, 1e30, -1e30, float("nan"), float("inf")])
@pytest.mark.parametrize("label", [0, 1])
def test_one_image_moves_the_sums_by_exactly_one(stripes, value, label):
    images, labels = stripes
    extra = torch.full((1, 1, 8, 8), value)
    more = rows_of(torch.cat([extra, images]), torch.cat([torch.tensor([label]), labels]))
    moved = SMALL.sums(more) - SMALL.sums(rows_of(images, labels))
    assert float(moved.norm()) == pytest.approx(1.0, abs=1e-9)
    assert float(moved[1 - label].abs().max()) < 1e-9  # another class is not touched


def test_an_image_whose_label_is_no_class_adds_nothing(stripes):
    images, labels = stripes
    more = rows_of(torch.cat([images[:1], images]), torch.cat([torch.tensor([7]), labels]))
    assert torch.equal(SMALL.sums(more), SMALL.sums(rows_of(images, labels)))


def test_the_noise_is_that_of_the_event_and_counts_are_noisy_too(stripes, monkeypatch):
    seen = []
    original = kernel_mean.tensors.add_gaussian_

    def record(total, *, stddev, generator):
        before = total.clone()
        noisy = original(total, stddev=stddev, generator=generator)
        seen.append((stddev, (noisy - before).clone()))
        return noisy

    monkeypatch.setattr(kernel_mean.tensors, "add_gaussian_", record)
    KernelMean(features=4000).means(rows_of(*stripes), noise_multiplier=3.0, generator=None)
    ((stddev, noise),) = seen
    assert stddev == 3.0 == SMALL.event(3.0).noise_multiplier
    assert noise.shape == (2, 4001) and float(noise.std()) == pytest.approx(3.0, rel=0.05)
    assert float(noise[:, -1].abs().min()) > 0


def test_means_are_divided_by_noisy_counts(stripes, monkeypatch):
    def counted(total, *, stddev, generator):
        total[:, -1] *= 2  # as if noise had doubled the counts
        return total

    rows = rows_of(*stripes)
    exact = SMALL.means(rows, noise_multiplier=1e-9, generator=None)
    monkeypatch.setattr(kernel_mean.tensors, "add_gaussian_", counted)
    assert torch.allclose(SMALL.means(rows, noise_multiplier=1.0, generator=None) * 2, exact, atol=1e-6)


def test_a_fit_is_one_charge_before_an_image_is_read(stripes, account, monkeypatch):
    charged = []
    original = KernelMean.sums

    def sums(self, rows):
        charged.append(len(account.releases()))
        return original(self, rows)

    monkeypatch.setattr(KernelMean, "sums", sums)
    made = SMALL.fit(stripes, epsilon=2.0, account=account, purpose="look", **TERMS)
    assert charged == [1] and len(account.releases()) == 1
    assert 1.99 < made.epsilon <= 2.0
    assert made.epsilon == pytest.approx(price(account.event(), delta=1e-5).epsilon)
    assert "add-remove" in made.statement() and "'a'" in made.statement()


def test_what_cannot_be_paid_or_used_costs_nothing(stripes, account):
    terms = {**TERMS, "account": account, "purpose": "look"}
    with pytest.raises(BudgetExceededError):
        SMALL.fit(stripes, epsilon=50.0, **terms)
    for data, wrong in (
        (stripes, {"epsilon": -1.0}),
        (stripes, {"epsilon": 1.0, "public": stripes}),
        (stripes, {"epsilon": 1.0, "audit": 1}),
        (stripes, {"epsilon": 1.0, "resume": True}),
        (stripes[0], {"epsilon": 1.0}),
    ):
        with pytest.raises(InvalidParameterError):
            SMALL.fit(data, **terms, **wrong)
    with pytest.raises(InvalidParameterError, match="multiples of 4"):
        KernelMean().fit((torch.rand(4, 1, 7, 7), torch.zeros(4, dtype=torch.int64)), epsilon=1.0, **terms)
    assert account.releases() == []


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_an_image_that_is_poison_raises_nothing(stripes, poison, recwarn):
    images, labels = stripes[0].clone(), stripes[1]
    images[0] = poison
    made = SMALL.fit((images, labels), epsilon=1.0, **TERMS)
    assert bool(made.sample(4)[0].isfinite().all()) and not list(recwarn)


def test_no_images_raise_nothing():
    empty = rows_of(torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64))
    assert bool(SMALL.means(empty, noise_multiplier=1.0, generator=None).isfinite().all())


def test_a_folder_keeps_the_generator(stripes, tmp_path):
    made = SMALL.fit(stripes, epsilon=1.0, folder=tmp_path / "g", **TERMS)
    again = ImageGenerator.load(tmp_path / "g")
    assert torch.equal(made.sample(6, seed=1)[0], again.sample(6, seed=1)[0])
    assert again.statement() == made.statement() and again.method == "kernel mean"


@pytest.mark.parametrize(
    "wrong",
    [
        {"features": 0},
        {"bandwidths": ()},
        {"bandwidths": (-1.0,)},
        {"bandwidths": (0.3, 1e-300)},
        {"count_share": 1.0},
        {"architecture": "x"},
    ],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        KernelMean(**wrong)
