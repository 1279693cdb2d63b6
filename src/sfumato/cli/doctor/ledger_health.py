# SPDX-License-Identifier: Apache-2.0
"""The health of a ledger: that it opens and holds, which accounts are overspent, what was never finished.

Nothing is changed: a ledger of an older version is reported, and not taken to the newest one.
"""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.cli.doctor.findings import Finding, State
from sfumato.cli.doctor.ledger_rights import check_rights
from sfumato.cli.project.passwords import has_password
from sfumato.errors import SfumatoError

if TYPE_CHECKING:
    from sfumato.ledger import Account, Ledger

__all__ = ["check", "check_file", "file_system_of", "readable_by_others"]

AREA = "ledger"
_MOUNTS = Path("/proc/mounts")
# File systems of other machines, whose locks may not hold between machines.
_NETWORK = ("nfs", "cifs", "smb", "afs", "9p", "fuse.sshfs", "fuse.rclone", "lustre", "ceph", "glusterfs")
_MOST_NAMED = 5  # unfinished releases of an account that are named one by one


def check(location: str, *, is_named: bool) -> Iterator[Finding]:
    """Yield what is found about a ledger.

    Args:
        location: Where it is.
        is_named: Whether a flag, the environment or the settings file names it. Otherwise there may be none.

    Yields:
        Findings.
    """
    is_file = "://" not in location
    if is_file and not Path(location).exists() and not is_named:
        advice = "Start a project with `sfumato init`, or make a ledger with `sfumato ledger init`."
        yield _finding("ledger", State.ABSENT, f"there is none at {location}", advice)
        return
    try:
        yield from _opened(location)
        if not is_file:
            yield from check_rights(location)
    except SfumatoError as error:
        yield _finding("ledger", State.BROKEN, str(error), "Nothing is spent from it until this is settled.")
    if is_file and Path(location).is_file():
        yield from check_file(Path(location))


def _finding(name: str, state: State, found: str, advice: str | None = None) -> Finding:
    return Finding(area=AREA, name=name, state=state, found=found, advice=advice)


def _opened(location: str) -> Iterator[Finding]:
    from sfumato.ledger import Ledger
    from sfumato.ledger.migrations import CURRENT_VERSION
    from sfumato.ledger.store import schema_version

    version = schema_version(location)
    if version < CURRENT_VERSION:
        yield _finding(
            "schema",
            State.WARNING,
            f"version {version}, of an older sfumato; the chain of hashes was not checked",
            f"The next command that uses it takes it to version {CURRENT_VERSION}. Copy it before.",
        )
        return
    ledger = Ledger(location, create=False)
    yield _finding("schema", State.OK, f"version {version}, the newest one; {_where(ledger)}")
    verified = ledger.verify()
    rows = f"{verified.head.count} rows"
    yield _finding("chain of hashes", State.OK, f"{rows} hold, and nothing was changed or cut in between")
    yield from _accounts(ledger, verified.overspent)


def _where(ledger: "Ledger") -> str:
    return "an address with a password" if has_password(ledger.location) else ledger.location


def _accounts(ledger: "Ledger", overspent: tuple[str, ...]) -> Iterator[Finding]:
    accounts = ledger.accounts()
    if not accounts:
        yield _finding("accounts", State.OK, "none yet", "Open one with `sfumato ledger init NAME`.")
    for account in accounts:
        if account.name in overspent:
            yield _finding(
                f"account {account.name}",
                State.BROKEN,
                "its releases do not fit its budget, at the prices of this version",
                f"See `sfumato ledger show {account.name}`. Nothing more is admitted; tell who relies on it.",
            )
        yield from _unfinished(account)
    whole = [account.name for account in accounts if account.name not in overspent]
    if whole:
        yield _finding("accounts", State.OK, f"within their budgets: {', '.join(whole)}")


def _unfinished(account: "Account") -> Iterator[Finding]:
    """Yield the releases that were reserved or begun, and never finished or refunded."""
    from sfumato.ledger import Progress

    open_ones = [each for each in account.releases() if each.progress in (Progress.RESERVED, Progress.BEGUN)]
    for each in open_ones[:_MOST_NAMED]:
        begun = each.progress is Progress.BEGUN
        found = (
            f"number {each.reservation}, {each.purpose!r}: {'begun' if begun else 'reserved'}, not finished"
        )
        advice = "It stays spent. Nothing is to be done, unless a run can be continued (--resume)."
        if not begun:
            advice = (
                "If no process is about to begin it, refund it in Python: "
                f"ledger.account({account.name!r}).reservation({each.reservation}).refund()."
            )
        yield _finding(f"account {account.name}", State.WARNING, found, advice)
    if len(open_ones) > _MOST_NAMED:
        more = len(open_ones) - _MOST_NAMED
        advice = f"See `sfumato ledger show {account.name}`."
        yield _finding(f"account {account.name}", State.WARNING, f"{more} more are not finished", advice)


# --- the file ---------------------------------------------------------------------------------------------


def check_file(path: Path) -> Iterator[Finding]:
    """Yield what is found about the file of a ledger.

    Args:
        path: The file.

    Yields:
        Findings.
    """
    if readable_by_others(path):
        yield _finding(
            "permissions",
            State.WARNING,
            f"other users of this machine can read or write {path}",
            f"Run: chmod 600 {path}",
        )
    if not os.access(path, os.W_OK):
        advice = "Reading works. To publish, use a place that this user may write."
        yield _finding("writable", State.WARNING, f"{path} cannot be written", advice)
    system = file_system_of(path)
    if system is not None and system.startswith(_NETWORK):
        yield _finding(
            "place",
            State.WARNING,
            f"{path} is on a network drive ({system}), where locks between machines may not hold",
            "Use it from one machine, or keep the ledger in PostgreSQL.",
        )
    if _journal_mode(path) == "wal":
        yield _finding(
            "journal mode",
            State.WARNING,
            "another program switched it to WAL, so that it is more than one file",
            f'Run: sqlite3 {path} "PRAGMA journal_mode = DELETE"',
        )


def readable_by_others(path: Path) -> bool:
    """Return whether other users of the machine can read or write a file.

    Args:
        path: The file.

    Returns:
        Whether they can; never on Windows, where permissions are others.
    """
    return os.name == "posix" and bool(path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH))


def file_system_of(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """Return the kind of file system that a file is on, or None where the system does not say.

    Args:
        path: The file.
        mounts: Where the system lists what is mounted.

    Returns:
        The kind, such as "ext4" or "nfs4".
    """
    try:
        lines = [line.split() for line in mounts.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        return None
    here = path.resolve()
    points = [(Path(each[1].replace("\\040", " ")), each[2]) for each in lines if len(each) > 2]
    over = [(point, kind) for point, kind in points if here.is_relative_to(point)]
    return max(over, key=lambda each: len(each[0].parts))[1] if over else None


def _journal_mode(path: Path) -> str | None:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    except sqlite3.Error:
        return None
