# SPDX-License-Identifier: Apache-2.0
"""The paragraph for an auditor says what holds, why, and under which condition."""

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from dp_accounting import dp_event as dp

from sfumato.accounting import events
from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import Accountant, price
from sfumato.errors import UnsupportedEventError
from sfumato.ledger import Account, Budget, Ledger, Statement

New = Callable[..., Account]
ADD_REMOVE = Relation.ADD_REMOVE
SEEDED = "for study only: the noise was seeded"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    """Give a new ledger."""
    return Ledger(path, person="ada")


def _words(statement: Statement) -> str:
    """Return the text without its line ends."""
    return " ".join(statement.text.split())


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
    text = _words(account.statement())
    assert _words(account.statement()) == " ".join(str(account.statement()).split())
    head = Ledger(path).head()
    for part in (
        "(3, 1e-06)-differential privacy for one client_id, add-remove neighbors",
        "also if a release was chosen after seeing earlier ones",
        "Feldman and Zrnic 2021",
        "Smith and Thakurta 2022",
        "order 11",
        "2 releases were charged; none was refunded",
        'ada released "mean of age". It costs epsilon 0.1, delta 0.',
        'ada released "credit model". It costs epsilon 0.2219, delta 1e-06.',
        "whatever is concluded from all of it is at most 20.1 times as likely with the data of any one "
        "client_id as without",
        f"{head.count} rows, head {head}",
    ):
        assert part in text, part
    assert SEEDED not in text
    assert "was raised" not in text


def test_releases_are_numbered_from_one_in_the_order_of_their_account(ledger: Ledger) -> None:
    first, second = (
        ledger.open(name, privacy_unit="client_id", budget=Budget(epsilon=9, delta=0)) for name in "ab"
    )
    for account, purpose in ((first, "one"), (second, "other"), (first, "two"), (first, "three")):
        account.reserve(PureDpEvent(0.1), purpose=purpose, relation=ADD_REMOVE).begin()
    listed = re.findall(r'^ +(\d+)\. .*"(\w+)"', first.statement().text, re.MULTILINE)
    assert listed == [("1", "one"), ("2", "two"), ("3", "three")]
    assert [r["number"] for r in json.loads(first.statement().to_json())["releases"]] == [1, 2, 3]
    numbers = [first.reservation(r.reservation).release_number for r in first.releases()]
    assert numbers == [1, 2, 3]


def test_the_text_is_for_people(new_account: New) -> None:
    account = _trained(new_account(epsilon=3, delta=1e-6))
    account.reserve(PureDpEvent(0.1), purpose="a long purpose " * 12 + "with {braces}", relation=ADD_REMOVE)
    text = account.statement().text
    lines = [line for line in text.splitlines() if not line.startswith("Ledger ")]
    assert max(map(len, lines)) <= 80
    assert "{braces}" in text
    for of_machines in ('{"', "DpEvent", "sampling_probability", "\0"):
        assert of_machines not in text


def test_numbers_stay_on_one_line(new_account: New) -> None:
    account = new_account(epsilon=3, delta=1e-6)
    for length in range(60):  # wherever the line ends
        account.reserve(PureDpEvent(0.01), purpose="x" * (length + 1), relation=ADD_REMOVE)
    for line in account.statement().text.splitlines():
        assert not re.search(r"(epsilon|delta|\(\d\S*,)$", line), line


def test_each_release_has_its_own_cost(new_account: New) -> None:
    account = new_account(epsilon=3, delta=1e-6)
    gaussian = dp.GaussianDpEvent(10.0)
    twice = events.compose(PureDpEvent(0.1), PureDpEvent(0.1))
    for event in (PureDpEvent(0.1), gaussian, twice, events.ApproximateDpEvent(0.2, 1e-8)):
        account.reserve(event, purpose="p", relation=ADD_REMOVE)
    account.reserve(PureDpEvent(0.1), purpose="given back", relation=ADD_REMOVE).refund()
    pure, noisy, composed, approximate, refunded = account.costs()
    assert (pure.epsilon, pure.delta) == (0.1, 0.0)
    exact = price(gaussian, delta=1e-6, relation=ADD_REMOVE)
    assert exact.lower <= noisy.epsilon <= exact.upper * 1.001 and noisy.delta == 1e-6
    assert 0.19 < composed.epsilon <= 0.2 and composed.delta == 1e-6
    assert approximate.delta == 1e-6 and 0.19 < approximate.epsilon <= 0.2
    assert (refunded.epsilon, refunded.delta) == (0.0, 0.0)
    told = json.loads(account.statement().to_json())["releases"]
    assert [release["epsilon"] for release in told] == [cost.epsilon for cost in account.costs()]
    assert [release["delta"] for release in told] == [cost.delta for cost in account.costs()]


def test_at_delta_zero_every_cost_is_pure(new_account: New) -> None:
    account = new_account(epsilon=3, delta=0)
    twice = events.compose(PureDpEvent(0.1), PureDpEvent(0.2))
    account.reserve(twice, purpose="p", relation=ADD_REMOVE)
    (cost,) = account.costs()
    assert cost.epsilon == pytest.approx(0.3) and cost.delta == 0


