# SPDX-License-Identifier: Apache-2.0
"""Grids of images as text: one hexadecimal digit is the gray level of a pixel, so that results stay small."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

__all__ = ["as_gray", "as_text"]

_LEVELS: Final = 15
_ACROSS, _DOWN = 5, 4  # images


def as_text(images: Any) -> list[str]:
    """Return the first 20 images as a grid of five columns, a text for each line of pixels.

    Args:
        images: Gray levels from 0 to 1, [images, 1, height, width].

    Returns:
        The lines of the grid.
    """
    chosen = np.asarray(images)[: _ACROSS * _DOWN, 0]
    height, width = chosen.shape[1:]
    lines = chosen.reshape(_DOWN, _ACROSS, height, width).transpose(0, 2, 1, 3)
    levels = np.rint(lines.reshape(_DOWN * height, _ACROSS * width) * _LEVELS).astype(int)
    return ["".join(f"{level:x}" for level in line) for line in levels]


def as_gray(lines: Sequence[str]) -> list[list[float]]:
    """Return the gray levels of a grid.

    Args:
        lines: The lines, as `as_text` returns them.

    Returns:
        From 0 to 1, line by line.

    >>> as_gray(["0f"])
    [[0.0, 1.0]]
    """
    return [[int(digit, 16) / _LEVELS for digit in line] for line in lines]
