# SPDX-License-Identifier: Apache-2.0
"""Open, reserve, grant: what each does and what each refuses."""

import math
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from dp_accounting import dp_event as dp

from sfumato.accounting import events, plan
from sfumato.accounting.events import ApproximateDpEvent, PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import (
    BudgetExceededError,
    CalibrationError,
    InvalidParameterError,
    LedgerError,
    LedgerVersionError,
    RelationMismatchError,
    UnsupportedEventError,
)
from sfumato.ledger import Account, Budget, Ledger, Progress
from sfumato.ledger.store import Store
from sfumato.mechanisms import Gaussian, Laplace

New = Callable[..., Account]
ADD_REMOVE = Relation.ADD_REMOVE


def test_a_release_goes_from_reserved_to_committed_and_is_spent_all_the_way(location: str) -> None:
    ledger = Ledger(location, person="ada")
    account = ledger.open("credit", privacy_unit="client_id", budget=Budget(epsilon=1, delta=1e-6))
    reservation = account.reserve(PureDpEvent(0.25), purpose="mean of age", relation=ADD_REMOVE)
    assert (reservation.release.progress, account.spent().epsilon) == (Progress.RESERVED, 0.25)
    reservation.begin()
    assert (reservation.release.progress, account.spent().epsilon) == (Progress.BEGUN, 0.25)
    reservation.commit()
    assert (reservation.release.progress, account.spent().epsilon) == (Progress.COMMITTED, 0.25)

    (release,) = Ledger(location, create=False).account("credit").releases()
    assert release.purpose == "mean of age"
    assert release.person == "ada"
    assert release.event == PureDpEvent(0.25)
    assert release.relation is Relation.ADD_REMOVE
    assert release.code_version
    assert release.reserved_at.endswith("+00:00")
    assert release.reserved_at < release.changed_at
    assert not release.seeded


def test_what_does_not_fit_is_refused_and_nothing_is_spent(location: str) -> None:
    ledger = Ledger(location)
    account = ledger.open("credit", privacy_unit="client_id", budget=Budget(epsilon=1, delta=0))
    account.reserve(PureDpEvent(0.75), purpose="most", relation=ADD_REMOVE)
    before = ledger.head()
    with pytest.raises(BudgetExceededError) as refused:
        account.reserve(PureDpEvent(0.5), purpose="too much", relation=ADD_REMOVE)
    assert ledger.head() == before
    said = str(refused.value)
    for part in ("'too much'", "epsilon=1.25", "'credit'", "at most epsilon=0.25", "`sfumato ledger grant`"):
        assert part in said
    account.reserve(PureDpEvent(0.25), purpose="exactly what was said to be left", relation=ADD_REMOVE)


def test_the_spent_event_is_what_calibration_needs(new_account: New) -> None:
    account = new_account(epsilon=3)
    account.reserve(dp.GaussianDpEvent(20.0), purpose="a", relation=ADD_REMOVE)
    account.reserve(dp.GaussianDpEvent(20.0), purpose="b", relation=ADD_REMOVE).begin()
    account.reserve(PureDpEvent(0.1), purpose="c", relation=ADD_REMOVE).refund()
    assert account.event() == dp.SelfComposedDpEvent(dp.GaussianDpEvent(20.0), 2)


# --- opening ----------------------------------------------------------------------------------------------


def test_an_account_is_found_again_with_all_it_was_opened_with(location: str) -> None:
    budget = Budget(epsilon=3, delta=1e-6)
    Ledger(location).open("credit", privacy_unit="client_id", budget=budget, relation=Relation.REPLACE_ONE)
    ledger = Ledger(location)
    for again in (
        ledger.open("credit", privacy_unit="client_id"),
        ledger.open("credit", privacy_unit="client_id", budget=budget),
        ledger.open(" credit ", privacy_unit="client_id", relation="replace-one"),
        ledger.account("credit"),
        ledger.accounts()[0],
    ):
        assert (again.privacy_unit, again.relation, again.budget) == (
            "client_id",
            Relation.REPLACE_ONE,
            budget,
        )
    assert ledger.head().count == 1


