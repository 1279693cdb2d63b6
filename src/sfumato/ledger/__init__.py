# SPDX-License-Identifier: Apache-2.0
"""What was spent? Budgets, accounts and releases, recorded so that they can be proven later."""

from sfumato.ledger.account import Account, Remaining, Reservation
from sfumato.ledger.book import Verification
from sfumato.ledger.budget import Budget
from sfumato.ledger.charge import Mechanism
from sfumato.ledger.journal import Head
from sfumato.ledger.ledger import Ledger
from sfumato.ledger.state import Grant, Progress, ReleaseRecord
from sfumato.ledger.statement import Statement

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
]
