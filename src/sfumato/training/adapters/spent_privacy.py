# SPDX-License-Identifier: Apache-2.0
"""What the steps of a private loop cost.

Guarantee  Every number is computed from the history of the steps that were taken, which is only ever
           appended to: a step is counted with the noise that it had, before its gradient can be seen. Nothing
           here can be set. Settings that change later change no step that was taken.
Edge cases Before the first step the cost is 0.
           A copy is the account as it was when it was copied: it does not follow later steps.
"""

from dataclasses import dataclass, fields
from typing import Any, Protocol

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.accounting.price import price
from sfumato.training.privacy.dp_sgd import DpSgd, NoisyStep
from sfumato.training.privacy.sampling import PoissonSampling

__all__ = ["SpentPrivacy"]


class _Taken(Protocol):
    @property
    def history(self) -> tuple[tuple[float, int], ...]:
        """The noise multipliers of all steps, in order, each with how many steps it held for."""
        ...


@dataclass(frozen=True, slots=True)
class _Past:
    history: tuple[tuple[float, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SpentPrivacy:
    """What the steps so far cost, and by what they are described. Read-only.

    `noise_multiplier` is that of the steps to come; `planned_steps` is how many were paid for or calibrated
    for (None: no limit was stated). `study_note` says why the noise protects nobody, if it does not: it was
    seeded, or drawn by a generator that is not cryptographic. `record_note` says so where no ledger keeps
    the run.
    """

    sampling: PoissonSampling
    step: NoisyStep
    noise_multiplier: float
    relation: Relation
    privacy_unit: str
    planned_steps: int | None
    study_note: str | None
    record_note: str | None
    _taken: _Taken

    @property
    def sampling_rate(self) -> float:
        """The chance that a unit is in the sample of a step."""
        return self.sampling.sampling_rate

    @property
    def history(self) -> tuple[tuple[float, int], ...]:
        """The noise multipliers of the steps so far, in order, each with how many steps it held for."""
        return self._taken.history

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return sum(count for _, count in self.history)

    def event(self) -> DpEvent:
        """Return what the steps so far did, in privacy terms."""
        taken = [(self.step.event(noise), count) for noise, count in self.history]
        return self.sampling.event(taken, relation=self.relation)

    def get_epsilon(self, delta: float) -> float:
        """Return the epsilon that the steps so far cost at a delta."""
        _check.probability(delta=delta)
        return price(self.event(), delta=delta, relation=self.relation).epsilon if self.steps else 0.0

    def guarantee(self, delta: float) -> Guarantee:
        """Return the whole statement: epsilon, delta, relation and unit. See also the notes."""
        return Guarantee(
            epsilon=self.get_epsilon(delta),
            delta=delta,
            relation=self.relation,
            privacy_unit=self.privacy_unit,
        )

    def run(self, steps: int) -> DpSgd:
        """Return a run of so many steps like those to come, as a mechanism that can be priced beforehand."""
        return DpSgd(
            step=self.step,
            sampling=self.sampling,
            noise=((self.noise_multiplier, steps),),
            relation=self.relation,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return _again, (own | {"_taken": _Past(self.history)},)


def _again(own: dict[str, Any]) -> SpentPrivacy:
    return SpentPrivacy(**own)
