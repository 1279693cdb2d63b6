# SPDX-License-Identifier: Apache-2.0
"""What an account has left: what is stated can be used, and what does not fit is explained."""

import math
from collections.abc import Callable

import pytest
from dp_accounting import dp_event as dp

from sfumato.accounting.events import ApproximateDpEvent, PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import (
    BudgetExceededError,
    InvalidParameterError,
)
from sfumato.ledger import Account, Budget

New = Callable[..., Account]
ADD_REMOVE = Relation.ADD_REMOVE


def test_a_refusal_over_a_delta_says_so(new_account: New) -> None:
    account = new_account(epsilon=5, delta=1e-6)
    account.reserve(ApproximateDpEvent(0.1, 1e-7), purpose="first", relation=ADD_REMOVE)
    with pytest.raises(BudgetExceededError, match=r"delta of its own of 2e-07, and 8.75e-08 is left"):
        account.reserve(ApproximateDpEvent(0.1, 2e-7), purpose="second", relation=ADD_REMOVE)
    assert account.remaining().delta == pytest.approx(8.75e-8)
    assert account.remaining(delta=2e-7).epsilon == 0
    assert account.remaining(delta=1e-8).epsilon > 1


def test_what_is_left_shrinks_and_can_all_be_used(new_account: New) -> None:
    account = new_account(epsilon=2)
    assert account.remaining().fraction == 1
    account.reserve(dp.GaussianDpEvent(10.0), purpose="p", relation=ADD_REMOVE)
    left = account.remaining()
    assert 0 < left.fraction < 1
    account.reserve(PureDpEvent(left.epsilon), purpose="the rest", relation=ADD_REMOVE)
    assert account.remaining().epsilon < 1e-6
    assert account.remaining().fraction == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("delta", [-1e-9, 1.5, math.nan])
def test_what_is_left_for_an_impossible_delta_is_an_error(new_account: New, delta: float) -> None:
    with pytest.raises(InvalidParameterError):
        new_account().remaining(delta=delta)


# --- asking, and finding what fits --------------------------------------------------------------------------


def test_a_huge_budget_can_be_asked_and_refuses(new_account: New) -> None:
    account = new_account(epsilon=1e308, delta=0)
    assert account.remaining().epsilon == 1e308
    account.reserve(PureDpEvent(0.9e308), purpose="most", relation=ADD_REMOVE)
    assert account.remaining().epsilon == pytest.approx(1e307, rel=1e-6)
    with pytest.raises(BudgetExceededError, match="does not fit beside"):
        account.reserve(PureDpEvent(1.7e308), purpose="too much", relation=ADD_REMOVE)
    with pytest.raises(BudgetExceededError, match="delta of its own"):
        account.reserve(ApproximateDpEvent(1.0, 0.1), purpose="not pure", relation=ADD_REMOVE)
    for raise_it in (
        lambda: account.grant(epsilon=10**400, reason="r"),
        lambda: Budget(epsilon=10**400, delta=0),
    ):
        with pytest.raises(InvalidParameterError, match="at most 1e308"):
            raise_it()


# --- one ledger, many users of it -------------------------------------------------------------------------
