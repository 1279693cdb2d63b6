# SPDX-License-Identifier: Apache-2.0
"""The noise of a training run, and where it comes from.

Guarantee  Every coordinate of every step's sums gets noise of the stated standard deviation, drawn from the
           generator (secure by default), never used twice.
Not here   Noise that is correlated over steps (`correlated_noise`), which has another event.
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
        """Add noise to every coordinate of `sums`.

        Args:
            sums: The sums of one step. They are changed in place.
            stddev: The standard deviation of the noise.
            step: The number of the step, from 0 on.
        """
        ...

    def forked(self, label: str, index: int) -> "NoiseSource":
        """Return a source like this one, whose draws serve another purpose.

        Args:
            label: The purpose.
            index: A number, so that a purpose may have several sources.

        Returns:
            A source whose noise is independent of this one's.
        """
        ...


class IndependentNoise:
    """Gaussian noise, independent over coordinates and steps, as in DP-SGD.

    Args:
        generator: The source of randomness; None uses the operating system's entropy.
    """

    def __init__(self, generator: Generator | None = None) -> None:
        self.generator = resolve(generator)

    def add_(self, sums: Sequence[Tensor], *, stddev: float, step: int) -> None:
        """Add noise to every coordinate of `sums`. A seeded stream depends on the step alone.

        Args:
            sums: The sums of one step. They are changed in place.
            stddev: The standard deviation of the noise.
            step: The number of the step, from 0 on.
        """
        tensors.add_gaussian_many_(sums, stddev=stddev, generator=self.generator.fork("noise", step))

    def forked(self, label: str, index: int) -> "IndependentNoise":
        """Return a source like this one, whose draws serve another purpose.

        Args:
            label: The purpose.
            index: A number, so that a purpose may have several sources.

        Returns:
            A source whose noise is independent of this one's.
        """
        found = copy.copy(self)
        found.generator = self.generator.fork(label, index)
        return found
