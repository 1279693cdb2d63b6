# SPDX-License-Identifier: Apache-2.0
"""Networks of generators and discriminators: dense ones as in report R4, and convolutional ones.

A discriminator has no layer that mixes rows, so that `sfumato.training` can clip the gradient of each row. A
generator sees no private row, and may use batch norm.
"""

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError

__all__ = ["ARCHITECTURES", "Discriminator", "NetworkSampler", "check_architecture", "discriminator_for"]

ARCHITECTURES: Final = ("dense", "convolutional")
_HIDDEN: Final = 128  # of dense networks


class Discriminator(nn.Module):
    """Says how real images of a class look: one number each.

    Args:
        features: Makes one vector of each image.
        size: The length of that vector.
        classes: The number of classes; 1 for images without labels.
    """

    def __init__(self, features: nn.Module, *, size: int, classes: int) -> None:
        super().__init__()
        self.features, self.score = features, nn.Linear(size, 1)
        self.label = nn.Embedding(classes, size) if classes > 1 else None

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return one number for each image, larger where it looks more real.

        Args:
            images: Images in [-1, 1].
            labels: Their class numbers.

        Returns:
            [rows].
        """
        found = self.features(images)
        score = self.score(found)[:, 0]
        return score if self.label is None else score + (found * self.label(labels)).sum(1)


def check_architecture(architecture: str, shape: tuple[int, int, int]) -> None:
    """Raise unless there is a network of this kind for images of this shape.

    Args:
        architecture: "dense" or "convolutional".
        shape: Channels, height and width.

    Raises:
        InvalidParameterError: If there is none.
    """
    if architecture not in ARCHITECTURES:
        raise InvalidParameterError(
            f"unknown architecture {architecture!r}. Use one of: {', '.join(ARCHITECTURES)}."
        )
    if architecture == "convolutional" and (shape[1] % 4 or shape[2] % 4):
        raise InvalidParameterError(
            f"height and width must be multiples of 4, but images are {shape[1]} x {shape[2]}. Pad or crop "
            "them, or use architecture='dense'."
        )


def discriminator_for(
    architecture: str, *, shape: tuple[int, int, int], classes: int, width: int
) -> Discriminator:
    """Return a discriminator with random weights.

    Args:
        architecture: "dense" or "convolutional".
        shape: Channels, height and width.
        classes: The number of classes; 1 for images without labels.
        width: Channels of the first convolution. Dense networks have 128 units.

    Returns:
        The discriminator.
    """
    check_architecture(architecture, shape)
    channels, high, wide = shape
    if architecture == "dense":
        layers = nn.Sequential(nn.Flatten(), nn.Linear(channels * high * wide, _HIDDEN), nn.ReLU())
        return Discriminator(layers, size=_HIDDEN, classes=classes)
    size = 2 * width * (high // 4) * (wide // 4)
    convolutions = nn.Sequential(
        nn.Conv2d(channels, width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
    )
    return Discriminator(convolutions, size=size, classes=classes)


class NetworkSampler(nn.Module):
    """A generator network: from random numbers and a class to an image.

    Args:
        architecture: "dense" or "convolutional".
        shape: Channels, height and width.
        classes: The number of classes; 1 for images without labels.
        width: Channels before the last convolution. Dense networks have 128 units.
        latent: How many random numbers an image is made of.
    """

    def __init__(
        self, *, architecture: str, shape: list[int], classes: int, width: int = 64, latent: int = 64
    ) -> None:
        super().__init__()
        channels, high, wide = shape
        check_architecture(architecture, (channels, high, wide))
        self.settings = {
            "architecture": architecture,
            "shape": list(shape),
            "classes": classes,
            "width": width,
            "latent": latent,
        }
        self._latent, self._classes, self._shape = latent, classes, (channels, high, wide)
        given = latent + (classes if classes > 1 else 0)
        dense = architecture == "dense"
        self.layers = _dense(given, self._shape) if dense else _convolutional(given, self._shape, width)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Return one image in [-1, 1] for each row of random numbers.

        Args:
            latent: Random numbers.
            labels: Class numbers.

        Returns:
            [rows, channels, height, width].
        """
        if self._classes > 1:
            latent = torch.cat([latent, F.one_hot(labels, self._classes).to(latent)], 1)
        return self.layers(latent).unflatten(1, self._shape) if self._flat else self.layers(latent)

    @property
    def _flat(self) -> bool:
        return self.settings["architecture"] == "dense"

    def latent(self, count: int, generator: torch.Generator) -> Tensor:
        """Return random numbers for some images.

        Args:
            count: How many images.
            generator: Where they are drawn from.

        Returns:
            [count, latent].
        """
        return torch.randn(count, self._latent, device=generator.device, generator=generator)

    def sample(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return one image in [0, 1] for each class number.

        Args:
            labels: The class numbers.
            generator: Where it draws from.

        Returns:
            [rows, channels, height, width].
        """
        return (self(self.latent(len(labels), generator), labels) + 1) / 2


def _dense(given: int, shape: tuple[int, int, int]) -> nn.Sequential:
    pixels = shape[0] * shape[1] * shape[2]
    return nn.Sequential(nn.Linear(given, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, pixels), nn.Tanh())


def _convolutional(given: int, shape: tuple[int, int, int], width: int) -> nn.Sequential:
    channels, high, wide = shape[0], shape[1] // 4, shape[2] // 4
    return nn.Sequential(
        nn.Linear(given, 2 * width * high * wide, bias=False),
        nn.BatchNorm1d(2 * width * high * wide),
        nn.ReLU(),
        nn.Unflatten(1, (2 * width, high, wide)),
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1),
        nn.Tanh(),
    )
