# SPDX-License-Identifier: Apache-2.0
"""Payment of a job: all accounts or none, and spent whatever happens after."""

import pytest

from sfumato import Budget, Ledger
from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.ledger.state import Progress
from sfumato.pate.payment import accounts_of, paid, unit_of
from sfumato.pate.votes.aggregators import GNMax
from sfumato.pate.votes.individual import IndividualBudgets
from sfumato.pate.votes.labeling import Labeling

GROUPS = IndividualBudgets(epsilons=(1.0, 3.0), shares=(1.0, 1.0), delta=1e-5)
JOB = Labeling(aggregator=GNMax(stddev=40.0), queries=30, teachers=100, delta=1e-5, individual=GROUPS)


@pytest.fixture
def opened(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")

    def account(name, epsilon=5.0, unit="row"):
        return ledger.open(name, privacy_unit=unit, budget=Budget(epsilon=epsilon, delta=1e-5))

    return account


def test_one_account_pays_for_those_the_job_reveals_most_about(opened):
    account = opened("all")
    with paid(JOB, (account,), purpose="x", generator=None):
        assert account.releases()[0].progress is Progress.BEGUN
    assert account.releases()[0].progress is Progress.COMMITTED
    assert account.costs()[0].epsilon == pytest.approx(JOB.guarantees()[1].epsilon, rel=1e-6)


def test_what_fails_inside_stays_spent(opened):
    account = opened("all")
    with pytest.raises(RuntimeError), paid(JOB, (account,), purpose="x", generator=None):
        raise RuntimeError
    assert account.spent().epsilon > 0


def test_a_refusal_refunds_the_others(opened):
    rich, poor = opened("rich"), opened("poor", epsilon=1e-3)
    with pytest.raises(BudgetExceededError), paid(JOB, (rich, poor), purpose="x", generator=None):
        raise AssertionError("the block must not run")
    assert rich.spent().epsilon == 0


def test_accounts_must_match_the_groups(opened):
    one, two, three = opened("1"), opened("2"), opened("3")
    assert accounts_of(None, JOB) == ()
    assert accounts_of(one, JOB) == (one,)
    assert accounts_of([one, two], JOB) == (one, two)
    with pytest.raises(InvalidParameterError, match="2 groups"):
        accounts_of([one, two, three], JOB)
    with pytest.raises(InvalidParameterError, match="same privacy unit"):
        accounts_of([one, opened("4", unit="person")], JOB)


def test_the_unit_is_that_of_the_account(opened):
    person = opened("p", unit="person")
    assert unit_of((), None, by_unit=False) == "example"
    assert unit_of((), None, by_unit=True) == "user"
    assert unit_of((person,), None, by_unit=True) == "person"
    with pytest.raises(InvalidParameterError, match="whose the rows are"):
        unit_of((person,), None, by_unit=False)
    with pytest.raises(InvalidParameterError, match="protects one 'person'"):
        unit_of((person,), "row", by_unit=True)
