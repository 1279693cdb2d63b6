# SPDX-License-Identifier: Apache-2.0
"""How a labeling job is paid for: by one account for all units, or by one for each privacy group.

Guarantee  Everything is charged before a private row is read, or nothing is: if one account refuses, what
           others had reserved is refunded. An error after that leaves the job spent.
Failure    An error once there are answers carries them along, in its attribute `answers`: they were paid for.
           One account is charged for the units that the job reveals most about. Accounts of groups are
           each charged for the units of their own group.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sfumato.accounting.events import DpEvent
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.ledger.reservation import Reservation
from sfumato.mechanisms.random import Generator as Randomness
from sfumato.pate.planning import Job

__all__ = ["Accounts", "accounts_of", "carried_by_errors", "paid"]

Accounts = Account | Sequence[Account]

_ROWS = ("example", "row")  # units that are one row each


def accounts_of(given: Accounts | None, job: Job) -> tuple[Account, ...]:
    """Return the accounts, one or one for each group, or raise if their number is another."""
    if given is None:
        return ()
    known = (given,) if isinstance(given, Account) else tuple(given)
    allowed = {1, len(job.events())}
    if len(known) not in allowed:
        raise InvalidParameterError(
            f"pass one account, or one for each of {len(job.events())} groups, as Ledger(...).open returns."
        )
    if len({each.privacy_unit for each in known}) > 1:
        raise InvalidParameterError("the accounts of all groups must protect the same privacy unit.")
    return known


def unit_of(accounts: Sequence[Account], given: str | None, *, by_unit: bool) -> str:
    """Return the privacy unit: that of the accounts, if the rows allow it."""
    if not accounts:
        return given if given is not None else "user" if by_unit else "example"
    stated = accounts[0].privacy_unit
    if given is not None and given != stated:
        raise InvalidParameterError(
            f"privacy_unit={given!r} was given, but account {accounts[0].name!r} protects one {stated!r}."
        )
    if given is None and not by_unit and stated not in _ROWS:
        raise InvalidParameterError(
            f"account {accounts[0].name!r} protects one {stated!r}, but it is not known whose the rows are. "
            f"Pass units=..., or privacy_unit={stated!r} if each row is another {stated}."
        )
    return stated


@contextmanager
def paid(
    job: Job, accounts: Sequence[Account], *, purpose: str, generator: Randomness | None
) -> Generator[None]:
    """Charge a job before the block runs, and commit it at its end."""
    reserved: list[Reservation] = []
    try:
        for account, event in zip(accounts, _events(job, len(accounts)), strict=True):
            if not isinstance(event, dp.NoOpDpEvent):
                reserved.append(
                    account.reserve(event, purpose=purpose, relation=job.relation, generator=generator)
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


@contextmanager
def carried_by_errors(answers: Any) -> Generator[None]:
    """Give every error of the block the answers that were paid for, and say so in a note."""
    try:
        yield
    except BaseException as error:
        with suppress(Exception):  # an error that takes no attributes is raised as it is
            error.answers = answers  # type: ignore[attr-defined]
            error.add_note("The job was charged. Its answers are in the attribute `answers` of this error.")
        raise


def _events(job: Job, accounts: int) -> tuple[DpEvent, ...]:
    if accounts == 0:
        return ()
    return (job.event(),) if accounts == 1 else job.events()
