# SPDX-License-Identifier: Apache-2.0
"""Audits of DP-SGD runs by gradient canaries: a lower bound on epsilon from one run, and checks beside it.

The run is extended with synthetic canary units. The gradient of a canary is as long as clipping permits, in
a coordinate of its own. Canaries pass through the sampler, the clipping, the sums and the noise of the run,
so a mistake in any of these shows. A random half of them is in. If the relation replaces units, the others
have the opposite gradient; if it zeroes units out, they have none. Canaries lie at random places among the
units.

The coordinates are parameters before and after the model's own, to which other units add nothing. The model
does not see a canary, so its distribution does not change, unless clipping is adaptive or per layer. Rows of
canaries are zeros; the self-check of a run leaves them out, because equal rows do not show mixing. A few
times in a run, trial steps are taken that do not count (`trial_steps`).

The score of a canary is the sum over steps of the log likelihood ratio of its noisy coordinate (`score_log`).
If batches follow a schedule that the event treats as known (shuffled, cyclic), only the steps count in which
the canary had its place, because the schedule does not depend on who is in.

Guarantee  The bound holds with its confidence: given who is in, scores of different canaries are independent
           if sampling takes units independently or on a public schedule (Poisson, shuffled, cyclic; nearly
           so for batches of a fixed size), so `one_run.ranks` bounds the probability that a canary that is in
           outscores one that is out. `claim_limits.bound_of_area` turns that into epsilon for the event of
           the run. The checks beside it (`auditor`) are exact tests under the same confidence. Nothing of the
           data is looked at but noisy gradients, so an audit costs no privacy.
Failure    Refused if averages of groups are clipped, where a canary would leave nothing of the units that
           share its group, and if coordinates or named layers are clipped.
Source     Dirac gradients as canaries: Nasr et al. 2023, arXiv:2302.07956.
Not here   Evidence about other runs: canaries are planted for one run.
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
from sfumato.audit.federations.canary_clients import MADE_UP, with_canaries
from sfumato.audit.runs.auditor import Auditor
from sfumato.audit.runs.canary_coordinates import CanaryCoordinates, ModelWithCanaries
from sfumato.audit.runs.canary_units import UnitsWithCanaries
from sfumato.audit.runs.contribution_log import LEAST_NOISE
from sfumato.audit.runs.gradient_pairs import GradientPairs
from sfumato.audit.runs.score_log import halves, least_canaries, require_enough
from sfumato.audit.runs.trial_steps import LONG, Trials, gradients_of, just_below
from sfumato.audit.runs.update_log import UpdateLog
from sfumato.errors import InvalidParameterError, UnsupportedModelError
from sfumato.mechanisms.random import Generator, resolve, words
from sfumato.training import distributed
from sfumato.training.data.units import Units
from sfumato.training.engine import parameter_values
from sfumato.training.engine.contributions import Contributor, NoisySummer
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
_SUMMED = "sums have noise of the clients, and a trial step would have to ask clients for more of it"
_UPDATES_SEE = "a weight that differs by 0.01% from what was released"
# Of the noise in the expected batch size: a sum of rows is rounded to about 1e-7 of it, and noise that is not
# larger would be lost in rounding, which looks as if two steps shared their noise.
_LEAST_SHARE = 2.0**-20
_TABLES = 4  # of canary coordinates where layers are clipped on their own, and 2 where they are not


@dataclass(frozen=True, kw_only=True, slots=True)
class Canaries:
    """Gradient canaries for `Trainer(audit=...)`.

    Args:
        count: The number of canaries. About half of them take part in the run.
        confidence: The probability with which the audit is right about right code.

    Raises:
        InvalidParameterError: If so few canaries cannot show anything at this confidence.

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

    @property
    def units(self) -> int:
        """The most units that are added to a run."""
        return self.count

    @property
    def coordinates(self) -> int:
        """How many coordinates are added to sums over units whose whole contribution is clipped."""
        return 2 * (self.count + 1)

    def plant(self, units: Units, mechanism: DpSgd, generator: Generator | None) -> "CanaryRun":
        """Put canaries among the units of a run.

        Args:
            units: The units of the run.
            mechanism: The mechanism of the run.
            generator: The source that decides which canaries are in, and where they lie.

        Returns:
            The run's units with canaries, and all that will be observed of them.

        Raises:
            InvalidParameterError: If runs with this kind of clipping cannot be audited.
        """
        clipping = mechanism.step.clipping
        if mechanism.correlation is not None:
            raise InvalidParameterError(
                "canaries test whether the noise of each step is independent, and correlated noise is not. "
                "Train without audit=..., or without correlation."
            )
        if isinstance(clipping, Clipping) and clipping.layer_norms is not None:
            raise InvalidParameterError(
                "layer_norms name every layer, and canaries are none of them. Pass clip_norm and per_layer."
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
        self._coordinates = CanaryCoordinates(settings.count, tables=_TABLES if self._layered else 2)
        self._lengths = _lengths(settings.count, clipping)
        self._units = UnitsWithCanaries(units)
        self._model: nn.Module | None = None
        self._updates: UpdateLog | None = None
        self._moved: str | None = None  # what was wrong with updates before a resume
        self._sampled = False  # whether a canary was in a batch, of any rank
        self._pairs = GradientPairs()
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
        return ModelWithCanaries(model, self._coordinates.to(first.device))

    def loss(self, loss: Loss) -> Loss:
        """Return the loss of rows some of which are canaries, with a gradient in their coordinate alone."""

        def audited(host: Any, *batch: Any) -> Tensor:
            *given, places, pulls = batch
            others = loss(host.model, *given)
            return pulls * torch.where(places > 0, host.canaries(places), others)

        return audited

    def engine(self, engine: Any) -> Any:
        """Return the engine of a run, for batches in which some units are canaries."""
        if isinstance(engine, NoisySummer):
            self._require_room(engine)
            self._trials.leave_out(_SUMMED)
        elif isinstance(engine, Contributor):
            self._trials.use_clients(MADE_UP)
        return with_canaries(engine)

    def _require_room(self, engine: NoisySummer) -> None:
        """Raise if sums have room for the model alone: before anything is charged."""
        assert self._model is not None  # it has a host
        own = sum(p.numel() for p in parameter_values.find(self._model).parameters.values())
        room, needed = getattr(engine.summation, "dimension", None), own + self._settings.coordinates
        if room is not None and room != needed:
            raise InvalidParameterError(
                f"sums of {room} coordinates have no room for canaries: the model and {self._settings.count} "
                f"canaries have {needed}. Make the sums for dimension={needed}, or leave audit=... out."
            )

    def ordinary(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return synthetic rows of any kind as rows of the run's own units: none is a canary's."""
        *given, places, pulls = batch
        return (*given, torch.zeros_like(places), torch.ones_like(pulls))

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

    def observe(self, units: Tensor, private: PrivateGradients, *, step: int, bound: float) -> None:
        """Take in what a step released."""
        noise, summation = self._mechanism.noise_multiplier(step), self._mechanism.step.summation
        scale = private.expected_batch_size / (bound if summation is None else summation.bound_at(noise))
        own, idle = (found.double().cpu() * scale for found in self._coordinates.gradients())
        taken = self._in_batch(units)
        self._auditor.observe(
            own,
            noise=noise,
            taken=taken,
            idle=None if self._layered else idle,
            counted=None if self._mechanism.sampling.amplifies else (taken > 0).double(),
            exact=self._mechanism.step.projections is None,
        )
        self._observe_model(private, scale, noise)
        if self._updates is not None:
            self._updates.released()

    def _observe_model(self, private: PrivateGradients, scale: float, noise: float) -> None:
        gradients = gradients_of(private)
        for name, (energy, size) in _energies(gradients).items():
            self._auditor.observe_energy(name, energy * (scale / noise) ** 2, size)
        if noise >= max(LEAST_NOISE, _LEAST_SHARE * private.expected_batch_size):
            for name, energy, size in self._pairs.add(gradients, scale=scale / noise):
                self._auditor.observe_energy(name, energy, size)

    def _in_batch(self, units: Tensor) -> Tensor:
        """Return how often each canary is in the batch."""
        numbers = self._units.canaries(units) - 1
        found = torch.bincount(numbers, minlength=self._settings.count).float().to(self._coordinates.device)
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
        own, idle = self._coordinates.gradients()
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
                CheckName.TENSORS: self._trials.left_out or "no trial step was taken",
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
        pairs = self._pairs.state_dict()
        own = {
            "key": self._key,
            "pairs": pairs,
            "sampled": self._sampled,
            "placed": self._units.placed,
            "moved": message,
        }
        return {**own, **self._auditor.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._key = int(state["key"])
        self._auditor.load_state_dict(state)
        self._seat()
        self._sampled, self._units.placed = bool(state["sampled"]), bool(state["placed"])
        self._moved = state["moved"]
        self._pairs.load_state_dict(state["pairs"])


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