def test_reopening_with_other_terms_is_refused(new_account: New, path: Path) -> None:
    new_account(epsilon=1, delta=1e-6)
    ledger = Ledger(path)
    with pytest.raises(LedgerError, match=r"protects one 'client_id'.*same people would be a second budget"):
        ledger.open("credit", privacy_unit="row")
    with pytest.raises(RelationMismatchError, match="counts add-remove"):
        ledger.open("credit", privacy_unit="client_id", relation=Relation.REPLACE_ONE)
    with pytest.raises(LedgerError, match="cannot be lowered or replaced"):
        ledger.open("credit", privacy_unit="client_id", budget=Budget(epsilon=2, delta=1e-6))
    with pytest.raises(InvalidParameterError, match="unknown relation"):
        ledger.open("credit", privacy_unit="client_id", relation="bounded")


def test_a_new_account_needs_a_budget(path: Path) -> None:
    ledger = Ledger(path)
    with pytest.raises(InvalidParameterError, match="it needs a budget"):
        ledger.open("credit", privacy_unit="client_id")
    with pytest.raises(InvalidParameterError, match="it needs a budget"):
        ledger.open("credit", privacy_unit="client_id", budget=3.0)  # type: ignore[arg-type]
    with pytest.raises(LedgerError, match=r"has no account 'credit'.*none"):
        ledger.account("credit")
    assert ledger.head().count == 0


def test_accounts_do_not_share_their_budgets(path: Path) -> None:
    ledger = Ledger(path)
    one, other = (
        ledger.open(name, privacy_unit="user", budget=Budget(epsilon=1, delta=0)) for name in ("one", "other")
    )
    one.reserve(PureDpEvent(1.0), purpose="all of one", relation=ADD_REMOVE)
    assert other.remaining().epsilon == pytest.approx(1)
    assert [account.name for account in ledger.accounts()] == ["one", "other"]


# --- what cannot be charged -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (dp.NonPrivateDpEvent(), UnsupportedEventError),
        (dp.GaussianDpEvent(0.0), InvalidParameterError),
        (dp.GaussianDpEvent(math.nan), InvalidParameterError),
        (PureDpEvent(math.inf), InvalidParameterError),
        (PureDpEvent(-1.0), InvalidParameterError),
        (ApproximateDpEvent(1.0, 1.0), InvalidParameterError),
        (dp.PoissonSampledDpEvent(1.5, dp.GaussianDpEvent(1.0)), InvalidParameterError),
        (dp.UnsupportedDpEvent(), UnsupportedEventError),
        ("an event", UnsupportedEventError),
    ],
)
def test_an_event_without_a_price_writes_nothing(
    new_account: New, path: Path, event: object, error: type
) -> None:
    account = new_account()
    with pytest.raises(error):
        account.reserve(event, purpose="p", relation=ADD_REMOVE)  # type: ignore[arg-type]
    assert Ledger(path).head().count == 1


def test_an_event_that_the_relation_forbids_is_refused(new_account: New) -> None:
    account = new_account(relation=Relation.REPLACE_ONE)
    with pytest.raises(UnsupportedEventError):
        account.reserve(events.ParallelDpEvent([PureDpEvent(0.1)]), purpose="p", relation="replace-one")
    assert account.releases() == []


def test_a_release_for_another_relation_is_refused(new_account: New) -> None:
    account = new_account(relation=Relation.REPLACE_ONE)
    with pytest.raises(RelationMismatchError, match=r"stated for add-remove.*counts replace-one"):
        account.reserve(PureDpEvent(0.1), purpose="p", relation=Relation.ADD_REMOVE)
    account.reserve(PureDpEvent(0.1), purpose="p", relation=Relation.REPLACE_ONE)
    assert len(account.releases()) == 1


def test_replaced_units_cost_a_gaussian_four_times_the_divergence(new_account: New, tmp_path: Path) -> None:
    event = dp.GaussianDpEvent(30.0)
    one = new_account(epsilon=3)
    other = Ledger(tmp_path / "other.db").open(
        "credit", privacy_unit="u", budget=Budget(epsilon=3, delta=1e-6), relation=Relation.REPLACE_ONE
    )
    for account in (one, other):
        account.reserve(event, purpose="p", relation=account.relation)
    used = [1 - account.remaining().fraction for account in (one, other)]
    assert used[1] == pytest.approx(4 * used[0])


