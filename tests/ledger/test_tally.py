# SPDX-License-Identifier: Apache-2.0
"""The running sum is the sum, whatever came and went."""

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.accounting.events import PureDpEvent
from sfumato.errors import BudgetExceededError
from sfumato.ledger import Account, Budget, Ledger, filters
from sfumato.ledger.filters import Cost
from sfumato.ledger.tally import Tally

any_cost = st.builds(
    Cost,
    renyi=st.floats(0, 1e308) | st.just(math.inf),
    epsilon=st.floats(0, 1e308) | st.just(math.inf),
    delta=st.floats(0, 1, exclude_max=True),
    gaussian=st.floats(0, 1e308) | st.just(math.inf),
)


def _exact(values: list[float]) -> float:
    if math.inf in values:
        return math.inf
    try:
        return float(sum(map(Fraction, values), Fraction(0)))
    except OverflowError:
        return math.inf


@given(st.lists(st.tuples(any_cost, st.booleans()), max_size=30))
def test_the_running_sum_is_the_sum_of_what_stayed(history: list[tuple[Cost, bool]]) -> None:
    tally = Tally()
    for cost, _ in history:
        tally.add(cost)
    for cost, refunded in history:
        if refunded:
            tally.remove(cost)
    stayed = [cost for cost, refunded in history if not refunded]
    assert tally.total() == Cost(
        renyi=_exact([c.renyi for c in stayed]),
        epsilon=_exact([c.epsilon for c in stayed]),
        delta=_exact([c.delta for c in stayed]),
        gaussian=_exact([c.gaussian for c in stayed]),
    )


def test_refunds_are_taken_away_whether_they_were_priced_before_or_not(
    new_account: Callable[..., Account], path: Path
) -> None:
    account = new_account(epsilon=1, delta=0)
    sizes = [0.1, 0.2, 0.3, 1e-12, 0.15]
    reserved = [account.reserve(PureDpEvent(s), purpose="p", relation="add-remove") for s in sizes]
    assert account.spent().epsilon == math.fsum(sizes)
    reserved[2].refund()
    reserved[1].begin()
    reserved[0].refund()
    for handle in (account, Ledger(path).account("credit")):  # one priced all of them, one only what is left
        assert handle.spent().epsilon == math.fsum([0.2, 1e-12, 0.15])
    assert account.statement().spent_epsilon == math.fsum([0.2, 1e-12, 0.15])


def test_a_reserve_adds_up_no_earlier_release_again(new_account: Callable[..., Account]) -> None:
    account = new_account(epsilon=1, delta=0)
    for _ in range(20):
        account.reserve(PureDpEvent(0.01), purpose="p", relation="add-remove")
    account.spent()
    before = filters.cost.cache_info()
    account.reserve(PureDpEvent(0.01), purpose="p", relation="add-remove")
    account.reserve(PureDpEvent(0.01), purpose="p", relation="add-remove")
    asked = filters.cost.cache_info()
    assert (asked.hits + asked.misses) - (
        before.hits + before.misses
    ) == 5  # two new ones, each asked for twice, one read back


@pytest.mark.parametrize("name", ["add", "_change"])
def test_an_interrupt_while_costs_are_added_up_forgets_no_release(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Ledger(tmp_path / "ledger.db").open(
        "data", privacy_unit="example", budget=Budget(epsilon=1, delta=0)
    )
    account.reserve(PureDpEvent(1.0), purpose="all of it", relation="add-remove")
    with monkeypatch.context() as interrupted:
        interrupted.setattr(Tally, name, _interrupt)
        with pytest.raises(KeyboardInterrupt):
            account.spent()
    assert account.spent().epsilon == 1
    with pytest.raises(BudgetExceededError):
        account.reserve(PureDpEvent(1.0), purpose="again", relation="add-remove")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
