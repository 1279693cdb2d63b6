# SPDX-License-Identifier: Apache-2.0
"""What a ledger must show is checked, and what it does not show is found."""

import pytest

from sfumato import Budget, Ledger
from sfumato.accounting.events import PureDpEvent
from sfumato.audit.mechanisms.ledger_records import check_marked, check_one_result
from sfumato.audit.mechanisms.neighbor_distances import LeakError
from sfumato.errors import InvalidParameterError, LedgerError
from sfumato.statistics import count

CHARGE = {"purpose": "a test", "relation": "add-remove"}


@pytest.fixture
def account(tmp_path):
    return Ledger(tmp_path / "ledger.db").open("a", privacy_unit="row", budget=Budget(epsilon=9, delta=0))


def refused():
    raise LedgerError("continued elsewhere")


def test_more_results_than_charges_are_found(account):
    account.reserve(PureDpEvent(0.5), **CHARGE).begin()
    assert check_one_result([lambda: "a", refused], account) == 1
    assert check_one_result([lambda: "a", lambda: "a"], account) == 2  # the same result tells no more
    with pytest.raises(LeakError, match="2 different results were released for 1 charge"):
        check_one_result([lambda: "a", lambda: "b"], account)
    account.reserve(PureDpEvent(0.5), **CHARGE).begin()
    assert check_one_result([lambda: "a", lambda: "b"], account) == 2


def test_what_was_given_back_is_no_charge(account):
    account.reserve(PureDpEvent(0.5), **CHARGE).refund()
    with pytest.raises(LeakError, match="for 0 charge"):
        check_one_result([lambda: "a"], account)


def test_attempts_that_are_all_refused_show_nothing(account):
    with pytest.raises(InvalidParameterError, match="nothing was checked"):
        check_one_result([refused], account)


def test_a_release_that_is_not_marked_is_found(account):
    def marked(account, generator):
        return count([1.0], epsilon=0.1, account=account, generator=generator)

    def only_seeds(account, generator):
        with account.spend(PureDpEvent(0.1), seeded=generator.seeded, **CHARGE):
            pass

    assert check_marked(marked, account) == 3
    with pytest.raises(LeakError, match="not marked"):
        check_marked(only_seeds, account)
    with pytest.raises(InvalidParameterError, match="nothing was charged"):
        check_marked(lambda account, generator: None, account)
