# SPDX-License-Identifier: Apache-2.0
"""The paragraph for an auditor says what holds, why, and under which condition."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from dp_accounting import dp_event as dp

from sfumato.accounting import events
from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import Accountant
from sfumato.errors import UnsupportedEventError
from sfumato.ledger import Account, Ledger

New = Callable[..., Account]
ADD_REMOVE = Relation.ADD_REMOVE
SEEDED = "for study only: the noise was seeded"


def _with_price(monkeypatch: pytest.MonkeyPatch, price: Callable[..., object]) -> None:
    module = ModuleType("sfumato.accounting.price")
    module.price = price  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sfumato.accounting.price", module)


def _trained(account: Account) -> Account:
    with account.spend(PureDpEvent(0.1), purpose="mean of age", relation=ADD_REMOVE):
        pass
    with account.spend(
        events.dp_sgd(noise_multiplier=4.0, sampling_rate=0.01, steps=500),
        purpose="credit model",
        relation=ADD_REMOVE,
    ):
        pass
    return account


def test_the_text_has_guarantee_theorem_releases_and_head(new_account: New, path: Path) -> None:
    account = _trained(new_account(epsilon=3, delta=1e-6))
    text = account.statement().text
    assert str(account.statement()).splitlines()[2:] == text.splitlines()[2:]
    head = Ledger(path).head()
    for part in (
        "(3, 1e-06)-differential privacy for one client_id, add-remove neighbors",
        "also where a release was chosen after seeing earlier ones",
        "Feldman and Zrnic 2021",
        "Smith and Thakurta 2022",
        "order 11",
        "2 of 2 reservations count",
        "mean of age (by ada, sfumato",
        "credit model",
        '{"epsilon": 0.1, "type": "PureDpEvent"}',
        f"{head.count} rows, head {head}",
    ):
        assert part in text, part
    assert SEEDED not in text
    assert "was raised" not in text


def test_the_fixed_plan_is_tighter_and_carries_its_condition_and_theorem(new_account: New) -> None:
    statement = _trained(new_account(epsilon=3, delta=1e-6)).statement()
    assert statement.fixed_plan is not None
    assert statement.fixed_plan.lower <= statement.fixed_plan.epsilon <= statement.spent_epsilon
    assert statement.fixed_plan.theorem in statement.text
    assert "If, and only if, these releases were planned before any result was seen" in statement.text


def test_printed_epsilons_are_rounded_up(new_account: New, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = SimpleNamespace(
        epsilon=0.30001, lower=0.2, upper=0.30001, accountant=Accountant.PLD, theorem="a theorem"
    )
    _with_price(monkeypatch, lambda event, delta, relation: plan)
    account = new_account(epsilon=1, delta=1e-6)
    account.reserve(PureDpEvent(0.30001), purpose="p", relation=ADD_REMOVE)
    text = account.statement().text
    assert "(0.3001, 1e-06)-differentially private" in text
    assert "they have epsilon 0.3001 by" in text
    assert "Accountant: pld. Theorem: a theorem." in text


def test_events_that_no_plan_prices_are_said_to_have_none(
    new_account: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(event: object, delta: float, relation: object) -> object:
        raise UnsupportedEventError("no price")

    _with_price(monkeypatch, refuses)
    statement = _trained(new_account(epsilon=3)).statement()
    assert statement.fixed_plan is None
    assert "not available for these events" in statement.text
    assert json.loads(statement.to_json())["fixed_plan"] is None


def test_a_plan_without_a_finite_figure_is_said_to_have_none(
    new_account: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SimpleNamespace(
        epsilon=math.inf, lower=0.0, upper=math.inf, accountant=Accountant.PLD, theorem="t"
    )
    _with_price(monkeypatch, lambda event, delta, relation: plan)
    statement = _trained(new_account(epsilon=3)).statement()
    assert json.loads(statement.to_json())["fixed_plan"] is None


def test_the_plan_is_asked_for_what_counts_only(new_account: New, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    plan = SimpleNamespace(epsilon=0.1, lower=0.1, upper=0.1, accountant=Accountant.PLD, theorem="t")
    _with_price(monkeypatch, lambda event, delta, relation: asked.append((event, delta, relation)) or plan)
    account = new_account(epsilon=3, delta=1e-6)
    account.reserve(PureDpEvent(0.5), purpose="refunded", relation=ADD_REMOVE).refund()
    account.reserve(PureDpEvent(0.25), purpose="kept", relation=ADD_REMOVE)
    account.statement()
    assert asked == [(PureDpEvent(0.25), 1e-6, account.relation)]


def test_seeded_noise_is_flagged_first_and_beside_its_release(new_account: New) -> None:
    account = new_account(delta=0)
    account.reserve(PureDpEvent(0.1), purpose="honest", relation=ADD_REMOVE)
    account.reserve(PureDpEvent(0.1), purpose="a study", seeded=True, relation=ADD_REMOVE)
    statement = account.statement()
    assert statement.text.split("\n\n")[1].startswith(SEEDED.capitalize())
    (line,) = [line for line in statement.text.splitlines() if "a study" in line]
    assert SEEDED in line
    assert statement.seeded
    assert [release["seeded"] for release in json.loads(statement.to_json())["releases"]] == [False, True]


def test_a_seeded_release_that_was_refunded_taints_nothing(new_account: New) -> None:
    account = new_account(delta=0)
    account.reserve(PureDpEvent(0.1), purpose="a study", seeded=True, relation=ADD_REMOVE).refund()
    assert not account.statement().seeded


def test_unfinished_and_refunded_releases_say_whether_they_count(new_account: New) -> None:
    account = new_account(delta=0)
    account.reserve(PureDpEvent(0.1), purpose="first", relation=ADD_REMOVE)
    account.reserve(PureDpEvent(0.1), purpose="second", relation=ADD_REMOVE).begin()
    account.reserve(PureDpEvent(0.1), purpose="third", relation=ADD_REMOVE).refund()
    lines = account.statement().text.splitlines()
    for purpose, note in [
        ("first", "not begun: counts"),
        ("second", "not finished: counts"),
        ("third", "does not count"),
    ]:
        assert any(purpose in line and note in line for line in lines), purpose
    assert "2 of 3 reservations count" in account.statement().text


def test_a_raised_budget_is_shown_with_its_condition(new_account: New) -> None:
    account = new_account(epsilon=1, delta=0)
    account.grant(epsilon=0.5, reason="board decision 12")
    text = account.statement().text
    assert "(1.5, 0)-differential privacy" in text
    assert "raised 1 time(s) (epsilon +0.5, delta +0 by ada on" in text
    assert "board decision 12" in text
    assert "provided that no budget beyond it would have been granted whatever the releases showed" in text


def test_an_account_without_releases_says_so(new_account: New) -> None:
    statement = new_account().statement()
    assert "Nothing was released." in statement.text
    assert statement.spent_epsilon == 0
    assert statement.fixed_plan is None


def test_the_json_mirrors_the_account(new_account: New, path: Path) -> None:
    account = new_account(epsilon=1, delta=0)
    account.reserve(PureDpEvent(0.25), purpose="mean of age", relation=ADD_REMOVE).begin()
    account.grant(epsilon=0.5, reason="why not")
    found = json.loads(account.statement().to_json())
    head = Ledger(path).head()
    assert found["head"] == {"count": head.count, "hash": head.hash}
    assert found["guarantee"]["epsilon"] == 1.5
    assert found["guarantee"]["relation"] == "add-remove"
    assert found["guarantee"]["privacy_unit"] == "client_id"
    assert found["spent"]["epsilon"] == 0.25
    assert found["releases"][0]["event"] == {"epsilon": 0.25, "type": "PureDpEvent"}
    assert found["releases"][0]["progress"] == "begun"
    assert found["grants"][0]["reason"] == "why not"


def test_the_head_of_a_statement_is_a_witness(new_account: New, path: Path) -> None:
    account = new_account(delta=0)
    statement = account.statement()
    account.reserve(PureDpEvent(0.25), purpose="later", relation=ADD_REMOVE)
    Ledger(path).verify(head=str(statement.head))  # what came after does not matter
    assert str(statement.head) in statement.text


def test_a_gaussian_account_has_figures_too(new_account: New) -> None:
    account = new_account(epsilon=2, delta=1e-6)
    account.reserve(dp.GaussianDpEvent(10.0), purpose="sum", relation=ADD_REMOVE)
    assert 0 < account.statement().spent_epsilon < 2
    assert math.isfinite(account.statement().fraction)
