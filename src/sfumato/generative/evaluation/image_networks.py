# SPDX-License-Identifier: Apache-2.0
"""The convolutional network that is trained on synthetic images.

Edge cases Images of any size of at least one pixel: a side that is too short is not halved.
Source     A plain network after Simonyan and Zisserman 2015 (pairs of 3 x 3 convolutions), with batch
           normalization (Ioffe and Szegedy 2015).
"""

from collections.abc import Sequence

import torch
from torch import nn

from sfumato import _check

__all__ = ["convolutional"]

_CHANNELS = (32, 64)
_POOLED = 4  # the side of the pictures that the last layers see, at most
_HIDDEN = 128


def convolutional(shape: Sequence[int], classes: int, *, seed: int = 0) -> nn.Sequential:
    """Return two pairs of convolutions with batch normalization, and two linear layers.

    Args:
        shape: Channels, height and width of an image.
        classes: The number of classes.
        seed: The seed of the weights.

    Returns:
        The network.

    Raises:
        InvalidParameterError: If a size is not a whole number above 0.

    >>> convolutional((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    channels, height, width = shape
    _check.count(channels=channels, height=height, width=width, classes=classes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of the fork: global random state is left as it was
        return nn.Sequential(
            *_pair(channels, _CHANNELS[0]),
            nn.MaxPool2d(2, ceil_mode=True),
            *_pair(_CHANNELS[0], _CHANNELS[1]),
            nn.AdaptiveMaxPool2d((min(_POOLED, height), min(_POOLED, width))),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(_CHANNELS[1] * min(_POOLED, height) * min(_POOLED, width), _HIDDEN),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Linear(_HIDDEN, classes),
        )


def _pair(inputs: int, outputs: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for before in (inputs, outputs):
        layers += [nn.Conv2d(before, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return layers
