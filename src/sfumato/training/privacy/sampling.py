# SPDX-License-Identifier: Apache-2.0
"""How batches are formed: each way with the event it earns, and no more.

Guarantee  A run whose batches come from `sampling.sampler(...)`, one `batch(step)` for each step, and whose
           step t releases the event e_t of the sum over its batch, is described by `sampling.event`.
Neighbors  `event` is told the relation, and refuses one for which there is no proof:
               PoissonSampling            all four; the number of units is private
               TruncatedPoissonSampling   all four; the number of units is at most a public number
               FixedSizeSampling          replace-one and replace-label; the number of units is public
               ShuffledBatches, CyclicBatches   zero-out, replace-one, replace-label: where removing a unit
                                          would move all others into other batches, nothing is claimed
Amplified  By the first three, whose batches hide who is in them. Shuffled and cyclic batches are accounted as
           if everybody knew them: each unit takes part once in an epoch, so that an epoch costs what its
           dearest step costs. (Permutations are independent of the data. Given them, neighbors differ in
           one step of each epoch, and all others are the same function of what was released before.)
Facts      Public facts are fields; how many units there are really is an argument of `sampler`, and where it
           contradicts `public_size` the error does not say by how much.
Dividing   By `expected_batch_size`, a public constant; never by the size of a batch.
Unit       One index is one privacy unit.
Source     Shuffling is not Poisson sampling: Chua et al. 2024, arXiv:2403.17673 and arXiv:2411.04205.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from sfumato import _check
from sfumato.accounting import events
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError, UnsupportedEventError
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

Steps = Sequence[tuple[DpEvent, int]]  # what the steps release without sampling, in order: (event, how often)

_PUBLIC_SIZE = frozenset({Relation.REPLACE_ONE, Relation.REPLACE_LABEL})


class Sampling(Protocol):
    """A way to form batches, by its public facts."""

    relations: ClassVar[frozenset[Relation]]
    amplifies: ClassVar[bool]  # whether its event relies on nobody knowing who is in a batch

    @property
    def static_size(self) -> int | None:
        """The rows of every batch once padded; None where a batch may have any size."""
        ...

    def expected_batch_size(self, public_size: int | None = None) -> float:
        """Return the public number to divide sums by. `public_size` may be left out where a field says it."""
        ...

    def event(self, steps: Steps, *, relation: Relation) -> DpEvent:
        """Return what a run does whose steps release `steps` from their batches, in order."""
        ...

    def sampler(self, num_units: int, generator: Generator | None = None) -> Sampler:
        """Return the batches of a run over `num_units` units."""
        ...


def require(sampling: Sampling, relation: Relation) -> None:
    """Raise unless there is a proof for batches formed so, under the relation.

    >>> require(CyclicBatches(batch_size=10, public_size=100), Relation.ZERO_OUT)
    """
    relation = Relation.parse(relation)
    if relation not in sampling.relations:
        proven = ", ".join(sorted(r.value for r in sampling.relations))
        raise InvalidParameterError(
            f"{type(sampling).__name__} has no guarantee of its own under {relation.value} neighbors. State "
            f"the run for one of: {proven}; or form batches by PoissonSampling."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PoissonSampling:
    """Each unit is in each batch with the same chance, independently; a batch may have any size, even none.

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
        """Return `sampling_rate * public_size` (see `Sampling`)."""
        if public_size is None:
            raise InvalidParameterError(
                "the expected size of a Poisson batch needs a public_size: a number of units that may be "
                "known, such as a rounded one. It scales the gradient; the guarantee does not depend on it."
            )
        _check.count(public_size=public_size)
        return self.sampling_rate * public_size

    def event(self, steps: Steps, *, relation: Relation) -> DpEvent:
        """Return Poisson-sampled steps (see `Sampling`)."""
        require(self, relation)
        return _composed([(events.poisson_sampled(e, sampling_rate=self.sampling_rate), n) for e, n in steps])

    def sampler(self, num_units: int, generator: Generator | None = None) -> Sampler:
        """Return the batches of a run (see `Sampling`)."""
        _require_units(num_units)
        return IndependentSampler(lambda stream: poisson(num_units, self.sampling_rate, stream), generator)


