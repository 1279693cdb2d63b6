# SPDX-License-Identifier: Apache-2.0
"""Noise that is correlated over steps, for batches that amplify nothing (DP-FTRL, matrix mechanism).

Step t gets the noise n_t = z_t - c_1 n_(t-1) - ... - c_(b-1) n_(t-b+1), where z_t is fresh Gaussian noise: a
part of the noise of earlier steps is taken back, so that sums over many steps have less noise. With C the
lower-triangular Toeplitz matrix of the coefficients 1, c_1, ..., c_(b-1), the noise of all steps is C^-1 z.

Guarantee  A run that releases x_t + n_t for all steps t costs as much as one Gaussian release of C x with
           noise z. A unit that takes part once in every cycle of batches, with a norm of at most 1, moves C x
           by at most `sensitivity`: the coefficients are positive, so the norm is largest if all its
           contributions are alike and it takes part as early as possible. Contributions and their order may
           depend on what was released before, because C is lower triangular.
Neighbors  Those of `CyclicBatches`. The sensitivity is for a norm of 1; accountants double it where a unit is
           replaced.
Edge cases With one band noise is independent, and a run costs as much as its cycles. A run that is resumed
           begins the correlation anew: no checkpoint holds noise. Then entries of C become 0, which lowers
           the sensitivity.
Source     Denisov et al. 2022, arXiv:2202.08312 (adaptive inputs, Theorem 2.1); Choquette-Choo et al. 2023,
           arXiv:2211.06530 (several participations); Kalinin and Lampert 2024, arXiv:2405.13763 (the banded
           square root, whose coefficients these are).
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import tensors
from sfumato.mechanisms.random import Generator, resolve
from sfumato.training.privacy.sampling import CyclicBatches, Sampling

__all__ = ["BandedNoise", "CorrelatedNoise"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BandedNoise:
    """Noise that takes back a part of the noise of the last steps.

    Args:
        bands: Over how many steps noise is correlated, this one included. One band is independent noise. Each
            band keeps a copy of the model's parameters in memory.

    Raises:
        InvalidParameterError: If there is no band.

    >>> BandedNoise(bands=3).coefficients().tolist()
    [1.0, 0.5, 0.375]
    """

    bands: int

    def __post_init__(self) -> None:
        _check.count(bands=self.bands)

    def coefficients(self) -> np.ndarray:
        """Return the first column of C: the series of 1 / sqrt(1 - x), cut off after the bands.

        Returns:
            As many numbers as there are bands, all above 0.
        """
        order = np.arange(1, self.bands)
        return np.concatenate([[1.0], np.cumprod((2 * order - 1) / (2 * order))])

    def sensitivity(self, sampling: Sampling, *, steps: int) -> float:
        """Return how far a unit moves C x, if each of its contributions has norm 1.

        A unit in the first batch of a cycle takes part most often, and its contributions are in most of the
        steps: the sums of the others are parts of its own, shifted.

        Args:
            sampling: How batches are formed.
            steps: The number of steps.

        Returns:
            The sensitivity, at least 1.

        Raises:
            InvalidParameterError: If batches do not come in cycles.

        >>> cycles = CyclicBatches(batch_size=10, public_size=40)
        >>> round(BandedNoise(bands=1).sensitivity(cycles, steps=16), 6)  # four cycles
        2.0
        """
        if not isinstance(sampling, CyclicBatches):
            raise InvalidParameterError(
                "correlated noise needs to know in which steps a unit takes part, so batches must come in "
                f"cycles: pass sampling=CyclicBatches(...). {type(sampling).__name__} has no proof here."
            )
        _check.count(steps=steps)
        part = np.zeros(steps)
        part[:: -(-sampling.public_size // sampling.batch_size)] = 1.0
        moved = np.convolve(part, self.coefficients())[:steps]
        return math.nextafter(float(np.linalg.norm(moved)) * (1 + 1e-12), math.inf)


class CorrelatedNoise:
    """Adds the noise of `BandedNoise`, step after step.

    Args:
        correlation: How noise is correlated.
        generator: The source of randomness; None uses the operating system's entropy.
    """

    def __init__(self, correlation: BandedNoise, generator: Generator | None = None) -> None:
        self.generator = resolve(generator)
        self.correlation = correlation
        self._coefficients = correlation.coefficients().tolist()
        self._earlier: list[list[Tensor]] = []  # noise of this step and the last ones, in multiples of stddev
        self._step = -1  # the last one

    def add_(self, sums: Sequence[Tensor], *, stddev: float, step: int) -> None:
        """Add noise to every coordinate of `sums`. After a gap between steps the correlation begins anew.

        Args:
            sums: The sums of one step. They are changed in place.
            stddev: The standard deviation of the fresh noise of a step.
            step: The number of the step, from 0 on.
        """
        if step == self._step:  # sums that were computed again: what they got before was never seen
            del self._earlier[:1]
        elif step != self._step + 1:
            self._earlier.clear()
        # Only now: a step that is computed again, which a row decides, must take back as much as any other.
        self._earlier = self._earlier[: len(self._coefficients) - 1]
        noise = [torch.zeros_like(total) for total in sums]
        tensors.add_gaussian_many_(noise, stddev=1.0, generator=self.generator.fork("noise", step))
        for coefficient, past in zip(self._coefficients[1:], self._earlier, strict=False):  # fewer at first
            for own, before in zip(noise, past, strict=True):
                own.sub_(before, alpha=coefficient)
        for total, own in zip(sums, noise, strict=True):
            total.add_(own, alpha=stddev)
        self._earlier = [noise, *self._earlier]
        self._step = step

    def forked(self, label: str, index: int) -> "CorrelatedNoise":
        """Return a source like this one, whose draws serve another purpose. It remembers no step.

        Args:
            label: The purpose.
            index: A number, so that a purpose may have several sources.

        Returns:
            A source whose noise is independent of this one's.
        """
        found = copy.copy(self)
        found.generator, found._earlier, found._step = self.generator.fork(label, index), [], -1
        return found
