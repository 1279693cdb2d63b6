# SPDX-License-Identifier: Apache-2.0
"""Whether a ledger keeps a release, and what a release must say where none does.

Promise    Whatever spends says which it is: releases, estimators, training runs and the command line ask
           here.
Why        Costs add up, and only a ledger adds them up. Ten releases of epsilon 1 that nobody recorded cost
           epsilon 10, and nobody knows.
"""

from sfumato.ledger.account import Account

__all__ = ["is_recorded", "record_note"]


def is_recorded(account: Account | None) -> bool:
    """Whether what is charged to `account` is still known when this process has ended."""
    return account is not None and not account.temporary


def record_note(account: Account | None) -> str | None:
    """Return what must be said of a release that no ledger keeps; None where one does.

    >>> record_note(None)
    'not recorded in a ledger: nothing adds its cost to that of other releases'
    """
    if account is None:
        return "not recorded in a ledger: nothing adds its cost to that of other releases"
    return "not recorded in a ledger: its account ends with this process" if account.temporary else None