@dataclass(frozen=True, kw_only=True, slots=True)
class TruncatedPoissonSampling:
    """Poisson batches, of which a uniformly random `batch_size` are kept where there are more: fixed shapes.

    A batch that is cut makes the presence of one unit decide about another, which costs; `batch_size` five
    standard deviations above `sampling_rate * public_size` makes that cost vanish. `public_size` is the most
    units there may be.
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
        """Return `sampling_rate * public_size`, at most `batch_size` (see `Sampling`)."""
        _require_same_size(public_size, self.public_size)
        return min(self.sampling_rate * self.public_size, float(self.batch_size))

    def event(self, steps: Steps, *, relation: Relation) -> DpEvent:
        """Return truncated Poisson-sampled steps (see `Sampling`)."""
        require(self, relation)
        rate, most, size = self.sampling_rate, self.batch_size, self.public_size
        return _composed([(events.TruncatedPoissonSampledDpEvent(rate, most, size, e), n) for e, n in steps])

    def sampler(self, num_units: int, generator: Generator | None = None) -> Sampler:
        """Return the batches of a run (see `Sampling`)."""
        _require_units(num_units)
        if num_units > self.public_size:
            raise InvalidParameterError("the data set has more units than the public_size stated.")
        return IndependentSampler(
            lambda stream: truncated_poisson(num_units, self.sampling_rate, self.batch_size, stream),
            generator,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedSizeSampling:
    """Each batch is a fresh uniformly random `batch_size` of the `public_size` units, without replacement."""

    relations: ClassVar[frozenset[Relation]] = _PUBLIC_SIZE
    amplifies: ClassVar[bool] = True
    batch_size: int
    public_size: int

    def __post_init__(self) -> None:
        _require_fits(self.batch_size, self.public_size)

    @property
    def static_size(self) -> int | None:
        """The units in every batch."""
        return self.batch_size

    def expected_batch_size(self, public_size: int | None = None) -> float:
        """Return `batch_size` (see `Sampling`)."""
        _require_same_size(public_size, self.public_size)
        return float(self.batch_size)

    def event(self, steps: Steps, *, relation: Relation) -> DpEvent:
        """Return steps that are sampled without replacement (see `Sampling`)."""
        require(self, relation)
        if self.batch_size == self.public_size:
            return _composed(steps)
        size, most = self.public_size, self.batch_size
        return _composed([(dp.SampledWithoutReplacementDpEvent(size, most, e), n) for e, n in steps])

    def sampler(self, num_units: int, generator: Generator | None = None) -> Sampler:
        """Return the batches of a run (see `Sampling`)."""
        _require_public_size(num_units, self.public_size)
        return IndependentSampler(lambda stream: subset(num_units, self.batch_size, stream), generator)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShuffledBatches:
    """A fresh permutation each epoch, cut into batches. Nothing is amplified: see the module's docstring.

    >>> batches = ShuffledBatches(batch_size=25, public_size=100)
    >>> batches.event([(dp.GaussianDpEvent(2.0), 6), (dp.GaussianDpEvent(1.0), 2)], relation="replace-one")
    ComposedDpEvent(events=[GaussianDpEvent(noise_multiplier=2.0), GaussianDpEvent(noise_multiplier=1.0)])
    """

    relations: ClassVar[frozenset[Relation]] = _PUBLIC_SIZE | {Relation.ZERO_OUT}
    amplifies: ClassVar[bool] = False
    batch_size: int
    public_size: int

    def __post_init__(self) -> None:
        _require_fits(self.batch_size, self.public_size)

    @property
    def static_size(self) -> int | None:
        """The most units in a batch; the last of an epoch may have fewer."""
        return self.batch_size

    @property
    def steps_per_epoch(self) -> int:
        """How many batches show every unit once."""
        return -(-self.public_size // self.batch_size)

    def expected_batch_size(self, public_size: int | None = None) -> float:
        """Return `batch_size` (see `Sampling`)."""
        _require_same_size(public_size, self.public_size)
        return float(self.batch_size)

    def event(self, steps: Steps, *, relation: Relation) -> DpEvent:
        """Return the dearest step of each epoch (see `Sampling`)."""
        require(self, relation)
        return _composed(_once_per_epoch(steps, self.steps_per_epoch))

    def sampler(self, num_units: int, generator: Generator | None = None) -> Sampler:
        """Return the batches of a run (see `Sampling`)."""
        _require_public_size(num_units, self.public_size)
        return ShuffledSampler(num_units, self.batch_size, generator)


@dataclass(frozen=True, kw_only=True, slots=True)
class CyclicBatches:
    """The units in their own order, cut into batches, the same in every epoch. Nothing is amplified."""

    relations: ClassVar[frozenset[Relation]] = _PUBLIC_SIZE | {Relation.ZERO_OUT}
    amplifies: ClassVar[bool] = False
    batch_size: int
    public_size: int

    def __post_init__(self) -> None:
        _require_fits(self.batch_size, self.public_size)

    @property
    def static_size(self) -> int | None:
        """The most units in a batch; the last of an epoch may have fewer."""
        return self.batch_size

    @property
    def steps_per_epoch(self) -> int:
        """How many batches show every unit once."""
        return -(-self.public_size // self.batch_size)

    def expected_batch_size(self, public_size: int | None = None) -> float:
        """Return `batch_size` (see `Sampling`)."""
        _require_same_size(public_size, self.public_size)
        return float(self.batch_size)

    def event(self, steps: Steps, *, relation: Relation) -> DpEvent:
        """Return the dearest step of each epoch (see `Sampling`)."""
        require(self, relation)
        return _composed(_once_per_epoch(steps, self.steps_per_epoch))

    def sampler(self, num_units: int, generator: Generator | None = None) -> Sampler:
        """Return the batches of a run (see `Sampling`); nothing is random in them."""
        _require_public_size(num_units, self.public_size)
        return CyclicSampler(num_units, self.batch_size)


# --- events ----------------------------------------------------------------------------------------------


def _composed(steps: Steps) -> DpEvent:
    for _, count in steps:
        _check.count(count_of_steps=count)
    return events.compose(*(dp.SelfComposedDpEvent(event, count) for event, count in steps))


def _once_per_epoch(steps: Steps, steps_per_epoch: int) -> list[tuple[DpEvent, int]]:
    """Return the dearest event of each epoch with how many epochs it stands for; a begun epoch counts."""
    epochs: list[tuple[DpEvent, int]] = []
    seen: list[DpEvent] = []
    room = steps_per_epoch
    for event, count in steps:
        _check.count(count_of_steps=count)
        while count > 0:
            if room == steps_per_epoch and count >= steps_per_epoch:  # whole epochs of this event alone
                epochs.append((event, count // steps_per_epoch))
                count %= steps_per_epoch
                continue
            seen.append(event)
            taken = min(count, room)
            room, count = room - taken, count - taken
            if room == 0:
                epochs.append((_dearest(seen), 1))
                seen, room = [], steps_per_epoch
    return [*epochs, (_dearest(seen), 1)] if seen else epochs


def _dearest(parts: Sequence[DpEvent]) -> DpEvent:
    """Return the one that costs most at every delta, under every relation: that of the least noise."""
    if all(part == parts[0] for part in parts):
        return parts[0]
    scales = [events.gaussian_scale(part) for part in parts]
    if all(scale is not None for scale in scales):
        return min(zip(scales, parts, strict=True), key=lambda pair: pair[0] or 0.0)[1]
    projected = [part for part in parts if isinstance(part, events.JohnsonLindenstraussDpEvent)]
    if len(projected) == len(parts) and len({part.projections for part in projected}) == 1:
        return min(projected, key=lambda part: part.noise_multiplier)
    raise UnsupportedEventError(
        "the steps of one epoch release events that differ in more than their Gaussian noise, so none is "
        "known to be the dearest. Keep the event the same within an epoch, or use Gaussian noise."
    )


# --- sizes -----------------------------------------------------------------------------------------------


def _require_units(num_units: int) -> None:
    if not isinstance(num_units, int) or isinstance(num_units, bool) or num_units < 0:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError("num_units must be a whole number, 0 or more.")  # private: not echoed


def _require_public_size(num_units: int, public_size: int) -> None:
    _require_units(num_units)
    if num_units != public_size:
        raise InvalidParameterError("the data set does not have the public_size stated.")


def _require_same_size(given: int | None, stated: int) -> None:
    if given is not None and given != stated:
        raise InvalidParameterError(
            f"public_size={given!r} was given, but the sampling is stated for public_size={stated}."
        )


def _require_fits(batch_size: int, public_size: int) -> None:
    _check.count(batch_size=batch_size, public_size=public_size)
    if batch_size > public_size:
        raise InvalidParameterError(
            f"batch_size must be at most public_size={public_size}, but {batch_size!r} was given."
        )
