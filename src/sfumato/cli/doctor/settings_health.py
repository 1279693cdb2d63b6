# SPDX-License-Identifier: Apache-2.0
"""Whether `sfumato.toml` fits the ledger and the files that it names, and what git would keep of them."""

import difflib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from sfumato.cli.doctor.findings import Finding, State
from sfumato.cli.doctor.ledger_health import readable_by_others
from sfumato.cli.project.defaults import DEFAULT_LEDGER, ledger_at
from sfumato.cli.project.passwords import has_password
from sfumato.cli.project.settings_file import FILE_NAME, ProjectSettings, read_settings
from sfumato.errors import InvalidParameterError, SfumatoError

__all__ = ["check"]

AREA = "project"
_GIT_SECONDS = 5


def check() -> Iterator[Finding]:
    """Yield what is found about the settings file of the working folder."""
    if not Path(FILE_NAME).exists():
        yield _finding(FILE_NAME, State.ABSENT, "not in this folder", "`sfumato init` makes a project.")
        return
    try:
        settings = read_settings()
    except InvalidParameterError as error:
        yield _finding(FILE_NAME, State.BROKEN, str(error), "Correct the file.")
        return
    yield _finding(FILE_NAME, State.OK, "it is read by commands in this folder")
    if settings.ledger is not None and has_password(settings.ledger):
        advice = "Leave it out, and put it into ~/.pgpass or the variable PGPASSWORD."
        yield _finding("password", State.WARNING, f"{FILE_NAME} has the password of the ledger", advice)
    yield from _account(settings)
    yield from _data(settings)
    yield from _types(settings)


def _finding(name: str, state: State, found: str, advice: str | None = None) -> Finding:
    return Finding(area=AREA, name=name, state=state, found=found, advice=advice)


def _account(settings: ProjectSettings) -> Iterator[Finding]:
    """Yield whether the account is in the ledger, for the same unit."""
    from sfumato.ledger import Ledger
    from sfumato.ledger.migrations import CURRENT_VERSION
    from sfumato.ledger.store import schema_version

    if settings.account is None:
        advice = 'Add account = "NAME", so that releases are charged.'
        yield _finding("account", State.WARNING, f"{FILE_NAME} names no account", advice)
        return
    place = ledger_at(None)
    try:
        if schema_version(place) < CURRENT_VERSION:
            return
        account = Ledger(place, create=False).account(settings.account)
    except SfumatoError as error:
        advice = f"Correct {FILE_NAME}, or open the account with `sfumato ledger init`."
        yield _finding("account", State.BROKEN, str(error), advice)
        return
    if settings.privacy_unit is not None and settings.privacy_unit != account.privacy_unit:
        yield _finding(
            "privacy unit",
            State.BROKEN,
            f"{FILE_NAME} protects one {settings.privacy_unit!r}, but account {account.name!r} protects one "
            f"{account.privacy_unit!r}: every release is refused",
            "Correct the file. Another unit needs another account.",
        )
        return
    found = f"{account.name!r} protects one {account.privacy_unit}"
    yield _finding("account", State.OK, found)


def _data(settings: ProjectSettings) -> Iterator[Finding]:
    if settings.data is None or "://" in settings.data:
        return
    path = Path(settings.data)
    if not path.exists():
        yield _finding(
            "data", State.WARNING, f"there is no file {settings.data!r}", f"Correct data in {FILE_NAME}."
        )
        return
    if path.is_file() and readable_by_others(path):
        found = f"other users of this machine can read or write {settings.data}"
        yield _finding("data", State.WARNING, found, f"Run: chmod 600 {settings.data}")
    for name in (settings.data, settings.ledger or DEFAULT_LEDGER):
        if "://" not in name and Path(name).exists() and _git_keeps(Path(name)):
            found = f"git would keep {name}, or keeps it already"
            advice = f"Add it to .gitignore, and take it out of git: git rm --cached {name}"
            yield _finding("git", State.WARNING, found, advice)


def _types(settings: ProjectSettings) -> Iterator[Finding]:
    """Yield types that look misspelled. Other names may be types of Ibis, which is not loaded for this."""
    from sfumato.statistics.sources.schema import TYPES

    for column, kind in (settings.types or {}).items():
        near = difflib.get_close_matches(kind, TYPES, n=1) if kind not in TYPES else []
        if near:
            found = f"the type {kind!r} of column {column!r} may be misspelled"
            yield _finding("types", State.WARNING, found, f"Did you mean {near[0]!r}?")


def _git_keeps(path: Path) -> bool:
    """Return whether a file is in a git repository and not ignored by it."""
    here = path.absolute()
    if not any((above / ".git").exists() for above in here.parents) or shutil.which("git") is None:
        return False
    try:
        asked = subprocess.run(
            ["git", "-C", str(here.parent), "check-ignore", "--quiet", "--", here.name],
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return asked.returncode == 1  # 0: it is ignored; more: git could not tell
