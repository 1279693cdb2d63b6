# SPDX-License-Identifier: Apache-2.0
"""What a benchmark found, against its bars: a table for people, JSON for programs, an exit status."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number. `bar` is None where there is nothing to reach, `value` where there is none: see `note`."""

    subject: str  # rows of one subject are shown together
    name: str
    value: float | None
    bar: float | None = None
    at_least: bool = False  # else the bar is the most that the value may be
    quartiles: tuple[float, float] | None = None
    note: str = ""

    @property
    def what(self) -> str:
        """The whole name."""
        return f"{self.subject}: {self.name}"

    @property
    def met(self) -> bool | None:
        """Whether the bar is reached; what has a bar and failed did not reach it."""
        if self.bar is None:
            return None
        if self.value is None:
            return False
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def cells(self, digits: int) -> tuple[str, ...]:
        """Return the row as text."""
        value = "-" if self.value is None else f"{self.value:.{digits}f}"
        spread = "" if self.quartiles is None else "-".join(f"{end:.{digits}f}" for end in self.quartiles)
        bar = "" if self.bar is None else f"{'>=' if self.at_least else '<='} {self.bar:g}"
        met = "" if self.met is None else "yes" if self.met else "NO"
        return f"  {self.name} ({self.note})" if self.note else f"  {self.name}", value, spread, bar, met


def report(title: str, found: Iterable[Row], *, as_json: bool, digits: int = 2) -> int:
    """Print rows (to standard error as they come), and return the exit status: 1 where a bar is not met."""
    rows: list[Row] = []
    for row in found:
        name, *numbers = row.cells(digits)
        print(f"{row.subject}: {name.strip()}", *filter(None, numbers), file=sys.stderr, flush=True)
        rows.append(row)
    if as_json:
        print(json.dumps([asdict(row) | {"what": row.what, "met": row.met} for row in rows], indent=2))
    else:
        Console().print(table(title, rows, digits))
    return 0 if all(row.met is not False for row in rows) else 1


def table(title: str, rows: Sequence[Row], digits: int) -> Table:
    """Return a table for people."""
    shown = Table(title=title)
    shown.add_column("what", overflow="fold")
    for name in ("value", "quartiles", "bar"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("met", no_wrap=True)
    for subject, members in groupby(rows, key=lambda row: row.subject):
        shown.add_section()
        shown.add_row(subject)
        for row in members:
            shown.add_row(*row.cells(digits))
    return shown
