# SPDX-License-Identifier: Apache-2.0
import re

from sfumato import Budget, Ledger
from sfumato.accounting.events import PureDpEvent

HOSTILE = "<script>alert(1)</script>"


def opened(tmp_path):
    account = Ledger(tmp_path / "ledger.db").open(
        HOSTILE, privacy_unit=HOSTILE, budget=Budget(epsilon=2, delta=0)
    )
    with account.spend(PureDpEvent(0.5), relation="add-remove", purpose=HOSTILE):
        pass
    return account


def test_an_account_shows_what_is_spent_as_a_bar_and_its_releases(tmp_path):
    shown = opened(tmp_path)._repr_html_()
    assert "25% of the budget is used" in shown and 'width="50.0"' in shown
    assert "epsilon 0.5" in shown and "committed" in shown


def test_names_in_a_ledger_are_shown_as_text(tmp_path):
    account = opened(tmp_path)
    ledger = Ledger(tmp_path / "ledger.db")
    for shown in (account._repr_html_(), ledger._repr_html_(), account.statement()._repr_html_()):
        assert "<script" not in shown and "&lt;script&gt;" in shown


def test_a_view_of_an_account_names_no_person_and_no_time_of_day(tmp_path, monkeypatch):
    monkeypatch.setenv("LOGNAME", "ada-of-the-clinic")
    account = opened(tmp_path)
    shown = account._repr_html_()
    assert account.releases()[0].person not in shown and not re.search(r"\d\d:\d\d", shown)


def test_an_empty_account_says_so():
    account = Ledger.temporary().open("a", privacy_unit="row", budget=Budget(epsilon=1, delta=1e-6))
    assert "No releases yet." in account._repr_html_() and "temporary" in account._repr_html_()
    assert "1e-06" in account.budget._repr_html_()
