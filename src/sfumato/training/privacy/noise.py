# SPDX-License-Identifier: Apache-2.0
"""Where the noise of a training run comes from.

Guarantee  Every coordinate of every step's sums gets noise of the stated standard deviation, drawn from the
           generator (secure by default), never used twice.
Door       `NoiseSource` is all that the trainer knows of noise: a source whose draws are correlated over
           steps (DP-FTRL) can take its place, and must then state another event.
"""

import copy
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from sfumato.mechanisms import tensors
from sfumato.mechanisms.random import Generator, resolve

__all__ = ["IndependentNoise", "NoiseSource"]


class NoiseSource(Protocol):
    """Adds the noise of one step to sums in place."""

    @property
    def generator(self) -> Generator:
        """Where its randomness comes from."""
        ...

    def add_(self, sums: Sequence[Tensor], *, stddev: float, step: int) -> None:
        """Add noise to every coordinate of `sums`."""
        ...

    def forked(self, label: str, index: int) -> "NoiseSource":
        """Return a source like this one, whose draws are of another purpose."""
        ...


class IndependentNoise:
    """Gaussian noise, independent over coordinates and steps: DP-SGD's."""

    def __init__(self, generator: Generator | None = None) -> None:
        self.generator = resolve(generator)

    def add_(self, sums: Sequence[Tensor], *, stddev: float, step: int) -> None:
        """Add noise to every coordinate of `sums`. A seeded stream depends on the step alone."""
        tensors.add_gaussian_many_(sums, stddev=stddev, generator=self.generator.fork("noise", step))

    def forked(self, label: str, index: int) -> "IndependentNoise":
        """Return a source like this one, whose draws are of another purpose."""
        found = copy.copy(self)
        found.generator = self.generator.fork(label, index)
        return found
