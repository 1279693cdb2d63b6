# SPDX-License-Identifier: Apache-2.0
"""The release of a workload: a table with one row for each key, and one column for each statistic.

Exports read the release only, so they cost nothing.

- pandas and CSV: the columns of the key, then for each statistic its value, and `_lower` and `_upper` for the
  ends of its interval. What holds for the whole table (level, guarantee, whether a ledger records it,
  account, notes) is in `frame.attrs`, or in the last columns of the CSV; where a column of the table has one
  of these names, `release_` is put before it.
- JSON: one object; `version` is the version of its layout. Text that a spreadsheet would run as a formula is
  escaped in CSV (`statistics.export`).
"""

import csv
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sfumato import _json, _notebook
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee
from sfumato.errors import InvalidParameterError, MissingDependencyError
from sfumato.queries.counts import Cell
from sfumato.queries.workload import Cells, Workload
from sfumato.report.cards.card import PrivacyCard
from sfumato.statistics.export import cell_text, written
from sfumato.statistics.release import Release

__all__ = ["TableRelease", "require_names_apart"]

VERSION = 1  # of the JSON's layout
_ENDS = ("", "_lower", "_upper")  # of the names of the columns of one statistic


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRelease:
    """A released table, its guarantee and its intervals.

    Attributes:
        release: The release as any other statistic has one, with the event that was charged.
        workload: What was asked.
    """

    release: Release[Cells] = field(repr=False)
    workload: Workload = field(repr=False)

    @property
    def guarantee(self) -> Guarantee:
        """Epsilon, delta, relation and privacy unit of the whole table."""
        return self.release.guarantee

    @property
    def event(self) -> DpEvent:
        """The event that was charged."""
        return self.release.event

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that belong beside the numbers."""
        return self.release.notes

    @property
    def keys(self) -> list[Any]:
        """The key of each row: a value, or a tuple if there are several columns."""
        single = len(self.release.value.columns) == 1
        return [key[0] if single else key for key in self.release.value.keys]

    @property
    def values(self) -> dict[str, list[float | None]]:
        """The numbers of each statistic, in the order of the keys; None for one that failed."""
        return {name: [cell.value for cell in cells] for name, cells in self.release.value.cells.items()}

    def __getitem__(self, name: str) -> list[Cell]:
        """Return the cells of one statistic, with intervals.

        Args:
            name: The name of the statistic.

        Returns:
            One cell for each key.

        Raises:
            InvalidParameterError: If there is no such statistic.
        """
        if name not in self.release.value.cells:
            raise InvalidParameterError(
                f"there is no statistic {name!r}. The table has: {', '.join(self.release.value.cells)}."
            )
        return self.release.value.cells[name]

    # --- exports ------------------------------------------------------------------------------------------

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the table as JSON, and write it to a file if a path is given.

        Args:
            path: The file to write. None writes no file.

        Returns:
            The JSON text.

        Raises:
            InvalidParameterError: If the file cannot be written.
        """
        return written(_json.dumps(self.facts()), path)

    def facts(self) -> dict[str, Any]:
        """Return the table as named plain values, as its JSON has them.

        Returns:
            The values, by name.
        """
        asked = {name: statistic.name for name, statistic in self.workload.statistics.items()}
        return {
            "format": "sfumato table",
            "version": VERSION,
            "group_by": list(self.release.value.columns),
            "statistics": asked,
            "level": self.workload.level,
            "rows": [
                {"key": dict(zip(self.release.value.columns, key, strict=True))}
                | {name: _written_cell(cells[i]) for name, cells in self.release.value.cells.items()}
                for i, key in enumerate(self.release.value.keys)
            ],
            "guarantee": self.guarantee.to_dict(),
            "recorded": self.release.recorded,
            "account": self.release.account,
            "notes": list(self.notes),
        }

    def to_csv(self, path: str | os.PathLike[str] | None = None, *, escape_formulas: bool = True) -> str:
        """Return the table as CSV, and write it to a file if a path is given.

        Args:
            path: The file to write. None writes no file.
            escape_formulas: Whether text that a spreadsheet would run as a formula gets an apostrophe.

        Returns:
            The CSV text, with a header.

        Raises:
            InvalidParameterError: If the file cannot be written.
        """
        fixed, heads = self._fixed(), self._heads()
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow([*heads, *(_beside(name, heads) for name in fixed)])
        for row in self._rows():
            cells = [*row, *fixed.values()]
            writer.writerow([cell_text(cell, escape_formulas=escape_formulas) for cell in cells])
        return written(text.getvalue(), path)

    def to_pandas(self) -> Any:
        """Return the table as a pandas frame, with the guarantee, the account and the notes in its `attrs`.

        Returns:
            The frame.

        Raises:
            MissingDependencyError: If pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingDependencyError(
                "to_pandas() needs pandas: pip install pandas. to_json() and to_csv() work without it."
            ) from error
        frame = pd.DataFrame(self._rows(), columns=self._heads())
        for name in self._heads()[len(self.release.value.columns) :]:
            frame[name] = pd.to_numeric(frame[name])
        frame.attrs |= self._fixed()
        return frame

    def plot(self, statistic: str | None = None) -> Any:
        """Draw one statistic over the keys, with intervals.

        Args:
            statistic: The name of the statistic. None draws the first.

        Returns:
            The matplotlib figure.

        Raises:
            InvalidParameterError: If there is no such statistic.
            MissingDependencyError: If matplotlib is not installed.
        """
        from sfumato.report.plots import plot_intervals

        name = next(iter(self.release.value.cells)) if statistic is None else statistic
        ends = [None if c.interval is None else (c.interval.lower, c.interval.upper) for c in self[name]]
        keys = [", ".join(map(str, key)) or "all rows" for key in self.release.value.keys]
        cells = {key: (cell.value, end) for key, cell, end in zip(keys, self[name], ends, strict=True)}
        return plot_intervals(cells, title=self.workload.statistics[name].name, note=str(self.guarantee))

    def card(self, *, title: str | None = None) -> PrivacyCard:
        """Return the privacy card of the table, for those who read its numbers.

        Args:
            title: The title of the card. Default: what was asked.

        Returns:
            The card.
        """
        return self.release.card(title=title)

    # --- shows --------------------------------------------------------------------------------------------

    def _heads(self) -> list[str]:
        names = self.release.value.cells
        ends = [f"{name}{end}" for name in names for end in _ENDS]
        return [*self.release.value.columns, *ends]

    def _fixed(self) -> dict[str, Any]:
        """Return what holds for the whole table, by name, as other exports of releases name it."""
        promised = self.guarantee.to_dict()
        return {
            "level": self.workload.level,
            **{name: value for name, value in promised.items() if name != "text"},
            "guarantee": promised["text"],
            "recorded": self.release.recorded,
            "account": self.release.account,
            "notes": "; ".join(self.notes),
        }

    def _rows(self) -> list[list[Any]]:
        return [
            [*key, *(part for cells in self.release.value.cells.values() for part in _parts(cells[i]))]
            for i, key in enumerate(self.release.value.keys)
        ]

    def _shown(self) -> tuple[list[str], list[list[str]]]:
        names = list(self.release.value.cells)
        rows = [
            [*map(str, key), *(_shown_cell(self.release.value.cells[name][i]) for name in names)]
            for i, key in enumerate(self.release.value.keys)
        ]
        return [*self.release.value.columns, *names], rows

    def _repr_html_(self) -> str:
        heads, rows = self._shown()
        return _notebook.panel(
            self.release.name,
            _notebook.rows(heads, rows) if rows else _notebook.paragraph("No key was found."),
            _notebook.facts({**self.guarantee.shown(), "account": self.release.account}),
            *map(_notebook.note, self.notes),
        )

    def __str__(self) -> str:
        heads, rows = self._shown()
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        lines = ["  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)) for row in [heads, *rows]]
        return "\n".join([*(line.rstrip() for line in lines), str(self.guarantee), *self.notes])


def _beside(name: str, heads: Sequence[str]) -> str:
    """Return a name that no column of the table has."""
    while name in heads:
        name = f"release_{name}"
    return name


def _parts(cell: Cell) -> tuple[float | None, float | None, float | None]:
    known = cell.interval
    return (cell.value, None, None) if known is None else (cell.value, known.lower, known.upper)


def _written_cell(cell: Cell) -> dict[str, float | None]:
    value, lower, upper = _parts(cell)
    return {"value": value, "lower": lower, "upper": upper}


def _shown_cell(cell: Cell) -> str:
    if cell.value is None:
        return "failed"
    known = cell.interval
    return f"{cell.value:.6g}" + ("" if known is None else f" ({known.lower:.6g} to {known.upper:.6g})")


def require_names_apart(columns: Sequence[str], statistics: Iterable[str]) -> None:
    """Refuse names that would be two columns of the release with one name, or the "key" of its JSON."""
    seen = [*columns]
    if len(set(seen)) < len(seen):
        raise InvalidParameterError("two columns of the release would have one name: use other aliases.")
    for name in statistics:
        heads = [f"{name}{end}" for end in _ENDS]
        if name == "key" or set(heads) & set(seen):
            raise InvalidParameterError(
                f"{name!r} cannot be the name of a statistic here: the release would have two columns of one "
                f"name among {', '.join([*seen, *heads])}, or 'key'. Use another name."
            )
        seen += heads
