# SPDX-License-Identifier: Apache-2.0
"""Attack a finished run: what its canaries prove, and whether its model tells who was in its data.

Bound      Canaries give a lower bound on epsilon, with a confidence; only a bound can refute a claim.
Estimate   The loss of rows that were trained on, against rows that were not, tells how much this model gives
           away about membership. It is exact for these rows and this model, and no bound for others. Where
           the two groups are not drawn alike, part of the difference is theirs.
Private    The membership attack reads private rows and shows exact figures about them: it is for public data
           and for the data's owner, and its page must not be published where rows are secret.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sfumato.accounting.guarantee import Guarantee
from sfumato.audit.evidence.results import AuditResult
from sfumato.audit.evidence.roc import Roc
from sfumato.audit.models.shadow_models import loss_scores
from sfumato.errors import InvalidParameterError
from sfumato.labels.label_run import LabelRun
from sfumato.training.engine.losses import Loss, cross_entropy
from sfumato.training.run import LoadedVerdict, TrainingRun

__all__ = ["NOT_AUDITED", "AttackResult", "attack"]

NOT_AUDITED = (
    "The claim was not audited: the run has no canaries, and nothing else that was tried could have shown it "
    "to be false."
)

Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """A claim and all that was tried against it."""

    claim: Guarantee
    canaries: AuditResult | None
    membership: Roc | None

    @property
    def audited(self) -> bool:
        """Whether anything was tried that could have shown the claim to be false: only canaries could."""
        return self.canaries is not None and self.canaries.tested

    def not_audited(self) -> str:
        """Return the sentence that says why nothing was audited."""
        if self.canaries is None:
            return NOT_AUDITED
        return f"The claim was not audited: {self.canaries.untested()}."

    @property
    def refuted(self) -> bool:
        """Whether an attack shows that the claim is false."""
        return self.canaries is not None and self.canaries.refuted

    @property
    def rocs(self) -> Sequence[Roc]:
        """The curves that there are."""
        found = [] if self.membership is None else [self.membership]
        if self.canaries is None or not self.canaries.in_scores or not self.canaries.out_scores:
            return found
        return [Roc(self.canaries.in_scores, self.canaries.out_scores, name="canaries"), *found]

    def tried(self) -> list[str]:
        """Return each attack with what it found, a sentence each."""
        said = [] if self.canaries is None else [self.canaries.statement()]
        if self.membership is not None:
            said.append(f"Membership by loss, an estimate and no bound: {self.membership.describe()}.")
        return said

    def statement(self) -> str:
        """Return the claim and what was tried, as a paragraph."""
        missing = [] if self.audited else [self.not_audited()]
        return " ".join([f"The claim is {self.claim}.", *missing, *self.tried()])


def attack(
    run: TrainingRun | LabelRun,
    *,
    members: Rows | None = None,
    others: Rows | None = None,
    loss: Loss = cross_entropy,
) -> AttackResult:
    """Return what canaries of a run prove, and with rows to compare, what its model tells about membership.

    `members` are rows that the run was trained on, `others` rows of the same kind that it was not. Of a run
    on secret labels, its training by noisy gradients is attacked.
    """
    run = _training(run)
    if (members is None) != (others is None):
        raise InvalidParameterError("give both members and others, rows to compare, or neither.")
    planted = _found(run)
    if planted is None and members is None:
        raise InvalidParameterError(
            "this run has no canaries, and there are no rows to compare. Train with "
            "Trainer(audit=Canaries(count=1000)), or give members=... and others=..."
        )
    roc = None
    if members is not None and others is not None:
        scores = [loss_scores(run.model, rows, loss=loss) for rows in (members, others)]
        roc = Roc(*scores, name="membership by loss")
    return AttackResult(claim=run.guarantee, canaries=planted, membership=roc)


def _found(run: TrainingRun) -> AuditResult | None:
    """Return what the canaries of a run showed, also of one that was loaded from its folder."""
    if isinstance(run.audit, LoadedVerdict):
        return AuditResult.from_dict(run.audit.to_dict(), run.guarantee)
    return run.audit if isinstance(run.audit, AuditResult) else None


def _training(run: TrainingRun | LabelRun) -> TrainingRun:
    if not isinstance(run, LabelRun):
        return run
    if run.training is None:
        raise InvalidParameterError(
            f"the method {run.method.name!r} releases labels once, with noise, and its run has no noisy "
            "gradients to attack. Attack the method's `release` with sfumato.audit.audit_mechanism."
        )
    return run.training
