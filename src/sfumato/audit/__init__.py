# SPDX-License-Identifier: Apache-2.0
"""Is the claim true? Attacks on every guarantee, each with a lower bound on epsilon or an honest estimate.

`Canaries` audit a training run from within, `attack` a finished one, `audit_mechanism` any mechanism, and
`replay` whatever computes statistics. `membership` has loss thresholds, LiRA and RMIA; `memorization`,
`inversion` and `attributes` ask what else a model gives away.
"""

from sfumato.audit.attack import Attacked, attack
from sfumato.audit.canaries import Canaries
from sfumato.audit.mechanism import audit_mechanism, audit_outputs
from sfumato.audit.one_run import binary_guesses, f_dp, gaussian_scores
from sfumato.audit.results import AuditResult, LowerBound
from sfumato.audit.roc import Roc

__all__ = [
    "Attacked",
    "AuditResult",
    "Canaries",
    "LowerBound",
    "Roc",
    "attack",
    "audit_mechanism",
    "audit_outputs",
    "binary_guesses",
    "f_dp",
    "gaussian_scores",
]
