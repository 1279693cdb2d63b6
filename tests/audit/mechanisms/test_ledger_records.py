# SPDX-License-Identifier: Apache-2.0
"""What a ledger must show is checked, and what it does not show is found."""

import pytest

from sfumato import Budget, Ledger
from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.audit.mechanisms.ledger_records import check_marked, check_one_result, check_stated
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


def stated(epsilon, unit="row", relation=Relation.ADD_REMOVE):
    return Guarantee(epsilon=epsilon, delta=0.0, relation=relation, privacy_unit=unit)


def test_a_guarantee_that_is_better_than_what_was_charged_is_found(account):
    with pytest.raises(InvalidParameterError, match="nothing was charged"):
        check_stated(stated(1.0), account)
    for _ in range(2):
        account.reserve(PureDpEvent(0.5), **CHARGE).begin()
    account.reserve(PureDpEvent(0.5), **CHARGE).refund()
    assert check_stated(stated(1.0), account) == pytest.approx(1.0)
    with pytest.raises(LeakError, match=r"epsilon 1 was charged, but 0\.5 is stated"):
        check_stated(stated(0.5), account)
    for other in (stated(1.0, unit="user"), stated(1.0, relation=Relation.REPLACE_ONE)):
        with pytest.raises(LeakError, match="another relation or privacy unit"):
            check_stated(other, account)
