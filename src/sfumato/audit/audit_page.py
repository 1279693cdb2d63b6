# SPDX-License-Identifier: Apache-2.0
"""The page of an audit: the run, the claim, the lower bound beside it, checks, and ROC curves.

Exact figures of a membership attack reveal facts about the rows it compared: the page says so.

Guarantee  A refuted claim is shown as false above everything else, and a claim that was not audited is shown
           as such. So is a check that was not made.
"""

import math
from collections.abc import Mapping

import numpy as np

from sfumato.accounting.guarantee import Guarantee, round_up
from sfumato.audit.runs.run_attack import AttackResult
from sfumato.report.curves import Series, line_chart
from sfumato.report.html import escape, facts_table, page, rows_table, section

__all__ = ["audit_report"]

_LOWEST = -4.0  # log10 of rates that curves begin at


def audit_report(found: AttackResult, *, title: str, about: Mapping[str, object] | None = None) -> str:
    """Return the page of an audit; `about` says which run it is, by name and value."""
    return page(
        title,
        f"<h1>{escape(title)}</h1>",
        _verdict(found),
        section("The run", facts_table(about)) if about else "",
        section("Claim and lower bound", _bounds(found)),
        section("Checks, and how small a mistake they could have seen", _checks(found))
        if _checks(found)
        else "",
        section("Who was in? ROC curves", _curves(found)) if found.rocs else "",
        section("What was tried", *(f"<p>{escape(sentence)}</p>" for sentence in found.tried())),
        _warning(found),
        "<footer><p>Written by sfumato. This page loads nothing and runs nothing.</p></footer>",
    )


def _verdict(found: AttackResult) -> str:
    sentences = ["The attacks do not contradict the claim. That is no proof: another attack may do better."]
    if not found.audited:
        sentences = [
            found.not_audited(),
            *(["Train with canaries to audit it."] if found.canaries is None else []),
        ]
    if found.refuted:
        sentences = [_false(found), *(found.canaries.reasons() if found.canaries is not None else [])]
    if found.canaries is not None:
        sentences += found.canaries.gaps()
    kind = "promise" if found.audited and not found.refuted else "warning"
    return f'<div class="{kind}">{"".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)}</div>'


def _false(found: AttackResult) -> str:
    if found.canaries is not None and found.canaries.failures:
        return (
            "THE CLAIM IS FALSE: the run is not the one that the claim was computed for. Do not use the "
            "model."
        )
    return "THE CLAIM IS FALSE: an attack proves a larger epsilon. Do not use the model."


def _bounds(found: AttackResult) -> str:
    claimed = f"{round_up(found.claim.epsilon):g}"
    attacks = () if found.canaries is None else found.canaries.bounds
    rows = [
        (claimed, bound.told, f"{bound.delta:g}", bound.attack, bound.trials, f"{bound.confidence:.4g}")
        for bound in attacks
    ]
    heads = ("claimed epsilon", "at least", "delta", "attack", "observations", "confidence")
    return rows_table(heads, rows or [(claimed, "no bound", f"{found.claim.delta:g}", "no canaries", 0, "")])


def _checks(found: AttackResult) -> str:
    """Return a row for each check, those that were not made included; empty if there is none."""
    if found.canaries is None or not (found.canaries.checks or found.canaries.unchecked):
        return ""
    rows = [
        (
            check.name,
            "FAILED" if check.failed else "nothing found",
            f"{check.p_value:.2g}",
            f"{check.error:.2g}",
            check.observations,
            check.sees,
        )
        for check in found.canaries.checks
    ]
    rows += [
        (gap.name, "NOT CHECKED", "", "", "", f"nothing, because {gap.why}")
        for gap in found.canaries.unchecked
    ]
    heads = ("what", "result", "chance in right code", "fails below", "observations", "seen 9 times in 10")
    failed = [number for number, check in enumerate(found.canaries.checks) if check.failed]
    return rows_table(heads, rows, warned=failed)


def _curves(found: AttackResult) -> str:
    lines = [Series(name=roc.name, points=roc.log_points()) for roc in found.rocs]
    if math.isfinite(found.claim.epsilon):
        lines.append(Series(name="the most the claim allows", points=_allowed(found.claim)))
    chance = Series(name="guessing", points=[(_LOWEST, _LOWEST), (0.0, 0.0)])
    chart = line_chart(
        [*lines, chance],
        title="ROC curves on logarithmic axes",
        x_label="log10 of the false-positive rate",
        y_label="log10 of the true-positive rate",
    )
    return f'<figure class="chart">{chart}</figure>'


def _allowed(claim: Guarantee) -> list[tuple[float, float]]:
    """Return the most true positives at each rate of false positives, both as logarithms.

    At most e^epsilon a + delta, and at most 1 - (1 - delta - a) / e^epsilon (Kairouz, Oh, Viswanath 2015).
    """
    factor = math.exp(min(claim.epsilon, 700.0))
    points: list[tuple[float, float]] = []
    for place in np.linspace(_LOWEST, 0.0, 81).tolist():
        alarms = 10**place
        most = min(1.0, factor * alarms + claim.delta, 1 - (1 - claim.delta - alarms) / factor)
        points.append((place, math.log10(max(most, 10**_LOWEST))))
    return points


def _warning(found: AttackResult) -> str:
    if found.membership is None:
        return ""
    return section(
        "Who may see this",
        "<p>The membership attack compared rows that were trained on with others, and its figures are exact: "
        "where these rows are secret, so is this page.</p>",
    )
