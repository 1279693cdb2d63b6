# SPDX-License-Identifier: Apache-2.0
"""The privacy ledger: budgets, accounts and releases, recorded so that they can be checked later."""

from typing import TYPE_CHECKING

from sfumato._lazy import lazy_names
from sfumato.ledger.account import Account
from sfumato.ledger.budget import Budget
from sfumato.ledger.charge import Mechanism
from sfumato.ledger.journal import Head
from sfumato.ledger.remaining import Remaining
from sfumato.ledger.reservation import Reservation
from sfumato.ledger.roles import role_rights
from sfumato.ledger.state import Grant, Progress, ReleaseRecord
from sfumato.ledger.statement import Statement

if TYPE_CHECKING:
    from sfumato.ledger.book import Verification
    from sfumato.ledger.ledger import Ledger

__all__ = [
    "Account",
    "Budget",
    "Grant",
    "Head",
    "Ledger",
    "Mechanism",
    "Progress",
    "ReleaseRecord",
    "Remaining",
    "Reservation",
    "Statement",
    "Verification",
    "role_rights",
]

# What opens a database; SQLAlchemy is imported when one of these is used.
__getattr__ = lazy_names(__name__, {"Ledger": "ledger", "Verification": "book"})


def __dir__() -> list[str]:
    return sorted(__all__)
