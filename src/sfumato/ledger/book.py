# SPDX-License-Identifier: Apache-2.0
"""The journal and the state that it adds up to; all reading and writing goes through this module.

`append` reads, decides and writes in one transaction, which no other transaction interrupts.

A child process starts with a new lock and reads the journal again (`_forks`).

Guarantee  Every answer is derived from the journal, after its chain of hashes was checked from the first row.
           Rows that were checked are not read again, but the last of them must still be there, and the end
           must be where the store's head says. A journal that does not hold raises `LedgerCorruptError`.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Connection

from sfumato.errors import LedgerCorruptError, LedgerError
from sfumato.ledger import _forks, journal, state
from sfumato.ledger._words import code_version
from sfumato.ledger.journal import EMPTY, Entry, Head, Row
from sfumato.ledger.state import AccountState
from sfumato.ledger.store import Store

__all__ = ["Book", "Verification"]

Accounts = dict[str, AccountState]
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """What `verify` found in a ledger whose chain holds.

    Attributes:
        head: The head of the ledger.
        accounts: The names of the accounts, oldest first.
        overspent: The accounts whose releases do not fit their budget, at the prices of this version.
    """

    head: Head
    accounts: tuple[str, ...]
    overspent: tuple[str, ...]


class Book:
    """One ledger's journal, and its state as far as it was read."""

    def __init__(self, store: Store, person: str) -> None:
        self._store = store
        self._person = person
        self.temporary = False  # whether it is deleted when no object refers to it any more
        self.renew()
        _forks.renewed_in_child(self)

    def renew(self) -> None:
        """Forget what was read, and whatever thread was at it."""
        self._lock = threading.Lock()
        self._head = EMPTY
        self._accounts: Accounts = {}

    @property
    def location(self) -> str:
        """Where the ledger is, for messages."""
        return self._store.location

    def names(self) -> tuple[Head, list[str]]:
        """Return the head as of now and the names of the accounts up to it, oldest first."""
        with self._lock, self._store.reading() as connection:
            self._catch_up(connection)
            return self._head, list(self._accounts)

    def ask(self, name: str, question: Callable[[AccountState], Answer]) -> Answer:
        """Return the answer to a question about the present state of one account."""
        with self._lock:
            with self._store.reading() as connection:
                self._catch_up(connection)
            # Pricing may take a while the first time: other writers should not wait for it.
            return question(self._known(name))

    def recall(self, name: str, question: Callable[[AccountState], Answer]) -> Answer:
        """Answer from what was read last, without a transaction.

        Only for facts that no later row changes, and to price an event before the ledger is locked. The
        journal is read if it was not before, as after a fork.
        """
        with self._lock:
            if name in self._accounts:
                return question(self._accounts[name])
        return self.ask(name, question)

    def account(self, name: str) -> tuple[Head, AccountState]:
        """Return one account's state as of now, a copy, with the head it was derived from."""
        return self.ask(name, lambda known: (self._head, known.copy()))

    def account_among_others(self, name: str) -> tuple[Head, AccountState, tuple[AccountState, ...]]:
        """Return one account's state as of now, a copy, its head, and all other accounts, oldest first."""

        def found(known: AccountState) -> tuple[Head, AccountState, tuple[AccountState, ...]]:
            others = tuple(other.copy() for other in self._accounts.values() if other.name != name)
            return self._head, known.copy(), others

        return self.ask(name, found)

    def append(self, account: str, kind: str, admit: Callable[[Accounts], None], **facts: Any) -> Row:
        """Write a fact, unless `admit` raises on the accounts as they are at that moment."""
        with self._lock, self._store.writing() as connection:
            self._catch_up(connection)
            admit(self._accounts)
            row = journal.seal(self._entry(account, kind, **facts), self._head)
            # The new row reaches our own state only by being read back, once it is committed.
            self._store.append(connection, row)
            return row

    def verify(self, noted: Head | None) -> Verification:
        """Read everything anew and check it, also against a head that was noted earlier."""
        with self._store.reading() as connection:
            rows, remembered = self._store.rows(connection), self._store.head(connection)
        accounts: Accounts = {}
        now = _replay(rows, EMPTY, accounts)
        _require_end(now, remembered)
        if noted is not None:
            _require_contains(rows, noted)
        overspent = tuple(a.name for a in accounts.values() if not a.kept)
        return Verification(head=now, accounts=tuple(accounts), overspent=overspent)

    def _known(self, name: str) -> AccountState:
        if name not in self._accounts:
            raise LedgerError(
                f"the ledger {self.location} has no account {name!r}. It has: "
                f"{', '.join(map(repr, self._accounts)) or 'none'}. Open it with a budget first."
            )
        return self._accounts[name]

    def _entry(self, account: str, kind: str, **facts: Any) -> Entry:
        return Entry(
            account=account,
            kind=kind,
            person=self._person,
            code_version=code_version(),
            written_at=datetime.now(UTC).isoformat(timespec="microseconds"),
            **facts,
        )

    def _catch_up(self, connection: Connection) -> None:
        start, accounts = self._head, self._accounts
        self._head, self._accounts = EMPTY, {}  # where a row does not hold, nothing half-read stays
        rows = self._store.rows(connection, start=start.count)
        if start != EMPTY:
            _require_same_row(rows, start)
            rows = rows[1:]
        now = _replay(rows, start, accounts)
        _require_end(now, self._store.head(connection))
        self._head, self._accounts = now, accounts


def _replay(rows: list[Row], start: Head, accounts: Accounts) -> Head:
    now = start
    for row, head in journal.chain(rows, start):
        state.apply(row, accounts)
        now = head
    return now


def _require_same_row(rows: list[Row], known: Head) -> None:
    if not rows or rows[0].sequence != known.count or rows[0].row_hash != known.hash:
        raise LedgerCorruptError(
            f"row {known.count} of the ledger is not what it was when it was read before. "
            "Nothing more will be spent from it: restore a copy that verifies."
        )


def _require_end(now: Head, remembered: Head) -> None:
    if now != remembered:
        raise LedgerCorruptError(
            f"the ledger ends at row {now.count}, but its head says row {remembered.count}: rows were cut "
            "off or added at the end. Nothing more will be spent from it: restore a copy that verifies."
        )


def _require_contains(rows: list[Row], noted: Head) -> None:
    if noted == EMPTY:
        return
    if not 0 < noted.count <= len(rows) or rows[noted.count - 1].row_hash != noted.hash:
        raise LedgerCorruptError(
            f"the ledger does not contain the head {noted}: it has {len(rows)} rows, and what was row "
            f"{noted.count} then is gone or different. Restore a copy that verifies against this head."
        )
