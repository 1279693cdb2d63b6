# SPDX-License-Identifier: Apache-2.0
"""The privacy ledger: budgets, accounts and releases, recorded so that they can be checked later."""

from sfumato.ledger.account import Account
from sfumato.ledger.book import Verification
from sfumato.ledger.budget import Budget
from sfumato.ledger.charge import Mechanism
from sfumato.ledger.journal import Head
from sfumato.ledger.ledger import Ledger
from sfumato.ledger.remaining import Remaining
from sfumato.ledger.reservation import Reservation
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
