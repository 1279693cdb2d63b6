# SPDX-License-Identifier: Apache-2.0
import re

import pytest

from sfumato import Budget, Ledger, statistics
from sfumato.accounting.events import PureDpEvent, dp_sgd
from sfumato.errors import LedgerError
from sfumato.testing import seeded

ADD_REMOVE = "add-remove"


PERSON = "ada-of-the-clinic"


@pytest.fixture
def account(tmp_path, monkeypatch):
    """An account with two releases that were finished, and three that were not."""
    monkeypatch.setenv("LOGNAME", PERSON)
    account = Ledger(tmp_path / "ledger.db").open(
        "credit", privacy_unit="client", budget=Budget(epsilon=3, delta=1e-6)
    )
    with account.spend(PureDpEvent(0.5), relation=ADD_REMOVE, purpose="mean of age"):
        pass
    account.reserve(PureDpEvent(0.1), relation=ADD_REMOVE, purpose="reserved")
    account.reserve(PureDpEvent(0.1), relation=ADD_REMOVE, purpose="begun").begin()
    account.reserve(PureDpEvent(0.1), relation=ADD_REMOVE, purpose="refunded").refund()
    run = dp_sgd(noise_multiplier=4.0, sampling_rate=0.01, steps=10)
    with account.spend(run, relation=ADD_REMOVE, purpose="a run"):
        pass
    return account


def test_the_card_of_an_account_states_its_budget_and_lists_its_releases(account):
    card = account.card()
    assert (card.guarantee.epsilon, card.guarantee.delta) == (3.0, 1e-6)
    assert [row[2] for row in card.tables[0].rows] == [
        "mean of age",
        "reserved",
        "begun",
        "refunded",
        "a run",
    ]
    assert "as far as the account was charged" in card.to_markdown()


def test_the_card_of_a_release_states_its_own_cost_and_the_accounts(account):
    card = account.card(release=1)
    assert (card.guarantee.epsilon, card.guarantee.delta, card.release_number) == (0.5, 0.0, 1)
    assert card.further["all releases of the account"].epsilon == 3.0
    assert card.accountant == "basic" and card.title == "mean of age"
    run = account.card(release=5)
    assert run.guarantee == account.costs()[4] and run.theorem


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (2, "has not begun"),
        (3, "did not finish"),
        (4, "was refunded"),
        (6, "releases 1 to 5"),
        (0, "asked for"),
    ],
)
def test_what_was_not_released_has_no_card(account, number, why):
    with pytest.raises(LedgerError, match=why):
        account.card(release=number)


def test_a_card_names_no_person_no_time_of_day_and_no_place(account, tmp_path):
    assert account.releases()[0].person == PERSON
    for card in (account.card(), account.card(release=1)):
        shown = card.to_markdown() + card.to_html() + card.to_json() + card.header()
        assert not re.search(r"\d\d:\d\d", shown)
        assert PERSON not in shown and str(tmp_path) not in shown


def test_a_card_of_seeded_noise_warns():
    account = Ledger.temporary().open("a", privacy_unit="row", budget=Budget(epsilon=1, delta=1e-6))
    with account.spend(PureDpEvent(0.5), relation=ADD_REMOVE, purpose="p", generator=seeded(1)):
        pass
    for card in (account.card(), account.card(release=1)):
        assert not card.protects and "does not protect anyone" in card.to_markdown()
    assert "its account ends with this process" in account.card().to_markdown()


def test_the_card_of_a_statistic_says_how_its_noise_was_made(account):
    release = statistics.count([1.0] * 100, epsilon=0.5, account=None)
    card = release.card()
    assert card.guarantee == release.guarantee and card.accountant == "basic"
    assert "not recorded in a ledger" in (card.record_note or "")
    study = statistics.count([1.0] * 100, epsilon=0.5, generator=seeded(1)).card()
    assert not study.protects and study.study_note == "for study only: the noise was seeded"
    assert str(release.value) not in card.to_markdown()
