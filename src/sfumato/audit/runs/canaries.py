# SPDX-License-Identifier: Apache-2.0
"""Audit a training run from within: gradient canaries, one run, and a lower bound beside the claim.

Canaries   Units of nobody's, whose gradient is as long as clipping lets it be, each in a coordinate of its
           own (Dirac gradients: Nasr et al. 2023). They pass through the run's own sampler, clipping, sums
           and noise, so a mistake in any of these shows. Half of them, drawn at random, are in; where the
           relation replaces units, those that are out have the opposite gradient; where it zeroes them out,
           none. They lie at random places among the units, and so of each batch.
Unharmed   The coordinates are parameters before and after the model's own, which get noise and nothing else
           from other units. The model sees no canary: what it learns has the distribution it would have had,
           except where clipping adapts itself or is split among layers. Refused where averages of groups are
           clipped: a canary would leave nothing of the units that share its group.
Trials     A few times in a run, steps are taken that do not count (`trials`).
Checked    The self-check of a run looks at its own rows alone. Canaries' rows are zeros, all alike: they show
           no mixing, and a batch of canaries only says nothing about the model.
Guarantee  Of confidence: given who is in, scores of different canaries are independent where sampling takes
           units independently or on a public schedule (Poisson, shuffled, cyclic; nearly so for batches of a
           fixed size), so `one_run.ranks` bounds the chance that one who is in outscores one who is not. What
           that says about epsilon is `claims.bound_of_area`, for the run's own event. The checks beside it
           (`auditor`) are exact tests of noise, contributions, batches and price, under one confidence.
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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sfumato.accounting.guarantee import Guarantee
from sfumato.audit.evidence.results import AuditResult, CheckName
from sfumato.audit.runs.auditor import Auditor, halves, least_canaries, require_enough
from sfumato.audit.runs.trial_steps import LONG, Trials, gradients_of, just_below
from sfumato.audit.runs.update_log import UpdateLog
from sfumato.errors import InvalidParameterError, UnsupportedModelError
from sfumato.mechanisms.random import Generator, resolve, words
from sfumato.training import distributed
from sfumato.training.data import rows
from sfumato.training.data.units import Batch, Units
from sfumato.training.engine import parameter_values
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.engine.losses import Loss
from sfumato.training.privacy.clipping import Clipping, CoordinateClipping, Scaling
from sfumato.training.privacy.dp_sgd import DpSgd
from sfumato.training.privacy.sampling import PoissonSampling
from sfumato.training.weight_average import WeightAverage

__all__ = ["Canaries", "CanaryRun"]

_LENGTHS = (LONG, 30.0, LONG, 1000.0)  # of canaries in turn: a mistake may depend on the length
_SHAPELESS = "no canary was in any batch: there was no row whose shape a canary could have"
_UNSAMPLED = (
    "the sampler took no canary into any batch: use more canaries, more steps or a higher sampling rate"
)
_DENOISED = "a denoiser changes gradients after their release"
_UPDATES_SEE = "a weight that differs by 0.01% from what was released"
_TABLES = 4  # of canary coordinates where layers are clipped on their own, and 2 where they are not


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
        require_enough(self.count, self.confidence)

    def plant(self, units: Units, mechanism: DpSgd, generator: Generator | None) -> "CanaryRun":
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
        least = least_canaries(self.confidence)
        present = distributed.first_decides(lambda: halves(self.count, least, generator))
        key = distributed.first_decides(lambda: _key(generator))
        return CanaryRun(self, units, mechanism, present, key)


def _key(generator: Generator | None) -> int:
    """Return what places of canaries and steps of trials are drawn by."""
    return int(words(1, resolve(generator).fork("places of canaries", 0))[0] >> np.uint64(1))


class CanaryRun:
    """The canaries of one run: who is in, where their coordinates are, and what was seen of them."""

    def __init__(self, settings: Canaries, units: Units, mechanism: DpSgd, present: Tensor, key: int) -> None:
        self._settings, self._mechanism, self._key = settings, mechanism, key
        sampling = mechanism.sampling
        self._auditor = Auditor(
            count=settings.count,
            relation=mechanism.relation,
            sampling_rate=sampling.sampling_rate if isinstance(sampling, PoissonSampling) else None,
            confidence=settings.confidence,
            present=present,
        )
        clipping = mechanism.step.clipping
        self._layered = isinstance(clipping, Clipping) and clipping.per_layer
        self._marks = _Marks(settings.count, tables=_TABLES if self._layered else 2)
        self._lengths = _lengths(settings.count, clipping)
        self._units = _UnitsWithCanaries(units)
        self._model: nn.Module | None = None
        self._updates: UpdateLog | None = None
        self._moved: str | None = None  # what was wrong with updates before a resume
        self._sampled = False  # whether a canary was in a batch, of any rank
        self._trials = Trials(mechanism, units, self._auditor)
        self._seat()

    def _seat(self) -> None:
        seated = self._auditor.seated.nonzero().flatten()
        pulls = (self._auditor.signs * self._lengths)[seated]
        self._units.seat(seated + 1, pulls, self._key)
        self._trials.schedule(self._key)

    @property
    def units(self) -> Units:
        """The run's units, and canaries among them."""
        return self._units

    def host(self, model: nn.Module) -> nn.Module:
        """Return a module that holds the model and the canaries' coordinates."""
        first = next(iter(parameter_values.find(model).parameters.values()))
        self._model = model
        self._trials.prepare(model, self._noise_alone)
        return _Host(model, self._marks.to(first.device))

    def loss(self, loss: Loss) -> Loss:
        """Return the loss of rows some of which are canaries, with a gradient in their coordinate alone."""

        def audited(host: Any, *batch: Any) -> Tensor:
            *given, places, pulls = batch
            others = loss(host.model, *given)
            return pulls * torch.where(places > 0, host.marks(places), others)

        return audited

    def real_rows(self, batch: Batch) -> Tensor:
        """Return which rows of a batch are of the run's own units, by number."""
        return (batch.rows[-2] == 0).nonzero().flatten() if batch.rows else torch.zeros(0, dtype=torch.int64)

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

    # --- what is seen ------------------------------------------------------------------------------------

    def observe(self, units: Tensor, *, step: int, bound: float, expected_batch_size: float) -> None:
        """Take in what a step released."""
        scale, noise = expected_batch_size / bound, self._mechanism.noise_multiplier(step)
        own, idle = (found.double().cpu() * scale for found in self._marks.gradients())
        taken = self._in_batch(units)
        self._auditor.observe(
            own,
            noise=noise,
            taken=taken,
            idle=None if self._layered else idle,
            counted=None if self._mechanism.sampling.amplifies else (taken > 0).double(),
            exact=self._mechanism.step.projections is None,
        )
        assert self._model is not None  # a step was taken
        for name, (energy, size) in _energies(gradients_of(self._model)).items():
            self._auditor.observe_energy(name, energy * (scale / noise) ** 2, size)
        if self._updates is not None:
            self._updates.released()

    def _in_batch(self, units: Tensor) -> Tensor:
        """Return how often each canary is in the batch."""
        numbers = self._units.canaries(units) - 1
        found = torch.bincount(numbers, minlength=self._settings.count).float().to(self._marks.device)
        placed = torch.tensor([float(self._units.placed)], device=found.device)
        distributed.add_up_([found, placed])  # each rank has units of its own
        self._sampled = self._sampled or bool(found.any())
        self._units.placed = bool(placed)
        return found.cpu()

    def follow(self, optimizer: Optimizer, average: WeightAverage | None) -> None:
        """Watch what the weights of a run are moved by, from now on."""
        assert self._model is not None  # it has a host
        self._updates = UpdateLog(self._model, optimizer, average, message=self._moved)

    def moved(self, step: int) -> None:
        """Look at the weights after a step."""
        if self._updates is not None:
            self._updates.moved(step)

    def try_out(self, private: PrivateGradients, *, step: int, device: torch.device) -> None:
        """Take steps that do not count before a step, if it is time to."""
        self._trials.take(private, step=step, device=device)

    def _noise_alone(self) -> Tensor:
        """Return the canaries' coordinates of a step without canaries, where nobody adds to them."""
        own, idle = self._marks.gradients()
        return own if self._layered else torch.cat([own, idle])

    # --- what it shows -----------------------------------------------------------------------------------

    def judge(self, claim: Guarantee) -> AuditResult:
        """Return the claim and the lower bound that the scores so far give."""
        mechanism, updates = self._mechanism, self._updates
        return self._auditor.verdict(
            claim,
            lambda factor: mechanism.scaled(factor).event(),
            subject=f"DP-SGD in {mechanism.steps} steps",
            steps=mechanism.steps,
            more=[(CheckName.UPDATES, [] if updates is None else updates.findings(), _UPDATES_SEE)],
            why_not={
                CheckName.PUSHES: self._trials.why_not(),
                CheckName.UPDATES: _DENOISED if updates is None else updates.why_not(),
            },
            blind=self._blind(),
        )

    def _blind(self) -> str | None:
        """Return why no canary could show anything; None where one could."""
        if not self._sampled:
            return _UNSAMPLED
        return None if self._units.placed else _SHAPELESS

    def state_dict(self) -> dict[str, Any]:
        """Return who is in, and what was seen so far."""
        message = self._moved
        if self._updates is not None:
            self._updates.check_kept()
            message = self._updates.message
        own = {"key": self._key, "sampled": self._sampled, "placed": self._units.placed, "moved": message}
        return {**own, **self._auditor.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._key = int(state["key"])
        self._auditor.load_state_dict(state)
        self._seat()
        self._sampled, self._units.placed = bool(state["sampled"]), bool(state["placed"])
        self._moved = state["moved"]


def _energies(gradients: Mapping[str, Tensor]) -> dict[str, tuple[float, int]]:
    """Return the sum of squares of the gradient of each of the model's tensors, and its size."""
    # In float64: the norm of many float32 numbers is too low by more than its test allows.
    lengths = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients.values()]
    norms = torch.stack(lengths).cpu().tolist()
    return {
        f"the model's {name}": (norm**2, gradient.numel())
        for (name, gradient), norm in zip(gradients.items(), norms, strict=True)
    }


