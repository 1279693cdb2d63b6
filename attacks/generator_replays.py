# SPDX-License-Identifier: Apache-2.0
"""Replay of the fit of a generator on a neighbor: every noise returns what it returned before.

A fit runs on some data, and every place where noise is added is recorded: what it was added to, and what
came out. The fit runs again on a neighbor; each noise then returns its recorded result, as in the proof of
adaptive composition. Three things must hold, each of which is compared exactly, without statistics:

1. what noise is added to differs by at most what one unit may move there, and weights of at most one teacher
   differ;
2. the noise together costs no more than the event that is charged;
3. both generators are the same, with their description, findings and statement: nothing else was read.

Noisy gradients of DP-SGD are replayed too, but (1) and (2) are not judged for them: canaries do that
(`generators`). Weights begin with torch's own random numbers, which have the same seed twice.

Neighbors  One row more or less at the end: rows without a name are known to teachers by their number.
Failure    `LeakError` says how far a neighbor moved a sum: use invented data.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Generator as Yielding
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from sfumato.accounting.events import DpEvent, ExponentialDpEvent, UnsampledDpEvent
from sfumato.accounting.upstream import dp_event as dp
from sfumato.audit.mechanisms.neighbor_distances import LeakError
from sfumato.audit.mechanisms.outputs import read
from sfumato.generative import ImageGenerator, TableGenerator
from sfumato.generative.adversarial.teacher_panel import TeacherPanel
from sfumato.generative.tables.count_noise import CountNoise
from sfumato.mechanisms import Exponential, tensors
from sfumato.mechanisms.random import Generator
from sfumato.pate.votes import aggregators
from sfumato.testing import seeded
from sfumato.training.engine.gradients import PrivateGradients

__all__ = ["Use", "replay_fit"]

_SLACK = 1e-6  # relative: float64 sums of many rows are rounded
Fit = Callable[[Any, Generator], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """One noise that was added.

    Attributes:
        kind: "sums", "counts", "comparison", "votes", "choice", "gradients" or "teachers".
        given: What it was added to, as numbers. Empty for gradients; weights by teacher for teachers.
        allowed: The most that one unit may move it: in L2 norm, for each query of a vote; or each score of a
            choice; or how many teachers it may change.
        cost: The squared signal-to-noise ratio of that; the epsilon of a choice.
        returned: What came out.
    """

    kind: str
    given: Any
    allowed: float
    cost: float
    returned: Any


@dataclass
class _Tape:
    """The noises of a run; with `answers`, what they return."""

    answers: Sequence[Use] | None = None
    uses: list[Use] = field(default_factory=list[Use])
    _inside: bool = False

    def use(self, kind: str, given: Any, allowed: float, cost: float, draw: Callable[[], Any]) -> Any:
        if self._inside:  # noise that is made of other noise counts once
            return draw()
        if self.answers is None:
            self._inside = True
            try:
                returned = draw()
            finally:
                self._inside = False
        elif len(self.uses) < len(self.answers):
            returned = self.answers[len(self.uses)].returned
        else:
            raise LeakError("the neighbor's fit draws more noise")
        kept = returned.clone() if isinstance(returned, torch.Tensor) else np.copy(returned)
        self.uses.append(Use(kind=kind, given=given, allowed=allowed, cost=cost, returned=kept))
        return returned


def replay_fit(
    fit: Fit, data: Any, neighbor: Any, *, event: DpEvent | None, seed: int = 0
) -> tuple[Use, ...]:
    """Check that nothing but noisy results leaves a fit, and that its noise is what is charged.

    Args:
        fit: Called as `fit(data, generator)`; returns a generator, or anything that is released.
        data: Invented data.
        neighbor: A neighbor of it.
        event: What the noise is charged with, apart from DP-SGD. None: the cost is not compared.
        seed: The seed of both runs.

    Returns:
        The noises of the first run.

    Raises:
        LeakError: If the fit reveals more than it states.
    """
    first = _Tape()
    made = _run(fit, data, first, seed)
    second = _Tape(answers=first.uses)
    try:
        other = _run(fit, neighbor, second, seed)
    except LeakError:
        raise
    except Exception as error:
        raise LeakError(f"the neighbor's fit raises {type(error).__name__}, and the first did not") from error
    if len(second.uses) != len(first.uses):
        raise LeakError("the neighbor's fit draws less noise")
    if not first.uses:
        raise LeakError("no noise was drawn")
    for one, two in zip(first.uses, second.uses, strict=True):
        _check_moved(one, two)
    if read([_released(made)]).keys() != read([_released(other)]).keys():
        raise LeakError("the generators differ although every noise returned the same")
    if event is not None:
        _check_cost(first.uses, event)
    return tuple(first.uses)


def _run(fit: Fit, data: Any, tape: _Tape, seed: int) -> Any:
    with torch.random.fork_rng(devices=[]), _watched(tape):
        torch.manual_seed(seed)
        return fit(data, seeded(seed))


def _released(made: Any) -> Any:
    """Return everything that a generator tells, as what `read` can compare."""
    if isinstance(made, ImageGenerator):
        weights = [tensor.flatten() for tensor in made.sampler.state_dict().values()]
        return [json.dumps(made.to_dict()), *(weights or [0.0])]
    if isinstance(made, TableGenerator):
        parts = [values.ravel() for _, values in sorted(made.model.potentials.items())]
        return [json.dumps(made.to_dict()), made.model.total, *parts]
    return made


def _check_moved(one: Use, two: Use) -> None:
    if one.kind != two.kind or one.cost != two.cost or one.allowed != two.allowed:
        raise LeakError("the neighbor's fit draws other noise")
    if np.shape(one.given) != np.shape(two.given):
        raise LeakError(f"a neighbor changes the shape of {one.kind}")
    moved = _distance(one.kind, np.asarray(one.given) - np.asarray(two.given))
    if not moved <= one.allowed * (1 + _SLACK):
        raise LeakError(f"a neighbor moves {one.kind} by {moved:g}, but {one.allowed:g} is allowed")


def _distance(kind: str, apart: Any) -> float:
    if kind == "choice":
        return float(np.abs(apart).max(initial=0.0))
    if kind == "teachers":
        return float(np.count_nonzero((apart != 0).any(1)))  # NaN is not 0
    if kind in ("comparison", "votes"):
        return float(np.linalg.norm(apart.reshape(len(apart), -1), axis=1).max(initial=0.0))
    return float(np.linalg.norm(apart))


def _check_cost(uses: Sequence[Use], event: DpEvent) -> None:
    leaves = list(_leaves(event, 1))
    for chosen, name in ((False, "noise"), (True, "choices")):
        spent = math.fsum(use.cost for use in uses if (use.kind == "choice") == chosen)
        paid = math.fsum(count * cost for cost, count, choice in leaves if choice == chosen)
        if not spent <= paid * (1 + _SLACK):
            raise LeakError(f"the {name} cost {spent:g} together, but {paid:g} is charged")


def _leaves(event: DpEvent, count: int) -> Iterator[tuple[float, int, bool]]:
    """Yield the cost of each mechanism of an event, how often it is used, and whether it is a choice."""
    if isinstance(event, dp.ComposedDpEvent):
        for part in event.events:
            yield from _leaves(part, count)
    elif isinstance(event, dp.SelfComposedDpEvent):
        yield from _leaves(event.event, count * event.count)
    elif isinstance(event, dp.GaussianDpEvent):
        yield event.noise_multiplier**-2, count, False
    elif isinstance(event, ExponentialDpEvent):
        yield event.epsilon, count, True
    elif isinstance(event, UnsampledDpEvent):
        yield from _leaves(event.event, count)
    elif not isinstance(event, dp.NoOpDpEvent):
        raise TypeError(f"no cost is known of {type(event).__name__}")


# --- where noise is added ---------------------------------------------------------------------------------


@contextmanager
def _watched(tape: _Tape) -> Yielding[None]:
    """Record every noise that a fit adds."""
    with ExitStack() as stack:
        for place, name, watching in _PLACES:
            original = getattr(place, name)
            stack.enter_context(patch.object(place, name, watching(tape, original)))
        yield


def _sums(tape: _Tape, original: Any) -> Any:
    def add_(tensor: Any, *, stddev: float, generator: Any) -> Any:
        given = tensor.detach().cpu().numpy().copy()
        found = tape.use(
            "sums", given, 1.0, stddev**-2, lambda: original(tensor, stddev=stddev, generator=generator)
        )
        return tensor.copy_(found)

    return add_


def _counts(tape: _Tape, original: Any) -> Any:
    def add(self: CountNoise, counts: Any, *, generator: Any = None) -> Any:
        cost = (self.sensitivity / self.stddev) ** 2
        return tape.use(
            "counts",
            counts.copy(),
            self.sensitivity,
            cost,
            lambda: original(self, counts, generator=generator),
        )

    return add


def _compared(tape: _Tape, original: Any) -> Any:
    def above(rule: Any, values: Any, generator: Any) -> Any:
        cost = len(values) * rule.threshold_stddev**-2
        return tape.use("comparison", values.copy(), 1.0, cost, lambda: original(rule, values, generator))

    return above


def _voted(tape: _Tape, original: Any) -> Any:
    def noisy(counts: Any, *, stddev: float, generator: Any = None) -> Any:
        if np.abs(counts.sum(1) - counts[0].sum()).max(initial=0.0) > 0:
            raise LeakError("not all teachers vote on every query")
        cost = 2 * len(counts) * stddev**-2  # one vote moves two counts
        return tape.use(
            "votes",
            counts.copy(),
            math.sqrt(2),
            cost,
            lambda: original(counts, stddev=stddev, generator=generator),
        )

    return noisy


def _taught(tape: _Tape, original: Any) -> Any:
    """Record the weights of teachers before they vote. There is no noise to replay."""

    def counts(self: Any, *given: Any, **named: Any) -> Any:
        parts = [part.detach().flatten(1) for part in self._weights.values()]
        tape.use("teachers", torch.cat(parts, 1).numpy(), 1.0, 0.0, lambda: np.zeros(0))
        return original(self, *given, **named)

    return counts


def _chosen(tape: _Tape, original: Any) -> Any:
    def release(self: Exponential, scores: Any, *, generator: Any = None) -> Any:
        return tape.use(
            "choice",
            np.array(scores),
            self.sensitivity,
            self.epsilon,
            lambda: original(self, scores, generator=generator),
        )

    return release


def _stepped(tape: _Tape, original: Any) -> Any:
    def noised(self: Any, noise_multiplier: float) -> None:
        def draw() -> Any:
            original(self, noise_multiplier)
            return torch.cat([part.detach().flatten() for part in self._sums.flat()])

        found = tape.use("gradients", np.zeros(0), 0.0, 0.0, draw)
        sums = self._sums.flat()
        for part, new in zip(sums, found.split([part.numel() for part in sums]), strict=True):
            part.copy_(new.view_as(part))

    return noised


_PLACES: tuple[tuple[Any, str, Callable[[_Tape, Any], Any]], ...] = (
    (tensors, "add_gaussian_", _sums),
    (CountNoise, "add", _counts),
    (aggregators, "above_threshold", _compared),
    (aggregators, "noisy_counts", _voted),
    (TeacherPanel, "counts", _taught),
    (Exponential, "release", _chosen),
    (PrivateGradients, "_noised", _stepped),
)
