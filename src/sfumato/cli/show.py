# SPDX-License-Identifier: Apache-2.0
"""How results are shown: tables for people, JSON for programs, a spinner on what takes long."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sfumato import _json
from sfumato.accounting import round_up

__all__ = ["show_error", "show_facts", "show_table", "show_text", "waiting"]

# Costs are rounded up, but a lower bound and what is left must not be overstated either.
_ROUNDED_DOWN = ("lower", "lower_bound", "largest_next_epsilon", "largest_next_run_epsilon")
_NARROWEST = 6  # characters of a column of text
_UNBROKEN = 10  # characters: a date

_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)


def show_error(message: str) -> None:
    """Print one paragraph to standard error; what users typed is never read as markup."""
    _err.print(Text.assemble(("error: ", "bold red"), message))


def show_text(text: str) -> None:
    """Print plain text."""
    _out.print(Text(text), soft_wrap=True)


def show_facts(title: str, facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print named values: as a table, or as one JSON object with numbers as they are.

    In a table, named values inside of another, such as a guarantee, stand beside the others.
    """
    if as_json:
        show_text(_json.dumps(facts))
        return
    table = Table(title=Text(title) if title else None, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in _flat(facts).items():
        table.add_row(name.replace("_", " "), Text(_cell(name, value)))
    _out.print(table)


def show_table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows with the same names as a table: text is wrapped to the width, a number never is."""
    table = Table(title=Text(title), title_justify="left")
    for name in rows[0] if rows else ("nothing yet",):
        words = name.replace("_", " ")
        if all(isinstance(row[name], int | float) for row in rows):
            table.add_column(Text(words.replace(" ", "\n")), no_wrap=True, justify="right")
        elif all(len(_cell(name, row[name])) <= _UNBROKEN for row in rows):
            table.add_column(Text(words.replace(" ", "\n")), no_wrap=True)
        else:
            table.add_column(Text(words), overflow="fold", min_width=_NARROWEST)
    for row in rows:
        table.add_row(*(Text(_cell(name, value)) for name, value in row.items()))
    _out.print(table)


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in facts.items():
        found |= value if isinstance(value, Mapping) else {name: value}
    return {name: value for name, value in found.items() if name != "text"}  # the same facts as a sentence


def _cell(name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        between = "\n" if name == "notes" else ", "
        return between.join(str(item) for item in value) or "none"
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{-round_up(-value, 6) if name in _ROUNDED_DOWN else round_up(value, 6):g}"


@contextmanager
def waiting(what: str) -> Generator[None]:
    """Show a spinner with the time passed while a step that may take seconds runs."""
    if not _err.is_terminal:
        yield
        return
    with _err.status(what):
        yield
