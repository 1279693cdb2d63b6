# SPDX-License-Identifier: Apache-2.0
"""The ledger: the durable record of every account, budget and release.

Guarantee  What an account admits is within its budget (`filters`), is on disk before data may be touched
           (`account`, `backends`) and cannot be changed later without showing (`journal`, `book`).
Not here   Enforcement outside the ledger. It binds people who use it, and shows who did not follow it. It
           cannot stop someone who reads the data without it.
"""

import json
import os
import shutil
import tempfile
import weakref
from pathlib import Path

from sfumato import _check
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError, LedgerError, RelationMismatchError
from sfumato.ledger import _words, filters
from sfumato.ledger._words import line, this_person
from sfumato.ledger.account import Account
from sfumato.ledger.book import Accounts, Book, Verification
from sfumato.ledger.budget import Budget
from sfumato.ledger.journal import Head
from sfumato.ledger.shares import CURRENT_RULE
from sfumato.ledger.state import AccountState
from sfumato.ledger.store import Store

__all__ = ["Ledger"]


class Ledger:
    """A ledger in a SQLite file or a PostgreSQL database.

    Args:
        location: The path of a file, or the URL of a database.
        person: Who signs what is written. None takes the role in PostgreSQL, or the user of the operating
            system for a file.
        create: Whether to make a ledger if there is none.

    Raises:
        LedgerError: If there is no ledger and `create` is false, or it cannot be used.
        LedgerCorruptError: If the ledger is damaged.
        LedgerVersionError: If a newer sfumato wrote it.

    >>> import tempfile, pathlib
    >>> from sfumato.accounting.events import PureDpEvent
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = Ledger(pathlib.Path(folder.name) / "ledger.db")
    >>> account = ledger.open("credit", privacy_unit="client_id", budget=Budget(epsilon=1, delta=1e-6))
    >>> with account.spend(PureDpEvent(0.25), relation="add-remove", purpose="mean of age"):
    ...     pass  # compute and release
    >>> print(account.spent())
    (0.25, 1e-06)-differential privacy for one client_id, add-remove neighbors
    >>> folder.cleanup()
    """

    def __init__(
        self, location: str | os.PathLike[str], *, person: str | None = None, create: bool = True
    ) -> None:
        signature = None if person is None else line(person=person)  # refused before a ledger is made
        store = Store(location, create=create)
        self._book = Book(store, signature or store.user() or this_person())
        self._book.names()  # a journal that does not hold is refused here, not at the first release

    @classmethod
    def create(cls, location: str | os.PathLike[str], *, person: str | None = None) -> "Ledger":
        """Make a new ledger.

        Args:
            location: The path of a file, or the URL of a database.
            person: Who signs what is written. None takes the role in PostgreSQL, or the user of the operating
                system for a file.

        Returns:
            The ledger.

        Raises:
            LedgerError: If there is a ledger already. It is left as it is.
        """
        Store.create(location)
        return cls(location, person=person, create=False)

    @classmethod
    def temporary(cls, *, person: str | None = None) -> "Ledger":
        """Make a ledger that is deleted when no object refers to it any more: budgets hold, nothing is kept.

        Args:
            person: Who signs what is written. None takes the role in PostgreSQL, or the user of the operating
                system for a file.

        Returns:
            The ledger.

        >>> Ledger.temporary().accounts()
        []
        """
        folder = tempfile.mkdtemp(prefix="sfumato-")
        ledger = cls(Path(folder) / "ledger.db", person=person)
        ledger._book.temporary = True
        # Accounts and reservations hold the book, and may outlive the ledger that gave them.
        weakref.finalize(ledger._book, _clean_up, folder, os.getpid())
        return ledger

    def __repr__(self) -> str:
        return f"<Ledger {self.location}>"

    def _repr_html_(self) -> str:
        from sfumato.ledger.views import ledger_view  # not needed to spend

        return ledger_view(self.location, self.accounts())

    @property
    def location(self) -> str:
        """Where the ledger is, without a password."""
        return self._book.location

    def open(
        self,
        name: str,
        *,
        privacy_unit: str,
        budget: Budget | None = None,
        relation: Relation | str | None = None,
    ) -> Account:
        """Open the account of a data set, or open it again.

        The arguments for an account that exists must be what it was opened with (its budget may have been
        raised since). A new name that differs from that of an account only in upper and lower case is
        refused.

        Args:
            name: The name of the account.
            privacy_unit: Who is protected, such as "user" or the name of a column.
            budget: The budget; needed for a new account.
            relation: Which data sets are neighbors. None means add-remove for a new account.

        Returns:
            The account.

        Raises:
            InvalidParameterError: If a new account has no budget, or a parameter is out of range.
            LedgerError: If an account exists with another unit or budget, or its name differs only in
                spelling.
            RelationMismatchError: If the account exists with another relation.
        """
        name, privacy_unit = _words.name(name=name), line(privacy_unit=privacy_unit)
        relation = None if relation is None else Relation.parse(relation)
        if name not in self._book.names()[1]:
            self._open_new(name, privacy_unit, budget, relation or Relation.ADD_REMOVE)
        _require_same(self._book.account(name)[1], privacy_unit, budget, relation)
        return Account(self._book, name)

    def account(self, name: str) -> Account:
        """Return an account that exists.

        Args:
            name: The name of the account.

        Returns:
            The account.

        Raises:
            LedgerError: If there is none of this name.
        """
        name = _words.name(name=name)
        self._book.ask(name, lambda known: known.name)
        return Account(self._book, name)

    def accounts(self) -> list[Account]:
        """Return all accounts, oldest first.

        Returns:
            The accounts.
        """
        return [Account(self._book, name) for name in self._book.names()[1]]

    def head(self) -> Head:
        """Return the number of rows and the hash of the last one. Note it elsewhere to detect later cuts.

        Returns:
            The head.
        """
        return self._book.names()[0]

    def verify(self, *, head: Head | str | None = None) -> Verification:
        """Read the whole ledger again and check it.

        Args:
            head: A head that was noted earlier, as statements print it: everything up to it must still be
                there. None checks the ledger alone.

        Returns:
            What was found.

        Raises:
            LedgerCorruptError: If the chain of hashes does not hold, or does not contain the head.
        """
        return self._book.verify(Head.parse(head) if isinstance(head, str) else head)

    def _open_new(self, name: str, privacy_unit: str, budget: Budget | None, relation: Relation) -> None:
        if not isinstance(budget, Budget):
            raise InvalidParameterError(
                f"account {name!r} is new in {self.location}, so it needs a budget, but {budget!r} was "
                "given. Give budget=Budget(epsilon=..., delta=...)."
            )
        if budget.delta > 0:  # not in `Budget`: an account that was opened with more can still be read
            _check.delta(delta=budget.delta)
        terms = {
            "privacy_unit": privacy_unit,
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "order": filters.choose_order(budget),
            "rule": CURRENT_RULE,
        }

        def admit(accounts: Accounts) -> None:
            if name in accounts:
                raise _AlreadyOpenError
            _require_new_spelling(name, accounts)

        try:
            facts = {"relation": relation.value, "terms": json.dumps(terms, sort_keys=True)}
            self._book.append(name, "open", admit, **facts)
        except _AlreadyOpenError:
            pass  # another process was first; whether it agrees with us is checked next


