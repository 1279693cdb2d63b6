# SPDX-License-Identifier: Apache-2.0
"""From outcomes to files: figures as SVG and PNG, and one HTML page of everything.

Figures need matplotlib (the extra `plots`); without it the page has tables alone, and says so.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato._extras import how_to_install
from sfumato.experiments.experiment import Finding, Scale, Table, Verdict
from sfumato.experiments.running import Outcome
from sfumato.report import escape, page, write_report
from sfumato.report.html import facts_table, rows_table, section
from sfumato.report.plots import save_plot, svg_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["finding_of", "markdown_of", "write_results"]


def write_results(outcomes: Sequence[Outcome], *, scale: Scale, folder: Path) -> Path:
    """Write the figures of each experiment, and the page of all of them.

    Args:
        outcomes: What became of the experiments.
        scale: How much was run.
        folder: The folder for all scales.

    Returns:
        The path of the page.
    """
    home = folder / scale.name
    home.mkdir(parents=True, exist_ok=True)
    parts = [_part(outcome, home) for outcome in outcomes]
    title = "The five reports, made again" + (" (quick: small data, few steps)" if scale.quick else "")
    return write_report(
        home / "report.html", page(title, f"<h1>{escape(title)}</h1>", _contents(outcomes), *parts)
    )


def finding_of(outcome: Outcome) -> Finding:
    """Return what was found; nothing before all cases are measured at full scale."""
    if not outcome.complete:
        return Finding(Verdict.NOT_TESTED, "Not all cases were measured.")
    if outcome.scale.quick:
        return Finding(Verdict.NOT_TESTED, "A quick run shows that it works; its numbers mean nothing.")
    return outcome.experiment.finding(outcome.rows)


def markdown_of(table: Table) -> str:
    """Return a table as Markdown.

    >>> print(markdown_of(Table("Squares", ("x", "square"), [(2, 4)])))
    | x | square |
    | --- | --- |
    | 2 | 4 |
    """
    lines = [table.heads, ["---"] * len(table.heads), *table.rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _contents(outcomes: Sequence[Outcome]) -> str:
    rows = [
        (
            one.experiment.report,
            ", ".join(one.experiment.shows),
            one.experiment.title,
            finding_of(one).verdict,
        )
        for one in outcomes
    ]
    return rows_table(("report", "shows", "what", "claim"), rows)


def _part(outcome: Outcome, home: Path) -> str:
    experiment = outcome.experiment
    heading = f"{experiment.report}: {', '.join(experiment.shows)}" if experiment.shows else experiment.report
    found = finding_of(outcome)
    content = [
        f"<p>{escape(experiment.title)}</p>",
        f"<p><strong>Claim.</strong> {escape(experiment.claim)}</p>",
        f"<p><strong>{escape(found.verdict.capitalize())}.</strong> {escape(found.sentence)}</p>",
        *(f'<p class="warning">{escape(error)}</p>' for error in outcome.errors),
    ]
    if outcome.complete:
        content += [
            f"<h3>{escape(t.title)}</h3>{rows_table(t.heads, t.rows)}"
            for t in experiment.tables(outcome.rows)
        ]
        content += _figures(outcome, home)
    return section(heading, *content, facts_table(_facts(outcome)))


def _figures(outcome: Outcome, home: Path) -> list[str]:
    try:
        drawn: Mapping[str, Figure] = outcome.experiment.figures(outcome.rows)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        return [f'<p class="warning">Figures need matplotlib. {escape(how_to_install("plots"))}</p>']
    shown: list[str] = []
    for name, figure in drawn.items():
        place = home / f"{outcome.experiment.name}-{name}"
        for suffix in (".svg", ".png"):
            save_plot(figure, place.with_suffix(suffix))
        shown.append(f'<figure class="chart">{svg_of(figure, name=place.name)}</figure>')
    return shown


def _facts(outcome: Outcome) -> dict[str, Any]:
    facts = outcome.kept.facts
    seeds = sorted({row["seed"] for row in outcome.cases if "seed" in row})
    return {
        "command": facts["command"],
        "seeds": ", ".join(map(str, seeds)) or "none: nothing is random",
        "measured": f"{len(outcome.rows)} of {len(outcome.cases)} cases",
        "time": f"{outcome.kept.seconds(outcome.cases):.0f} s in sum",
        "machine": facts["machine"],
        "sfumato": facts["sfumato"],
        "code": outcome.kept.code,
    }
