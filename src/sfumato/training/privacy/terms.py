# SPDX-License-Identifier: Apache-2.0
"""The privacy unit and the delta of a run, from its arguments and from its account.

Guarantee  An account that protects clients is never charged for a run that protects rows, unless the caller
           states that each row is another client.
"""

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.training import distributed

__all__ = ["delta_of", "privacy_unit_of"]

_ROWS = ("example", "row", "label")  # units that are one row each


def delta_of(delta: float | None, account: Account | None) -> float:
    """Return the delta of a guarantee: the one given, or that of the account."""
    if delta is None and account is None:
        raise InvalidParameterError(
            "pass delta, the chance that the guarantee may fail: clearly below 1 / (number of units), such "
            "as 1e-6."
        )
    if delta is not None:
        _check.delta(delta=delta)
    found = distributed.first_decides(lambda: account.budget.delta) if delta is None and account else delta
    assert found is not None
    _check.probability(delta=found)
    return found


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
    if given is None and not by_owner and stated not in _ROWS:
        raise InvalidParameterError(
            f"account {account.name!r} protects one {stated!r}, but it is not known whose the rows are. Pass "
            f"owners=..., or privacy_unit={stated!r} if each row is another {stated}."
        )
    return stated
