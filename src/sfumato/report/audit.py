# SPDX-License-Identifier: Apache-2.0
"""The page of an audit: the claim, the lower bound beside it, ROC curves, and what was tried.

Promise    A refuted claim is said to be false above everything else, and a claim that was not audited is
           said not to have been.
Shown      Exact figures of a membership attack tell about the rows it compared: the page says so.
"""

from sfumato.accounting.guarantee import round_up
from sfumato.audit.attack import NOT_AUDITED, Attacked
from sfumato.report.curves import Series, line_chart
from sfumato.report.html import escape, page, rows_table, section

__all__ = ["audit_report"]


def audit_report(found: Attacked, *, title: str) -> str:
    """Return the page of an audit."""
    return page(
        title,
        f"<h1>{escape(title)}</h1>",
        _verdict(found),
        section("Claim and lower bound", _bounds(found)),
        section("Who was in? ROC curves", _curves(found)) if found.rocs else "",
        section("What was tried", *(f"<p>{escape(said)}</p>" for said in found.tried())),
        _warning(found),
        "<footer><p>Written by sfumato. This page loads nothing and runs nothing.</p></footer>",
    )


def _verdict(found: Attacked) -> str:
    said = "The attacks do not contradict the claim. That proves nothing: another attack may do better."
    if not found.audited:
        said = f"{NOT_AUDITED} Train with canaries to audit it."
    elif found.refuted:
        said = "THE CLAIM IS FALSE: an attack proves a larger epsilon. Do not use the model."
    return f'<div class="promise"><p>{escape(said)}</p></div>'


def _bounds(found: Attacked) -> str:
    claimed = f"{round_up(found.claim.epsilon):g}"
    attacks = () if found.canaries is None else found.canaries.bounds
    rows = [
        (claimed, bound.told, f"{bound.delta:g}", bound.attack, bound.trials, bound.confidence)
        for bound in attacks
    ]
    heads = ("claimed epsilon", "at least", "delta", "attack", "observations", "confidence")
    return rows_table(heads, rows or [(claimed, "no bound", f"{found.claim.delta:g}", "no canaries", 0, "")])


def _curves(found: Attacked) -> str:
    lines = [Series(name=roc.name, points=roc.log_points()) for roc in found.rocs]
    chance = Series(name="guessing", points=[(-4.0, -4.0), (0.0, 0.0)])
    return line_chart(
        [*lines, chance],
        title="ROC curves on logarithmic axes",
        x_label="log10 of the false-positive rate",
        y_label="log10 of the true-positive rate",
    )


def _warning(found: Attacked) -> str:
    if found.membership is None:
        return ""
    return section(
        "Who may see this",
        "<p>The membership attack compared rows that were trained on with others, and its figures are exact: "
        "where these rows are secret, so is this page.</p>",
    )
