# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.generative.recipes import METHODS, image_method


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_settings_for_small_and_large_data(name):
    large = image_method(name, public_size=60_000, gpu=True)
    assert large != image_method(name, public_size=60_000, gpu=False)
    assert image_method(name, public_size=1000, gpu=True) == image_method(name, public_size=1000, gpu=False)
    assert callable(large.fit)


def test_few_images_have_few_teachers():
    sizes = (60_000, 1250, 400, 4)
    found = [image_method("pate-cgan", public_size=size, gpu=False).teachers for size in sizes]
    assert found == [250, 250, 80, 1]


def test_a_method_that_there_is_not_is_told():
    with pytest.raises(InvalidParameterError, match="Use one of"):
        image_method("vae", public_size=10, gpu=False)


@pytest.mark.parametrize("name", METHODS)
def test_images_of_mixed_sizes_and_labels_that_are_missing_cost_nothing(name, stripes, account):
    method, images = image_method(name, public_size=400, gpu=False), stripes[0]
    terms = {"classes": 2, "public_size": 400, "epsilon": 1.0, "account": account, "purpose": "look"}
    mixed = [images[0], torch.zeros(1, 12, 12)]
    for data, said in (((mixed, [0, 1]), "all have one shape"), (images, "needs a label")):
        if name == "dp-gan" and data is images:
            continue  # it needs none
        with pytest.raises(InvalidParameterError, match=said):
            method.fit(data, **terms)
    assert account.releases() == []


@pytest.mark.parametrize("name", METHODS)
def test_a_fit_that_fails_after_the_charge_stays_spent(name, stripes, account, monkeypatch):
    def fails(*_, **__):
        raise MemoryError

    places = {
        "mixtures": "images.mixtures.NoisyMixtures.fitted",
        "diffusion": "images.diffusion._Fit._begin",
        "kernel-mean": "images.kernel_mean.KernelMean.sums",
        "pate-cgan": "adversarial.pate_cgan.KernelMean.means",
    }
    place = places.get(name, "adversarial.game.Game.denoise")
    monkeypatch.setattr(f"sfumato.generative.{place}", fails)
    terms = {"classes": 2, "public_size": 400, "epsilon": 1.0, "delta": 1e-5, "progress": False}
    with pytest.raises(MemoryError):
        image_method(name, public_size=400, gpu=False).fit(
            stripes, account=account, purpose="look", device="cpu", **terms
        )
    assert account.spent().epsilon > 0.1
