# SPDX-License-Identifier: Apache-2.0
"""Charge several participants for one run, before a row of any of them is read.

Guarantee  Either every account is charged, or none is. From then on all of them are spent, whatever fails.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.ledger.recorded import record_note
from sfumato.ledger.reservation import Reservation
from sfumato.training.privacy.terms import ROW_UNITS

__all__ = ["PartyCharge", "all_charged", "first_record_note", "require_purpose", "unit_of_rows"]

PartyCharge = tuple[Account | None, DpEvent, Relation]


def require_purpose(accounts: Sequence[Account | None], purpose: str | None) -> None:
    """Raise unless there is a purpose where an account pays, and none where no account does."""
    if any(account is not None for account in accounts) != (purpose is not None):
        raise InvalidParameterError("accounts and a purpose belong together: pass both, or neither.")


def unit_of_rows(accounts: Sequence[Account | None], given: str | None, *, known: str) -> str:
    """Return whose each row is. A run that protects rows must not be charged as one that protects more.

    Args:
        accounts: The account of each participant, or None.
        given: What the caller calls the one whose row each is, if each row is another one's.
        known: What it is called otherwise.

    Returns:
        The privacy unit.

    Raises:
        InvalidParameterError: If an account protects another unit.
    """
    fitting = (*ROW_UNITS, known) if given is None else (given,)
    for account in accounts:
        if account is not None and account.privacy_unit not in fitting:
            unit = account.privacy_unit
            raise InvalidParameterError(
                f"account {account.name!r} protects one {unit!r}, but this run protects one row. If each row "
                f"is another {unit}, pass privacy_unit={unit!r}; otherwise use an account of rows."
                if given is None
                else f"privacy_unit={given!r} was given, but account {account.name!r} protects one {unit!r}. "
                "Use accounts of one unit."
            )
    return known if given is None else given


def first_record_note(accounts: Sequence[Account | None]) -> str | None:
    """Return what must be said if a ledger keeps the run of some participant only, or of none.

    >>> first_record_note([None])
    'not recorded in a ledger: nothing adds its cost to that of other releases'
    """
    return next(filter(None, map(record_note, accounts)), None)


@contextmanager
def all_charged(charges: Sequence[PartyCharge], *, purpose: str | None, seeded: bool) -> Generator[None]:
    """Return a context in which rows may be read: all accounts have been charged.

    Args:
        charges: For each participant the account, if there is one, and what is charged to it.
        purpose: What the run is for, in one line.
        seeded: Whether the noise does not protect.

    Yields:
        Nothing.

    Raises:
        BudgetExceededError: If an account cannot pay. Nothing is spent.
    """
    reserved: list[Reservation] = []
    try:
        for account, event, relation in charges:
            if account is not None:
                reserved.append(
                    account.reserve(  # the generators are with the participants
                        event, purpose=str(purpose), relation=relation, generator=None, seeded=seeded
                    )
                )
    except BaseException:
        for reservation in reserved:
            reservation.refund()
        raise
    for reservation in reserved:
        reservation.begin()
    yield
    for reservation in reserved:
        reservation.commit()
