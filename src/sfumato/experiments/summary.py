# SPDX-License-Identifier: Apache-2.0
"""What a page shows of an experiment. It is kept beside the measurements, in words and cells alone.

So a page holds every experiment of a folder, also those that another command measured and those whose file is
elsewhere by now, and no code runs because a file of results names it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sfumato.experiments.experiment import Table, Verdict
from sfumato.experiments.running import Outcome

__all__ = ["Summary"]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """An experiment as a page shows it.

    `figures` has their names, `cases` how many were measured and how many there are, `seeds` what the noise
    was drawn from.
    """

    name: str
    report: str
    shows: Sequence[str]
    title: str
    claim: str
    verdict: Verdict
    finding: str
    tables: Sequence[Table]
    figures: Sequence[str]
    errors: Sequence[str]
    cases: Sequence[int]
    seeds: str
    seconds: float

    @classmethod
    def of(cls, outcome: Outcome, figures: Sequence[str], warnings: Sequence[str] = ()) -> "Summary":
        """Return what is shown of an outcome, after its figures were drawn."""
        experiment = outcome.experiment
        seeds = sorted({row["seed"] for row in outcome.cases if "seed" in row})
        return cls(
            name=experiment.name,
            report=experiment.report,
            shows=experiment.shows,
            title=experiment.title,
            claim=experiment.claim,
            verdict=outcome.finding.verdict,
            finding=outcome.finding.sentence,
            tables=[
                Table(one.title, one.heads, [list(map(_cell, r)) for r in one.rows]) for one in outcome.tables
            ],
            figures=list(figures),
            errors=[*warnings, *map(_without_places, outcome.errors)],
            cases=(len(outcome.rows), len(outcome.cases)),
            seeds=", ".join(map(str, seeds)) or "none: nothing is random",
            seconds=round(outcome.kept.seconds(outcome.cases), 3),
        )

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> "Summary":
        """Return what a file has.

        Raises:
            ValueError: If a part of it is missing or is something else.
        """
        try:
            texts: dict[str, Any] = {
                name: _text(found[name]) for name in ("name", "report", "title", "claim", "finding", "seeds")
            }
            lists: dict[str, Any] = {
                name: list(map(_text, found[name])) for name in ("shows", "figures", "errors")
            }
            tables = [Table(_text(one["title"]), one["heads"], one["rows"]) for one in found["tables"]]
            measured, count = map(int, found["cases"])
            verdict, seconds = Verdict(found["verdict"]), float(found["seconds"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError("a part of what was shown is missing") from error
        return cls(**texts, **lists, tables=tables, cases=(measured, count), verdict=verdict, seconds=seconds)

    def facts(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def _without_places(error: str) -> str:
    """Return an error without the folders of this machine, as results may be published."""
    here, home = f"{Path.cwd()}{os.sep}", str(Path.home())
    error = error.replace(here, "") if len(here) > 1 else error
    return error.replace(home, "~") if len(home) > 1 else error


def _cell(cell: object) -> str | None:
    return None if cell is None else str(cell)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value
