# SPDX-License-Identifier: Apache-2.0
"""What `sfumato reproduce` does: list experiments, measure them with a progress bar, show what was found."""

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sfumato.cli.devices import device_named
from sfumato.cli.show import show_facts, show_table, show_text
from sfumato.experiments import Outcome, Scale, experiments, reproduce, write_results
from sfumato.experiments.running import Watcher

__all__ = ["run", "show_list"]


def show_list(out: Path, *, as_json: bool) -> None:
    """Show all experiments, and whether a folder has their results."""
    rows = [
        {
            "name": name,
            "report": listed.experiment.report,
            "shows": ", ".join(listed.experiment.shows),
            "what": listed.experiment.title,
            "measured": ", ".join(
                scale for scale in ("quick", "full") if (out / scale / f"{name}.json").exists()
            ),
        }
        for name, listed in experiments().items()
    ]
    if as_json:
        show_facts("", {"experiments": rows}, as_json=True)
        return
    show_table("Tables and figures of the five reports", rows)
    show_text("`sfumato reproduce NAME` runs one, `sfumato reproduce all --quick` all of them on small data.")


def run(
    names: Sequence[str],
    *,
    quick: bool,
    out: Path,
    processes: int | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Measure what is missing, write figures and the page, and show what was found."""
    scale = Scale(quick=quick, device=None if device is None else str(device_named(device)))
    count = processes or os.cpu_count() or 1
    with _watched() as watcher:
        outcomes = reproduce(names, scale=scale, folder=out, processes=count, watcher=watcher)
    page = write_results(outcomes, scale=scale, folder=out)
    if as_json:
        show_facts("", {"page": str(page), "experiments": [_facts(one) for one in outcomes]}, as_json=True)
    else:
        _show(outcomes, page)
    if any(one.errors or not one.complete for one in outcomes):
        raise typer.Exit(1)


def _show(outcomes: Sequence[Outcome], page: Path) -> None:
    for outcome in outcomes:
        if len(outcomes) == 1:
            for table in outcome.tables:
                show_table(table.title, [dict(zip(table.heads, row, strict=True)) for row in table.rows])
    rows = [
        {
            "experiment": one.experiment.name,
            "cases": f"{len(one.rows)}/{len(one.cases)}",
            "seconds": round(one.kept.seconds(one.cases)),
            "claim": one.finding.verdict.value,
            "found": one.finding.sentence,
        }
        for one in outcomes
    ]
    show_table("Reproduced", rows)
    for outcome in outcomes:
        for note in [*outcome.kept.notes, *outcome.errors]:
            show_text(f"{outcome.experiment.name}: {note}")
    show_text(f"All tables and figures: {page}")


def _facts(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.experiment.name,
        "complete": outcome.complete,
        "seconds": outcome.kept.seconds(outcome.cases),
        "verdict": outcome.finding.verdict.value,
        "finding": outcome.finding.sentence,
        "rows": outcome.rows,
        "notes": outcome.kept.notes,
        "errors": outcome.errors,
    }


@contextmanager
def _watched() -> Generator[Watcher]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        tasks: dict[str, Any] = {}

        def watcher(outcome: Outcome, measured: int) -> None:
            name = outcome.experiment.name
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=len(outcome.cases))
            bars.update(tasks[name], completed=measured)

        yield watcher
