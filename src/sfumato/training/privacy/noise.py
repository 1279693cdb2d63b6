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

from sfumato.accounting.events import DpEvent
from sfumato.mechanisms import tensors
from sfumato.mechanisms.random import Generator, resolve

__all__ = ["IndependentNoise", "NoiseSource", "Summation"]


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


class Summation(Protocol):
    """A way to sum contributions in which the sum has its noise before anybody sees it.

    The amount of noise must not depend on who contributes to a step, nor on how many do.
    """

    @property
    def clip_norm(self) -> float:
        """The most that one unit contributes in L2 norm, before rounding."""
        ...

    @property
    def cohort(self) -> int:
        """How many units a sum has room for; what happens to larger batches is up to the engine."""
        ...

    def event_at(self, noise_multiplier: float) -> DpEvent:
        """Return the event of one sum.

        Args:
            noise_multiplier: The noise, divided by the bound on one contribution.

        Returns:
            The event.
        """
        ...

    def bound_at(self, noise_multiplier: float) -> float:
        """Return the most that one unit contributes in L2 norm, after rounding.

        Args:
            noise_multiplier: The noise, divided by this bound.

        Returns:
            The bound, in units of a contribution.
        """
        ...

    def scaled(self, noise_multiplier: float) -> "Summation":
        """Return the same sum with another noise.

        Args:
            noise_multiplier: The noise, divided by the bound on one contribution.

        Returns:
            The summation.

        Raises:
            InvalidParameterError: If a sum with that noise cannot be taken.
        """
        ...

    def statement(self, noise_multiplier: float) -> str:
        """Return what noise there is and who adds it: the words before "added to each sum".

        Args:
            noise_multiplier: The noise, divided by the bound on one contribution.

        Returns:
            The beginning of a sentence, for people who must judge the claim.
        """
        ...
