# SPDX-License-Identifier: Apache-2.0
"""The record of the steps taken: how many, and with which noise.

Guarantee  Every step whose gradient could be seen is in the record, with the noise multiplier that it got.
           Nothing removes a step from it; a checkpoint is loaded into an empty record only.
"""

from collections.abc import Iterable

from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.training.privacy.correlated_noise import CorrelatedNoise
from sfumato.training.privacy.dp_sgd import NoisyStep, run_event
from sfumato.training.privacy.noise import NoiseSource
from sfumato.training.privacy.sampling import Sampling

__all__ = ["History", "StepRecord"]

History = tuple[tuple[float, int], ...]  # noise multipliers in order, each with its number of steps in a row


class StepRecord:
    """The steps so far.

    >>> record = StepRecord()
    >>> for noise_multiplier in (1.0, 1.0, 2.0):
    ...     record.count(noise_multiplier)
    >>> record.history, record.steps
    (((1.0, 2), (2.0, 1)), 3)
    """

    def __init__(self, history: History = ()) -> None:
        self._history = history

    @property
    def history(self) -> History:
        """Noise multipliers in order, each with the number of steps in a row that used it."""
        return self._history

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return sum(count for _, count in self._history)

    def count(self, noise_multiplier: float) -> None:
        """Add one step."""
        *before, (noise, count) = self._history or ((noise_multiplier, 0),)
        same = noise == noise_multiplier
        last = [(noise, count + 1)] if same else [(noise, count), (noise_multiplier, 1)]
        self._history = (*before, *last)

    def event(self, step: NoisyStep, sampling: Sampling, relation: Relation, noise: NoiseSource) -> DpEvent:
        """Return what the steps cost together, if batches came from `sampling`, and noise from `noise`."""
        correlation = noise.correlation if isinstance(noise, CorrelatedNoise) else None
        return run_event(step, sampling, self._history, relation, correlation)

    def load(self, history: Iterable[tuple[float, int]]) -> None:
        """Continue from the history of a checkpoint."""
        if self._history:
            raise InvalidParameterError(
                "steps were taken already, and a checkpoint would replace the record of them. Load it into "
                "PrivateGradients that took no step yet."
            )
        self._history = tuple((float(noise), int(count)) for noise, count in history)
