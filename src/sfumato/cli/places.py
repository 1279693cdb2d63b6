# SPDX-License-Identifier: Apache-2.0
"""The account that a run is charged to, and the page that it will write, tried before the charge."""

from pathlib import Path

from sfumato import _files
from sfumato.errors import InvalidParameterError
from sfumato.ledger import Account, Ledger
from sfumato.report import page, write_report

__all__ = ["account_at", "begin_page"]


def account_at(ledger: str | None, name: str | None) -> Account | None:
    """Return the account to charge, if one is named."""
    if (ledger is None) != (name is None):
        raise InvalidParameterError("give both --ledger and --account to charge the run, or neither.")
    if ledger is None or name is None:
        return None
    return Ledger(ledger, create=False).account(name)


def begin_page(report: str) -> None:
    """Raise if a page cannot be written; an existing page is replaced only by a complete one."""
    try:
        if Path(report).is_file():
            part = _files.part_of(Path(report))  # where it will be written to first
            part.touch()
            part.unlink(missing_ok=True)
        else:
            write_report(report, page("A training run", "<p>This run is not finished.</p>"))
    except OSError as error:
        raise InvalidParameterError(
            f"the page {report!r} cannot be written: {error.strerror}. Give another --report."
        ) from error
