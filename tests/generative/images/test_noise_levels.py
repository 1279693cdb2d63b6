# SPDX-License-Identifier: Apache-2.0
import torch
from torch import nn

from sfumato.generative.images.noise_levels import Levels, denoised, denoising_loss, drawn


class Knows(nn.Module):
    """Predicts so that what is left of a noisy image is one that it knows."""

    def __init__(self, image):
        super().__init__()
        self.image = image

    def forward(self, x, level, labels):
        noise = (4 * level).exp()[:, None, None, None]
        total = (noise.square() + 0.25).sqrt()
        return (self.image - x * total * (0.5 / total).square()) / (noise * 0.5 / total)


def test_noise_has_the_stated_level():
    torch.manual_seed(0)
    images = torch.zeros(4000, 1, 4, 4)
    noisy, level, same, _ = Levels()((images, torch.zeros(4000, dtype=torch.int64)))
    assert torch.equal(same, images)
    assert abs(float(level.mean()) + 1.2) < 0.1 and abs(float(level.std()) - 1.2) < 0.1
    scaled = noisy / level.exp()[:, None, None, None]
    assert abs(float(scaled.std()) - 1) < 0.02


def test_draws_of_a_run_leave_torchs_own_generator_alone():
    """How much is drawn depends on the size of a batch, which is private."""
    before = torch.get_rng_state()
    rows = torch.zeros(5, 1, 4, 4), torch.zeros(5, dtype=torch.int64)
    first = Levels()(rows, torch.Generator().manual_seed(3))
    second = Levels()(rows, torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), before) and torch.equal(first[0], second[0])


def test_a_network_that_knows_the_image_has_no_loss_and_draws_it():
    image = torch.linspace(-1, 1, 16).reshape(1, 1, 4, 4)
    network, labels = Knows(image), torch.zeros(3, dtype=torch.int64)
    noisy, level, images, labels = Levels()((image.expand(3, 1, 4, 4), labels))
    assert float(denoising_loss(network, noisy, level, images, labels).max()) < 1e-6
    found = drawn(network, labels, shape=(1, 4, 4), steps=8, generator=torch.Generator().manual_seed(0))
    assert float((found - image).abs().max()) < 1e-3


def test_a_network_that_predicts_nothing_keeps_what_little_noise_leaves():
    class Nothing(nn.Module):
        def forward(self, x, level, labels):
            return torch.zeros_like(x)

    x = torch.ones(2, 1, 4, 4)
    labels = torch.zeros(2, dtype=torch.int64)
    clear = denoised(Nothing(), x, torch.full((2,), -9.0), labels)
    lost = denoised(Nothing(), x, torch.full((2,), 9.0), labels)
    assert float((clear - x).abs().max()) < 1e-3 and float(lost.abs().max()) < 1e-3


def test_rows_of_zeros_have_a_finite_loss():
    class Nothing(nn.Module):
        def forward(self, x, level, labels):
            return torch.zeros_like(x)

    zeros = torch.zeros(2, 1, 4, 4)
    loss = denoising_loss(Nothing(), zeros, torch.zeros(2), zeros, torch.zeros(2, dtype=torch.int64))
    assert bool(loss.isfinite().all())
