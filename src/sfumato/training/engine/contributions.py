# SPDX-License-Identifier: Apache-2.0
"""Contributions that are computed elsewhere: each unit gives a vector, which is clipped and added up here.

A federated run is a training run whose units are clients: a client trains on its own rows, and its update
takes the place of a gradient. Clipping, noise, the record of steps, ledger and checkpoints are those of any
run.

Guarantee  Whatever a contribution is (zero, huge, infinite, NaN), it moves the clipped sum by at most the
           bound (`privacy.clipping`). A contribution that is not finite counts as none. A `NoisySummer` gives
           sums that have their noise already. It is asked once in each step, also for a batch without units:
           then the sum is noise alone. No noise is added to such a sum here. The model leaves whatever is
           called as it came: otherwise the step is refused (`integrity.release_barrier`).
Unit       One row is one unit, as the data set has it. Copies, padding and weights of rows are refused: what
           is called could not tell padding from the first unit.
Failure    A contributor must not fail because of one unit: it gives zeros for a unit that does not answer or
           answers nonsense. Contributions of another shape than the parameters are refused, because then
           nothing says whose they are.
Not here   Whether a contribution depends on its own unit alone. The contributor has to make sure of that: it
           computes each one apart from the others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError, SfumatoError, UnsupportedUseError
from sfumato.mechanisms.random import Generator
from sfumato.training import distributed
from sfumato.training.data import rows
from sfumato.training.engine import parameter_values
from sfumato.training.engine.functional import FunctionalPass
from sfumato.training.engine.tape.operation import norm_dtype
from sfumato.training.integrity.release_barrier import Barrier
from sfumato.training.privacy.clipping import ClippedSums, Clipper
from sfumato.training.privacy.gradient_pass import GradientPass
from sfumato.training.privacy.noise import Summation
from sfumato.training.privacy.sampling import Sampling

__all__ = [
    "AuditedContributor",
    "ContributionPasses",
    "Contributor",
    "Federation",
    "NoisySumPasses",
    "NoisySummer",
    "SummerOfContributions",
    "federation_of",
    "refuse_other_units",
    "require_room",
    "summation_of",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Federation:
    """That the units of a run are clients, and its steps are rounds: the `federation` of an engine.

    Attributes:
        public_clients: How many clients there are, where they were counted to set the sampling rate: then the
            number is public, and so are all statements about the run. None: a declared number set the rate.
    """

    public_clients: int | None = None

    @property
    def public_fact(self) -> str | None:
        """What a guarantee must say of the number of clients."""
        if self.public_clients is None:
            return None
        return f"the number of clients, {self.public_clients}, is public"


def federation_of(engine: object) -> Federation | None:
    """Return what an engine says of its clients.

    Args:
        engine: What computes the contributions of a run.

    Returns:
        The federation; None if units are no clients.
    """
    found = getattr(engine, "federation", None)
    return found if isinstance(found, Federation) else None


@runtime_checkable
class Contributor(Protocol):
    """What computes the contributions of units, in place of the gradients of a loss."""

    def contributions(self, model: nn.Module, batch: Sequence[Any], *, step: int) -> Mapping[str, Tensor]:
        """Return what units contribute to a step, like gradients: the optimizer moves against them.

        Args:
            model: The model as it is now. It must not be changed.
            batch: The rows of the units.
            step: The number of the step, from 0 on.

        Returns:
            For each trainable parameter, by name, one contribution for each unit: [units, *shape]. Coarse
            types are converted to float32 before they are clipped.
        """
        ...

    def statement(self) -> str:
        """Return what a contribution is, in a sentence for the statement of the run.

        Returns:
            The sentence. It holds nothing private.
        """
        ...


@runtime_checkable
class NoisySummer(Protocol):
    """What computes noisy sums over units, of which no single contribution is seen."""

    @property
    def summation(self) -> Summation:
        """What the sums are, with their event."""
        ...

    @property
    def generator(self) -> Generator | None:
        """Where the noise comes from; None: a secure generator, here or with the clients."""
        ...

    @property
    def largest_batch(self) -> int | None:
        """The most units that can be summed in a step; None: as many as are drawn."""
        ...

    def noisy_sum(
        self, model: nn.Module, batch: Sequence[Any], *, step: int, noise_multiplier: float
    ) -> Mapping[str, Tensor] | None:
        """Return the noisy sum over the units of a step, like gradients: the optimizer moves against it.

        Args:
            model: The model as it is now. It must not be changed.
            batch: The rows of the units; empty if the step has none.
            step: The number of the step, from 0 on.
            noise_multiplier: The noise of the step.

        Returns:
            For each trainable parameter, by name, the sum; None if the step has no sum.
        """
        ...

    def statement(self) -> str:
        """Return what is summed, in a sentence for the statement of the run.

        Returns:
            The sentence. It holds nothing private.
        """
        ...


@runtime_checkable
class AuditedContributor(Contributor, Protocol):
    """A contributor that answers for synthetic units, too: the audit of a run has put them there."""

    def all_made_up(self, batch: Sequence[Any]) -> bool:
        """Return whether all units of a batch are synthetic.

        Args:
            batch: The rows of the units.

        Returns:
            True if nobody is asked for their contributions.
        """
        ...


@runtime_checkable
class SummerOfContributions(NoisySummer, Protocol):
    """A noisy summer that gets single contributions from a contributor of this process."""

    def over(self, change: Callable[[Contributor], Contributor]) -> NoisySummer:
        """Return the same summer over another contributor, such as one with canaries.

        Args:
            change: Makes that contributor from the present one.

        Returns:
            The summer.
        """
        ...


def summation_of(engine: object) -> Summation | None:
    """Return what an engine sums by, if its sums have noise already.

    Args:
        engine: What computes the sums of a run.

    Returns:
        The summation; None if noise must be added.
    """
    return engine.summation if isinstance(engine, NoisySummer) else None


def require_room(engine: object, sampling: Sampling) -> None:
    """Raise if batches may be larger than an engine can sum, before a run is charged.

    A step that is left out because its batch is too large tells that it was: no event of a sampler covers
    that. A sampler of batches that have a largest size has an event that does.

    Args:
        engine: What computes the sums of a run.
        sampling: How batches are formed.

    Raises:
        InvalidParameterError: If a batch may be too large.
    """
    most = engine.largest_batch if isinstance(engine, NoisySummer) else None
    drawn = sampling.static_size
    if most is not None and (drawn is None or drawn > most):
        raise InvalidParameterError(
            f"{type(engine).__name__} can sum at most {most} units in a step, and {type(sampling).__name__} "
            f"may draw more. Use TruncatedPoissonSampling(batch_size={most}, ...), whose event counts what "
            "it leaves out, or sums that have room for all units."
        )


class _CalledPasses:
    """What passes over units have in common if no row is read here."""

    microbatch_size: int | None

    def __init__(self, model: nn.Module, engine: object, step: Callable[[], int]) -> None:
        self._model, self._called, self._step = model, engine, step
        self._parameters = dict(parameter_values.find(model).parameters)
        self._barrier = Barrier(model)

    @property
    def engine(self) -> str:
        """The name of what is called."""
        return type(self._called).__name__

    @property
    def finite(self) -> bool:
        """True: contributions that are not finite were left out already."""
        return True

    @property
    def first(self) -> Sequence[Any]:
        """Nothing: no pass is recorded."""
        return ()

    def clear(self) -> None:
        """Do nothing: no pass is recorded."""

    @property
    def way(self) -> str:
        """How contributions are computed, in one line."""
        return f"{self.engine} is called for each step."

    def step_taken(self, per_unit: int | None) -> None:
        """Do nothing: no other way is tried."""

    def settle(self, batch: Sequence[Any], made_up: Iterable[Sequence[Any]] | None = None) -> None:
        """Do nothing: contributions are not computed here."""

    def again(self, add: Callable[[ClippedSums], None]) -> None:
        """Do nothing: no pass is recorded."""

    def taken(self, batch: Sequence[Any], per_unit: int, recorded: GradientPass) -> ClippedSums:
        """Refuse: a pass that was made already is one of gradients."""
        raise UnsupportedUseError("recorded passes are passes over rows; these units contribute by a call.")

    def rehearse(self, batch: Sequence[Any]) -> bool:
        """Do nothing: units are asked in steps alone. Return that contributions count as finite."""
        return True

    def alone(self, batch: Sequence[Any]) -> dict[str, Tensor]:
        """Refuse: a synthetic row has no contribution."""
        raise UnsupportedUseError("a synthetic row has no contribution: nobody would compute it.")

    def try_synthetic(self, batch: Sequence[Any]) -> None:
        """Do nothing: units are not asked twice."""

    def noisy_sum(self, noise_multiplier: float) -> Mapping[str, Tensor] | None:
        """Return None: noise must be added to the sums."""
        return None

    def _require_shapes(self, given: Mapping[str, Tensor], leading: tuple[int, ...]) -> None:
        wanted = {name: (*leading, *p.shape) for name, p in self._parameters.items()}
        if {name: tuple(value.shape) for name, value in given.items()} != wanted:
            raise SfumatoError(
                "contributions must have one entry for each trainable parameter, [units, *shape], and sums "
                f"one without units. {self.engine} returned others: give zeros for a unit without an answer."
            )


class ContributionPasses(_CalledPasses):
    """Passes over units that a contributor answers for. They take the place of passes over private rows."""

    def __init__(
        self,
        model: nn.Module,
        clipper: Clipper,
        contributor: Contributor,
        *,
        microbatch_size: int | None,
        step: Callable[[], int],
    ) -> None:
        super().__init__(model, contributor, step)
        self.microbatch_size = microbatch_size
        self._clipper, self._contributor = clipper, contributor

    def run(self, batch: Sequence[Any], per_unit: int, add: Callable[[ClippedSums], None]) -> None:
        """Clip the contributions of a batch in pieces of `microbatch_size` units; `add` the sums of each."""
        refuse_other_units(several_rows=per_unit > 1, weights=batch[0] is not None)
        units = rows.count(batch)
        size = self.microbatch_size or max(units, 1)
        for begin in range(0, units, size):
            add(self._clipped(rows.take(batch, slice(begin, begin + size))))

    @torch.no_grad()
    def alone(self, batch: Sequence[Any]) -> dict[str, Tensor]:
        """Return the contribution of one synthetic unit; refuse where somebody would be asked for it."""
        _, *own = batch
        if not (isinstance(self._contributor, AuditedContributor) and self._contributor.all_made_up(own)):
            return super().alone(batch)
        return {name: value[0] for name, value in self._given(own, 1).items()}

    @torch.no_grad()
    def _clipped(self, batch: Sequence[Any]) -> ClippedSums:
        left = units = rows.count(batch)
        _, *own = batch  # without weights of rows, of which there are none
        given = self._given(own, units)
        found = self._clipper.sums(FunctionalPass(given))
        while isinstance(found, Tensor):  # which units are finite; a norm may round to infinity later
            given, left = {name: value[found] for name, value in given.items()}, int(found.sum())
            if not left:
                return ClippedSums({}, torch.full((len(self._clipper.groups),), -0.5 * units))
            found = self._clipper.sums(FunctionalPass(given))
        return found.without(units - left)

    def _given(self, batch: Sequence[Any], units: int) -> dict[str, Tensor]:
        """Return contributions as they are clipped: where the parameters are, and in float32 at least."""
        with self._barrier.guarding():
            given = self._contributor.contributions(self._model, batch, step=self._step())
        self._require_shapes(given, (units,))
        return {name: given[name].to(p.device, norm_dtype(p)) for name, p in self._parameters.items()}


class NoisySumPasses(_CalledPasses):
    """Passes that collect the units of a step, and ask for their noisy sum when the step ends."""

    microbatch_size = None

    def __init__(self, model: nn.Module, summer: NoisySummer, *, step: Callable[[], int]) -> None:
        super().__init__(model, summer, step)
        self._summer = summer
        self._collected: list[Sequence[Any]] = []
        if distributed.size() > 1:
            raise UnsupportedUseError("sums with noise of their own are taken by one process.")

    def clear(self) -> None:
        """Drop the units that were collected."""
        self._collected = []

    def run(self, batch: Sequence[Any], per_unit: int, add: Callable[[ClippedSums], None]) -> None:
        """Collect the units of a batch; nothing is asked yet."""
        refuse_other_units(several_rows=per_unit > 1, weights=batch[0] is not None)
        _, *own = batch  # without the weights of rows
        self._collected.append(own)

    def noisy_sum(self, noise_multiplier: float) -> Mapping[str, Tensor]:
        """Return the noisy sum over the collected units: zeros if the step has none."""
        pieces = list(zip(*self._collected, strict=True))
        batch = [torch.cat(column) for column in pieces]
        with torch.no_grad(), self._barrier.guarding():
            found = self._summer.noisy_sum(
                self._model, batch, step=self._step(), noise_multiplier=noise_multiplier
            )
        if found is None:
            return {name: torch.zeros_like(p) for name, p in self._parameters.items()}
        self._require_shapes(found, ())
        return found


def refuse_other_units(*, several_rows: bool = False, weights: bool = False, groups: bool = False) -> None:
    """Raise if units would be made of something else than one row each, which a contributor cannot see.

    >>> refuse_other_units(groups=True)
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: a contributor answers for one unit a row, ...
    """
    if several_rows or weights or groups:
        raise InvalidParameterError(
            "a contributor answers for one unit a row, as the data has it. Leave out owners, augment, views, "
            "group_size and row_weights: it would take padding for the first unit."
        )
