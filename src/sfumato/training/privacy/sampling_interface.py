# SPDX-License-Identifier: Apache-2.0
"""What every sampler offers, and the checks that samplers share.

Failure    A relation without a proof, and sizes that contradict each other, raise `InvalidParameterError`.
           The true number of units is private, and in no message.
"""

from typing import ClassVar, Protocol

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator
from sfumato.training.privacy.batch_draws import Sampler
from sfumato.training.privacy.epoch_events import Steps

__all__ = [
    "Sampling",
    "require",
    "require_fits",
    "require_public_size",
    "require_same_size",
    "require_units",
]


class Sampling(Protocol):
    """A way to form batches, described by public facts.

    Attributes:
        relations: The relations for which there is a proof.
        amplifies: Whether the event relies on nobody knowing who is in a batch.
    """

    relations: ClassVar[frozenset[Relation]]
    amplifies: ClassVar[bool]

    @property
    def static_size(self) -> int | None:
        """The number of rows of every batch after padding; None if a batch may have any size."""
        ...

    def expected_batch_size(self, public_size: int | None = None) -> float:
        """Return the public number that sums are divided by.

        Args:
            public_size: The public number of units; None if a field of the sampler states it.

        Returns:
            The expected number of units in a batch.

        Raises:
            InvalidParameterError: If it is missing, or contradicts the sampler.
        """
        ...

    def event(self, steps: Steps, *, relation: Relation) -> DpEvent:
        """Return what a run costs.

        Args:
            steps: What the steps release from their batches, in order: events, each with its number of steps.
            relation: Which data sets are neighbors.

        Returns:
            The event of the whole run.

        Raises:
            InvalidParameterError: If there is no proof for this relation.
        """
        ...

    def sampler(self, num_units: int, generator: Generator | None = None) -> Sampler:
        """Return the batches of a run.

        Args:
            num_units: How many units there are. It is private, and in no message.
            generator: The source of randomness; None uses the operating system's entropy.

        Returns:
            A sampler, whose `batch(step)` returns the indices of the units in a batch.

        Raises:
            InvalidParameterError: If the number contradicts the sampler's public size.
        """
        ...


def require(sampling: Sampling, relation: Relation) -> None:
    """Raise unless the sampler's event is proven under the relation.

    >>> from sfumato.training.privacy.sampling import CyclicBatches
    >>> require(CyclicBatches(batch_size=10, public_size=100), Relation.ZERO_OUT)
    """
    relation = Relation.parse(relation)
    if relation not in sampling.relations:
        proven = ", ".join(sorted(r.value for r in sampling.relations))
        raise InvalidParameterError(
            f"{type(sampling).__name__} has no guarantee of its own under {relation.value} neighbors. State "
            f"the run for one of: {proven}; or form batches by PoissonSampling."
        )


def require_units(num_units: int) -> None:
    """Raise unless a number of units is a whole number. It is private, so the message leaves it out."""
    if not isinstance(num_units, int) or isinstance(num_units, bool) or num_units < 0:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError("num_units must be a whole number, 0 or more.")  # private: not echoed


def require_public_size(num_units: int, public_size: int) -> None:
    """Raise unless there are as many units as stated."""
    require_units(num_units)
    if num_units != public_size:
        raise InvalidParameterError("the data set does not have the public_size stated.")


def require_same_size(given: int | None, stated: int) -> None:
    """Raise if a public size was passed that contradicts the stated one."""
    if given is not None and given != stated:
        raise InvalidParameterError(
            f"public_size={given!r} was given, but the sampling is stated for public_size={stated}."
        )


def require_fits(batch_size: int, public_size: int) -> None:
    """Raise unless a batch is at most as large as the data."""
    _check.count(batch_size=batch_size, public_size=public_size)
    if batch_size > public_size:
        raise InvalidParameterError(
            f"batch_size must be at most public_size={public_size}, but {batch_size!r} was given."
        )
