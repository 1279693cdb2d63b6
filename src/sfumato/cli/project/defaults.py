# SPDX-License-Identifier: Apache-2.0
"""What a command uses where a line does not say it: a flag goes before the environment, which goes before
`sfumato.toml` in the working folder.

Ledger, account and privacy unit of the file hold for every file or database that a command reads there: what
is published from a project is charged, also if the data has another name. Types and bounds hold for the
`data` of the file alone. The named public sets are not the data of a project: nothing holds for them.

SFUMATO_LEDGER   The ledger. Commands that can work without one use it if an account is named, too.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sfumato.cli.project.settings_file import ProjectSettings, read_settings

__all__ = [
    "DEFAULT_LEDGER",
    "LEDGER_VARIABLE",
    "Chosen",
    "charged_to",
    "choose",
    "in_environment",
    "in_project",
    "ledger_at",
]

DEFAULT_LEDGER = "ledger.db"
LEDGER_VARIABLE = "SFUMATO_LEDGER"
_TABLES = (".csv", ".parquet")  # files with columns; images have no column that names a unit


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """What a command uses for one source."""

    ledger: str | None
    account: str | None
    privacy_unit: str | None
    types: list[str]
    project: ProjectSettings
    is_project_data: bool

    def bounds_of(self, column: str) -> tuple[float, float] | None:
        """Return the bounds of a column in the settings file, if the source is the data of the project."""
        return self.project.bounds_of(column) if self.is_project_data else None


class _Own(Protocol):
    """The settings of a command that reads data of one's own."""

    data: str | None
    ledger: str | None
    account: str | None
    privacy_unit: str | None
    type: list[str] | None

    @property
    def is_own(self) -> bool: ...


Own = TypeVar("Own", bound=Any)


def ledger_at(said: str | None) -> str:
    """Return the ledger of a command that needs one."""
    return said or os.environ.get(LEDGER_VARIABLE) or read_settings().ledger or DEFAULT_LEDGER


def charged_to(ledger: str | None, account: str | None) -> tuple[str | None, str | None]:
    """Return the ledger and the account that a release is charged to; neither, if no account is named."""
    project = read_settings()
    named = account or project.account
    if named is None:
        return ledger, None
    found = ledger or os.environ.get(LEDGER_VARIABLE) or project.ledger
    return (DEFAULT_LEDGER if found is None and project.account == named else found), named


def choose(
    source: str,
    *,
    ledger: str | None,
    account: str | None,
    privacy_unit: str | None = None,
    types: list[str] | None = None,
) -> Chosen:
    """Return what a command uses for a source: what its line says, and the settings file for the rest."""
    project = read_settings()
    ours = project.data is not None and _same(source, project.data)
    place, named = charged_to(ledger, account)
    unit = project.privacy_unit if ours or (named is not None and named == project.account) else None
    return Chosen(
        ledger=place,
        account=named,
        privacy_unit=privacy_unit or unit,
        types=[*(project.type_options if ours else []), *(types or [])],
        project=project,
        is_project_data=ours,
    )


def in_project(settings: Own) -> Own:
    """Return the settings of a command with those of the project, if it reads data of one's own."""
    own: _Own = settings
    if own.data is None or not own.is_own:
        return in_environment(settings)
    found = choose(
        own.data, ledger=own.ledger, account=own.account, privacy_unit=own.privacy_unit, types=own.type
    )
    is_table = Path(own.data).suffix.lower() in _TABLES
    return replace(
        settings,
        ledger=found.ledger,
        account=found.account,
        privacy_unit=found.privacy_unit if is_table else own.privacy_unit,
        type=(found.types or None) if is_table else own.type,
    )


def in_environment(settings: Own) -> Own:
    """Return the settings of a command on a public set: if they name an account, it is in some ledger."""
    if settings.account is None or settings.ledger is not None:
        return settings
    return replace(settings, ledger=os.environ.get(LEDGER_VARIABLE) or None)


def _same(one: str, other: str) -> bool:
    return one == other or ("://" not in one + other and Path(one).resolve() == Path(other).resolve())
