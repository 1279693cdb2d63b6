# SPDX-License-Identifier: Apache-2.0
"""Begin, commit, refund and claim: what each does, and what each refuses."""

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from dp_accounting import dp_event as dp

from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import ClaimedElsewhereError, LedgerCorruptError, LedgerError
from sfumato.ledger import Account, Budget, Ledger, Progress
from sfumato.ledger.reservation import Reservation

New = Callable[..., Account]
ADD_REMOVE = Relation.ADD_REMOVE


def begun(account: Account, claim: str = "one") -> Reservation:
    reservation = account.reserve(PureDpEvent(0.25), purpose="a run", relation=Relation.ADD_REMOVE)
    reservation.begin(claim=claim)
    return reservation


def test_a_refund_before_begin_gives_everything_back(new_account: New) -> None:
    account = new_account()
    reservation = account.reserve(PureDpEvent(1.0), purpose="changed my mind", relation=ADD_REMOVE)
    reservation.refund()
    assert account.spent().epsilon == 0
    assert account.event() == dp.NoOpDpEvent()
    assert account.releases()[0].progress is Progress.REFUNDED
    account.reserve(PureDpEvent(1.0), purpose="all of it again", relation=ADD_REMOVE)


@pytest.mark.parametrize("done", [["begin"], ["begin", "commit"], ["refund"]])
def test_a_refund_after_begin_or_a_second_one_is_refused(new_account: New, done: list[str]) -> None:
    account = new_account()
    reservation = account.reserve(PureDpEvent(0.5), purpose="p", relation=ADD_REMOVE)
    for step in done:
        getattr(reservation, step)()
    spent = account.spent()
    with pytest.raises(LedgerError, match="so refund is not possible"):
        reservation.refund()
    assert account.spent() == spent


@pytest.mark.parametrize(
    ("done", "step"),
    [
        ([], "commit"),
        (["begin"], "begin"),
        (["begin", "commit"], "commit"),
        (["refund"], "begin"),
        (["refund"], "commit"),
    ],
)
def test_steps_out_of_order_are_refused(new_account: New, done: list[str], step: str) -> None:
    reservation = new_account().reserve(PureDpEvent(0.5), purpose="p", relation=ADD_REMOVE)
    for earlier in done:
        getattr(reservation, earlier)()
    with pytest.raises(LedgerError, match=f"so {step} is not possible"):
        getattr(reservation, step)()


def test_an_exception_inside_spend_leaves_the_release_spent(new_account: New) -> None:
    account = new_account()
    with (
        pytest.raises(ZeroDivisionError),
        account.spend(PureDpEvent(0.5), purpose="fails", relation=ADD_REMOVE),
    ):
        _ = 1 / 0
    assert account.spent().epsilon == 0.5
    assert account.releases()[0].progress is Progress.BEGUN


def test_spend_without_a_block_is_spent_at_once(new_account: New) -> None:
    account = new_account()
    account.spend(PureDpEvent(0.5), purpose="released elsewhere", relation=ADD_REMOVE)
    assert account.spent().epsilon == 0.5
    assert account.releases()[0].progress is Progress.BEGUN


def test_spend_with_a_block_is_spent_before_it_and_committed_after_it(new_account: New) -> None:
    account = new_account()
    with account.spend(PureDpEvent(0.5), purpose="a block", relation=ADD_REMOVE) as reservation:
        assert account.spent().epsilon == 0.5 and reservation.release.progress is Progress.BEGUN
    assert reservation.release.progress is Progress.COMMITTED


def test_a_reservation_that_a_crash_left_unbegun_can_be_refunded_by_its_number(
    new_account: New, path: Path
) -> None:
    number = new_account().reserve(PureDpEvent(0.5), purpose="p", relation=ADD_REMOVE).number
    account = Ledger(path).account("credit")
    account.reservation(number).refund()
    assert account.spent().epsilon == 0
    with pytest.raises(LedgerError, match="has no reservation 99"):
        account.reservation(99)


