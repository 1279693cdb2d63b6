# SPDX-License-Identifier: Apache-2.0
"""Samplers: how batches are formed, and the event that each way has.

Guarantee  A run whose batches come from `sampling.sampler(...)`, one `batch(step)` for each step, and whose
           step t releases the event e_t of the sum over its batch, is described by `sampling.event`.
Neighbors  `event` takes the relation, and refuses one for which there is no proof:
               PoissonSampling            all four; the number of units is private
               TruncatedPoissonSampling   all four; the number of units is at most a public number
               FixedSizeSampling          replace-one and replace-label; the number of units is public
               ShuffledBatches, CyclicBatches   zero-out, replace-one, replace-label. Removing a unit would
                                          move all others into other batches, so nothing is claimed for it
Unit       One index is one privacy unit.
Failure    If the number of units contradicts `public_size`, the error does not reveal by how much.
Source     Shuffling is not Poisson sampling: Chua et al. 2024, arXiv:2403.17673 and arXiv:2411.04205.

The first three samplers amplify privacy: their batches hide who is in them. Shuffled and cyclic batches are
accounted as if everybody knew them: each unit takes part once in an epoch, so an epoch costs as much as its
most expensive step (`epoch_events`). Sums are divided by `expected_batch_size`, a public constant, never by
the size of a batch. Public facts are fields; the true number of units is an argument of `sampler`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from sfumato import _check
from sfumato.accounting import events
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator
from sfumato.training.privacy.batch_draws import (
    CyclicSampler,
    IndependentSampler,
    Sampler,
    ShuffledSampler,
    poisson,
    subset,
    truncated_poisson,
)
from sfumato.training.privacy.epoch_events import Steps, composed, once_per_epoch
from sfumato.training.privacy.sampling_interface import (
    Sampling,
    require,
    require_fits,
    require_public_size,
    require_same_size,
    require_units,
)

__all__ = [
    "CyclicBatches",
    "FixedSizeSampling",
    "PoissonSampling",
    "Sampler",
    "Sampling",
    "ShuffledBatches",
    "Steps",
    "TruncatedPoissonSampling",
    "require",
]

_PUBLIC_SIZE = frozenset({Relation.REPLACE_ONE, Relation.REPLACE_LABEL})


@dataclass(frozen=True, kw_only=True, slots=True)
class PoissonSampling:
    """Each unit is in each batch with the same probability, independently. A batch may have any size, even 0.

    Args:
        sampling_rate: The probability that a unit is in a batch.

    Raises:
        InvalidParameterError: If a setting is out of range.

    >>> run = PoissonSampling(sampling_rate=0.01).event([(dp.GaussianDpEvent(1.0), 3)], relation="add-remove")
    >>> run.event.sampling_probability, run.count
    (0.01, 3)
    """

    relations: ClassVar[frozenset[Relation]] = frozenset(Relation)
    amplifies: ClassVar[bool] = True
    sampling_rate: float

    def __post_init__(self) -> None:
        _check.rate(sampling_rate=self.sampling_rate)

    @property
    def static_size(self) -> int | None:
        """None: a batch may have any size."""
        return None

    def expected_batch_size(self, public_size: int | None = None) -> float:
        """Return `sampling_rate * public_size`.

        Args:
            public_size: As for `Sampling.expected_batch_size`.

        Returns:
            The public number that sums are divided by.

        Raises:
            InvalidParameterError: If a setting is out of range.
        """
        if public_size is None:
            raise InvalidParameterError(
                "the expected size of a Poisson batch needs a public_size: a number of units that may be "
                "known, such as the planned one. It scales the gradient; the guarantee does not depend on it."
            )
        _check.count(public_size=public_size)
        return self.sampling_rate * public_size

    def event(self, steps: Steps, *, relation: Relation) -> DpEvent:
        """Return Poisson-sampled steps.

        Args:
            steps: As for `Sampling.event`.
            relation: Which data sets are neighbors.

        Returns:
            The event of the whole run.
        """
        require(self, relation)
        return composed([(events.poisson_sampled(e, sampling_rate=self.sampling_rate), n) for e, n in steps])

    def sampler(self, num_units: int, generator: Generator | None = None) -> Sampler:
        """Return the batches of a run.

        Args:
            num_units: How many units there are.
            generator: The source of randomness; None uses the operating system's entropy.

        Returns:
            The sampler of a run.
        """
        require_units(num_units)
        return IndependentSampler(lambda stream: poisson(num_units, self.sampling_rate, stream), generator)


@dataclass(frozen=True, kw_only=True, slots=True)
class TruncatedPoissonSampling:
    """Poisson batches of at most `batch_size` units: a random `batch_size` of a larger one are kept.

    In a batch that is cut, the presence of one unit decides about another, which costs privacy. A
    `batch_size` five standard deviations above `sampling_rate * public_size` makes that cost vanish.

    Args:
        sampling_rate: The probability that a unit is drawn.
        batch_size: The most units in a batch.
        public_size: The most units there may be, public.

    Raises:
        InvalidParameterError: If a setting is out of range.
    """

    relations: ClassVar[frozenset[Relation]] = frozenset(Relation)
    amplifies: ClassVar[bool] = True
    sampling_rate: float
    batch_size: int
    public_size: int

    def __post_init__(self) -> None:
        _check.rate(sampling_rate=self.sampling_rate)
        _check.count(batch_size=self.batch_size, public_size=self.public_size)

    @property
    def static_size(self) -> int | None:
        """The most units in a batch."""
        return self.batch_size

    def expected_batch_size(self, public_size: int | None = None) -> float:
        """Return `sampling_rate * public_size`, at most `batch_size`.

        Args:
            public_size: As for `Sampling.expected_batch_size`.

        Returns:
            The public number that sums are divided by.
        """
        require_same_size(public_size, self.public_size)
        return min(self.sampling_rate * self.public_size, float(self.batch_size))

    def event(self, steps: Steps, *, relation: Relation) -> DpEvent:
        """Return truncated Poisson-sampled steps.

        Args:
            steps: As for `Sampling.event`.
            relation: Which data sets are neighbors.

        Returns:
            The event of the whole run.
        """
        require(self, relation)
        rate, most, size = self.sampling_rate, self.batch_size, self.public_size
        return composed([(events.TruncatedPoissonSampledDpEvent(rate, most, size, e), n) for e, n in steps])

    def sampler(self, num_units: int, generator: Generator | None = None) -> Sampler:
        """Return the batches of a run.

        Args:
            num_units: How many units there are.
            generator: The source of randomness; None uses the operating system's entropy.

        Returns:
            The sampler of a run.

        Raises:
            InvalidParameterError: If a setting is out of range.
        """
        require_units(num_units)
        if num_units > self.public_size:
            raise InvalidParameterError("the data set has more units than the public_size stated.")
        return IndependentSampler(
            lambda stream: truncated_poisson(num_units, self.sampling_rate, self.batch_size, stream),
            generator,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedSizeSampling:
    """Each batch is a fresh random subset of the units, drawn without replacement.

    Args:
        batch_size: The number of units in a batch.
        public_size: The number of units, public.
    """

    relations: ClassVar[frozenset[Relation]] = _PUBLIC_SIZE
    amplifies: ClassVar[bool] = True
    batch_size: int
    public_size: int

    def __post_init__(self) -> None:
        require_fits(self.batch_size, self.public_size)

    @property
    def static_size(self) -> int | None:
        """The units in every batch."""
        return self.batch_size

    def expected_batch_size(self, public_size: int | None = None) -> float:
        """Return `batch_size`.

        Args:
            public_size: As for `Sampling.expected_batch_size`.

        Returns:
            The public number that sums are divided by.
        """
        require_same_size(public_size, self.public_size)
        return float(self.batch_size)

    def event(self, steps: Steps, *, relation: Relation) -> DpEvent:
        """Return steps that are sampled without replacement.

        Args:
            steps: As for `Sampling.event`.
            relation: Which data sets are neighbors.

        Returns:
            The event of the whole run.
        """
        require(self, relation)
        if self.batch_size == self.public_size:
            return composed(steps)
        size, most = self.public_size, self.batch_size
        return composed([(dp.SampledWithoutReplacementDpEvent(size, most, e), n) for e, n in steps])

    def sampler(self, num_units: int, generator: Generator | None = None) -> Sampler:
        """Return the batches of a run.

        Args:
            num_units: How many units there are.
            generator: The source of randomness; None uses the operating system's entropy.

        Returns:
            The sampler of a run.
        """
        require_public_size(num_units, self.public_size)
        return IndependentSampler(lambda stream: subset(num_units, self.batch_size, stream), generator)


@dataclass(frozen=True, kw_only=True, slots=True)
class _EpochBatches(ABC):
    """Batches of which each epoch shows every unit once. They amplify nothing."""

    relations: ClassVar[frozenset[Relation]] = _PUBLIC_SIZE | {Relation.ZERO_OUT}
    amplifies: ClassVar[bool] = False
    batch_size: int
    public_size: int

    def __post_init__(self) -> None:
        require_fits(self.batch_size, self.public_size)

    @property
    def static_size(self) -> int | None:
        """The most units in a batch; the last of an epoch may have fewer."""
        return self.batch_size

    @property
    def steps_per_epoch(self) -> int:
        """How many batches show every unit once."""
        return -(-self.public_size // self.batch_size)

    def expected_batch_size(self, public_size: int | None = None) -> float:
        """Return `batch_size`.

        Args:
            public_size: As for `Sampling.expected_batch_size`.

        Returns:
            The public number that sums are divided by.
        """
        require_same_size(public_size, self.public_size)
        return float(self.batch_size)

    def event(self, steps: Steps, *, relation: Relation) -> DpEvent:
        """Return the most expensive step of each epoch.

        Args:
            steps: As for `Sampling.event`.
            relation: Which data sets are neighbors.

        Returns:
            The event of the whole run.
        """
        require(self, relation)
        return composed(once_per_epoch(steps, self.steps_per_epoch))

    @abstractmethod
    def sampler(self, num_units: int, generator: Generator | None = None) -> Sampler:
        """Return the batches of a run (see `Sampling`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShuffledBatches(_EpochBatches):
    """A fresh permutation each epoch, cut into batches. They amplify nothing: see the module's docstring.

    Args:
        batch_size: The number of units in a batch; the last batch of an epoch may have fewer.
        public_size: The number of units, public.

    >>> batches = ShuffledBatches(batch_size=25, public_size=100)
    >>> batches.event([(dp.GaussianDpEvent(2.0), 6), (dp.GaussianDpEvent(1.0), 2)], relation="replace-one")
    ComposedDpEvent(events=[GaussianDpEvent(noise_multiplier=2.0), GaussianDpEvent(noise_multiplier=1.0)])
    """

    def sampler(self, num_units: int, generator: Generator | None = None) -> Sampler:
        """Return the batches of a run.

        Args:
            num_units: How many units there are.
            generator: The source of randomness; None uses the operating system's entropy.

        Returns:
            The sampler of a run.
        """
        require_public_size(num_units, self.public_size)
        return ShuffledSampler(num_units, self.batch_size, generator)


@dataclass(frozen=True, kw_only=True, slots=True)
class CyclicBatches(_EpochBatches):
    """The units in their own order, cut into batches, the same in every epoch. They amplify nothing.

    Args:
        batch_size: The number of units in a batch; the last batch of an epoch may have fewer.
        public_size: The number of units, public.
    """

    def sampler(self, num_units: int, generator: Generator | None = None) -> Sampler:
        """Return the batches of a run. Nothing is random in them.

        Args:
            num_units: How many units there are.
            generator: The source of randomness; None uses the operating system's entropy.

        Returns:
            The sampler of a run.
        """
        require_public_size(num_units, self.public_size)
        return CyclicSampler(num_units, self.batch_size)
