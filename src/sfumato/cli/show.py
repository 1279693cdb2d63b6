# SPDX-License-Identifier: Apache-2.0
"""How results are shown: tables for people, JSON for programs, a spinner on what takes long."""

import json
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sfumato.accounting import round_up

__all__ = ["show_error", "show_facts", "show_list", "show_text", "waiting"]

# Costs are rounded up, but a lower bound and what is left must not be overstated either.
_ROUNDED_DOWN = ("lower", "lower_bound", "largest_next_epsilon")

_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)


def show_error(message: str) -> None:
    """Print one paragraph to standard error; what users typed is never read as markup."""
    _err.print(Text.assemble(("error: ", "bold red"), message))


def show_text(text: str) -> None:
    """Print plain text."""
    _out.print(Text(text), soft_wrap=True)


def show_facts(title: str, facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print named values: as a table, or as one JSON object with numbers as they are."""
    if as_json:
        _out.print(Text(to_json(facts)), soft_wrap=True)
        return
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), Text(_cell(name, value)))
    _out.print(table)


def show_list(title: str, rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print rows with the same names: as a table, or as a JSON array."""
    if as_json:
        _out.print(Text(to_json(rows)), soft_wrap=True)
        return
    table = Table(title=title, title_justify="left")
    for name in rows[0] if rows else ("nothing yet",):
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(name, value)) for name, value in row.items()))
    _out.print(table)


def to_json(value: Any) -> str:
    """Return JSON; an infinite epsilon, which JSON cannot say, becomes null."""
    return json.dumps(_finite(value), indent=2)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "none"
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
