# SPDX-License-Identifier: Apache-2.0
"""Notes about releases that no ledger records.

Everything that spends says whether it was recorded: releases, estimators, training runs and the command line
use this module.

Costs add up, and only a ledger adds them up. Ten unrecorded releases of epsilon 1 cost epsilon 10, and nobody
knows.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sfumato.ledger.account import Account

__all__ = ["TEMPORARY", "UNRECORDED", "is_recorded", "record_note"]

UNRECORDED = "not recorded in a ledger"  # how each such note begins
TEMPORARY = f"{UNRECORDED}: its account ends with this process"


def is_recorded(account: "Account | None") -> bool:
    """Whether what is charged to `account` is still known when this process has ended."""
    return account is not None and not account.temporary


def record_note(account: "Account | None") -> str | None:
    """Return the note about a release that no ledger records, or None if one does.

    >>> record_note(None)
    'not recorded in a ledger: nothing adds its cost to that of other releases'
    """
    if account is None:
        return f"{UNRECORDED}: nothing adds its cost to that of other releases"
    return TEMPORARY if account.temporary else None