def test_claims_follow_one_another_and_the_last_one_commits(location: str) -> None:
    account = Ledger(location).open("a", privacy_unit="row", budget=Budget(epsilon=1, delta=0))
    reservation = begun(account)
    assert reservation.release.claim == "one"
    reservation.claim("two", known="one")
    reservation.claim("three", known="two")
    elsewhere = Ledger(location, create=False).account("a").reservation(reservation.number)
    assert elsewhere.release.claim == "three" and elsewhere.release.progress is Progress.BEGUN
    elsewhere.commit(claim="three")
    assert elsewhere.release.progress is Progress.COMMITTED and elsewhere.release.claim == "three"
    assert account.spent().epsilon == 0.25  # charged once
    Ledger(location).verify()


def test_who_knows_an_old_claim_can_neither_go_on_nor_commit(new_account: New) -> None:
    reservation = begun(new_account())
    reservation.claim("two", known="one")
    for attempt in (
        lambda: reservation.claim("three", known="one"),
        lambda: reservation.claim("three", known=""),
        lambda: reservation.commit(claim="one"),
        lambda: reservation.commit(),
    ):
        with pytest.raises(
            ClaimedElsewhereError, match=r"continued elsewhere.*One charge pays for one result"
        ):
            attempt()
    assert reservation.release.claim == "two" and reservation.release.progress is Progress.BEGUN


def test_what_is_not_begun_or_is_committed_cannot_be_claimed(new_account: New) -> None:
    account = new_account()
    reservation = account.reserve(PureDpEvent(0.25), purpose="a run", relation=Relation.ADD_REMOVE)
    with pytest.raises(LedgerError, match="is reserved, so claim is not possible"):
        reservation.claim("one", known="")
    reservation.begin(claim="one")
    reservation.commit(claim="one")
    with pytest.raises(LedgerError, match="is committed, so claim is not possible"):
        reservation.claim("two", known="one")


def test_a_release_without_claims_is_committed_as_ever(new_account: New) -> None:
    reservation = begun(new_account(), claim="")
    assert reservation.release.claim == ""
    reservation.commit()
    assert reservation.release.progress is Progress.COMMITTED


def test_of_many_who_know_the_same_claim_one_goes_on(location: str) -> None:
    Ledger(location).open("a", privacy_unit="row", budget=Budget(epsilon=1, delta=0))
    number = begun(Ledger(location).account("a")).number
    outcomes: list[str] = []

    def go_on(name: str) -> None:
        try:
            Ledger(location).account("a").reservation(number).claim(name, known="one")
            outcomes.append(name)
        except ClaimedElsewhereError:
            outcomes.append("refused")

    threads = [threading.Thread(target=go_on, args=(f"copy {i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [name for name in outcomes if name != "refused"]
    assert len(outcomes) == 6
    assert Ledger(location).account("a").reservation(number).release.claim == winner


def test_a_journal_in_which_a_claim_does_not_follow_the_last_is_corrupt(path: Path) -> None:
    account = Ledger(path).open("a", privacy_unit="row", budget=Budget(epsilon=1, delta=0))
    reservation = begun(account)
    book = account._book
    book.append(
        "a",
        "claim",
        lambda accounts: None,
        reservation=reservation.number,
        terms='{"claim": "x", "follows": "y"}',
    )
    with pytest.raises(LedgerCorruptError, match="another has claimed"):
        Ledger(path)


def test_an_older_version_is_told_to_upgrade_and_not_that_the_ledger_is_damaged(path: Path) -> None:
    begun(Ledger(path).open("a", privacy_unit="row", budget=Budget(epsilon=1, delta=0)))
    connection = sqlite3.connect(path)
    (version,) = connection.execute("SELECT MAX(version) FROM sfumato_schema").fetchone()
    connection.close()
    assert version >= 3  # versions before claims read up to 2, and refuse what is newer
