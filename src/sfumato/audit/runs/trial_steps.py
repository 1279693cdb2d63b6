# SPDX-License-Identifier: Apache-2.0
"""Trial steps of a training run: they do not count, and show noise and clipping in the model's own tensors.

- Empty trials have no rows, so every tensor of the model holds noise and nothing else. The first time there
  are several, so that noise which comes back shows also in a short run.
- Pushed trials have synthetic rows whose gradients lie in the model's own tensors and are far too long. Their
  clipped sum is known, up to the noise, and must not be longer.

Trials are taken a few times in a run, before steps that are drawn at random. They have noise of their own.
The run then continues as if they had not been taken. Gradients are looked at before they are rounded to the
type of a parameter: noise that was rounded to bfloat16 or float16 is not Gaussian.

Guarantee  No row of the data takes part in a trial.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.audit.runs.auditor import ESTIMATED, Auditor
from sfumato.audit.runs.contribution_log import LEAST_NOISE, TOO_LITTLE
from sfumato.audit.runs.place_log import ends
from sfumato.errors import SfumatoError
from sfumato.training import distributed
from sfumato.training.data import rows
from sfumato.training.data.units import Units, moved
from sfumato.training.engine.gradients import PrivateGradients
from sfumato.training.engine.self_check import same_draws
from sfumato.training.privacy.clipping import Clipping, Scaling
from sfumato.training.privacy.dp_sgd import DpSgd

__all__ = ["LONG", "Trials", "gradients_of", "just_below"]

LONG = 1e6  # times the clip norm: a gradient before it is clipped
_PUSHES = (LONG, 1.5, 100.0, 3.0, 10.0)  # of rows in turn, in multiples of the threshold
_PUSHED = 32  # rows in a trial
_STEPS_PER_TRIAL, _MOST_TRIALS = 100, 16
_EMPTY = 8  # trials without rows the first time: a tensor of 2 numbers that repeats its noise shows
_CROWD, _ALONE = 64, 60.0  # rows of a trial in which one is too long, by so much, and the others are short
_SHORT = 1e-3  # in multiples of the threshold
_ATTEMPTS = 16  # passes of one row, to see whether they differ
_SAMPLED = 1 << 16  # coordinates of a tensor that are looked at one by one


@dataclass(frozen=True, kw_only=True, slots=True)
class _Push:
    """Rows of a trial, and the most that their clipped sum may have along their direction, in bounds."""

    rows: tuple[Any, ...]
    allowed: float


class Trials:
    """The steps of one run that do not count; what they show goes to its auditor."""

    def __init__(self, mechanism: DpSgd, units: Units, auditor: Auditor) -> None:
        self._mechanism, self._units, self._auditor = mechanism, units, auditor
        self._steps: set[int] = set()
        self._model: nn.Module | None = None
        self._noise_alone: Callable[[], Tensor] | None = None
        self._marks: tuple[int, ...] = ()  # of made-up clients, where units are clients
        self._left_out: str | None = None  # why no trial is taken
        self._draws: bool | None = None  # whether the model draws random numbers, once that is known

    def schedule(self, key: int) -> None:
        """Draw the steps before which trials are taken."""
        if self._left_out is not None:
            return
        steps = self._mechanism.steps
        often = min(max(1, steps // _STEPS_PER_TRIAL), _MOST_TRIALS)
        self._steps = set(np.random.default_rng(key).permutation(steps)[:often].tolist())

    def prepare(self, model: nn.Module, noise_alone: Callable[[], Tensor]) -> None:
        """Say whose tensors are looked at, and what returns the other coordinates that hold noise alone."""
        self._model, self._noise_alone = model, noise_alone

    def use_clients(self, marks: tuple[int, ...]) -> None:
        """Try made-up clients, which these numbers in the place of a canary's stand for, and no rows."""
        self._marks = marks

    def leave_out(self, reason: str) -> None:
        """Take no trials."""
        self._left_out, self._steps = reason, set()

    @property
    def left_out(self) -> str | None:
        """Why no trials are taken, where that is so."""
        return self._left_out

    def why_not(self) -> str:
        """Return why no made-up rows were tried, where that is so."""
        if self._left_out is not None:
            return self._left_out
        if self._mechanism.step.projections is not None:
            return ESTIMATED
        if any(self._mechanism.noise_multiplier(step) < LEAST_NOISE for step in self._steps):
            return TOO_LITTLE
        return "no made-up row is an input of the model and has a gradient in it"

    def take(self, private: PrivateGradients, *, step: int, device: torch.device) -> None:
        """Take trials, if it is time to, and look at what they would have released.

        All begin with the same state of torch's own random numbers, which the run then finds as it was: noise
        that is drawn from these is the same in all trials, and shows.
        """
        if step not in self._steps:
            return
        assert self._model is not None  # it was prepared
        noise = self._mechanism.noise_multiplier(step)
        scale = private.expected_batch_size / private.bound
        for _ in range(_EMPTY if step == min(self._steps) else 1):
            self._try(private, step, None)
            self._look(private, scale / noise)
        if self._mechanism.step.projections is None and noise >= LEAST_NOISE:
            for pushed, direction in self._pushes(private, device):
                self._try(private, step, pushed.rows)
                along = sum(float((g * direction[n]).sum()) for n, g in gradients_of(private).items())
                excess = along * scale - pushed.allowed
                self._auditor.observe_push(excess / pushed.allowed, noise=noise / pushed.allowed)
        private.drop()

    def _look(self, private: PrivateGradients, scale: float) -> None:
        """Look at a trial without rows; `scale` times a gradient is noise in stated standard deviations."""
        for name, gradient in gradients_of(private).items():
            self._auditor.observe_noise(f"the model's {name}", _some(gradient) * scale)
        released = private.released().values()
        finite = all(bool(gradient.isfinite().all()) for gradient in released)
        self._auditor.observe_places(ends(released), finite=finite)

    def _try(self, private: PrivateGradients, step: int, batch: tuple[Any, ...] | None) -> None:
        """Take a step that does not count, and look at the canaries' coordinates, which are noise alone."""
        assert self._model is not None and self._noise_alone is not None  # it was prepared
        with same_draws(self._model), private.trying():
            if batch is not None and distributed.is_first():  # the others have an empty share
                private.accumulate(*batch)
            private.finish()
        scale = private.expected_batch_size / private.bound / self._mechanism.noise_multiplier(step)
        self._auditor.observe_trial(self._noise_alone().double().cpu() * scale, before=step)

    # --- rows with long gradients ------------------------------------------------------------------------

    def _pushes(
        self, private: PrivateGradients, device: torch.device
    ) -> Iterator[tuple[_Push, dict[str, Tensor]]]:
        """Yield rows of nobody's with long gradients in the model's own tensors, and their direction."""
        for made, mark in self._made_up(device):
            direction = self._direction(private, made, mark, device)
            if direction is None:
                continue
            norm = math.sqrt(sum(float(part.double().pow(2).sum()) for part in direction.values()))
            if not (math.isfinite(norm) and norm > 0):
                continue
            if self._draws is None:
                self._draws = self._has_draws(private, made, mark, direction, device)
            along = {name: part.float() / norm for name, part in direction.items()}  # not in a coarser type
            for lengths in self._lengths():
                places = torch.full((len(lengths),), mark, dtype=torch.int64, device=device)
                pulls = (lengths * (private.bound / norm)).to(device)
                batch = (*rows.repeat_to(made, len(lengths)), places, pulls)
                most = torch.ones_like(lengths) if self._draws else lengths.clamp(max=1.0)
                yield _Push(rows=batch, allowed=float(most.sum())), along

    def _made_up(self, device: torch.device) -> Iterator[tuple[tuple[Any, ...], int]]:
        """Yield rows of nobody's, and what stands in the place of a canary's number."""
        blank = self._units.blank(1)
        if blank is None:
            return
        if self._marks:
            yield from ((moved(blank, device), mark) for mark in self._marks)
        else:
            yield from ((made, 0) for made in rows.made_up(moved(blank, device)))

    def _has_draws(
        self,
        private: PrivateGradients,
        made: tuple[Any, ...],
        mark: int,
        direction: dict[str, Tensor],
        device: torch.device,
    ) -> bool:
        """Whether passes of the model draw random numbers, so that no length of a gradient is known.

        Each row is then allowed the whole bound, which holds for any length.
        """
        assert self._model is not None  # it was prepared
        if any(_drops(module) for module in self._model.modules()):
            return True
        for attempt in range(_ATTEMPTS):
            with same_draws(self._model):
                _seed(device, attempt)
                again = self._direction(private, made, mark, device)
            if again is None or not all(
                torch.allclose(again[n], part, rtol=1e-3) for n, part in direction.items()
            ):
                return True
        return False

    def _direction(
        self, private: PrivateGradients, made: tuple[Any, ...], mark: int, device: torch.device
    ) -> dict[str, Tensor] | None:
        """Return the gradient of one made-up row in the model's tensors; None where it is no input."""
        marked = torch.full((1,), mark, dtype=torch.int64, device=device), torch.ones(1, device=device)
        try:
            found = private.alone(*made, *marked)
        except SfumatoError:
            raise
        except Exception:  # of the model or the loss, which such a row is nothing for
            return None
        return _of_model(found)

    def _lengths(self) -> list[Tensor]:
        """Return how long the gradients of rows are, in multiples of the bound: many, and one in a crowd."""
        clipping = self._mechanism.step.clipping
        if isinstance(clipping, Clipping) and clipping.scaling is Scaling.GLOBAL:
            return [torch.full((_PUSHED,), just_below(clipping) / (clipping.clip_norm or 1.0))]
        many = torch.tensor(_PUSHES).repeat(_PUSHED)[:_PUSHED]
        if isinstance(clipping, Clipping) and clipping.scaling is Scaling.AUTOMATIC:
            return [many]  # it makes short gradients longer, so a crowd of them is nothing small
        one_in_a_crowd = torch.full((_CROWD,), _SHORT)
        one_in_a_crowd[_CROWD // 3] = _ALONE
        return [many, one_in_a_crowd]


def gradients_of(private: PrivateGradients) -> dict[str, Tensor]:
    """Return the released gradient of each of the model's tensors, without those of canaries."""
    return _of_model(private.released())


def _of_model(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("model."): part for name, part in named.items() if name.startswith("model.")}


def just_below(clipping: Clipping) -> float:
    """Return the length of the longest gradient that global clipping keeps."""
    assert clipping.drop_above is not None  # global clipping has one
    return clipping.drop_above * (1 - 1e-6)  # a longer one would be dropped


def _seed(device: torch.device, number: int) -> None:
    """Set torch's own random numbers of this process and of one device, which `same_draws` puts back."""
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(number)


def _drops(module: nn.Module) -> bool:
    """Whether a module drops values, by the settings that such modules have."""
    chances = (getattr(module, name, 0) for name in ("p", "dropout", "drop_prob", "drop_rate"))
    return module.training and any(isinstance(each, float) and each > 0 for each in chances)


def _some(gradient: Tensor) -> Any:
    """Return coordinates of a tensor, all of them or evenly chosen ones."""
    flat = gradient.flatten()
    return flat[:: max(1, len(flat) // _SAMPLED)][:_SAMPLED].double().cpu().numpy()
