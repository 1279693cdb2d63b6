# SPDX-License-Identifier: Apache-2.0
"""Watch a mechanism at work: canaries that take part in it, scores for them, and checks of its noise.

For whom   Whatever adds noise to sums of bounded contributions, step by step: DP-SGD (`audit.runs.canaries`
           builds on this), votes of teachers, updates of clients. Whoever runs the mechanism lets the
           canaries that are `present` take part, each in a direction of its own, and tells what was released
           there.
Bounds     The ranks of all scores (`one_run.ranks`), and the highest ones (`claims.bound_of_tail`).
Checks     Of noise (`noise_log`, `place_log`), of contributions (`contribution_log`), of batches
           (`batch_log`), and of the price: what the steps that were seen cost at least, computed anew
           (`pricing`).
Error      1 - confidence is the chance that right code is accused. The ranks get nine tenths of it, and the
           highest scores all but a thousandth of the rest; the checks share that. They have power to spare:
           at a confidence of 0.95 right code fails one of them in one audit of 20,000.
Private    Only noisy sums are looked at, and which canaries are in a batch; canaries are nobody.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.audit.evidence import claim_limits, one_run, step_price
from sfumato.audit.evidence.results import AuditResult, Check, CheckName, Finding, LowerBound, Unchecked
from sfumato.audit.runs.batch_log import BatchLog
from sfumato.audit.runs.contribution_log import LEAST_NOISE, TOO_LITTLE, ContributionLog
from sfumato.audit.runs.noise_log import Energies, NoiseLog
from sfumato.audit.runs.place_log import PlaceLog
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator, resolve, words

__all__ = ["ESTIMATED", "Auditor", "least_canaries"]

ESTIMATED = "norms are estimated, and a contribution may exceed its bound"
_RANKS, _TAIL, _CHECKS = 0.9, 0.099, 0.001  # shares of the error
_ATTACK = "ranked scores of gradient canaries in one run"
_HIGHEST = "highest scores of gradient canaries in one run"
_UNCERTIFIED = "in epsilons of the claim's accountant, which has no lower bound for this event"
_MOST = 1e12  # what is seen is cut off here: infinite numbers have no mean

Numbers = npt.NDArray[np.float64]
_Group = tuple[str, list[Finding], Callable[[float], str]]  # of tests: name, findings, what they see


class Auditor:
    """Canaries of one run, and all that was seen of it.

    Noise and contributions are told in multiples of the bound on one unit's contribution. `sampling_rate` is
    the chance that a unit is in a step, where each has a coin of its own; None for other batches.

    >>> from sfumato.accounting.events import dp_sgd
    >>> from sfumato.testing import seeded
    >>> auditor = Auditor(count=400, relation=Relation.ADD_REMOVE, sampling_rate=1.0, generator=seeded(0))
    >>> draws = torch.Generator().manual_seed(0)
    >>> for _ in range(4):  # a mechanism that adds noise of twice the bound to each canary's direction
    ...     released = auditor.present + 2 * torch.randn(400, generator=draws)
    ...     auditor.observe(released, noise=2.0, taken=auditor.present)
    >>> claim = Guarantee(epsilon=5.0, delta=1e-5, relation=Relation.ADD_REMOVE, privacy_unit="example")
    >>> def event(factor): return dp_sgd(noise_multiplier=2.0 * factor, sampling_rate=1.0, steps=4)
    >>> auditor.verdict(claim, event, subject="a sum").refuted
    False
    """

    def __init__(
        self,
        *,
        count: int,
        relation: Relation,
        sampling_rate: float | None,
        confidence: float = 0.95,
        present: Tensor | None = None,
        generator: Generator | None = None,
    ) -> None:
        require_enough(count, confidence)
        self.relation, self.sampling_rate, self.confidence = relation, sampling_rate, confidence
        drawn = halves(count, least_canaries(confidence), generator) if present is None else present
        self._scores = torch.zeros(count, dtype=torch.float64)
        self._noise = NoiseLog("the canaries' coordinates")
        self._added = ContributionLog("canaries")
        self._trials: dict[str, NoiseLog] = {}
        self._places = PlaceLog()
        self._pushed = ContributionLog("canaries in the model's own tensors")
        self._energies: dict[str, Energies] = {}
        self._steps: list[float] = []  # the noise of each
        self._twice: str | None = None  # what was in a batch more than once
        self._seat(drawn)

    def _seat(self, present: Tensor) -> None:
        self._present = present
        self._batches = BatchLog(1.0 if self.sampling_rate is None else self.sampling_rate)

    @property
    def present(self) -> Tensor:
        """Which canaries are in; where the relation replaces units, the others are their opposite."""
        return self._present

    @property
    def count(self) -> int:
        """How many canaries there are."""
        return len(self._present)

    @property
    def seated(self) -> Tensor:
        """Which canaries are units of the mechanism: those in, or all where a unit is never just left out."""
        every = torch.ones_like(self._present)
        return self._present if self.relation is Relation.ADD_REMOVE else every

    @property
    def signs(self) -> Tensor:
        """The sign of each canary's contribution: 0 for those that add nothing."""
        absent = -1.0 if self.relation.replaces else 0.0
        return torch.where(self._present, 1.0, absent)

    # --- what is seen ------------------------------------------------------------------------------------

    def observe(
        self,
        seen: Tensor,
        *,
        noise: float,
        taken: Tensor,
        idle: Tensor | None = None,
        counted: Tensor | None = None,
        exact: bool = True,
    ) -> None:
        """Take in a step: what was released along each canary's direction, and the noise that is stated.

        `taken` says how often each canary was in the batch: once at most. `idle` is what was released in more
        directions, which nobody touches. `counted` limits scores to some canaries, such as those whose turn
        it was. `exact` is False where contributions may exceed the bound, as estimated norms let them.
        Canaries are numbered as they lie in the data.
        """
        heard = seen.double()
        seen = heard.nan_to_num(_MOST, _MOST, -_MOST).clamp(-_MOST, _MOST)
        evidence = self._evidence(seen, noise)
        self._scores += evidence if counted is None else evidence * counted
        self._steps.append(noise)
        if bool((taken > 1).any()):
            self._twice = self._twice or f"a unit is in the batch of step {len(self._steps)} more than once"
        taken = taken > 0
        moved = taken & (self.signs != 0)
        self._hear(heard, noise, moved, idle)
        if exact:  # what is no number is too much, whatever its sign
            beyond = torch.where(heard.isfinite(), seen * self.signs - 1, _MOST)[moved]
            others = seen[~moved]
            if noise < LEAST_NOISE:
                beyond, others = beyond[:0], others[:0]
            self._added.add(beyond.numpy() / noise, others.numpy() / noise, noise=noise)
        self._batches.add(taken[self.seated].numpy())

    def _hear(self, seen: Tensor, noise: float, moved: Tensor, idle: Tensor | None) -> None:
        heard, known = [seen], [~moved]
        if idle is not None:
            heard.append(idle.double())
            known.append(torch.ones(len(idle), dtype=torch.bool))
        self._noise.add(torch.cat(heard).numpy() / noise, known=torch.cat(known).numpy())

    def observe_trial(self, noise: Tensor, *, before: int) -> None:
        """Take in the coordinates of `observe` in a step that does not count, in stated standard deviations.

        Its noise must have nothing to do with that of any other step.
        """
        self._noise.add(
            noise.double().numpy(), step=f"trial {self._noise.beside + 1}, before step {before + 1},"
        )

    def observe_noise(self, name: str, noise: Numbers) -> None:
        """Take in noise alone of a trial, of coordinates that have a name, in stated standard deviations."""
        self._trials.setdefault(name, NoiseLog(name, each="trial")).add(noise)

    def observe_places(self, noise: Numbers) -> None:
        """Take in noise alone of a trial: all coordinates there are, in the order they have in memory."""
        self._places.add(noise)

    def observe_energy(self, name: str, energy: float, size: int) -> None:
        """Take in the sum of squares of noisy coordinates that data are in, too, in standard deviations."""
        self._energies.setdefault(name, Energies(name)).add(energy, size)

    def observe_push(self, beyond: float, *, noise: float) -> None:
        """Take in by how much contributions exceeded their bound along one direction."""
        value = min(max(beyond, -_MOST), _MOST) if math.isfinite(beyond) else _MOST
        self._pushed.add(np.array([value / noise]), np.zeros(0), noise=noise)

    def _evidence(self, seen: Tensor, noise: float) -> Tensor:
        """Return log likelihood ratios of in over out, for contributions in multiples of the bound."""
        rate = 1.0 if self.sampling_rate is None else self.sampling_rate
        there = _log_ratio(seen, noise, rate)
        return there - _log_ratio(-seen, noise, rate) if self.relation.replaces else there

    # --- what it shows -----------------------------------------------------------------------------------

    def verdict(
        self,
        claim: Guarantee,
        event: Callable[[float], DpEvent],
        *,
        subject: str,
        steps: int | None = None,
        more: Sequence[tuple[str, list[Finding], str]] = (),
        why_not: Mapping[str, str] | None = None,
        blind: str | None = None,
    ) -> AuditResult:
        """Return what was seen, beside a claim.

        `event(factor)` is the event that is claimed, with its noise multiplied; `steps` is how many it has.
        `more` are checks of the caller's own: a name, what was found, and how small a mistake would show.
        `why_not` says, by name, why checks could not be made, where the caller knows better than the auditor.
        `blind` says why canaries could not show anything, where that is so.
        """
        inside, outside = self._scores[self._present].numpy(), self._scores[~self._present].numpy()
        error = 1 - self.confidence
        bounds = [self._ranked(inside, outside, claim, event, 1 - _RANKS * error)]
        tail = self._highest(claim, event, 1 - _TAIL * error)
        groups = self._groups(claim, steps, more)
        reasons = self._reasons() | dict(why_not or {})
        return AuditResult(
            subject=subject,
            claim=claim,
            bounds=tuple(bounds if tail is None else [*bounds, tail]),
            in_scores=tuple(inside.tolist()),
            out_scores=tuple(outside.tolist()),
            checks=tuple(_checks(groups, _CHECKS * error)),
            unchecked=tuple(
                Unchecked(name=name, why=reasons.get(name, "nothing was observed for it"))
                for name, findings, _ in groups
                if not findings
            ),
            blind=blind,
        )

    def _ranked(
        self,
        inside: Numbers,
        outside: Numbers,
        claim: Guarantee,
        event: Callable[[float], DpEvent],
        confidence: float,
    ) -> LowerBound:
        area = one_run.ranks(inside, outside, confidence=confidence)
        shown = claim_limits.bound_of_area(area, event, delta=claim.delta, relation=claim.relation)
        return LowerBound(
            epsilon=shown.epsilon,
            delta=claim.delta,
            confidence=confidence,
            attack=_ATTACK if shown.certified else f"{_ATTACK}, {_UNCERTIFIED}",
            trials=self.count,
        )

    def _highest(
        self, claim: Guarantee, event: Callable[[float], DpEvent], confidence: float
    ) -> LowerBound | None:
        """Choose a threshold by half of the canaries, and count those above it among the others."""
        found = one_run.highest(self._scores.numpy(), self._present.numpy())
        if found is None:
            return None
        shown = claim_limits.bound_of_tail(
            found, event, delta=claim.delta, relation=claim.relation, confidence=confidence
        )
        return LowerBound(
            epsilon=shown.epsilon,
            delta=claim.delta,
            confidence=confidence,
            attack=_HIGHEST if shown.certified else f"{_HIGHEST}, {_UNCERTIFIED}",
            trials=found.positives + found.negatives,
        )

    def _groups(
        self, claim: Guarantee, steps: int | None, more: Sequence[tuple[str, list[Finding], str]]
    ) -> list[_Group]:
        return [
            (CheckName.STEPS, self._noise.findings(), self._noise.sees),
            (CheckName.TENSORS, self._trial_findings(), self._trial_sees),
            (CheckName.GRADIENTS, self._energy_findings(), self._energy_sees),
            (CheckName.CANARIES, self._added.findings(), self._added.sees),
            (CheckName.PUSHES, self._pushed.findings(), self._pushed.sees),
            (CheckName.BATCHES, self._batch_findings(), self._batches.sees),
            (CheckName.PRICE, self._price(claim, steps), self._price_sees),
            *((name, findings, lambda _, sees=sees: sees) for name, findings, sees in more),
        ]

    def _reasons(self) -> dict[str, str]:
        """Return, for each check, the reason why it has nothing to look at, where that is so."""
        return {
            CheckName.STEPS: "no coordinate was seen that holds noise alone",
            CheckName.TENSORS: "no trial step without rows was observed",
            CheckName.GRADIENTS: "no gradient of a model was observed",
            CheckName.CANARIES: self._why_no_contributions(),
            CheckName.PUSHES: "no trial step with made-up rows was observed",
            CheckName.BATCHES: self._why_no_batches(),
            CheckName.PRICE: self._why_no_price(),
        }

    def _why_no_contributions(self) -> str:
        if self._steps and not self._added.looked:
            return ESTIMATED
        return TOO_LITTLE if self._steps and min(self._steps) < LEAST_NOISE else "no canary was in a batch"

    def _why_no_batches(self) -> str:
        if self.sampling_rate is None:
            return "only Poisson sampling throws a coin for each unit"
        return "every unit is in each batch" if self.sampling_rate >= 1 else "no canary takes part"

    def _why_no_price(self) -> str:
        if self.sampling_rate is None:
            return "only the cost of Poisson sampling is computed anew"
        return "for so little noise, or so small a delta, the cost cannot be computed precisely enough"

    def _trial_findings(self) -> list[Finding]:
        logs = list(self._trials.values())
        pairs = [a.compared(b) for i, a in enumerate(logs) for b in logs[:i]]
        shared = [f for f in pairs if f is not None] + self._places.findings()
        return [f for log in logs for f in log.findings()] + shared

    def _trial_sees(self, error: float) -> str:
        if not self._trials:
            return "coordinates that share their noise"
        largest = max(self._trials.values(), key=lambda log: log.observations)
        return f"{largest.sees(error)} trial steps, in {largest.name}"

    def _energy_findings(self) -> list[Finding]:
        return [finding for energies in self._energies.values() for finding in energies.findings()]

    def _energy_sees(self, error: float) -> str:
        return "noise that is missing where the data add little"

    def _batch_findings(self) -> list[Finding]:
        found = self._batches.findings()
        if self._twice is None:
            return found
        return [Finding(p_value=0.0, message=self._twice, observations=len(self._steps)), *found]

    def _price_sees(self, error: float) -> str:
        return "a claim below the cost of the steps seen"

    def _price(self, claim: Guarantee, steps: int | None) -> list[Finding]:
        """Return whether the claim is below what the steps that were seen cost, computed anew."""
        if steps is not None and len(self._steps) != steps:
            message = f"{len(self._steps)} noisy steps were seen, and {steps} are claimed for"
            return [Finding(p_value=0.0, message=message, observations=len(self._steps))]
        if self.sampling_rate is None or not self._steps or not step_price.is_precise(self._steps, claim):
            return []
        least = step_price.least_epsilon(
            self._steps, sampling_rate=self.sampling_rate, relation=self.relation, delta=claim.delta
        )
        false = least > claim.epsilon * (1 + step_price.ROUNDING)
        message = f"the steps that were seen cost an epsilon of at least {least:.3g}"
        return [Finding(p_value=0.0 if false else 1.0, message=message, observations=len(self._steps))]

    # --- checkpoints -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return who is in, and all that was seen."""
        return {
            "present": self._present,
            "scores": self._scores.clone(),
            "steps": torch.tensor(self._steps, dtype=torch.float64),
            "twice": self._twice,
            "noise": self._noise.state_dict(),
            "added": self._added.state_dict(),
            "pushed": self._pushed.state_dict(),
            "batches": self._batches.state_dict(),
            "places": self._places.state_dict(),
            "trials": {name: log.state_dict() for name, log in self._trials.items()},
            "energies": {name: log.state_dict() for name, log in self._energies.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._seat(state["present"])
        self._scores = state["scores"].clone()
        self._steps = state["steps"].tolist()
        self._twice = state["twice"]
        self._noise.load_state_dict(state["noise"])
        self._added.load_state_dict(state["added"])
        self._pushed.load_state_dict(state["pushed"])
        self._batches.load_state_dict(state["batches"])
        self._places.load_state_dict(state["places"])
        self._trials = {name: NoiseLog(name, each="trial") for name in state["trials"]}
        self._energies = {name: Energies(name) for name in state["energies"]}
        for held, logs in (("trials", self._trials), ("energies", self._energies)):
            for name, log in logs.items():
                log.load_state_dict(state[held][name])


def _checks(groups: Sequence[_Group], error: float) -> list[Check]:
    made = [group for group in groups if group[1]]
    each = error / max(1, len(made))
    return [
        Check.of(name, findings, error=each, sees=sees(each / len(findings))) for name, findings, sees in made
    ]


def least_canaries(confidence: float) -> int:
    """Return the least number of canaries on each side with which an audit can show anything."""
    return one_run.least_canaries(1 - _RANKS * (1 - confidence))


def require_enough(count: int, confidence: float) -> None:
    """Raise unless so many canaries can show something."""
    _check.count(count=count)
    _check.probability(confidence=confidence)
    least = 4 * least_canaries(confidence)
    if count < least:
        raise InvalidParameterError(
            f"{count} canaries can show nothing at confidence {confidence:g}: use at least {least}, better "
            "1000."
        )


def halves(count: int, least: int, generator: Generator | None) -> Tensor:
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


def _log_ratio(seen: Tensor, noise: float, rate: float) -> Tensor:
    """Return log(1 - rate + rate exp((seen - 1/2) / noise^2)), of a unit that is in with chance `rate`."""
    present = (seen - 0.5) / noise**2
    if rate == 1.0:
        return present
    return torch.logaddexp(present + math.log(rate), torch.tensor(math.log1p(-rate), dtype=seen.dtype))