def _clean_up(folder: str, process: int) -> None:
    if os.getpid() == process:  # a forked process that ends must not take its parent's ledger along
        shutil.rmtree(folder, ignore_errors=True)


# Said where somebody may be about to open a second account for the same people.
_ONE_ACCOUNT = (
    "Only data about other people gets an account of its own, under another name: a second account for the "
    "same people would be a second budget."
)


class _AlreadyOpenError(Exception):
    """Another process opened the account meanwhile."""


def _require_new_spelling(name: str, accounts: Accounts) -> None:
    for known in accounts:
        if _words.spelling(known) == _words.spelling(name):
            raise LedgerError(
                f"account {name!r} would differ from account {known!r} only in how it is spelled, and have a "
                f"budget of its own. Open {known!r}. {_ONE_ACCOUNT}"
            )


def _require_same(
    known: AccountState, privacy_unit: str, budget: Budget | None, relation: Relation | None
) -> None:
    if relation is not None and relation is not known.relation:
        raise RelationMismatchError(
            f"account {known.name!r} counts {known.relation.value} neighbors, but {relation.value} was "
            f"given. Use {known.relation.value}. {_ONE_ACCOUNT}"
        )
    if privacy_unit != known.privacy_unit:
        raise LedgerError(
            f"account {known.name!r} protects one {known.privacy_unit!r}, but privacy_unit={privacy_unit!r} "
            f"was given. Use the same unit. {_ONE_ACCOUNT}"
        )
    if budget is not None and budget not in (known.opening_budget, known.budget):
        raise LedgerError(
            f"account {known.name!r} has a budget of {known.budget}, but {budget} was given. Leave the "
            "budget out, or raise it with `sfumato ledger grant`; it cannot be lowered or replaced."
        )
