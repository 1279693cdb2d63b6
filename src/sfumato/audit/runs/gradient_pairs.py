# SPDX-License-Identifier: Apache-2.0
"""Gradients of two neighboring steps that count: do they share their noise in the model's own tensors?

The gradient of the step before is subtracted from the gradient of a step, and also added to it. If both steps
have the same noise, or opposite noise, one of the two results holds no noise and may be shorter than the
noise of a single step can be.

Guarantee  The noise of a step is independent of everything that happened before it, of the batch and of the
           weights, and so of the step before and of its own signal. So the result is fresh Gaussian noise of
           one step plus a number that is fixed given the past, and its length is at least that of the noise
           (`noise_log.Energies`). The test is exact, whatever the data are and however the signal depends on
           the noise of the step before.
Not here   A test that expects the noise of two steps in the result. It would be stronger and wrong: weights
           follow the noise of the step before, and where the loss is curved downward the signal takes that
           noise back. Data that add much hide shared noise here, and trials show it only in trial steps.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["GradientPairs"]

_KEPT = 1024  # coordinates of each tensor


class GradientPairs:
    """The gradient of a step beside that of the step before, in coordinates of each tensor.

    >>> pairs, noise = GradientPairs(), torch.randn(100)
    >>> list(pairs.add({"w": noise}, scale=1.0))
    []
    >>> [(name, round(energy, 6)) for name, energy, _ in pairs.add({"w": noise}, scale=1.0)][:1]
    [("the model's w, less the step before", 0.0)]
    """

    def __init__(self) -> None:
        self._before: npt.NDArray[np.float32] | None = None

    def add(self, gradients: Mapping[str, Tensor], *, scale: float) -> Iterator[tuple[str, float, int]]:
        """Take in a step; yield names, sums of squares and sizes, in standard deviations of the noise.

        `scale` times a gradient is its value in stated standard deviations of this step's noise.
        """
        parts = [_some(gradient) for gradient in gradients.values()]
        now = torch.cat(parts).cpu().double().numpy() * scale if parts else np.zeros(0)
        before, self._before = self._before, now.astype(np.float32)
        if before is None or len(before) != len(now) or not len(now):
            return
        sizes = [len(part) for part in parts]
        with np.errstate(invalid="ignore"):  # infinite numbers, which `Energies` reports
            pairs = ("less", now - before), ("plus", now + before)
        for word, both in pairs:
            squares, begins = both**2, 0
            for name, size in zip(gradients, sizes, strict=True):
                total = float(squares[begins : begins + size].sum())
                begins += size
                yield f"the model's {name}, {word} the step before", total, size

    def state_dict(self) -> Tensor | None:
        """Return the gradient of the last step."""
        return None if self._before is None else torch.from_numpy(self._before)

    def load_state_dict(self, state: Tensor | None) -> None:
        """Go on from what `state_dict` returned."""
        self._before = None if state is None else state.numpy()


def _some(gradient: Tensor) -> Tensor:
    flat = gradient.flatten()
    return flat[:: max(1, len(flat) // _KEPT)][:_KEPT].float()
