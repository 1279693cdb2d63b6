# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import pytest

from sfumato.errors import InvalidParameterError
from sfumato.training.privacy.terms import privacy_unit_of


def account_of(unit, delta=1e-5):
    return SimpleNamespace(name="study", privacy_unit=unit, budget=SimpleNamespace(delta=delta))


def test_without_an_account_rows_are_examples_and_owners_are_users():
    assert privacy_unit_of(None, None, by_owner=False) == "example"
    assert privacy_unit_of(None, None, by_owner=True) == "user"
    assert privacy_unit_of("patient", None, by_owner=False) == "patient"


def test_an_account_of_clients_is_not_charged_for_rows_unless_each_row_is_one():
    account = account_of("patient")
    with pytest.raises(InvalidParameterError, match="not known whose the rows are"):
        privacy_unit_of(None, account, by_owner=False)
    assert privacy_unit_of("patient", account, by_owner=False) == "patient"
    assert privacy_unit_of(None, account, by_owner=True) == "patient"
    for unit in ("example", "row", "label"):
        assert privacy_unit_of(None, account_of(unit), by_owner=False) == unit


def test_another_unit_than_the_accounts_is_refused():
    with pytest.raises(InvalidParameterError, match="protects one 'patient'"):
        privacy_unit_of("example", account_of("patient"), by_owner=True)
