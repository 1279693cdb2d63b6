# SPDX-License-Identifier: Apache-2.0
"""Observation of a mechanism at work: canaries that take part in it, and checks of its noise.

An auditor serves whatever adds noise to sums of bounded contributions, step by step: DP-SGD
(`audit.runs.canaries` uses it), votes of teachers, updates of clients. The caller lets the canaries that are
`present` take part, each in a direction of its own, and passes what was released there to the auditor.

The verdict holds two lower bounds (`score_log`) and checks of noise (`noise_log`, `place_log`),
of contributions (`contribution_log`), of batches (`batch_log`), and of the price: the least that the observed
steps cost, computed a second time (`evidence.step_price`).

Guarantee  The probability that right code is accused is at most 1 - confidence. The ranks get nine tenths of
           it, the highest scores get all but a thousandth of the rest, and the checks share that. At a
           confidence of 0.95 right code fails a check in at most one audit of 20,000. Only noisy sums are
           looked at, and which canaries are in a batch; canaries are synthetic.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.audit.evidence import step_price
from sfumato.audit.evidence.results import AuditResult, Check, CheckName, Finding, Unchecked
from sfumato.audit.runs.batch_log import BatchLog
from sfumato.audit.runs.contribution_log import LEAST_NOISE, TOO_LITTLE, ContributionLog
from sfumato.audit.runs.noise_log import Energies, NoiseLog
from sfumato.audit.runs.place_log import PlaceLog, ShiftLog
from sfumato.audit.runs.score_log import RANKS_SHARE, ScoreLog, halves, least_canaries, require_enough
from sfumato.mechanisms.random import Generator

__all__ = ["ESTIMATED", "Auditor"]

ESTIMATED = "norms are estimated, and a contribution may exceed its bound"
_TAIL_SHARE, _CHECKS_SHARE = 0.099, 0.001  # of the error; the ranks have the rest
_ENERGIES_SEE = "noise that is missing, or shared by two steps in a row, where the data add little"
_MOST = 1e12  # what is seen is cut off here: infinite numbers have no mean

_CANARIES = "the canaries' coordinates"

Numbers = npt.NDArray[np.float64]
_Group = tuple[str, list[Finding], Callable[[float], str]]  # of tests: name, findings, what they see


class Auditor:
    """Canaries of one run, and all that was observed of it.

    Noise and contributions are passed in multiples of the bound on one unit's contribution.

    Args:
        count: The number of canaries.
        relation: The neighboring relation of the claim.
        sampling_rate: The probability that a unit is in a step, if batches are Poisson samples; None for
            other batches.
        confidence: The probability with which the verdict is right about right code.
        present: Which canaries are in, as a tensor of booleans. Unless given, fair coins decide.
        generator: The source of these coins. None means operating-system entropy.

    Raises:
        InvalidParameterError: If so few canaries cannot show anything at this confidence.

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
        self._noise = NoiseLog(_CANARIES)
        self._shifts = ShiftLog(_CANARIES)
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
        rate = 1.0 if self.sampling_rate is None else self.sampling_rate
        self._batches = BatchLog(rate)
        self._scores = ScoreLog(present, self.relation, sampling_rate=rate)

    @property
    def present(self) -> Tensor:
        """Which canaries are in. If the relation replaces units, the others contribute the opposite."""
        return self._present

    @property
    def count(self) -> int:
        """The number of canaries."""
        return len(self._present)

    @property
    def seated(self) -> Tensor:
        """Which canaries are units of the mechanism: those in, or all if no unit is ever removed."""
        return self._present if self.relation is Relation.ADD_REMOVE else torch.ones_like(self._present)

    @property
    def signs(self) -> Tensor:
        """The sign of each canary's contribution: 0 for those that contribute nothing."""
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
        """Record a step. Canaries are numbered as they lie in the data.

        Args:
            seen: What was released along each canary's direction.
            noise: The standard deviation of the noise that is stated for this step.
            taken: How often each canary was in the batch: once at most, if the code is right.
            idle: What was released in further directions, to which no unit contributes.
            counted: 1 for canaries whose score counts this step, and 0 for others. None: all count.
            exact: False if contributions may exceed the bound, as they may with estimated norms.
        """
        heard = seen.double()
        seen = heard.nan_to_num(_MOST, _MOST, -_MOST).clamp(-_MOST, _MOST)
        self._scores.add(seen, noise=noise, counted=counted)
        self._steps.append(noise)
        if bool((taken > 1).any()):
            self._twice = self._twice or f"a unit is in the batch of step {len(self._steps)} more than once"
        taken, signs = taken > 0, self.signs
        moved = taken & (signs != 0)
        self._hear(heard, noise, moved, idle)
        if exact:  # what is no number is too much, whatever its sign
            beyond = torch.where(heard[moved].isfinite(), seen[moved] * signs[moved] - 1, _MOST)
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
        every, alone = torch.cat(heard).numpy() / noise, torch.cat(known).numpy()
        self._shifts.add(self._noise.add(every, known=alone))

    def observe_trial(self, noise: Tensor, *, before: int) -> None:
        """Record the coordinates of `observe` in a trial step, which does not count.

        Args:
            noise: The coordinates, in stated standard deviations. Their noise must be independent of that of
                any other step.
            before: The number of the step that follows, counted from 0.
        """
        self._noise.add(
            noise.double().numpy(), step=f"trial {self._noise.beside + 1}, before step {before + 1},"
        )

    def observe_noise(self, name: str, noise: Numbers) -> None:
        """Record coordinates of a trial step that hold noise alone.

        Args:
            name: What messages call these coordinates, such as the name of a tensor.
            noise: The coordinates, in stated standard deviations.
        """
        self._trials.setdefault(name, NoiseLog(name, each="trial")).add(noise)

    def observe_places(self, noise: Numbers, *, finite: bool = True) -> None:
        """Record all coordinates of a trial step that holds noise alone, in the order of memory.

        Of very many coordinates, the first and the last are enough (`place_log.ends`).

        Args:
            noise: The coordinates, in any unit.
            finite: False if a coordinate that is left out is not a finite number.
        """
        self._places.add(noise, finite=finite)

    def observe_energy(self, name: str, energy: float, size: int) -> None:
        """Record noisy coordinates to which the data contribute as well.

        Args:
            name: What messages call these coordinates.
            energy: The sum of their squares, in stated standard deviations.
            size: Their number.
        """
        self._energies.setdefault(name, Energies(name)).add(energy, size)

    def observe_push(self, beyond: float, *, noise: float) -> None:
        """Record by how much synthetic contributions exceeded their bound along one direction.

        Args:
            beyond: The noisy excess, in multiples of the bound.
            noise: The standard deviation of the noise in it.
        """
        value = min(max(beyond, -_MOST), _MOST) if math.isfinite(beyond) else _MOST
        self._pushed.add(np.array([value / noise]), np.zeros(0), noise=noise)

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
        """Return the result of the audit for a claim.

        Args:
            claim: The guarantee that is claimed for the run.
            event: A function that returns the claimed event with its noise multiplied by a factor.
            subject: What was audited, in a few words.
            steps: The number of steps that are claimed. None: not compared.
            more: Checks that the caller made: a name, the findings, and the smallest mistake that shows.
            why_not: By the name of a check, the reason why it could not be made, if the caller knows it.
            blind: The reason why canaries could not show anything, if there is one.

        Returns:
            The lower bounds, the scores, and each check with its result.
        """
        error = 1 - self.confidence
        bounds = [self._scores.ranked(claim, event, 1 - RANKS_SHARE * error)]
        tail = self._scores.highest(claim, event, 1 - _TAIL_SHARE * error)
        groups = self._groups(claim, steps, more)
        reasons = self._reasons() | dict(why_not or {})
        return AuditResult(
            subject=subject,
            claim=claim,
            bounds=tuple(bounds if tail is None else [*bounds, tail]),
            in_scores=tuple(self._scores.inside.tolist()),
            out_scores=tuple(self._scores.outside.tolist()),
            checks=tuple(_checks(groups, _CHECKS_SHARE * error)),
            unchecked=tuple(
                Unchecked(name=name, why=reasons.get(name, "nothing was observed for it"))
                for name, findings, _ in groups
                if not findings
            ),
            blind=blind,
        )

    def _groups(
        self, claim: Guarantee, steps: int | None, more: Sequence[tuple[str, list[Finding], str]]
    ) -> list[_Group]:
        return [
            (CheckName.STEPS, [*self._noise.findings(), *self._shifts.findings()], self._noise.sees),
            (CheckName.TENSORS, self._trial_findings(), self._trial_sees),
            (CheckName.GRADIENTS, self._energy_findings(), lambda _: _ENERGIES_SEE),
            (CheckName.CANARIES, self._added.findings(), self._added.sees),
            (CheckName.PUSHES, self._pushed.findings(), self._pushed.sees),
            (CheckName.BATCHES, self._batch_findings(), self._batches.sees),
            (
                CheckName.PRICE,
                self._price(claim, steps),
                lambda _: "a claim below the cost of the steps seen",
            ),
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

    def _batch_findings(self) -> list[Finding]:
        found = self._batches.findings()
        if self._twice is None:
            return found
        return [Finding(p_value=0.0, message=self._twice, observations=len(self._steps)), *found]

    def _price(self, claim: Guarantee, steps: int | None) -> list[Finding]:
        """Return whether the claim is below what the steps that were seen cost, computed anew."""
        if steps is not None and len(self._steps) != steps:
            message = f"{len(self._steps)} noisy steps were seen, and {steps} are claimed for"
            return [Finding(p_value=0.0, message=message, observations=len(self._steps))]
        if self.sampling_rate is None or not self._steps or not step_price.is_precise(self._steps, claim):
            return []
        rate, relation = self.sampling_rate, self.relation
        return [step_price.compared(self._steps, claim, sampling_rate=rate, relation=relation)]

    # --- checkpoints -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all that a checkpoint needs.

        Returns:
            Which canaries are in, and all that was observed, as plain values and tensors.
        """
        return {
            "present": self._present,
            "steps": torch.tensor(self._steps, dtype=torch.float64),
            "twice": self._twice,
            "logs": {name: log.state_dict() for name, log in self._logs().items()},
            "trials": {name: log.state_dict() for name, log in self._trials.items()},
            "energies": {name: log.state_dict() for name, log in self._energies.items()},
        }

    def _logs(self) -> dict[str, Any]:
        own = {"scores": self._scores, "noise": self._noise, "shifts": self._shifts, "added": self._added}
        return {**own, "pushed": self._pushed, "batches": self._batches, "places": self._places}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint.

        Args:
            state: What `state_dict` returned.
        """
        self._seat(state["present"])
        self._steps, self._twice = state["steps"].tolist(), state["twice"]
        for name, log in self._logs().items():
            log.load_state_dict(state["logs"][name])
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