def test_other_accounts_are_named_and_those_alike_add_up(ledger: Ledger) -> None:
    def opened(name: str, unit: str = "client_id", relation: str = "add-remove") -> Account:
        budget = Budget(epsilon=1.5, delta=1e-6)
        return ledger.open(name, privacy_unit=unit, budget=budget, relation=relation)

    account = opened("credit")
    assert "This ledger has no other account." in _words(account.statement())
    opened("marketing"), opened("branches", unit="branch"), opened("survey", relation="replace-one")
    statement = account.statement()
    text = _words(statement)
    assert "This ledger has 3 other accounts: 'marketing' promises (1.5, 1e-06)" in text
    assert "The ledger does not know which people an account is about." in text
    assert "This account and 'marketing' together promise epsilon 3, delta 2e-06." in text
    assert "'branches', 'survey' count another unit or other neighbors, and cannot simply be added." in text
    found = json.loads(statement.to_json())["other_accounts"]
    assert [other["account"] for other in found] == ["marketing", "branches", "survey"]
    assert [other["guarantee"]["epsilon"] for other in found] == [1.5] * 3


def test_deltas_that_add_up_to_more_than_one_are_one(ledger: Ledger) -> None:
    for name in "abcdefghijkl":
        account = ledger.open(name, privacy_unit="user", budget=Budget(epsilon=1, delta=0.1))
    assert "together promise epsilon 12, delta 1." in _words(account.statement())


def test_what_is_in_no_ledger_is_said_not_to_be_covered(new_account: New) -> None:
    assert "Releases that are in no ledger, or in another one, are not covered" in _words(
        new_account().statement()
    )


def test_the_statement_of_a_temporary_ledger_says_that_it_is_not_kept() -> None:
    budget = Budget(epsilon=1, delta=0)
    statement = Ledger.temporary().open("passing", privacy_unit="row", budget=budget).statement()
    assert statement.text.split("\n\n")[1].startswith("Not recorded: the ledger of this account is temporary")
    assert json.loads(statement.to_json())["recorded"] is False


@pytest.mark.parametrize("relation", list(Relation))
def test_the_promise_is_told_in_words_for_every_relation(ledger: Ledger, relation: Relation) -> None:
    def told(name: str, epsilon: float) -> str:
        budget = Budget(epsilon=epsilon, delta=0)
        return _words(ledger.open(name, privacy_unit="user", budget=budget, relation=relation).statement())

    assert "at most 2.72 times as likely" in told("one", 1.0) and "of any one user as with" in told(
        "two", 1.0
    )
    assert "apart from a probability" not in told("three", 1.0)
    assert "no protection to be relied on" in told("four", 21.0)


def test_an_account_whose_unit_is_a_label_says_so_in_plain_words(ledger: Ledger) -> None:
    account = ledger.open(
        "labels", privacy_unit="label", budget=Budget(epsilon=1, delta=0), relation=Relation.REPLACE_LABEL
    )
    text = _words(account.statement())
    assert "as likely with any one label as with another in its place" in text
    assert "label of any one label" not in text


def test_the_fixed_plan_is_tighter_and_carries_its_condition_and_theorem(new_account: New) -> None:
    statement = _trained(new_account(epsilon=3, delta=1e-6)).statement()
    assert statement.fixed_plan is not None
    assert statement.fixed_plan.lower <= statement.fixed_plan.epsilon <= statement.spent_epsilon
    assert statement.fixed_plan.theorem in _words(statement)
    assert "If, and only if, these releases were planned before any result was seen" in _words(statement)


def test_printed_epsilons_are_rounded_up(new_account: New, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = SimpleNamespace(
        epsilon=0.30001, lower=0.2, upper=0.30001, accountant=Accountant.PLD, theorem="a theorem"
    )
    _with_price(monkeypatch, lambda event, delta, relation: plan)
    account = new_account(epsilon=1, delta=1e-6)
    account.reserve(PureDpEvent(0.30001), purpose="p", relation=ADD_REMOVE)
    text = _words(account.statement())
    assert "(0.3001, 1e-06)-differentially private" in text
    assert "and cost epsilon 0.3001 at delta 1e-06, by the same theorem" in text
    assert "Accountant: pld. Theorem: a theorem." in text


def test_events_that_no_plan_prices_are_said_to_have_none(
    new_account: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(event: object, delta: float, relation: object) -> object:
        raise UnsupportedEventError("no price")

    _with_price(monkeypatch, refuses)
    statement = _trained(new_account(epsilon=3)).statement()
    assert statement.fixed_plan is None
    assert "not available for these releases" in _words(statement)
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
    with account.spend(PureDpEvent(0.1), purpose="a study", seeded=True, relation=ADD_REMOVE):
        pass
    statement = account.statement()
    assert statement.text.split("\n\n")[1].startswith(SEEDED.capitalize())
    assert '"a study". It costs epsilon 0.1, delta 0. For study only: the noise was seeded' in _words(
        statement
    )
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
    text = _words(account.statement())
    for said in (
        'reserved "first", which has not begun. It costs epsilon 0.1, delta 0 already.',
        'began "second", which did not finish. It costs epsilon 0.1, delta 0, because',
        'reserved "third", which was refunded before anything was computed. It costs nothing.',
        "2 releases were charged; 1 was refunded.",
    ):
        assert said in text, said


def test_a_raised_budget_is_shown_with_its_condition(new_account: New) -> None:
    account = new_account(epsilon=1, delta=0)
    account.grant(epsilon=0.5, reason="board decision 12")
    text = _words(account.statement())
    assert "(1.5, 0)-differential privacy" in text
    assert "raised 1 time (epsilon +0.5, delta +0 by ada on" in text
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