def _lengths(count: int, clipping: Clipping | CoordinateClipping) -> Tensor:
    """Return how long canaries' gradients are before clipping, which leaves them as long as can be."""
    assert isinstance(clipping, Clipping)  # the other kind is refused
    if clipping.scaling is Scaling.GLOBAL:
        return torch.full((count,), just_below(clipping))
    fixed = clipping.scaling is Scaling.LOCAL and clipping.adaptive is None
    turns = torch.tensor(_LENGTHS if fixed else (LONG,))
    return turns[torch.arange(count) % len(turns)] * (clipping.clip_norm or 1.0)


class _Marks(nn.Module):
    """Coordinates for canaries, in tables before and after the model's; number 0 is not read.

    In two tables, each canary has its coordinate in one of them, by turns, and nobody uses the other. In
    four, each canary has a part in all, in equal shares.
    """

    weights: Tensor

    def __init__(self, count: int, *, tables: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count + 1, 1) for _ in range(tables))
        for table in self.tables:
            nn.init.zeros_(table.weight)  # type: ignore[arg-type]  # an embedding's
        turns = torch.arange(count + 1) % 2
        shares = (
            torch.stack([turns, 1 - turns]).float() if tables == 2 else torch.full((tables, count + 1), 0.5)
        )
        self.register_buffer("weights", shares, persistent=False)

    def forward(self, places: Tensor) -> Tensor:
        parts = [
            w[places] * table(places).squeeze(-1) for w, table in zip(self.weights, self.tables, strict=True)
        ]
        return torch.stack(parts).sum(0)

    @property
    def device(self) -> torch.device:
        """Where the coordinates are."""
        return self.weights.device

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Return the gradient in the direction of each canary, and in its place in the other table."""
        found = torch.stack([table.weight.grad[1:, 0] for table in self.tables])  # type: ignore[index,union-attr]  # a step was taken
        weights = self.weights[:, 1:]
        return (found * weights).sum(0), (found * (1 - weights)).sum(0)


class _Host(nn.Module):
    """The model between two halves of the tables: parameters are in this order in memory, too."""

    def __init__(self, model: nn.Module, marks: _Marks) -> None:
        super().__init__()
        half = len(marks.tables) // 2
        self.before = nn.ModuleList(list(marks.tables)[:half])
        self.model = model
        self.marks = marks

    def forward(self, *inputs: Any) -> Any:
        return self.model(*inputs)


class _UnitsWithCanaries(Units):
    """Units with canaries at random places among them: their rows are zeros and a number."""

    def __init__(self, inner: Units) -> None:
        self._inner = inner
        self.placed = False  # whether a canary had a row in a batch

    def seat(self, numbers: Tensor, pulls: Tensor, key: int) -> None:
        """Say which canaries take part, how long their gradients are, and by what their places are drawn."""
        self._seats, self._pulls, self._key = numbers, pulls, key
        self._drawn: tuple[int, Tensor] | None = None

    @property
    def _places(self) -> Tensor:
        """The numbers that canaries have among the units, in order."""
        others = self._inner.num_units  # known only once deferred rows were read
        if self._drawn is None or self._drawn[0] != others:
            everybody, draws = others + len(self._seats), np.random.default_rng(self._key)
            chosen = draws.choice(everybody, len(self._seats), replace=False)
            self._drawn = others, torch.from_numpy(np.sort(chosen))
        return self._drawn[1]

    def _split(self, units: Tensor) -> tuple[Tensor, Tensor]:
        """Return which of some units are canaries, and for each the number of canaries before it."""
        before = torch.searchsorted(self._places, units.cpu().contiguous())
        if not len(self._seats):
            return torch.zeros(len(units), dtype=torch.bool), before
        return self._places[before.clamp(max=len(self._seats) - 1)] == units.cpu(), before

    def canaries(self, units: Tensor) -> Tensor:
        """Return the canaries among some units, by number from 1."""
        mine, before = self._split(units)
        return self._seats[before[mine]]

    @property
    def deferred(self) -> bool:
        return self._inner.deferred

    def open(self) -> None:
        self._inner.open()

    @property
    def num_units(self) -> int:
        return self._inner.num_units + len(self._seats)

    @property
    def by_owner(self) -> bool:
        return self._inner.by_owner

    def blank(self, units: int) -> tuple[Any, ...] | None:
        """Return rows of zeros, each that of a canary: in a rehearsal, their gradients must be finite."""
        found = self._inner.blank(units)
        return None if found is None else (*found, torch.arange(1, units + 1), torch.ones(units))

    def take(self, units: Tensor, generator: Generator | None = None) -> Batch:
        """Return the rows of units and canaries, in the order of their numbers.

        Where nobody knows what a row looks like, as of a data set without rows, canaries have none.
        """
        mine, before = self._split(units)
        others = self._inner.take((units - before)[~mine], generator)
        given = others.rows or self._inner.blank(0)
        if not len(units) or given is None:
            return Batch(())
        self.placed = self.placed or bool(mine.any())
        return self._joined(others, given, mine, before[mine])

    def _joined(self, others: Batch, given: tuple[Any, ...], mine: Tensor, seats: Tensor) -> Batch:
        width = others.rows_per_unit
        before, more = rows.count(given), len(seats) * width
        places, pulls = torch.zeros(before + more, dtype=torch.int64), torch.ones(before + more)
        places[before:] = self._seats[seats].repeat_interleave(width)
        pulls[before:] = self._pulls[seats].repeat_interleave(width)
        weights = others.row_weights
        if weights is not None or width > 1:
            own = torch.full((more,), 1 / width)  # averaged, as an owner's rows are
            weights = torch.cat([torch.ones(before) if weights is None else weights, own])
        order = torch.where(mine, before // width + mine.cumsum(0) - 1, (~mine).cumsum(0) - 1)
        index = (order[:, None] * width + torch.arange(width)).flatten()
        real = (index < before).nonzero().flatten()

        def spread(part: Tensor) -> Tensor:
            found = part.new_zeros((len(index), *part.shape[1:]))
            found[real] = part
            return found

        scattered = (*rows.mapped(given, spread), places[index], pulls[index])
        return Batch(scattered, width, None if weights is None else weights[index], others.numbers)
