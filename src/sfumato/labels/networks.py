# SPDX-License-Identifier: Apache-2.0
"""Small networks for the recipes of label privacy.

Source     `published_cnn`: Ghazi et al. 2024, "LabelDP-Pro". Its weights: LeCun, Bottou, Orr, Mueller 1998.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import nn

__all__ = ["nearly_even_network", "published_cnn", "small_network", "tiny_cnn"]

_FIRST_SCORE_SCALE = 0.1  # the factor on first weights of the last layer


def tiny_cnn(shape: Sequence[int], num_classes: int) -> nn.Sequential:
    """Return two convolutions of 16 channels and a layer of 16 units.

    Args:
        shape: Channels, height and width of an image, with at least 12 pixels a side.
        num_classes: The number of classes.

    Returns:
        The network, with random weights.

    >>> tiny_cnn((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    channels, height, width = shape
    size = 16 * (height // 4) * (width // 4)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(size, 16),
        nn.Tanh(),
        nn.Linear(16, num_classes),
    )


def published_cnn(shape: Sequence[int], num_classes: int) -> nn.Sequential:
    """Return the network of the LabelDP-Pro paper, with LeCun's normal weights.

    It has two convolutions of 16 channels, each with ReLU and average pooling, and a layer of 16 units.

    Args:
        shape: Channels, height and width of an image, with at least 10 pixels a side.
        num_classes: The number of classes.

    Returns:
        The network, with random weights.

    >>> sum(p.numel() for p in published_cnn((1, 28, 28), 10).parameters())
    9066
    """
    channels, height, width = shape
    size = 16 * (((height - 2) // 2 - 2) // 2) * (((width - 2) // 2 - 2) // 2)
    model = nn.Sequential(
        nn.Conv2d(channels, 16, 3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 16, 3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(size, 16),
        nn.ReLU(),
        nn.Linear(16, num_classes),
    )
    return _with_lecun_weights(model)


def small_network(shape: Sequence[int], num_classes: int) -> nn.Sequential:
    """Return `tiny_cnn` for images of 12 pixels a side or more, and a layer of 64 units for other features.

    Args:
        shape: The shape of the features of one row.
        num_classes: The number of classes.

    Returns:
        The network, with random weights.

    >>> small_network((4,), 3)(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """
    if len(shape) == 3 and min(shape[1:]) >= 12:
        return tiny_cnn(shape, num_classes)
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 64), nn.Tanh(), nn.Linear(64, num_classes))


def nearly_even_network(shape: Sequence[int], num_classes: int) -> nn.Sequential:
    """Return a network whose first predictions give all classes almost the same probability.

    Args:
        shape: The shape of the features of one row.
        num_classes: The number of classes.

    Returns:
        `published_cnn` for images of 12 pixels a side or more, else a layer of 32 units, with random weights.
    """
    if len(shape) == 3 and min(shape[1:]) >= 12:
        model = published_cnn(shape, num_classes)
    else:
        layers = nn.Flatten(), nn.Linear(prod(shape), 32), nn.ReLU(), nn.Linear(32, num_classes)
        model = _with_lecun_weights(nn.Sequential(*layers))
    with torch.no_grad():
        for weights in model[-1].parameters():
            weights.mul_(_FIRST_SCORE_SCALE)
    return model


def _with_lecun_weights(model: nn.Sequential) -> nn.Sequential:
    """Draw weights of variance 1 / inputs, and set biases to zero."""
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.normal_(layer.weight, std=layer.weight[0].numel() ** -0.5)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model
