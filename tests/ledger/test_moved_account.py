# SPDX-License-Identifier: Apache-2.0
"""An account that is entered anew, as the how-to guide does it, admits what the old one would admit."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sfumato.accounting.events import PureDpEvent, dp_sgd
from sfumato.ledger import Account, Budget, Ledger, Remaining

New = Callable[..., Account]


def _spend(account: Account) -> None:
    account.reserve(
        dp_sgd(noise_multiplier=9.0, sampling_rate=1, steps=1), relation="add-remove", purpose="a"
    )
    account.reserve(PureDpEvent(0.1), relation="add-remove", purpose="given back").refund()
    for _ in range(20):
        account.reserve(PureDpEvent(0.02), relation="add-remove", purpose="b")


def _left(old: Account, budget: Budget, place: Path, *, grants: bool) -> Remaining:
    new = Ledger(place).open("credit", privacy_unit=old.privacy_unit, budget=budget)
    for grant in old.grants() if grants else []:
        new.grant(epsilon=grant.epsilon, delta=grant.delta, reason=grant.reason)
    for release in old.releases():
        if release.spent:
            new.reserve(release.event, relation=release.relation, purpose=release.purpose)
    return new.remaining()


@pytest.mark.parametrize("raises", [[], [(4.0, 0.0)], [(0.5, 1e-6), (2.5, 0.0)]])
def test_with_the_opening_budget_and_each_grant_what_is_left_is_the_same(
    new_account: New, tmp_path: Path, raises: list[tuple[float, float]]
) -> None:
    old = new_account(epsilon=1.0)
    _spend(old)
    for epsilon, delta in raises:
        old.grant(epsilon=epsilon, delta=delta, reason="more")
        _spend(old)
    assert old.opening_budget == Budget(epsilon=1, delta=1e-6)
    moved = tmp_path / "moved.db"
    assert _left(old, old.opening_budget, moved, grants=True) == old.remaining()
    # With the total budget, another order would count: what the guide warns of.
    total = _left(old, old.budget, tmp_path / "total.db", grants=False)
    assert (total == old.remaining()) == (not raises)