def test_an_event_from_a_newer_sfumato_stops_spending(
    new_account: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = new_account()
    account.reserve(dp.LaplaceDpEvent(9.876), purpose="known when written", relation=ADD_REMOVE)
    monkeypatch.delitem(events._TYPES, "LaplaceDpEvent")  # type: ignore[attr-defined]
    from sfumato.ledger import filters

    filters.cost.cache_clear()
    for ask in (account.spent, account.remaining, account.statement):
        with pytest.raises(LedgerVersionError, match="upgrade sfumato"):
            ask()
    with pytest.raises(LedgerVersionError, match="Nothing more is spent"):
        account.reserve(PureDpEvent(0.01), purpose="p", relation=ADD_REMOVE)


# --- grants and what is left ------------------------------------------------------------------------------


def test_a_grant_raises_the_budget_and_is_recorded(location: str) -> None:
    ledger = Ledger(location, person="grace")
    budget = Budget(epsilon=1, delta=1e-6)
    account = ledger.open("credit", privacy_unit="client_id", budget=budget)
    account.reserve(PureDpEvent(1.0), purpose="all", relation=ADD_REMOVE)
    with pytest.raises(BudgetExceededError):
        account.reserve(PureDpEvent(0.5), purpose="more", relation=ADD_REMOVE)
    assert account.grant(epsilon=0.5, delta=1e-7, reason="board decision 12") == Budget(
        epsilon=1.5, delta=1.1e-6
    )
    account.reserve(PureDpEvent(0.5), purpose="more", relation=ADD_REMOVE)

    (grant,) = Ledger(location).account("credit").grants()
    assert (grant.epsilon, grant.delta, grant.reason, grant.person) == (
        0.5,
        1e-7,
        "board decision 12",
        "grace",
    )
    ledger.open("credit", privacy_unit="client_id", budget=budget)  # scripts may keep the opening budget
    ledger.open("credit", privacy_unit="client_id", budget=account.budget)


@pytest.mark.parametrize(
    "terms",
    [{}, {"epsilon": -1}, {"epsilon": math.nan}, {"epsilon": math.inf}, {"delta": -1e-9}, {"delta": 1.0}],
)
def test_a_grant_that_is_none_is_refused(new_account: New, terms: dict[str, float]) -> None:
    account = new_account()
    with pytest.raises(InvalidParameterError):
        account.grant(**terms, reason="r")
    assert account.budget == Budget(epsilon=1, delta=1e-6)
    assert account.grants() == []


def test_a_pure_account_stays_pure(new_account: New) -> None:
    account = new_account(delta=0)
    with pytest.raises(InvalidParameterError, match="Open another account"):
        account.grant(delta=1e-9, reason="r")
    assert account.grant(epsilon=1, reason="r").epsilon == 2
    assert account.remaining().noise_multiplier == math.inf


@pytest.mark.parametrize(
    "given",
    [(0, 0), (-1, 0), (math.nan, 0), (math.inf, 0), (1, 1), (1, -1e-9), (1, math.nan), ("1", 0), (True, 0)],
)
def test_a_budget_out_of_range_cannot_exist(given: tuple[float, float]) -> None:
    with pytest.raises(InvalidParameterError):
        Budget(epsilon=given[0], delta=given[1])


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_admits_says_what_reserve_would_do_and_costs_nothing(new_account: New, delta: float) -> None:
    account = new_account(epsilon=1, delta=delta)
    account.reserve(PureDpEvent(0.5), purpose="p", relation=ADD_REMOVE)
    assert account.admits(Laplace(scale=2.0, sensitivity=1.0, relation=ADD_REMOVE))
    assert account.admits(PureDpEvent(0.5))
    assert not account.admits(PureDpEvent(0.75))
    assert len(account.releases()) == 1
    account.reserve(PureDpEvent(0.5), purpose="p", relation=ADD_REMOVE)
    with pytest.raises(UnsupportedEventError):
        account.admits(dp.NonPrivateDpEvent())


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
def test_calibrate_finds_the_least_noise_that_is_admitted(new_account: New, relation: Relation) -> None:
    account = new_account(epsilon=2, delta=1e-6, relation=relation)
    account.reserve(dp.GaussianDpEvent(20.0), purpose="before", relation=relation)

    def noisy(stddev: float) -> Gaussian:
        return Gaussian(stddev=stddev, sensitivity=1.0, relation=relation)

    stddev = account.calibrate(noisy)
    by_event = account.calibrate(lambda value: noisy(value).event())
    assert by_event == stddev
    assert not account.admits(noisy(0.9999 * stddev))
    account.reserve(noisy(stddev), purpose="all that is left")
    assert account.remaining().fraction < 1e-3


def test_calibrate_finds_the_largest_value_where_cost_rises(new_account: New) -> None:
    account = new_account(epsilon=1, delta=0)
    account.reserve(PureDpEvent(0.75), purpose="before", relation=ADD_REMOVE)
    epsilon = account.calibrate(PureDpEvent, cost_rises=True)
    assert epsilon == pytest.approx(0.25, rel=1e-4)
    account.reserve(PureDpEvent(epsilon), purpose="the rest", relation=ADD_REMOVE)
    with pytest.raises(CalibrationError):
        account.calibrate(PureDpEvent, cost_rises=True)


def test_threads_share_a_ledger_safely(new_account: New) -> None:
    account = new_account(epsilon=1, delta=0)
    admitted: list[int] = []

    def spend() -> None:
        try:
            while True:
                admitted.append(account.reserve(PureDpEvent(0.0625), purpose="p", relation=ADD_REMOVE).number)
        except BudgetExceededError:
            pass

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(admitted) == 16 == len(set(admitted))


def test_the_operating_systems_user_signs_by_default(
    new_account: New, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_account()
    monkeypatch.setenv("LOGNAME", "turing")
    Ledger(path).account("credit").reserve(PureDpEvent(0.1), purpose="p", relation=ADD_REMOVE)

    def nobody() -> str:
        raise OSError("no name for this number")

    monkeypatch.setattr("getpass.getuser", nobody)
    Ledger(path).account("credit").reserve(PureDpEvent(0.1), purpose="p", relation=ADD_REMOVE)
    people = [release.person for release in Ledger(path).account("credit").releases()]
    assert people[0] == "turing"
    assert people[1].startswith("user ")


def test_a_clock_that_goes_backwards_changes_nothing(
    new_account: New, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    import datetime as real

    class Backwards(real.datetime):
        year_now = 2030

        @classmethod
        def now(cls, tz: real.tzinfo | None = None) -> "Backwards":
            cls.year_now -= 1
            return cls(cls.year_now, 1, 1, tzinfo=tz)

    monkeypatch.setattr("sfumato.ledger.book.datetime", Backwards)
    account = new_account()
    numbers = [
        account.reserve(PureDpEvent(0.1), purpose=str(i), relation=ADD_REMOVE).number for i in range(3)
    ]
    assert [release.purpose for release in account.releases()] == ["0", "1", "2"]
    assert numbers == sorted(numbers)
    assert Ledger(path).verify().head.count == 4


def test_one_release_takes_three_transactions(new_account: New, monkeypatch: pytest.MonkeyPatch) -> None:
    """To reserve, begin and commit. What never changes is not read again."""
    account, opened = new_account(), list[str]()
    for kind in ("reading", "writing"):
        whole = getattr(Store, kind)
        monkeypatch.setattr(Store, kind, lambda store, k=kind, w=whole: opened.append(k) or w(store))
    assert (account.relation, account.privacy_unit) == (ADD_REMOVE, "client_id")
    with account.spend(Laplace(scale=10.0, sensitivity=1.0, relation=account.relation), purpose="a count"):
        pass
    assert opened == ["writing"] * 3
    assert account.budget == Budget(epsilon=1.0, delta=1e-6) and opened[3:] == [
        "reading"
    ]  # this one may change


def test_a_second_process_sees_the_price_of_the_raised_budget(path: Path) -> None:
    """What is recalled without a transaction is not what decides."""
    budget = Budget(epsilon=1.0, delta=0.0)
    here = Ledger(path).open("credit", privacy_unit="client_id", budget=budget)
    elsewhere = Ledger(path).account("credit")
    elsewhere.grant(epsilon=1.0, reason="more questions")
    here.reserve(PureDpEvent(1.5), purpose="fits only the raised budget", relation=ADD_REMOVE)
    with pytest.raises(BudgetExceededError):
        elsewhere.reserve(PureDpEvent(1.0), purpose="no longer fits", relation=ADD_REMOVE)


@pytest.mark.parametrize("budget, stated", [(2, 1.4), (3, 1.7), (5, 2.5), (10, 4.1), (20, 8.5)])
def test_the_odometer_after_one_run_of_epsilon_1_is_what_the_page_states(
    tmp_path: Path, budget: float, stated: float
):
    account = Ledger(tmp_path / "a.db").open(
        "a", privacy_unit="row", budget=Budget(epsilon=budget, delta=1e-5)
    )
    run = plan(epsilon=1, delta=1e-5, sampling_rate=0.01, steps=1000)
    event = events.dp_sgd(noise_multiplier=run.noise_multiplier, sampling_rate=0.01, steps=1000)
    reserved = account.reserve(event, purpose="x", relation=Relation.ADD_REMOVE)
    reserved.begin()
    reserved.commit()
    assert round(account.spent().epsilon, 1) == stated
    assert f"| {stated} " in (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()
