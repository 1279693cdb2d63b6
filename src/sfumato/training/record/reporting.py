# SPDX-License-Identifier: Apache-2.0
"""What is done between the steps of a run: evaluation, and what trainers of other libraries add to it.

Guarantee  `make` is called only after a checkpoint holds the weights, and at the end only after the release
           is committed. What is shown there cannot be lost and drawn again with other noise. The other
           methods must show nothing of the weights, and none of them sees a private row.
Edge cases `stopped` ends a run before its last step. The whole run stays charged, and the guarantee stays
           that of all steps: whoever sees noisy weights may stop at any time.
"""

from collections.abc import Mapping
from typing import Protocol

from sfumato.training.loop import TrainingLoop
from sfumato.training.record.progress import ProgressBar

__all__ = ["Reporting"]


class Reporting(Protocol):
    """What a run calls between its steps."""

    @property
    def evaluated(self) -> bool:
        """Whether there is evaluation data."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether the run ends before its last step."""
        ...

    def try_out(self, loop: TrainingLoop) -> None:
        """Find out what cannot work, before the run begins: the charge can still be refunded."""
        ...

    def begin(self, loop: TrainingLoop) -> None:
        """Begin with the first step of this process; those before it were taken by another one."""
        ...

    def before(self, loop: TrainingLoop) -> None:
        """Do what is done before a step."""
        ...

    def after(self, loop: TrainingLoop) -> None:
        """Do what is done after a step, while no checkpoint holds its weights."""
        ...

    def due(self, loop: TrainingLoop) -> bool:
        """Return whether a checkpoint must be written, and `make` called after it."""
        ...

    def make(self, loop: TrainingLoop, bar: ProgressBar) -> None:
        """Show the weights."""
        ...

    def finish(self, loop: TrainingLoop) -> None:
        """Choose the weights that the run returns, from those that it released."""
        ...

    def rewrite(self, loop: TrainingLoop) -> None:
        """Let files hold what the checkpoint of a resumed run knows."""
        ...

    def state(self) -> Mapping[str, str]:
        """Return what a checkpoint keeps."""
        ...

    def load_state(self, state: Mapping[str, str]) -> None:
        """Go on from what `state` returned."""
        ...
