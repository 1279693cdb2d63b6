# SPDX-License-Identifier: Apache-2.0
"""Reservations: one charged release, from before its data is read until its result is released.

Guarantee  `refund` works only before `begin`, and `begin` is durable before data may be read. So nothing was
           computed from the data, and the account is as if the release had never been requested.
           A release that continues in another process after a crash is claimed by that process in one
           transaction, which requires the last claim. So one charge has one line of continuations and one
           result: a second copy of the same files has an old claim, and can neither continue nor commit.
Failure    An exception between `begin` and `commit` leaves the release spent: part of a result may have been
           seen.
"""

import json
from typing import TYPE_CHECKING

from sfumato.errors import ClaimedElsewhereError, LedgerError
from sfumato.ledger._words import line
from sfumato.ledger.state import Progress, ReleaseRecord

if TYPE_CHECKING:
    from sfumato.ledger.book import Accounts, Book  # brings the database, which a type does not need

__all__ = ["Reservation"]

_ANOTHER = "One charge pays for one result: go on where it was continued, or reserve anew."


class Reservation:
    """A charged release. Call `begin` before the data is read and `commit` when the result is released.

    As a context, it is committed at the end of the block; an exception leaves it spent.

    Args:
        book: The journal of the ledger. Callers do not construct reservations themselves.
        account: The name of the account.
        number: The number of the reservation.
    """

    def __init__(self, book: "Book", account: str, number: int) -> None:
        self._book = book
        self._account = account
        self.number = number

    def __repr__(self) -> str:
        return f"<Reservation {self.number} of account {self._account!r} of {self._book.location}>"

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.commit()

    @property
    def release(self) -> ReleaseRecord:
        """The record of the release in the ledger, as of now."""
        return self._book.ask(self._account, lambda state: state.releases[self.number])

    @property
    def release_number(self) -> int:
        """Its place among the account's releases, from 1 on, as statements print it."""
        return self._book.ask(self._account, lambda state: list(state.releases).index(self.number) + 1)

    def begin(self, *, claim: str = "") -> None:
        """Record that data may be read from now on. After this there is no refund.

        Args:
            claim: A text that must be given to continue or commit the release, from another process for
                example. Empty for none.

        Raises:
            LedgerError: If it was begun before or refunded.
        """
        terms = json.dumps({"claim": line(claim=claim)}) if claim else ""
        self._step("begin", Progress.RESERVED, "Reserve anew for another computation.", terms=terms)

    def claim(self, claim: str, *, known: str) -> None:
        """Continue a release that was begun, in another place, and replace its claim.

        Args:
            claim: The new claim, which must be given from now on.
            known: The present claim. Of two that give the same claim, the second is refused.

        Raises:
            ClaimedElsewhereError: If the release is not open, or was continued elsewhere.
        """
        terms = json.dumps({"claim": line(claim=claim), "follows": known}, sort_keys=True)
        self._step("claim", Progress.BEGUN, _ANOTHER, known=known, terms=terms)

    def commit(self, *, claim: str = "") -> None:
        """Record that the result was released.

        Args:
            claim: The present claim; empty if there is none.

        Raises:
            ClaimedElsewhereError: If the release was continued elsewhere.
            LedgerError: If it was not begun, or was committed before.
        """
        self._step("commit", Progress.BEGUN, "Call begin() once, compute, then commit() once.", known=claim)

    def refund(self) -> None:
        """Give back what was charged. This is possible only before `begin`, when nothing was computed.

        Raises:
            LedgerError: If it was begun or refunded before.
        """
        self._step("refund", Progress.RESERVED, "Only what was never begun can be given back.")

    def _step(
        self, kind: str, needed: Progress, advice: str, *, known: str | None = None, terms: str = ""
    ) -> None:
        def admit(accounts: "Accounts") -> None:
            release = accounts[self._account].releases[self.number]
            if release.progress is not needed:
                raise (ClaimedElsewhereError if kind == "claim" else LedgerError)(
                    f"reservation {self.number} of account {self._account!r} is {release.progress.value}, so "
                    f"{kind} is not possible. {advice}"
                )
            if known is not None and known != release.claim:
                raise ClaimedElsewhereError(
                    f"reservation {self.number} of account {self._account!r} was continued elsewhere, so "
                    f"{kind} is not possible here. {_ANOTHER}"
                )

        self._book.append(self._account, kind, admit, reservation=self.number, terms=terms)
