# SPDX-License-Identifier: Apache-2.0
"""Students for public data: a network and settings for images, or for columns.

Settings were chosen on training images of MNIST and Fashion-MNIST, which took the place of public rows (rows
0 to 8999, and 20000 to 28999 for the graph) and of evaluation rows (50000 to 53999), and on scikit-learn's
digits. Test images took no part in a comparison of settings. But Fashion-MNIST was evaluated once on test
images with the settings of MNIST: 81.4%, and 83.3% on the public rows, of which propagation alone had 84.1%
right. That is why it has settings of its own.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
from torch import nn

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.labels.input_checks import check_classes
from sfumato.pate.students.image_changes import ImageChanges
from sfumato.pate.students.propagation import Propagation
from sfumato.pate.students.semi_supervised import SelfTraining, SemiSupervisedStudent
from sfumato.training.random_state import same_draws

__all__ = ["student_for", "student_network"]

_SMALLEST = 12  # pixels a side, for the convolutions below
_CLOTHES = ImageChanges(rotation=5, shear=0.05, mirror=True)  # a reflected shoe is a shoe; a 2 is not a 2
_SETTINGS = {
    "mnist": SelfTraining(augment=ImageChanges()),
    # Labels of the network itself did not help here: 83.9% with them, 84.3% without (one seed, 10 epochs).
    "fashion-mnist": SelfTraining(
        augment=_CLOTHES, first_part=1.0, first_share=0.7, propagation=Propagation(reach=0.9)
    ),
}


def student_for(
    name: str,
    *,
    shape: Sequence[int],
    classes: int,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> SemiSupervisedStudent:
    """Return the student for a public data set.

    Args:
        name: The name of the data set, as in `datasets.load`. "mnist" and "fashion-mnist" have settings
            of their own; rows of all other sets are learned unchanged, with the defaults.
        shape: The shape of one row: (channels, height, width), or (columns,).
        classes: The number of classes.
        seed: The seed of first weights and training.
        device: The device to learn on, or None for the CPU.

    Returns:
        The student.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> student_for("mnist", shape=(1, 28, 28), classes=10).settings.augment
    ImageChanges(rotation=10.0, scale=0.1, shear=0.15, shift=0.05, mirror=False)
    """
    _check.text(name=name)
    _check.non_negative(seed=seed)
    with same_draws(seed=seed):
        model = student_network(shape, classes)
    settings = _SETTINGS.get(name, SelfTraining())
    return SemiSupervisedStudent(model=model, settings=replace(settings, seed=seed, device=device))


def student_network(shape: Sequence[int], classes: int) -> nn.Sequential:
    """Return three convolutions with batch normalization for images, or two layers of 128 units for columns.

    Args:
        shape: The shape of one row. Images need 12 pixels a side; smaller ones are used as columns.
        classes: The number of classes.

    Returns:
        The network, with random weights.

    Raises:
        InvalidParameterError: If there are fewer than two classes, or the shape is empty.

    >>> student_network((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    >>> student_network((5,), 3)(torch.zeros(2, 5)).shape
    torch.Size([2, 3])
    """
    check_classes(classes)
    if not shape or prod(shape) < 1:
        raise InvalidParameterError(f"shape must be that of one row, but {tuple(shape)} was given.")
    if len(shape) != 3 or min(shape[1:]) < _SMALLEST:
        layers = (
            nn.Linear(prod(shape), 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, classes),
        )
        return nn.Sequential(nn.Flatten(), *layers)
    channels, height, width = shape
    size = 64 * ((height + 1) // 4) * ((width + 1) // 4)
    network = nn.Sequential(
        *_convolution(channels, 32, kernel=5, stride=2),
        *_convolution(32, 64),
        nn.MaxPool2d(2),
        *_convolution(64, 64),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(size, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )
    return network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] - its stub does not know it. Faster on a CPU


def _convolution(before: int, after: int, *, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    layer = nn.Conv2d(before, after, kernel, padding=kernel // 2, stride=stride, bias=False)
    return [layer, nn.BatchNorm2d(after), nn.ReLU()]
