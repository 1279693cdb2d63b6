# SPDX-License-Identifier: Apache-2.0
"""How the results of audits show themselves in a notebook: the claim beside the lower bound, and the verdict.

Scores are not shown, and neither is an attack that compares private rows: its figures are exact, and no noise
covers them. `statement()` tells them to those who ask.
"""

from typing import TYPE_CHECKING

from sfumato import _notebook
from sfumato.accounting.guarantee import round_up
from sfumato.report import notebook

if TYPE_CHECKING:
    from sfumato.audit.evidence.results import AuditResult

__all__ = ["result_view"]


def result_view(result: "AuditResult") -> str:
    """Return the claim, the lower bounds and the checks of an audit."""
    claim = None if result.claim is None else result.claim.epsilon
    bounds = [
        (bound.attack, bound.told, f"{bound.delta:g}", f"{-round_up(-bound.confidence):g}")
        for bound in result.bounds
    ]
    checks = [(check.name, "failed" if check.failed else "found nothing") for check in result.checks]
    return _notebook.panel(
        f"Audit of {result.subject}",
        _notebook.warning("The claim is false.") if result.refuted else "",
        _notebook.facts({} if result.claim is None else result.claim.shown()),
        notebook.claim_and_bound(claim, result.best.epsilon),
        _notebook.rows(("attack", "epsilon is at least", "at delta", "confidence"), bounds),
        _notebook.rows(("check", "result"), checks) if checks else "",
        _notebook.note(result.statement()),
    )
