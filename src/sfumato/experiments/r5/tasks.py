# SPDX-License-Identifier: Apache-2.0
"""The data and the networks of the slides, at both scales: rows to train on, rows to test on, first weights.

The quick scale has the digits that ship with scikit-learn in place of every set. The slides state neither
widths nor activations, so the convolutional network is a common small one: two convolutions, each with a
pooling, and two linear layers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato import datasets
from sfumato.experiments.experiment import Scale

__all__ = ["Rows", "Task", "convolutional", "device_of", "images", "logistic", "with_seed"]

Rows = tuple[Tensor, Tensor]
_QUICK_ROWS = 600  # to train on; all test rows are used


@dataclass(frozen=True, kw_only=True)
class Task:
    """Rows to train on, which play the private ones, and rows to test on.

    Attributes:
        train: Features and labels to train on.
        test: Features and labels to test on.
        classes: How many classes labels may have.
    """

    train: Rows
    test: Rows
    classes: int = 10

    @property
    def public_size(self) -> int:
        """How many rows there are to train on; published with these sets."""
        return len(self.train[1])

    def first(self, rows: int) -> "Task":
        """Return the task with the first so many rows to train on."""
        features, labels = self.train
        return Task(train=(features[:rows], labels[:rows]), test=self.test, classes=self.classes)


def images(name: str, scale: Scale) -> Task:
    """Return a set of images, or the first digits at the quick scale."""
    data = datasets.load("digits" if scale.quick else name)
    train, test = data.train, data.test
    task = Task(train=(train.features, train.labels), test=(test.features, test.labels))
    return task.first(_QUICK_ROWS) if scale.quick else task


def device_of(scale: Scale) -> str:
    """Return where to train: the device that was asked for, else a GPU if there is one."""
    if scale.device is not None:
        return scale.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def with_seed(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a network whose first weights are those of a seed; torch's own generator stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def logistic(task: Task) -> nn.Module:
    """Return a logistic regression on the pixels or features of a task."""
    return nn.Sequential(nn.Flatten(), nn.Linear(task.train[0][0].numel(), task.classes))


def convolutional(task: Task, *, widths: tuple[int, int] = (16, 32), hidden: int = 32) -> nn.Module:
    """Return a network of two convolutions and two linear layers."""
    channels, side = task.train[0].shape[1:3]
    first, second = widths
    return nn.Sequential(
        nn.Conv2d(channels, first, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * (side // 4) ** 2, hidden),
        nn.ReLU(),
        nn.Linear(hidden, task.classes),
    )
