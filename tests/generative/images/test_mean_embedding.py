# SPDX-License-Identifier: Apache-2.0
"""Random features: norm 1 whatever the image, means that estimate a Gaussian kernel, and an unbiased loss."""

import math

import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.generative.adversarial.networks import NetworkSampler
from sfumato.generative.images.mean_embedding import BANDWIDTHS, FourierFeatures, Matching


@pytest.mark.parametrize("images", [torch.zeros(2, 1, 4, 4), torch.ones(2, 1, 4, 4), torch.rand(9, 1, 4, 4)])
def test_features_have_norm_one(images):
    found = FourierFeatures(16, count=50, bandwidths=(0.1, 0.5)).of(images.double())
    assert torch.allclose(found.norm(dim=1), torch.ones(len(images)).double(), atol=1e-12)


def test_products_of_features_estimate_the_gaussian_kernel():
    features = FourierFeatures(16, count=40_000, bandwidths=(0.5,))
    first, second = torch.rand(2, 1, 1, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    apart = float((first - second).square().mean())  # bandwidths are root mean squared differences
    assert float(features.of(first)[0] @ features.of(second)[0]) == pytest.approx(
        math.exp(-apart / (2 * 0.5**2)), abs=0.02
    )


def test_sums_are_those_of_a_loop():
    features = FourierFeatures(16, count=10, bandwidths=(0.5,))
    images, labels = torch.rand(7, 1, 4, 4), torch.tensor([0, 2, 2, 0, 2, 0, 0])
    expected = torch.zeros(3, features.size).double()
    for image, label in zip(images, labels, strict=True):
        expected[label] += features.of(image[None].double())[0]
    assert torch.allclose(features.sums(images, labels, 3), expected)
    assert float(features.sums(images[:0], labels[:0], 3).abs().sum()) == 0


def test_the_loss_is_the_squared_distance_of_means_without_bias():
    torch.manual_seed(0)
    features = FourierFeatures(16, count=20, bandwidths=(0.5,))
    generator = NetworkSampler(architecture="dense", shape=[1, 4, 4], classes=2, latent=4).eval()
    draws = torch.Generator().manual_seed(1)
    labels = torch.arange(20_000) % 2
    with torch.no_grad():
        own = features.of(generator.sample(labels, draws)).unflatten(0, (10_000, 2)).mean(0)
        offset = torch.full_like(own, 0.01)
        for rows in (2, 20):
            matching = Matching(features, own + offset, rows=rows)
            found = torch.stack([matching.loss(generator, draws) for _ in range(1500)])
            slack = 5 * float(found.std()) / math.sqrt(1500)
            assert abs(float(found.mean()) - float(offset[0].square().sum())) < slack + 2e-4


def test_the_smallest_bandwidth_has_features_of_norm_one():
    features = FourierFeatures(784, count=64, bandwidths=(BANDWIDTHS[0],))
    found = features.of(
        torch.rand(20, 1, 28, 28, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    )
    assert torch.allclose(found.norm(dim=1), torch.ones(20, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize(
    "wrong", [{"count": 0}, {"bandwidths": ()}, {"bandwidths": (0.0,)}, {"bandwidths": (1e-300,)}]
)
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        FourierFeatures(4, **{"count": 4, "bandwidths": (0.5,), **wrong})
