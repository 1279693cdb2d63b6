# SPDX-License-Identifier: Apache-2.0
"""The count of units below adaptive thresholds, and the update of the thresholds after a step.

Guarantee  The thresholds change by a noisy count alone, with noise of its own (`privacy.clipping`). All ranks
           use the thresholds of the first one.
Edge cases Fixed thresholds are left alone. A step without units counts none.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from sfumato.mechanisms.random import Generator
from sfumato.training import distributed
from sfumato.training.privacy.clipping import Clipper

__all__ = ["ClipAdaptation"]


class ClipAdaptation:
    """Counts the units of one step that are below their thresholds, and moves the thresholds."""

    def __init__(
        self, clipper: Clipper, parameters: Mapping[str, Tensor], *, expected_units: float, sensitivity: float
    ) -> None:
        self.below: Tensor | None = None  # of this step so far: [groups]
        self._clipper, self._parameters = clipper, parameters
        self._expected_units, self._sensitivity = expected_units, sensitivity

    def plus(self, below: Tensor | None) -> Tensor | None:
        """Return the count of this step so far and of more units."""
        if below is None or self.below is None:
            return self.below if below is None else below
        return below + self.below.to(below.device)

    def clear(self) -> None:
        """Forget the count: a step has ended."""
        self.below = None

    def update(self, generator: Generator, *, step: int) -> None:
        """Move the thresholds by the noisy count of this step, if they adapt."""
        if self._clipper.adaptive is None:
            return
        device = next(iter(self._parameters.values())).device
        below = self.below if self.below is not None else torch.zeros(len(self._clipper.groups))
        below = below.to(device, torch.float64)  # the same type on all ranks
        distributed.add_up_([below])
        if distributed.is_first():
            self._clipper.adapt(
                below,
                expected_batch_size=self._expected_units,
                generator=generator.fork("clip", step),
                sensitivity=self._sensitivity,
            )
        self._share(device)

    def _share(self, device: torch.device) -> None:
        if distributed.size() > 1:
            own = torch.tensor(self._clipper.thresholds, dtype=torch.float64, device=device)
            self._clipper.load_state_dict({"thresholds": distributed.from_first(own).tolist()})
