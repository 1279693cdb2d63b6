# SPDX-License-Identifier: Apache-2.0
"""Reads before payment, refunds after a failure and overdrafts are found; honest code is not accused."""

import contextlib

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent

from sfumato import Budget, Ledger
from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.audit.mechanisms.neighbor_distances import LeakError
from sfumato.audit.mechanisms.payment_order import (
    Watched,
    check_never_exceeds,
    check_paid_first,
    check_stays_spent,
)
from sfumato.errors import InvalidParameterError, UnsupportedEventError
from sfumato.ledger import Account, filters
from sfumato.ledger.state import AccountState, Progress
from sfumato.mechanisms import Laplace
from sfumato.statistics import count, mean
from sfumato.statistics.columns.columns import column_of

ROWS = [0.2, 0.9, 0.4, 0.7]
EVENT, RELATION = PureDpEvent(0.25), "add-remove"
NOISE = Laplace.calibrated(epsilon=0.25, sensitivity=1.0, relation=Relation.ADD_REMOVE)


@pytest.fixture
def account(tmp_path):
    return Ledger(tmp_path / "ledger.db").open("a", privacy_unit="row", budget=Budget(epsilon=1, delta=0))


@pytest.fixture
def poor(tmp_path):
    return Ledger(tmp_path / "poor.db").open("b", privacy_unit="row", budget=Budget(epsilon=0.1, delta=0))


def honest(data, account):
    with account.spend(EVENT, relation=RELATION, purpose="sum"):
        return NOISE.release(float(np.asarray(data).sum()))


def computed_first(data, account):
    total = NOISE.release(float(np.asarray(data).sum()))
    with account.spend(EVENT, relation=RELATION, purpose="sum"):
        return total


def given_back(data, account):
    reservation = account.reserve(EVENT, relation=RELATION, purpose="sum")
    try:
        total = NOISE.release(float(np.asarray(data).sum()))
    except Exception:
        reservation.refund()
        raise
    reservation.begin()
    reservation.commit()
    return total


def test_a_watched_value_is_what_it_was_and_tells_of_each_read():
    seen = []
    column = Watched(column_of(ROWS), seen.append)
    assert (column.name, column.contribution_bound, seen) == ("values", 1, [])
    assert hasattr(column, "moments") and not hasattr(column, "tally") and seen == []
    assert column.moments((0, 1)) == column_of(ROWS).moments((0, 1))
    assert list(column.values) == ROWS
    rows = Watched(ROWS, seen.append)
    assert (len(rows), rows[1], list(rows), np.asarray(rows).tolist()) == (4, 0.9, ROWS, ROWS)
    assert Watched(lambda: 5, seen.append)() == 5
    assert list(dict.fromkeys(seen)) == [
        "moments",
        "values",
        "__len__",
        "__getitem__",
        "__iter__",
        "__array__",
        "__call__",
    ]


def test_who_pays_first_is_not_accused(account, poor):
    assert check_paid_first(honest, ROWS, account) == 1
    assert check_paid_first(honest, ROWS, poor) == 0  # it was refused, and had read nothing


def test_who_reads_first_is_found(account, poor):
    for release, one in ((computed_first, account), (computed_first, poor), (given_back, account)):
        with pytest.raises(LeakError, match="__array__"):
            check_paid_first(release, ROWS, one)


def test_reading_first_is_found_even_where_the_code_catches_everything(account):
    def quiet(data, account):
        with contextlib.suppress(Exception):
            len(data)
        return honest(data, account)

    with pytest.raises(LeakError, match="__len__"):
        check_paid_first(quiet, ROWS, account)


def test_what_was_begun_before_pays_for_nothing(account):
    account.reserve(EVENT, relation=RELATION, purpose="an earlier crash").begin()
    with pytest.raises(LeakError, match="__iter__"):
        check_paid_first(lambda data, account: sum(data), ROWS, account)
    assert check_paid_first(honest, ROWS, account) == 1


def test_an_unpaid_read_is_found_even_where_the_release_fails_afterwards(account):
    def fails(data, account):
        sum(data)
        raise ZeroDivisionError("later")

    with pytest.raises(LeakError, match="__iter__") as found:
        check_paid_first(fails, ROWS, account)
    assert isinstance(found.value.__cause__, ZeroDivisionError)


def test_an_error_of_a_release_that_paid_is_its_own(account):
    def fails(data, account):
        with account.spend(EVENT, relation=RELATION, purpose="sum"):
            return sum(data) / 0

    with pytest.raises(ZeroDivisionError):
        check_paid_first(fails, ROWS, account)


