# SPDX-License-Identifier: Apache-2.0
"""Values that a shell completes: words of a list, accounts of a ledger, experiments of the reports.

They are found quickly and without a change to anything: a key was pressed, and nothing was asked for.

Failure    What cannot be found is not completed. No error is shown: it would appear inside the line.
"""

import contextlib
import re
import sqlite3
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import click

__all__ = ["accounts", "among", "experiment_names", "relations"]

Completion = Callable[[str], list[str]]

_EXPERIMENT = re.compile(r"^EXPERIMENT = Experiment\(\s*name=\"([^\"]+)\"", re.MULTILINE)
_REPORTS = ("r1", "r2", "r3", "r4", "r5")
_OPENED = "SELECT account FROM sfumato_journal WHERE kind = 'open' ORDER BY sequence"


def among(*words: str) -> Completion:
    """Return a completion by words of a list.

    >>> among("digits", "mnist")("d")
    ['digits']
    """

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def relations(incomplete: str) -> list[str]:
    """Return the relations that begin so."""
    from sfumato.accounting import Relation

    return among(*(each.value for each in Relation))(incomplete)


def accounts(ctx: click.Context, incomplete: str) -> list[str]:
    """Return the accounts that begin so, of the ledger file of a line, the environment or the settings."""
    found: list[str] = []
    with contextlib.suppress(Exception):  # of any kind: see Failure
        found = among(*_opened(Path(_ledger_of(ctx))))(incomplete)
    return found


def experiment_names(incomplete: str) -> list[str]:
    """Return the experiments and reports that begin so; files are read, and nothing is imported."""
    found: list[str] = []
    with contextlib.suppress(Exception):
        package = find_spec("sfumato.experiments")
        places = [] if package is None else package.submodule_search_locations or []
        for place in places:
            for report in _REPORTS:
                for path in sorted((Path(place) / report).glob("*.py")):
                    found += _EXPERIMENT.findall(path.read_text(encoding="utf-8"))
    return among(*found, *_REPORTS, "all")(incomplete)


def _ledger_of(ctx: click.Context) -> str:
    from sfumato.cli.project.defaults import ledger_at

    return ledger_at(ctx.params.get("ledger") or ctx.params.get("ledger_at"))


def _opened(path: Path) -> list[str]:
    """Return the accounts of a ledger file, unverified; a missing file stays missing, and none is changed."""
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        return [str(name) for (name,) in connection.execute(_OPENED)]
