# SPDX-License-Identifier: Apache-2.0
"""Deferred rows: read once, after the charge; a refused or failed job reads nothing or stays spent."""

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from sfumato import Budget, Ledger
from sfumato.audit.mechanisms.payment_order import check_paid_first, check_stays_spent
from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.pate.pipeline import label
from sfumato.pate.private_rows import DeferredRows, PrivateRows, given_rows
from sfumato.pate.votes.aggregators import GNMax
from sfumato.pate.votes.individual import IndividualBudgets

X = np.arange(400.0).reshape(-1, 1) % 20
Y = (X[:, 0] >= 10).astype(int)
PUBLIC = np.array([[1.0], [3.0], [15.0], [19.0]])
TERMS = {"public": PUBLIC, "classes": 2, "teachers": 8, "delta": 1e-5, "progress": False}
LARGE = {"epsilon": 2000.0, "aggregator": GNMax(stddev=0.2)}


def account_of(tmp_path, epsilon):
    place = tmp_path / f"{epsilon}.db"
    return Ledger(place).open("a", privacy_unit="row", budget=Budget(epsilon=epsilon, delta=1e-4))


def asked(read, account):
    rows = DeferredRows(columns=1, read=lambda: read())
    return label(
        KNeighborsClassifier(1), rows, None, **TERMS, **LARGE, account=account, purpose="labels of four rows"
    )


def rows_at_hand():
    return PrivateRows(features=X, labels=Y)


def test_deferred_rows_give_the_answers_of_arrays(tmp_path):
    found = asked(rows_at_hand, account_of(tmp_path, 3000.0))
    assert found.classes.tolist() == [0, 0, 1, 1]


def test_nothing_is_read_before_the_charge_or_without_one(tmp_path):
    assert check_paid_first(asked, rows_at_hand, account_of(tmp_path, 3000.0)) == 1
    assert check_paid_first(asked, rows_at_hand, account_of(tmp_path, 0.5)) == 0


def test_a_failing_read_stays_spent(tmp_path):
    check_stays_spent(asked, rows_at_hand, account_of(tmp_path, 3000.0))


def test_wrong_public_rows_are_refused_before_the_charge(tmp_path):
    account = account_of(tmp_path, 3000.0)

    def fail():
        raise AssertionError("rows were read")

    rows = DeferredRows(columns=1, read=fail)
    for public in (np.zeros((4, 2)), np.array([[1.0], [np.nan]]), np.array([[1.0], [np.inf]])):
        with pytest.raises(InvalidParameterError):
            label(
                KNeighborsClassifier(1),
                rows,
                None,
                **{**TERMS, "public": public},
                **LARGE,
                account=account,
                purpose="x",
            )
    assert account.releases() == []


def test_deferred_rows_bring_units_and_groups():
    units = [f"person {number // 2}" for number in range(400)]
    rows = DeferredRows(
        columns=1,
        read=lambda: PrivateRows(features=X, labels=Y, units=units, groups=np.arange(400) // 2 % 2),
        by_unit=True,
        grouped=True,
    )
    individual = IndividualBudgets(epsilons=(500.0, 2000.0), shares=(0.5, 0.5), delta=1e-5)
    found = label(
        KNeighborsClassifier(1), rows, None, **TERMS, aggregator=GNMax(stddev=0.2), individual=individual
    )
    assert found.guarantee.privacy_unit == "user" and len(found.guarantees) == 2
    assert (found.classes != 1 - np.array([0, 0, 1, 1])).all()


def test_an_account_of_people_wants_units(tmp_path):
    account = Ledger(tmp_path / "p.db").open(
        "p", privacy_unit="person", budget=Budget(epsilon=3000, delta=1e-4)
    )
    with pytest.raises(InvalidParameterError, match="whose the rows are"):
        asked(rows_at_hand, account)


def test_deferred_rows_have_labels_of_their_own():
    rows = DeferredRows(columns=1, read=rows_at_hand)
    for parts in ((Y, None, None), (None, Y, None), (None, None, Y)):
        with pytest.raises(InvalidParameterError, match="bring their labels"):
            given_rows(rows, *parts)
    with pytest.raises(InvalidParameterError, match="columns"):
        DeferredRows(columns=0, read=rows_at_hand)


def test_a_repr_shows_no_row():
    assert repr(rows_at_hand()) == "PrivateRows(...)" and "read" not in repr(
        DeferredRows(columns=1, read=rows_at_hand)
    )


def test_a_refused_budget_is_told(tmp_path):
    with pytest.raises(BudgetExceededError):
        asked(rows_at_hand, account_of(tmp_path, 0.5))