def test_our_statistics_pay_first_and_stay_charged(account, poor):
    def asked(data, account):
        return mean(data, bounds=(0, 1), epsilon=0.25, account=account)

    for one in (account, poor):
        check_paid_first(asked, column_of(ROWS), one)
    check_stays_spent(asked, column_of(ROWS), account)
    assert len(account.releases()) == 2
    check_paid_first(lambda data, a: count(data, epsilon=0.25, account=a), column_of(ROWS), account)


def test_a_charge_that_is_given_back_after_a_failed_read_is_found(account):
    check_stays_spent(honest, ROWS, account)
    with pytest.raises(LeakError, match="given back"):
        check_stays_spent(given_back, ROWS, account)


def test_a_release_that_never_charges_is_found(account):
    with pytest.raises(LeakError, match="free"):
        check_stays_spent(lambda data, account: len(data), ROWS, account)


def test_a_charge_for_something_else_does_not_stand_in(account):
    def free(data, account):
        with account.spend(EVENT, relation=RELATION, purpose="another"):
            pass
        return sum(data)

    with pytest.raises(LeakError, match="free"):
        check_stays_spent(free, ROWS, account)


def test_a_charge_that_was_never_begun_is_found_as_it_can_be_given_back(account):
    def reserved(data, account):
        account.reserve(EVENT, relation=RELATION, purpose="sum")
        return sum(data)

    with pytest.raises(LeakError, match="never begun"):
        check_stays_spent(reserved, ROWS, account)


def test_what_is_reserved_beside_and_given_back_untouched_is_not_accused(account):
    def careful(data, account):
        spare = account.reserve(EVENT, relation=RELATION, purpose="not needed")
        try:
            return honest(data, account)
        finally:
            spare.refund()

    check_stays_spent(careful, ROWS, account)


@pytest.mark.parametrize("delta", [0.0, 0.1])
@pytest.mark.parametrize("event", [PureDpEvent(0.05), GaussianDpEvent(30.0)], ids=["pure", "gaussian"])
def test_no_true_account_is_accused_whatever_its_rule_counts(tmp_path, event, delta):
    ledger = Ledger(tmp_path / "ledger.db")
    account = ledger.open("a", privacy_unit="row", budget=Budget(epsilon=0.5, delta=delta))
    if delta == 0 and isinstance(event, GaussianDpEvent):
        with pytest.raises(UnsupportedEventError):
            check_never_exceeds(account, event, relation=RELATION)
        return
    admitted = check_never_exceeds(account, event, relation=RELATION)
    assert (admitted == 10) if delta == 0 else (admitted > 40)  # 10 by simple addition, more by Renyi's


def test_what_was_spent_before_counts_and_what_was_given_back_does_not(account):
    account.reserve(EVENT, relation=RELATION, purpose="before").begin()
    account.reserve(EVENT, relation=RELATION, purpose="given back").refund()
    assert check_never_exceeds(account, EVENT, relation=RELATION) == 3


@pytest.mark.parametrize("budget", [Budget(epsilon=1, delta=0), Budget(epsilon=1, delta=1e-6)], ids=str)
def test_an_overdraft_is_found_even_where_the_ledger_forgets_releases(tmp_path, budget, monkeypatch):
    def committed(releases):
        return [one for one in releases if one.progress is Progress.COMMITTED]

    known, spent = Account.releases, AccountState._cost_of
    monkeypatch.setattr(Account, "releases", lambda self: committed(known(self)))
    monkeypatch.setattr(
        AccountState,
        "spent",
        lambda self: filters.total([spent(self, one) for one in committed(self.releases.values())]),
    )
    account = Ledger(tmp_path / "ledger.db").open("a", privacy_unit="row", budget=budget)
    with pytest.raises(LeakError, match="together were admitted to a budget of 1"):
        check_never_exceeds(account, EVENT, relation=RELATION)


def test_an_account_admits_what_its_budget_holds(account):
    assert check_never_exceeds(account, EVENT, relation=RELATION) == 4


def test_an_overdraft_is_found(account, monkeypatch):
    monkeypatch.setattr(filters.Filter, "admits", lambda self, spent: True)
    with pytest.raises(LeakError, match=r"epsilon 1\.25 together .* budget of 1"):
        check_never_exceeds(account, EVENT, relation=RELATION)


def test_what_could_not_be_checked_is_said(account, poor):
    with pytest.raises(InvalidParameterError, match="read nothing"):
        check_paid_first(lambda data, account: 0, ROWS, account)
    with pytest.raises(InvalidParameterError, match="can pay"):
        check_stays_spent(honest, ROWS, poor)
    with pytest.raises(InvalidParameterError, match="larger `most`"):
        check_never_exceeds(account, EVENT, relation=RELATION, most=2)
