# SPDX-License-Identifier: Apache-2.0
"""Is the claim true? Attacks on every guarantee, each with a lower bound on epsilon or an honest estimate.

`Canaries` audit a training run from within, an `Auditor` any mechanism of noisy sums, `attack` a finished
one, `audit_inputs` one that cannot be changed, `audit_mechanism` any mechanism, `replay` whatever computes
statistics, and `check_paid_first` the order of charge and data. `Lira` and `Rmia` ask who was in the training
data; `train_with_secrets`, `invert` and `infer_attribute` what else a model gives away. What attacks models
is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from sfumato.audit.attack import Attacked, attack
from sfumato.audit.auditor import Auditor
from sfumato.audit.canaries import Canaries
from sfumato.audit.discrete import audit_discrete, audit_laws, exact_epsilon
from sfumato.audit.distances import LeakError
from sfumato.audit.inputs import audit_inputs, mislabeled
from sfumato.audit.mechanism import Vectorized, audit_mechanism, audit_outputs, runs_needed
from sfumato.audit.one_run import binary_guesses, f_dp, gaussian_scores
from sfumato.audit.order import check_never_exceeds, check_paid_first, check_stays_spent
from sfumato.audit.records import check_marked, check_one_result
from sfumato.audit.replay import check_sensitivity, replay
from sfumato.audit.results import AuditResult, Check, LowerBound
from sfumato.audit.roc import Roc

if TYPE_CHECKING:
    from sfumato.audit.attributes import Attribute, infer_attribute
    from sfumato.audit.inversion import invert, score_inversion
    from sfumato.audit.language import train_with_secrets
    from sfumato.audit.membership import Lira, Rmia, loss_from_confidences
    from sfumato.audit.memorization import SecretFormat
    from sfumato.audit.pictures import gallery
    from sfumato.audit.shadows import coin_flips, confidences, select, shadow_models

__all__ = [
    "Attacked",
    "Attribute",
    "AuditResult",
    "Auditor",
    "Canaries",
    "Check",
    "LeakError",
    "Lira",
    "LowerBound",
    "Rmia",
    "Roc",
    "SecretFormat",
    "Vectorized",
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
    "Attribute": "attributes",
    "Lira": "membership",
    "Rmia": "membership",
    "SecretFormat": "memorization",
    "coin_flips": "shadows",
    "confidences": "shadows",
    "gallery": "pictures",
    "infer_attribute": "attributes",
    "invert": "inversion",
    "loss_from_confidences": "membership",
    "score_inversion": "inversion",
    "select": "shadows",
    "shadow_models": "shadows",
    "train_with_secrets": "language",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"sfumato.audit.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'sfumato.audit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
