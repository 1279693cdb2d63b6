# SPDX-License-Identifier: Apache-2.0
"""Whom a run protects: the given privacy unit, checked against the account.

Guarantee  An account that protects clients is never charged for a run that protects rows, unless the caller
           states that each row is another client.
"""

from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.training import distributed

__all__ = ["ROW_UNITS", "privacy_unit_of", "rows_note"]

ROW_UNITS = ("example", "row", "label")  # units that are one row each


def privacy_unit_of(given: str | None, account: Account | None, *, by_owner: bool) -> str:
    """Return the privacy unit: the argument, or the account's if the rows allow it."""
    if account is None:
        return given if given is not None else "user" if by_owner else "example"
    stated = distributed.first_decides(lambda: account.privacy_unit)
    if given is not None and given != stated:
        raise InvalidParameterError(
            f"privacy_unit={given!r} was given, but account {account.name!r} protects one {stated!r}. Leave "
            "it out, or use an account of that unit."
        )
    if given is None and not by_owner and stated not in ROW_UNITS:
        raise InvalidParameterError(
            f"account {account.name!r} protects one {stated!r}, but it is not known whose the rows are. Pass "
            f"owners=..., or privacy_unit={stated!r} if each row is another {stated}."
        )
    return stated


def rows_note(unit: str, contribution_bound: int | None) -> str | None:
    """Return what a reader must know of the rows of one unit; None if a unit is a row.

    >>> rows_note("person", 4)
    'At most 4 rows of one person count in a step.'
    >>> rows_note("person", None)
    'Each row was taken for another person; whether that is so was not checked.'
    """
    if contribution_bound is not None:
        rows = "row" if contribution_bound == 1 else "rows"
        count = "counts" if contribution_bound == 1 else "count"
        return f"At most {contribution_bound} {rows} of one {unit} {count} in a step."
    if unit in ROW_UNITS:
        return None
    return f"Each row was taken for another {unit}; whether that is so was not checked."
