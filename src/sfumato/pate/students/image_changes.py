# SPDX-License-Identifier: Apache-2.0
"""Small random changes of images: rotation, scale, shear, shift and reflection, one of each for an image.

Edge cases Pixels from outside of an image repeat its border. An amount of 0 turns that change off.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError

__all__ = ["ImageChanges"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageChanges:
    """Changes each image of a batch at random, by an affine map.

    Args:
        rotation: The largest angle, in degrees, from 0 to 180.
        scale: The largest relative change of width and of height, below 1.
        shear: The largest shear.
        shift: The largest shift, as a share of the image's side, from 0 to 1.
        mirror: Whether half of the images are reflected, left to right.

    Raises:
        InvalidParameterError: If an amount is out of range.

    >>> images = torch.rand(2, 1, 8, 8)
    >>> ImageChanges()(images, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 1, 8, 8])
    """

    rotation: float = 10.0
    scale: float = 0.1
    shear: float = 0.15
    shift: float = 0.05
    mirror: bool = False

    def __post_init__(self) -> None:
        _check.in_range(0, 180, rotation=self.rotation)
        _check.in_range(0, 0.9, scale=self.scale)
        _check.in_range(0, 1, shear=self.shear, shift=self.shift)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return changed images.

        Args:
            images: [rows, channels, height, width], on any device.
            generator: A generator of the CPU to draw from.

        Returns:
            As many images, of the same shape.

        Raises:
            InvalidParameterError: If the shape is another.
        """
        if images.dim() != 4:
            raise InvalidParameterError(
                f"ImageChanges needs images [rows, channels, height, width], but the shape is "
                f"{list(images.shape)}. For rows of a table pass augment=None."
            )
        maps = self._maps(len(images), generator).to(images)
        grid = F.affine_grid(maps, list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, padding_mode="border", align_corners=False)

    def _maps(self, rows: int, generator: torch.Generator) -> Tensor:
        """Return one affine map for each image, from new coordinates to old ones, [rows, 2, 3]."""

        def drawn(most: float) -> Tensor:
            return (torch.rand(rows, generator=generator) * 2 - 1) * most

        angle, shear = drawn(math.radians(self.rotation)), drawn(self.shear)
        wide, high = 1 + drawn(self.scale), 1 + drawn(self.scale)
        right, down = drawn(2 * self.shift), drawn(2 * self.shift)  # coordinates go from -1 to 1
        sides = torch.where(torch.rand(rows, generator=generator) < 0.5 * self.mirror, -1.0, 1.0)
        first = torch.stack([angle.cos() * wide * sides, (shear - angle.sin() * high) * sides, right], 1)
        second = torch.stack([angle.sin() * wide, angle.cos() * high, down], 1)
        return torch.stack([first, second], 1)
