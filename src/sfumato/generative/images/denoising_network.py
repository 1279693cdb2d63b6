# SPDX-License-Identifier: Apache-2.0
"""The network of the diffusion model: a small U-net on patches of 2 x 2 pixels.

Rows stay apart in every layer (group norm, no batch norm), so it can be trained by `sfumato.training`.
"""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError

__all__ = ["DenoisingNetwork"]

_GROUPS = 8  # of group norm, at most


class _Block(nn.Module):
    """Two convolutions whose middle is scaled and shifted by what the network knows of class and noise."""

    def __init__(self, given: int, made: int, known: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = _norm(given), nn.Conv2d(given, made, 3, padding=1)
        self.known = nn.Linear(known, 2 * made)
        self.norm2, self.conv2 = _norm(made), nn.Conv2d(made, made, 3, padding=1)
        self.skip = nn.Conv2d(given, made, 1) if given != made else nn.Identity()

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        inner = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.known(known)[:, :, None, None].chunk(2, 1)
        inner = self.norm2(inner) * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.silu(inner))


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(_GROUPS, channels), channels)


class DenoisingNetwork(nn.Module):
    """Predicts what is left of an image below its noise.

    Args:
        channels: Channels of an image.
        classes: The number of classes.
        width: Channels of the first level; the second has twice as many.
    """

    frequencies: Tensor

    def __init__(self, *, channels: int, classes: int, width: int = 64) -> None:
        super().__init__()
        known = 2 * width
        self.register_buffer("frequencies", torch.exp(torch.linspace(0.0, math.log(100.0), width)))
        self.label = nn.Embedding(classes, known)
        self.known = nn.Sequential(nn.Linear(known, known), nn.SiLU(), nn.Linear(known, known))
        self.first = nn.Conv2d(4 * channels, width, 3, padding=1)
        self.down1, self.down2 = _Block(width, width, known), _Block(width, 2 * width, known)
        self.middle = _Block(2 * width, 2 * width, known)
        self.up2, self.up1 = _Block(4 * width, 2 * width, known), _Block(3 * width, width, known)
        self.norm, self.last = _norm(width), nn.Conv2d(width, 4 * channels, 3, padding=1)
        with torch.no_grad():  # it begins by predicting nothing
            self.last.weight.zero_()
            cast(Tensor, self.last.bias).zero_()

    @staticmethod
    def require(shape: tuple[int, int, int]) -> None:
        """Raise unless images of this shape fit.

        Args:
            shape: Channels, height and width.

        Raises:
            InvalidParameterError: If height or width is no multiple of 4, or there are too few pixels.
        """
        _, height, width = shape
        if height % 4 or width % 4 or height * width <= 16:
            raise InvalidParameterError(
                f"height and width must be multiples of 4, and not both 4, but images are {height} x "
                f"{width}. Pad or crop them first."
            )

    def forward(self, x: Tensor, level: Tensor, labels: Tensor) -> Tensor:
        """Return the prediction for noisy images.

        Args:
            x: Noisy images.
            level: The logarithm of the noise of each, divided by 4.
            labels: The class of each.

        Returns:
            Images of the same shape.
        """
        angle = level[:, None] * self.frequencies
        known = torch.cat([angle.sin(), angle.cos()], 1) + self.label(labels)
        known = F.silu(self.known(known))
        fine = self.down1(self.first(F.pixel_unshuffle(x, 2)), known)
        coarse = self.down2(F.avg_pool2d(fine, 2), known)
        up = self.up2(torch.cat([self.middle(coarse, known), coarse], 1), known)
        up = self.up1(torch.cat([F.interpolate(up, scale_factor=2.0), fine], 1), known)
        return F.pixel_shuffle(self.last(F.silu(self.norm(up))), 2)
