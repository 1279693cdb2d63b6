# SPDX-License-Identifier: Apache-2.0
"""What every benchmark shares: its options, its rows against their bars, and how they are printed.

    a table for people, or with --json a list of rows for programs (what, value, bar, met); an exit status.

`python benchmarks/all.py` reads these rows, so a file of `benchmarks/` makes its parser with `command_line`
and ends with `report`.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table

LEFT_OUT = "left out"


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
        return bool(self.value >= self.bar if self.at_least else self.value <= self.bar)

    @property
    def left_out(self) -> bool:
        """Whether it stands for what could not be measured here."""
        return self.name == LEFT_OUT

    @property
    def limit(self) -> str:
        """The bar as text, with its side."""
        return "" if self.bar is None else f"{'>=' if self.at_least else '<='} {self.bar:g}"

    def as_json(self) -> dict[str, Any]:
        """Return the row for programs."""
        found = ("what", "value", "bar", "met", "limit", "left_out")
        return {name: getattr(self, name) for name in found} | asdict(self)

    def cells(self, digits: int) -> tuple[str, ...]:
        """Return the row as text."""
        value = "-" if self.value is None else f"{self.value:.{digits}f}"
        spread = "" if self.quartiles is None else "-".join(f"{end:.{digits}f}" for end in self.quartiles)
        met = "" if self.met is None else "yes" if self.met else "NO"
        name = f"  {self.name} ({self.note})" if self.note else f"  {self.name}"
        return name, value, spread, self.limit, met


def left_out(subject: str, why: str) -> Row:
    """Return a row for what cannot be measured here, for want of data, a peer or a device."""
    return Row(subject=subject, name=LEFT_OUT, value=None, note=why)


def command_line(description: str | None, *, quick: str) -> argparse.ArgumentParser:
    """Return a parser with what every benchmark takes; `quick` says what a quick run leaves out."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--quick", action="store_true", help=f"{quick}; under a minute on two cores")
    made.add_argument("--json", action="store_true", help="rows for a program: what, value, bar, met")
    return made


def report(title: str, found: Iterable[Row], *, as_json: bool, digits: int = 2) -> int:
    """Print rows (to standard error as they come), and return the exit status: 1 where a bar is not met."""
    rows: list[Row] = []
    for row in found:
        name, *numbers = row.cells(digits)
        print(f"{row.subject}: {name.strip()}", *filter(None, numbers), file=sys.stderr, flush=True)
        rows.append(row)
    if as_json:
        print(json.dumps([row.as_json() for row in rows], indent=2))
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
