# SPDX-License-Identifier: Apache-2.0
"""From outcomes to files: figures as SVG and PNG, and one HTML page of every experiment in the folder.

Figures need matplotlib (the extra `plots`); without it the page has tables alone, and says so.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sfumato._extras import how_to_install
from sfumato.experiments import catalog
from sfumato.experiments.conclusions import told
from sfumato.experiments.experiment import Scale, Table
from sfumato.experiments.results import read
from sfumato.experiments.running import Outcome
from sfumato.experiments.summary import Summary
from sfumato.report import escape, page, write_report
from sfumato.report.html import facts_table, rows_table, section
from sfumato.report.plots import inline_svg, save_plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["markdown_of", "write_results"]

_OLDER: Final = "This was measured by another version of the code. Run the command below again."


def write_results(outcomes: Sequence[Outcome], *, scale: Scale, folder: Path) -> Path:
    """Write the figures of each experiment, and the page of all experiments in the folder.

    The experiments of `outcomes` come first, then those that were measured before at the same scale. An error
    in the figures of an experiment is added to the errors of its outcome.

    Args:
        outcomes: What became of the experiments.
        scale: How much was run.
        folder: The folder for all scales.

    Returns:
        The path of the page.

    Raises:
        ResultsNotKeptError: If what is shown cannot be written.
    """
    home = folder / scale.name
    home.mkdir(parents=True, exist_ok=True)
    now: list[tuple[Summary, str]] = []
    for outcome in outcomes:
        figures, warnings = _drawn(outcome, home) if outcome.complete else ([], [])
        summary = Summary.of(outcome, figures, warnings)
        outcome.kept.show(summary.facts())
        now.append((summary, _part(summary, {**outcome.kept.facts, "code": outcome.kept.code}, home)))
    before, missing = _before(home, {outcome.experiment.name for outcome in outcomes})
    every = [*now, *before]
    title = _title([one for one, _ in every], quick=scale.quick)
    parts = [_contents([one for one, _ in every]), *(part for _, part in every), _missing(missing)]
    return write_report(home / "report.html", page(title, f"<h1>{escape(title)}</h1>", *parts))


def markdown_of(table: Table) -> str:
    """Return a table as Markdown.

    >>> print(markdown_of(Table("Squares", ("x", "square"), [(2, 4)])))
    | x | square |
    | --- | --- |
    | 2 | 4 |
    """
    lines = [table.heads, ["---"] * len(table.heads), *table.rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


# --- what other commands measured -------------------------------------------------------------------------


def _before(home: Path, known: set[str]) -> tuple[list[tuple[Summary, str]], list[str]]:
    """Return the other experiments of a folder, and why some of its files are not shown."""
    found: list[tuple[Summary, str]] = []
    missing: list[str] = []
    for path in sorted(home.glob("*.json")):
        if path.stem in known or "." in path.stem:  # with a point: put aside, and told of then
            continue
        try:
            kept = read(path)
            if "summary" not in kept:
                missing.append(f"{path.name}: its run did not end. Run it again: {kept.get('command')}")
                continue
            summary = Summary.read(kept["summary"])
            found.append((summary, _part(summary, kept, home, *_aged(path.stem, kept))))
        except (ValueError, OSError):
            missing.append(f"{path.name} could not be read.")
    return found, missing


def _aged(name: str, kept: Mapping[str, Any]) -> list[str]:
    ours = catalog.experiments().get(name) if name.partition("-")[0] in catalog.REPORTS else None
    return [] if ours is None or ours.code == kept["code"] else [_OLDER]


def _missing(missing: Sequence[str]) -> str:
    if not missing:
        return ""
    return section("Not shown", *(f'<p class="warning">{escape(one)}</p>' for one in missing))


# --- the page ---------------------------------------------------------------------------------------------


def _title(every: Sequence[Summary], *, quick: bool) -> str:
    reports = sorted({one.report for one in every if _published(one)})
    own = [one for one in every if not _published(one)]
    if len(every) == 1:
        title = every[0].title
    elif not reports:
        title = f"{len(own)} experiments"
    else:
        title = f"Tables and figures of {', '.join(reports)}, made again"
        title += f", and {len(own)} other experiment{'s' * (len(own) > 1)}" if own else ""
    return title + (" (quick: small data, few steps)" if quick else "")


def _published(one: Summary) -> bool:
    return one.report.lower() in catalog.REPORTS


def _contents(every: Sequence[Summary]) -> str:
    rows = [(one.report, ", ".join(one.shows), one.title, one.verdict) for one in every]
    return rows_table(("report", "shows", "what", "claim"), rows)


def _part(summary: Summary, kept: Mapping[str, Any], home: Path, *warnings: str) -> str:
    content = [
        f"<p>{escape(summary.title)}</p>",
        f"<p><strong>Claim.</strong> {escape(summary.claim)}</p>",
        f"<p><strong>{escape(summary.verdict.capitalize())}.</strong> {escape(summary.finding)}</p>",
        *(f'<p class="warning">{escape(one)}</p>' for one in (*warnings, *summary.errors)),
        *(f"<h3>{escape(one.title)}</h3>{rows_table(one.heads, one.rows)}" for one in summary.tables),
        *(_figure(home / _file(summary.name, figure, ".svg")) for figure in summary.figures),
    ]
    heading = f"{summary.report}: {', '.join(summary.shows)}" if summary.shows else summary.report
    return section(heading, *content, facts_table(_facts(summary, kept)))


def _figure(path: Path) -> str:
    try:
        return f'<figure class="chart">{inline_svg(path.read_text(encoding="utf-8"))}</figure>'
    except OSError:
        return f'<p class="warning">The figure {escape(path.name)} is no longer there.</p>'


def _drawn(outcome: Outcome, home: Path) -> tuple[list[str], list[str]]:
    """Write the figures of an outcome; return their names, and what is said if there are none."""
    try:
        drawn: Mapping[str, Figure] = outcome.experiment.figures(outcome.rows)
        for name, figure in drawn.items():
            for suffix in (".svg", ".png"):
                save_plot(figure, home / _file(outcome.experiment.name, name, suffix))
    except Exception as error:  # of whatever an experiment calls: it is told, and others go on
        if isinstance(error, ModuleNotFoundError) and error.name == "matplotlib":
            return [], [f"Figures need matplotlib. {how_to_install('plots')}"]
        outcome.errors.append(f"figures failed: {told(error, outcome.file)}")
        return [], []
    return list(drawn), []


def _file(experiment: str, figure: str, suffix: str) -> str:
    return f"{experiment}-{figure}{suffix}"


def _facts(summary: Summary, kept: Mapping[str, Any]) -> dict[str, Any]:
    measured, count = summary.cases
    return {
        "command": kept.get("command"),
        "seeds": summary.seeds,
        "measured": f"{measured} of {count} cases",
        "time": f"{summary.seconds:.0f} s in sum",
        "machine": kept.get("machine"),
        "sfumato": kept.get("sfumato"),
        "code": kept.get("code"),
    }
