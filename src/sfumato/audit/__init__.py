# SPDX-License-Identifier: Apache-2.0
"""Attacks on guarantees: lower bounds on epsilon, and estimates of what a model reveals.

`Canaries` audit a training run or a federation while it runs, `RoundCanaries` what its server sees, an
`Auditor` any mechanism of noisy sums, `attack` a finished run, `audit_inputs` a run that cannot be changed,
`audit_mechanism` any mechanism, `replay` code that computes statistics, and `check_paid_first` the order of
charge and data. `Lira` and `Rmia` estimate who was in the training data; `train_with_secrets`, `invert` and
`infer_attribute` what else a model reveals. All names are imported lazily; attacks on runs
and models need the extra `torch`.
"""

from typing import TYPE_CHECKING

from sfumato._lazy import lazy_names

if TYPE_CHECKING:
    from sfumato.audit.evidence.one_run import binary_guesses, f_dp, gaussian_scores
    from sfumato.audit.evidence.results import AuditResult, Check, LowerBound
    from sfumato.audit.evidence.roc import Roc
    from sfumato.audit.federations.round_canaries import RoundCanaries
    from sfumato.audit.mechanisms.event_search import EVENTS, LowBits
    from sfumato.audit.mechanisms.exact_discrete import audit_discrete, audit_laws, exact_epsilon
    from sfumato.audit.mechanisms.ledger_records import check_marked, check_one_result, check_stated
    from sfumato.audit.mechanisms.mechanism_attack import (
        Vectorized,
        audit_mechanism,
        audit_outputs,
        runs_needed,
    )
    from sfumato.audit.mechanisms.neighbor_distances import LeakError
    from sfumato.audit.mechanisms.payment_order import (
        check_never_exceeds,
        check_paid_first,
        check_stays_spent,
    )
    from sfumato.audit.mechanisms.replay import replay
    from sfumato.audit.mechanisms.sensitivity_check import check_sensitivity
    from sfumato.audit.mechanisms.vote_canaries import VoteCanaries
    from sfumato.audit.models.attribute_inference import Attribute, infer_attribute
    from sfumato.audit.models.inversion import invert, score_inversion
    from sfumato.audit.models.membership import Lira, Rmia, loss_from_confidences
    from sfumato.audit.models.memorization import SecretFormat
    from sfumato.audit.models.pictures import gallery
    from sfumato.audit.models.planted_text import train_with_secrets
    from sfumato.audit.models.shadow_models import coin_flips, confidences, select, shadow_models
    from sfumato.audit.runs.auditor import Auditor
    from sfumato.audit.runs.canaries import Canaries
    from sfumato.audit.runs.input_canaries import audit_inputs, mislabeled
    from sfumato.audit.runs.run_attack import AttackResult, attack

__all__ = [
    "EVENTS",
    "AttackResult",
    "Attribute",
    "AuditResult",
    "Auditor",
    "Canaries",
    "Check",
    "LeakError",
    "Lira",
    "LowBits",
    "LowerBound",
    "Rmia",
    "Roc",
    "RoundCanaries",
    "SecretFormat",
    "Vectorized",
    "VoteCanaries",
    "attack",
    "audit_discrete",
    "audit_inputs",
    "audit_laws",
    "audit_mechanism",
    "audit_outputs",
    "binary_guesses",
    "check_marked",
    "check_never_exceeds",
    "check_one_result",
    "check_paid_first",
    "check_sensitivity",
    "check_stated",
    "check_stays_spent",
    "coin_flips",
    "confidences",
    "exact_epsilon",
    "f_dp",
    "gallery",
    "gaussian_scores",
    "infer_attribute",
    "invert",
    "loss_from_confidences",
    "mislabeled",
    "replay",
    "runs_needed",
    "score_inversion",
    "select",
    "shadow_models",
    "train_with_secrets",
]

_HOMES = {
    "EVENTS": "mechanisms.event_search",
    "AttackResult": "runs.run_attack",
    "Attribute": "models.attribute_inference",
    "AuditResult": "evidence.results",
    "Auditor": "runs.auditor",
    "Canaries": "runs.canaries",
    "Check": "evidence.results",
    "LeakError": "mechanisms.neighbor_distances",
    "Lira": "models.membership",
    "LowBits": "mechanisms.event_search",
    "LowerBound": "evidence.results",
    "Rmia": "models.membership",
    "Roc": "evidence.roc",
    "RoundCanaries": "federations.round_canaries",
    "SecretFormat": "models.memorization",
    "Vectorized": "mechanisms.mechanism_attack",
    "VoteCanaries": "mechanisms.vote_canaries",
    "attack": "runs.run_attack",
    "audit_discrete": "mechanisms.exact_discrete",
    "audit_inputs": "runs.input_canaries",
    "audit_laws": "mechanisms.exact_discrete",
    "audit_mechanism": "mechanisms.mechanism_attack",
    "audit_outputs": "mechanisms.mechanism_attack",
    "binary_guesses": "evidence.one_run",
    "check_marked": "mechanisms.ledger_records",
    "check_never_exceeds": "mechanisms.payment_order",
    "check_one_result": "mechanisms.ledger_records",
    "check_paid_first": "mechanisms.payment_order",
    "check_sensitivity": "mechanisms.sensitivity_check",
    "check_stated": "mechanisms.ledger_records",
    "check_stays_spent": "mechanisms.payment_order",
    "coin_flips": "models.shadow_models",
    "confidences": "models.shadow_models",
    "exact_epsilon": "mechanisms.exact_discrete",
    "f_dp": "evidence.one_run",
    "gallery": "models.pictures",
    "gaussian_scores": "evidence.one_run",
    "infer_attribute": "models.attribute_inference",
    "invert": "models.inversion",
    "loss_from_confidences": "models.membership",
    "mislabeled": "runs.input_canaries",
    "replay": "mechanisms.replay",
    "runs_needed": "mechanisms.mechanism_attack",
    "score_inversion": "models.inversion",
    "select": "models.shadow_models",
    "shadow_models": "models.shadow_models",
    "train_with_secrets": "models.planted_text",
}
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
