# SPDX-License-Identifier: Apache-2.0
"""Diffusion: how noise is added to images, what a network learns from it, and how images are drawn.

Images are in [-1, 1] here. A level is the logarithm of the noise's standard deviation.

Edge cases Rows of zeros have a finite loss, at level 0.
Source     Karras et al. 2022, arXiv:2206.00364 (levels, weights, scaling, sampler). Dockhorn et al. 2023,
           arXiv:2210.09929 (several levels for each image before its gradient is clipped).
"""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["Levels", "denoised", "denoising_loss", "drawn"]

_DATA = 0.5  # the standard deviation of images
_MEAN, _SPREAD = -1.2, 1.2  # of levels in training
_LEAST, _MOST, _BEND = 0.002, 80.0, 7.0  # of noise when images are drawn


class Levels:
    """Adds noise of a random level to each image: an `augment` of `sfumato.training`."""

    def __call__(
        self, rows: tuple[Tensor, Tensor], generator: torch.Generator | None = None
    ) -> tuple[Tensor, ...]:
        """Return noisy images, their levels, the images and their classes.

        Args:
            rows: Images and class numbers.
            generator: Where draws come from. A run gives one. None is torch's own, for public images.

        Returns:
            What `denoising_loss` takes.
        """
        images, labels = rows
        draws = _on_device(generator, images.device)
        level = torch.randn(len(images), device=images.device, generator=draws) * _SPREAD + _MEAN
        noise = torch.randn(images.shape, device=images.device, generator=draws)
        noise = noise * level.exp()[:, None, None, None]
        return images + noise, level, images, labels

    def __repr__(self) -> str:
        return "Levels()"


def _on_device(generator: torch.Generator | None, device: torch.device) -> torch.Generator | None:
    if generator is None or generator.device == device:
        return generator
    return torch.Generator(device).manual_seed(generator.initial_seed())


def denoised(network: nn.Module, noisy: Tensor, level: Tensor, labels: Tensor) -> Tensor:
    """Return what a network makes of noisy images.

    Args:
        network: A `DenoisingNetwork`.
        noisy: Noisy images.
        level: The level of each.
        labels: The class of each.

    Returns:
        The images without noise, as far as the network knows.
    """
    noise = level.exp()[:, None, None, None]
    total = (noise.square() + _DATA**2).sqrt()
    made = network(noisy / total, level / 4, labels)
    return noisy * (_DATA / total).square() + made * (noise * _DATA / total)


def denoising_loss(
    network: nn.Module, noisy: Tensor, level: Tensor, images: Tensor, labels: Tensor
) -> Tensor:
    """Return for each row how far the network is from the image, weighted by its level.

    Args:
        network: A `DenoisingNetwork`.
        noisy: Noisy images.
        level: The level of each.
        images: The images.
        labels: The class of each.

    Returns:
        One number for each row.
    """
    noise = level.exp()[:, None, None, None]
    weight = (noise.square() + _DATA**2) / (noise * _DATA).square()
    away = (denoised(network, noisy, level, labels) - images).square()
    return (weight * away).flatten(1).mean(1)


def drawn(
    network: nn.Module,
    labels: Tensor,
    *,
    shape: tuple[int, ...],
    steps: int,
    generator: torch.Generator,
    forward: Callable[..., Tensor] = denoised,
) -> Tensor:
    """Draw images from a network, from much noise to none (Heun's method).

    Args:
        network: A `DenoisingNetwork`.
        labels: The class of each image.
        shape: Channels, height and width.
        steps: How many levels of noise are passed through.
        generator: Where noise is drawn from.
        forward: Computes what the network makes of noisy images.

    Returns:
        Images, about in [-1, 1].
    """
    place = torch.arange(steps, device=labels.device) / max(steps - 1, 1)
    ends = _MOST ** (1 / _BEND), _LEAST ** (1 / _BEND)
    noise = torch.cat([(ends[0] + place * (ends[1] - ends[0])) ** _BEND, place.new_zeros(1)])
    x = torch.randn(len(labels), *shape, device=labels.device, generator=generator) * noise[0]

    def slope(at: Tensor, amount: Tensor) -> Tensor:
        return (at - forward(network, at, amount.log().expand(len(at)), labels)) / amount

    for now, after in itertools.pairwise(noise):
        first = slope(x, now)
        guess = x + (after - now) * first
        x = guess if after == 0 else x + (after - now) * (first + slope(guess, after)) / 2
    return x
