# SPDX-License-Identifier: Apache-2.0
"""Audit a training run from within: gradient canaries, one run, and a lower bound beside the claim.

Canaries   Units of nobody's, whose gradient is as long as clipping lets it be, each in a coordinate of its
           own (Dirac gradients: Nasr et al. 2023). They pass through the run's own sampler, clipping, sums
           and noise, so a mistake in any of these shows. Half of them, drawn at random, are in; where the
           relation replaces units, those that are out have the opposite gradient; where it zeroes them out,
           none.
Unharmed   The coordinates are parameters beside the model, which get noise and nothing else from other units.
           The model sees no canary: what it learns has the distribution it would have had, except where
           clipping adapts itself or is split among layers. Refused where averages of groups are clipped: a
           canary would leave nothing of the units that share its group.
Checked    The self-check of a run looks at its own rows alone. Canaries' rows are zeros, all alike: they show
           no mixing, and a batch of canaries only says nothing about the model.
Guarantee  Of confidence: given who is in, scores of different canaries are independent where sampling takes
           units independently or on a public schedule (Poisson, shuffled, cyclic; nearly so for batches of a
           fixed size), so `one_run.ranks` bounds the chance that one who is in outscores one who is not. What
           that says about epsilon is `claims.bound_of_area`, for the run's own event.
Coins      Fair ones, thrown again until there are canaries enough on both sides. The rule looks at sizes
           alone, so that each subset of a size is still as likely as any other of that size, and that is all
           that `ranks` asks for, which is stated given the sizes. Bounds that count guesses
           (`binary_guesses`, `f_dp`) want plain coins; none is used here.
Scores     The sum over steps of the log likelihood ratio of a canary's noisy coordinate under the claim.
           Wrong code cannot make the bound invalid, whatever the scores become: it just makes it larger.
           Where batches follow a schedule that the event takes for known (shuffled, cyclic), only the steps
           that a canary's place was in count: the schedule does not know who is in.
One run    Canaries are planted for one run, and what is seen of them is evidence about that run alone.
Private    Nothing of the data is looked at but noisy gradients. A verdict costs nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.audit import claims, one_run
from sfumato.audit.results import AuditResult, LowerBound
from sfumato.errors import InvalidParameterError, UnsupportedModelError
from sfumato.mechanisms.random import Generator, resolve, words
from sfumato.training import distributed, rows
from sfumato.training.clipping import Clipping, CoordinateClipping, Scaling
from sfumato.training.data import Batch, Units
from sfumato.training.losses import Loss
from sfumato.training.mechanism import DpSgd
from sfumato.training.sampling import PoissonSampling

__all__ = ["CanariedRun", "Canaries"]

_LONG = 1e6  # times the clip norm: the gradient of a canary before it is clipped
_ATTACK = "ranked scores of gradient canaries in one run"
_UNCERTIFIED = "in epsilons of the claim's accountant, which has no lower bound for this event"
_PARTS = 4  # layers of canary coordinates where layers are clipped on their own


@dataclass(frozen=True, kw_only=True, slots=True)
class Canaries:
    """Gradient canaries for `Trainer(audit=...)`.

    >>> from sfumato.training import Clipping, DpSgd, NoisyStep, PoissonSampling, Trainer
    >>> mechanism = DpSgd(step=NoisyStep(clipping=Clipping(clip_norm=1.0)), relation="add-remove",
    ...                   sampling=PoissonSampling(sampling_rate=1.0), noise=[(1.0, 4)])
    >>> data = torch.zeros(40, 2), torch.zeros(40, dtype=torch.int64)
    >>> run = Trainer(nn.Linear(2, 2), data, mechanism=mechanism, public_size=40, delta=1e-5, progress=False,
    ...               audit=Canaries(count=1000)).fit()
    >>> 0 < run.audit.best.epsilon < run.epsilon
    True
    """

    count: int = 1000
    confidence: float = 0.95

    def __post_init__(self) -> None:
        _check.count(count=self.count)
        _check.probability(confidence=self.confidence)
        least = 4 * one_run.least_canaries(self.confidence)
        if self.count < least:
            raise InvalidParameterError(
                f"{self.count} canaries can show nothing at confidence {self.confidence:g}: use at least "
                f"{least}, better 1000."
            )

    def plant(self, units: Units, mechanism: DpSgd, generator: Generator | None) -> "CanariedRun":
        """Put canaries among the units of a run."""
        clipping = mechanism.step.clipping
        if isinstance(clipping, Clipping) and clipping.layer_norms is not None:
            raise InvalidParameterError(
                "layer_norms name every layer, and canaries are none of them. Say clip_norm and per_layer."
            )
        if isinstance(clipping, CoordinateClipping):
            raise InvalidParameterError(
                "clipping by coordinate has a bound that grows with the number of parameters, and canaries "
                "would add to it: the model would get more noise. Clip by norm to audit a run."
            )
        if mechanism.step.group_size > 1:
            raise InvalidParameterError(
                f"group_size={mechanism.step.group_size} clips averages of groups, and the gradient of a "
                "canary would leave nothing of the units in its group: the model would learn nothing. Audit "
                "a run with group_size=1, or train this one without audit=..."
            )
        least = one_run.least_canaries(self.confidence)
        drawn = distributed.first_decides(lambda: _halves(self.count, least, generator))
        return CanariedRun(self, units, mechanism, drawn)


def _halves(count: int, least: int, generator: Generator | None) -> Tensor:
    """Return who is in: by fair coins, thrown again while fewer than `least` are in or out.

    With 4 * `least` canaries, the fewest there may be, that happens about once in 100 times.
    """
    source, attempt = resolve(generator), 0
    present = _coins(count, source.fork("canaries", attempt))
    while not least <= int(present.sum()) <= count - least:
        attempt += 1
        present = _coins(count, source.fork("canaries", attempt))
    return present


def _coins(count: int, generator: Generator) -> Tensor:
    return torch.from_numpy((words(count, generator) >> 63).astype(bool))


class CanariedRun:
    """The canaries of one run: who is in, where their coordinates are, and what was seen of them."""

    def __init__(self, settings: Canaries, units: Units, mechanism: DpSgd, present: Tensor) -> None:
        self._settings, self._mechanism, self._present = settings, mechanism, present
        clipping = mechanism.step.clipping
        layered = isinstance(clipping, Clipping) and clipping.per_layer
        self._marks = _Marks(settings.count, parts=_PARTS if layered else 1)
        self._length = _gradient_length(clipping) if isinstance(clipping, Clipping) else _LONG
        self._scores = torch.zeros(settings.count, dtype=torch.float64)
        self._units = _CanariedUnits(units, *_seated(present, mechanism.relation))

    @property
    def units(self) -> Units:
        """The run's units, and canaries after them."""
        return self._units

    def host(self, model: nn.Module) -> nn.Module:
        """Return a module that holds the model and the canaries' coordinates."""
        first = next(model.parameters())
        return _Host(model, self._marks.to(first.device))

    def loss(self, loss: Loss) -> Loss:
        """Return the loss of rows some of which are canaries, with a gradient in their coordinate alone."""
        length = self._length

        def canaried(host: Any, *batch: Any) -> Tensor:
            *given, places, signs = batch
            others = loss(host.model, *given)
            return torch.where(places > 0, signs * length * host.marks(places), others)

        return canaried

    def real_rows(self, batch: Batch) -> int:
        """Return how many rows of a batch are of the run's own units; they come first."""
        return int((batch.rows[-2] == 0).sum()) if batch.rows else 0

    def require(self, *, finite: bool) -> None:
        """Raise unless the gradients of canaries were all finite."""
        if not finite:
            raise UnsupportedModelError(
                "the rows of canaries are zeros, and the gradient of the loss at a row of zeros is not "
                "finite. Such units contribute nothing, so an audit would show nothing. Make the loss smooth "
                "there (no norm, root, logarithm or division without a constant added), or leave audit=... "
                "out."
            )

    def counted(self) -> str:
        """Return the sentence that says how canaries count among a public number of units."""
        stated, canaries = getattr(self._mechanism.sampling, "public_size", None), self._settings.count
        told = f" If {stated} is that of the data alone, give {stated + canaries}." if stated else ""
        return (
            f"Canaries count among the units: state public_size for the data and {canaries} canaries "
            f"together.{told}"
        )

    def observe(
        self, units: Tensor, *, noise_multiplier: float, bound: float, expected_batch_size: float
    ) -> None:
        """Add up what a step tells about each canary."""
        seen = self._marks.gradient().double().cpu() * expected_batch_size / bound
        evidence = self._evidence(seen, noise_multiplier)
        self._scores += evidence if self._mechanism.sampling.amplifies else evidence * self._in_batch(units)

    def _in_batch(self, units: Tensor) -> Tensor:
        """Return 1 for canaries whose place was in the batch, and 0 for others; all have a place."""
        found = torch.zeros(self._settings.count, device=self._marks.device)
        seats = units - self._units.first_seat
        found[seats[seats >= 0].to(found.device)] = 1
        distributed.add_up_([found])  # each rank has units of its own
        return found.double().cpu()

    def _evidence(self, seen: Tensor, noise: float) -> Tensor:
        """Return log likelihood ratios of in over out, for contributions in multiples of the bound."""
        sampling = self._mechanism.sampling
        rate = sampling.sampling_rate if isinstance(sampling, PoissonSampling) else 1.0
        there = _log_ratio(seen, noise, rate)
        return there - _log_ratio(-seen, noise, rate) if self._mechanism.relation.replaces else there

    def judge(self, claim: Guarantee) -> AuditResult:
        """Return the claim and the lower bound that the scores so far give."""
        inside, outside = self._scores[self._present].numpy(), self._scores[~self._present].numpy()
        area = one_run.ranks(inside, outside, confidence=self._settings.confidence)
        mechanism = self._mechanism
        shown = claims.bound_of_area(
            area, lambda factor: mechanism.scaled(factor).event(), delta=claim.delta, relation=claim.relation
        )
        found = LowerBound(
            epsilon=shown.epsilon,
            delta=claim.delta,
            confidence=self._settings.confidence,
            attack=_ATTACK if shown.certified else f"{_ATTACK}, {_UNCERTIFIED}",
            trials=self._settings.count,
        )
        return AuditResult(
            subject=f"DP-SGD in {mechanism.steps} steps",
            claim=claim,
            bounds=(found,),
            in_scores=tuple(inside.tolist()),
            out_scores=tuple(outside.tolist()),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return who is in, and the scores so far."""
        return {"present": self._present, "scores": self._scores.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._present = state["present"]
        self._scores = state["scores"].clone()
        self._units.seat(*_seated(self._present, self._mechanism.relation))


def _gradient_length(clipping: Clipping) -> float:
    """Return how long a canary's gradient is before clipping, which leaves it as long as can be."""
    if clipping.scaling is Scaling.GLOBAL and clipping.drop_above is not None:
        return clipping.drop_above * (1 - 1e-6)  # a longer one would be dropped
    return _LONG * (clipping.clip_norm or 1.0)


def _log_ratio(seen: Tensor, noise: float, rate: float) -> Tensor:
    """Return log(1 - rate + rate exp((seen - 1/2) / noise^2)), of a unit that is in with chance `rate`."""
    present = (seen - 0.5) / noise**2
    if rate == 1.0:
        return present
    return torch.logaddexp(present + math.log(rate), torch.tensor(math.log1p(-rate), dtype=seen.dtype))


def _seated(present: Tensor, relation: Relation) -> tuple[Tensor, Tensor]:
    """Return which canaries are units of the run, by number from 1, and the sign of each one's gradient."""
    numbers = torch.arange(1, len(present) + 1)
    if relation is Relation.ADD_REMOVE:
        return numbers[present], torch.ones(int(present.sum()))
    absent = -1.0 if relation.replaces else 0.0
    return numbers, torch.where(present, 1.0, absent)


class _Marks(nn.Module):
    """A coordinate for each canary, in one layer or several; number 0 is everybody else's, and not read."""

    def __init__(self, count: int, *, parts: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Embedding(count + 1, 1) for _ in range(parts))
        for part in self.parts:
            nn.init.zeros_(part.weight)  # type: ignore[arg-type]  # an embedding's

    def forward(self, places: Tensor) -> Tensor:
        return torch.stack([part(places).squeeze(-1) for part in self.parts]).sum(0) / math.sqrt(
            len(self.parts)
        )

    @property
    def device(self) -> torch.device:
        """Where the coordinates are."""
        return next(self.parameters()).device

    def gradient(self) -> Tensor:
        """Return the gradient in the direction of each canary."""
        found = [part.weight.grad[1:, 0] for part in self.parts]  # type: ignore[index,union-attr]  # a step was taken
        return torch.stack(found).sum(0) / math.sqrt(len(self.parts))


class _Host(nn.Module):
    def __init__(self, model: nn.Module, marks: _Marks) -> None:
        super().__init__()
        self.model, self.marks = model, marks

    def forward(self, *inputs: Any) -> Any:
        return self.model(*inputs)


class _CanariedUnits(Units):
    """Units with canaries after them: their rows are zeros, and say which canary they are."""

    def __init__(self, inner: Units, numbers: Tensor, signs: Tensor) -> None:
        self._inner = inner
        self.seat(numbers, signs)

    def seat(self, numbers: Tensor, signs: Tensor) -> None:
        """Say which canaries take part."""
        self._seats, self._signs = numbers, signs

    @property
    def deferred(self) -> bool:
        return self._inner.deferred

    def open(self) -> None:
        self._inner.open()

    @property
    def first_seat(self) -> int:
        """The number of the first canary among the units."""
        return self._inner.num_units

    @property
    def num_units(self) -> int:
        return self.first_seat + len(self._seats)

    @property
    def by_owner(self) -> bool:
        return self._inner.by_owner

    def blank(self, units: int) -> tuple[Any, ...] | None:
        """Return rows of zeros, each that of a canary: in a rehearsal, their gradients must be finite."""
        found = self._inner.blank(units)
        return None if found is None else (*found, torch.arange(1, units + 1), torch.ones(units))

    def take(self, units: Tensor, generator: Generator | None = None) -> Batch:
        """Return the rows of units and canaries; canaries come last.

        Where nobody knows what a row looks like, as of a data set without rows, canaries have none.
        """
        mine = units >= self.first_seat
        others = self._inner.take(units[~mine], generator)
        seats = units[mine] - self.first_seat
        given = others.rows or self._inner.blank(0)
        return Batch(()) if not len(units) or given is None else self._joined(others, given, seats)

    def _joined(self, others: Batch, given: tuple[Any, ...], seats: Tensor) -> Batch:
        numbers, signs, width = self._seats[seats], self._signs[seats], others.rows_per_unit
        before, more = rows.count(given), len(numbers) * width
        given = rows.padded(given, before + more)
        places, turned = (torch.zeros(before + more, dtype=kind) for kind in (torch.int64, torch.float32))
        places[before:], turned[before:] = numbers.repeat_interleave(width), signs.repeat_interleave(width)
        weights = others.row_weights
        if weights is not None or width > 1:
            own = torch.full((len(numbers), width), 1 / width)  # averaged, as an owner's rows are
            weights = torch.cat([torch.ones(before) if weights is None else weights, own.flatten()])
        return Batch((*given, places, turned), width, weights, others.numbers)
