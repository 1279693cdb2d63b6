# SPDX-License-Identifier: Apache-2.0
"""Names that look the same are one account, and what nobody can see is in no text."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError, LedgerError
from sfumato.ledger import Account, Budget, Ledger

New = Callable[..., Account]
ADD_REMOVE = Relation.ADD_REMOVE

# One of each range that Unicode says to draw as nothing.
INVISIBLE = [0x34F, 0x1160, 0x17B4, 0x180B, 0x200B, 0x202A, 0x2060, 0x3164, 0xFE0F, 0xFEFF, 0xFFA0, 0xE0100]
HOSTILE = ["'; DROP TABLE sfumato_journal; --", '"', "100% :name %s ? \\", "Straße", "信用", "a" * 500]


@pytest.mark.parametrize("name", HOSTILE)
def test_any_printable_line_is_a_name(location: str, name: str) -> None:
    ledger = Ledger(location, person=name)
    account = ledger.open(name, privacy_unit=name, budget=Budget(epsilon=1, delta=0))
    account.reserve(PureDpEvent(0.1), purpose=name, relation=ADD_REMOVE)
    account.grant(epsilon=1, reason=name)
    (again,) = Ledger(location).accounts()
    release = again.releases()[0]
    assert [again.name, again.privacy_unit, release.purpose, release.person, again.grants()[0].reason] == [
        name
    ] * 5


@pytest.mark.parametrize(
    "name",
    ["", "  ", "two\nlines", "nul\0", "a" * 501, "\ud800", "\u202eevil", 3, None]
    + [f"cre{chr(invisible)}dit" for invisible in INVISIBLE],
)
def test_other_names_are_refused(path: Path, name: object) -> None:
    ledger = Ledger(path)
    budget = Budget(epsilon=1, delta=0)
    with pytest.raises(InvalidParameterError, match="name must"):
        ledger.open(name, privacy_unit="user", budget=budget)  # type: ignore[arg-type]
    account = ledger.open("credit", privacy_unit="user", budget=budget)
    with pytest.raises(InvalidParameterError, match="purpose must"):
        account.reserve(PureDpEvent(0.1), purpose=name, relation=ADD_REMOVE)  # type: ignore[arg-type]
    assert account.releases() == []


def test_names_that_look_the_same_are_the_same(path: Path) -> None:
    ledger = Ledger(path)
    ledger.open("caf\u00e9", privacy_unit="user", budget=Budget(epsilon=1, delta=0))
    assert ledger.account("cafe\u0301").name == "caf\u00e9"
    assert ledger.account("\uff43af\u00e9").name == "caf\u00e9"  # a full-width c


@pytest.mark.parametrize("other", ["Credit", "CREDIT", "\uff23redit"])
def test_a_second_budget_under_another_spelling_is_refused(path: Path, other: str) -> None:
    ledger = Ledger(path)
    budget = Budget(epsilon=1, delta=0)
    ledger.open("credit", privacy_unit="user", budget=budget)
    with pytest.raises(LedgerError, match="would differ from account 'credit' only"):
        ledger.open(other, privacy_unit="user", budget=budget)
    assert [account.name for account in ledger.accounts()] == ["credit"]


def test_a_purpose_keeps_its_signs(new_account: New) -> None:
    account = new_account()
    account.reserve(PureDpEvent(0.1), purpose="sum of x²", relation=ADD_REMOVE)
    assert account.releases()[0].purpose == "sum of x²"
