# SPDX-License-Identifier: Apache-2.0
"""Attacks on a finished run: the lower bound of its canaries, and membership inference by loss.

Canaries give a lower bound on epsilon, with a confidence. Only such a bound, or a failed check beside it, can
refute a claim.

The membership attack compares the loss of rows that were trained on with the loss of rows that were not. It
is an estimate: exact for these rows and this model, and not a bound for others. If the two groups have
different distributions, that is part of the difference.

Guarantee  The canaries' bound reads nothing but noisy gradients, and costs no privacy. The membership attack
           reads private rows and shows exact figures about them: it is meant for public data and for the
           owner of the data. Do not publish its page if the rows are secret.
Failure    A model whose weights changed after the run is refused: they are not those that were audited.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sfumato import _notebook
from sfumato.accounting.guarantee import Guarantee
from sfumato.audit.evidence.results import AuditResult
from sfumato.audit.evidence.roc import Roc
from sfumato.audit.evidence.views import result_view
from sfumato.audit.models.shadow_models import loss_scores
from sfumato.errors import InvalidParameterError
from sfumato.labels.label_run import LabelRun
from sfumato.training.engine.losses import Loss, cross_entropy
from sfumato.training.record import fingerprints
from sfumato.training.run import LoadedVerdict, TrainingRun

__all__ = ["NOT_AUDITED", "AttackResult", "attack"]

NOT_AUDITED = (
    "The claim was not audited: the run has no canaries, and nothing else that was tried could have shown it "
    "to be false."
)

Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """A claim and the results of all attacks on it.

    Attributes:
        claim: The guarantee that the run states.
        canaries: The result of the audit by canaries; None if the run had none.
        membership: The curve of membership inference by loss; None if no rows were compared.
    """

    claim: Guarantee
    canaries: AuditResult | None
    membership: Roc | None

    @property
    def audited(self) -> bool:
        """Whether an attack was made that can refute a claim: only canaries can."""
        return self.canaries is not None and self.canaries.tested

    def not_audited(self) -> str:
        """Return the sentence that says why nothing was audited.

        Returns:
            A sentence.
        """
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

    def _repr_html_(self) -> str:
        if self.canaries is None:
            return _notebook.panel(
                "Audit of a run", _notebook.facts(self.claim.shown()), _notebook.warning(self.not_audited())
            )
        return result_view(self.canaries)

    def tried(self) -> list[str]:
        """Return each attack with its result.

        Returns:
            One statement for each attack.
        """
        results = [] if self.canaries is None else [self.canaries.statement()]
        if self.membership is not None:
            results.append(f"Membership by loss, an estimate and no bound: {self.membership.describe()}.")
        return results

    def statement(self) -> str:
        """Return the claim and the results of all attacks.

        Returns:
            A paragraph.
        """
        missing = [] if self.audited else [self.not_audited()]
        return " ".join([f"The claim is {self.claim}.", *missing, *self.tried()])


def attack(
    run: TrainingRun | LabelRun,
    *,
    members: Rows | None = None,
    others: Rows | None = None,
    loss: Loss = cross_entropy,
) -> AttackResult:
    """Return the lower bound of a run's canaries and, with rows to compare, membership inference by loss.

    Args:
        run: A finished run. Of a run on secret labels, its training by noisy gradients is attacked.
        members: Features and labels of rows that the run was trained on. None for canaries alone.
        others: Features and labels of rows with the same distribution that the run was not trained on.
        loss: The loss that is compared, `loss(model, features, labels)`, one number for each row.

    Returns:
        The claim beside the result of each attack.

    Raises:
        InvalidParameterError: If the run has no canaries and no rows are given, if only one group of rows is
            given, if the run took no noisy steps, or if its weights were changed after the run.
    """
    run = _training(run)
    if (members is None) != (others is None):
        raise InvalidParameterError("pass both members and others, rows to compare, or neither.")
    planted = _found(run)
    if planted is None and members is None:
        raise InvalidParameterError(
            "this run has no canaries, and there are no rows to compare. Train with "
            "Trainer(audit=Canaries(count=1000)), or pass members=... and others=..."
        )
    _require_weights(run, refuted=planted is not None and planted.refuted and members is None)
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


def _require_weights(run: TrainingRun, *, refuted: bool) -> None:
    """Refuse a model whose weights are not those of the run, unless the run is refuted all the same."""
    left = run.weights_sha256
    if refuted or left is None or fingerprints.fingerprint_of(run.model.state_dict()) == left:
        return
    raise InvalidParameterError(
        "the weights of the model were changed after the run: they are not those that were audited. Restore "
        "them, or train again."
    )


def _training(run: TrainingRun | LabelRun) -> TrainingRun:
    if not isinstance(run, LabelRun):
        return run
    if run.training is None:
        raise InvalidParameterError(
            f"the method {run.method.name!r} releases labels once, with noise, and its run has no noisy "
            "gradients to attack. Attack the method's `release` with sfumato.audit.audit_mechanism."
        )
    return run.training
