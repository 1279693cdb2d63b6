# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato import Budget, Ledger
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.generative.fit_settings import FitSettings


def test_delta_is_the_given_one_or_the_accounts_or_the_default(account):
    assert FitSettings(epsilon=1.0, delta=1e-7).delta_for(60_000) == 1e-7
    assert FitSettings(epsilon=1.0).delta_for(60_000) == 1e-5
    assert FitSettings(epsilon=1.0, account=account, purpose="x").delta_for(60_000) == 1e-4


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "pass epsilon"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"epsilon": 1.0, "purpose": "x"}, "none was given"),
        ({"epsilon": 1.0, "epochs": 3}, "unknown keyword 'epochs'"),
    ],
)
def test_wrong_settings_are_told(wrong, said):
    with pytest.raises(InvalidParameterError, match=said):
        FitSettings.of(wrong)


def test_an_account_needs_a_purpose_the_relation_and_the_unit(account, tmp_path):
    with pytest.raises(InvalidParameterError, match="purpose"):
        FitSettings(epsilon=1.0, account=account)
    ledger, budget = Ledger(tmp_path / "other.db"), Budget(epsilon=1.0, delta=1e-5)
    people = ledger.open("people", privacy_unit="person", budget=budget)
    with pytest.raises(InvalidParameterError, match="person"):
        FitSettings(epsilon=1.0, account=people, purpose="x")
    assert FitSettings(epsilon=1.0, account=people, purpose="x", privacy_unit="person").unit == "person"
    swaps = ledger.open("swaps", privacy_unit="example", budget=budget, relation="replace-one")
    with pytest.raises(InvalidParameterError, match="add-remove"):
        FitSettings(epsilon=1.0, account=swaps, purpose="x")


def test_payment_comes_before_the_block_and_stays_if_it_fails(account):
    settings = FitSettings(epsilon=1.0, account=account, purpose="x")
    with pytest.raises(ZeroDivisionError), settings.paid(dp.GaussianDpEvent(5.0)):
        assert len(account.releases()) == 1
        raise ZeroDivisionError
    assert account.spent().epsilon > 0
    with pytest.raises(BudgetExceededError), settings.paid(dp.GaussianDpEvent(0.01)):
        raise AssertionError("the block ran")
    with pytest.raises(BudgetExceededError):
        settings.require_paid(dp.GaussianDpEvent(0.01))
    settings.require_paid(dp.GaussianDpEvent(5.0))
    assert len(account.releases()) == 1
