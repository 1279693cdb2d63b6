# SPDX-License-Identifier: Apache-2.0
"""Two processes never spend the same epsilon, and a kill never loses a reservation."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import BudgetExceededError, LedgerError
from sfumato.ledger import Account, Budget, Ledger, Progress

WORKERS = Path(__file__).with_name("workers.py")
PROCESSES = 16
ADD_REMOVE = Relation.ADD_REMOVE
EPSILON = 0.125  # a power of two: sums are exact, so that "exactly nothing" means it
SEED = 20160701


def _work(*arguments: object) -> Any:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(WORKERS), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)
    return json.loads(done.stdout)


def _open(location: str, epsilon: float) -> Account:
    budget = Budget(epsilon=epsilon, delta=0)
    return Ledger(location, person="ada").open("credit", privacy_unit="client_id", budget=budget)


def test_sixteen_processes_overspend_by_exactly_nothing(location: str) -> None:
    account = _open(location, epsilon=5.0)
    admitted = _work("contend", location, EPSILON, PROCESSES)["admitted"]

    assert len(admitted) == PROCESSES
    assert sum(admitted) == 5.0 / EPSILON
    assert sum(count > 0 for count in admitted) > 1  # they really met: no one process took it all
    assert account.spent().epsilon == 5.0
    assert [release.progress for release in account.releases()] == [Progress.COMMITTED] * 40
    assert Ledger(location, create=False).verify().overspent == ()


@pytest.mark.parametrize(("processes", "releases"), [(16, 64), pytest.param(64, 512, marks=pytest.mark.slow)])
def test_no_writer_of_many_starves(path: Path, processes: int, releases: int) -> None:
    _open(str(path), epsilon=releases * EPSILON)
    admitted = _work("contend", path, EPSILON, processes)["admitted"]
    assert None not in admitted  # none ended with an error
    assert sum(admitted) == releases
    assert max(admitted) <= 2 * min(admitted)  # each came about as often as any other


@pytest.mark.parametrize("kills", [25, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_processes_leave_a_ledger_that_verifies_and_never_under_counts(
    location: str, kills: int, tmp_path: Path
) -> None:
    account = _open(location, epsilon=1.0)
    side_log = tmp_path / "side.log"
    _work("kill", location, side_log, kills, SEED)

    noted = [line.split() for line in side_log.read_text().splitlines()]
    progress = {release.reservation: release.progress for release in account.releases()}
    assert len(noted) > kills and set(progress.values()) > {Progress.COMMITTED}  # killed in mid-work
    for what, number in noted:
        assert progress[int(number)] in AT_LEAST[what], (what, number)
    verification = Ledger(location, create=False).verify()
    assert verification.overspent == ()
    assert account.spent().epsilon == len(progress) * 2**-20
    with account.spend(account.releases()[0].event, purpose="it still works", relation=ADD_REMOVE):
        pass


AT_LEAST = {
    "reserved": {Progress.RESERVED, Progress.BEGUN, Progress.COMMITTED},
    "touched": {Progress.BEGUN, Progress.COMMITTED},
    "committed": {Progress.COMMITTED},
}


def test_a_kill_while_a_ledger_is_made_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    _work("create", tmp_path, 40, SEED)
    made = list(tmp_path.glob("[!.]*.db"))
    assert 0 < len(made) < 40  # kills came before and after
    for path in made:
        Ledger(path, create=False).verify()


@pytest.mark.parametrize("moment", ["anywhere", "with its lock", "in a transaction"])
def test_a_child_forked_while_another_thread_uses_the_ledger_can_spend(path: Path, moment: str) -> None:
    account = _open(str(path), epsilon=1e6)
    fared = _work("fork", path, moment)
    assert set(fared) == {"fine"}
    assert [release.purpose for release in account.releases()].count("child") == len(fared)
    assert Ledger(path).verify().overspent == ()


def test_a_handle_that_read_long_ago_still_sees_what_others_spent(location: str) -> None:
    first, second = _open(location, epsilon=1.0), _open(location, epsilon=1.0)
    assert second.remaining().epsilon == pytest.approx(1.0)
    first.reserve(PureDpEvent(0.75), purpose="most of it", relation=ADD_REMOVE)
    with pytest.raises(BudgetExceededError):
        second.reserve(PureDpEvent(0.5), purpose="too much by now", relation=ADD_REMOVE)
    assert second.remaining().epsilon == pytest.approx(0.25)


def test_two_processes_that_open_one_account_agree_or_are_told(location: str) -> None:
    one, other = Ledger(location), Ledger(location)
    one.open("credit", privacy_unit="client_id", budget=Budget(epsilon=1, delta=0))
    other.open("credit", privacy_unit="client_id", budget=Budget(epsilon=1, delta=0))
    with pytest.raises(LedgerError, match="has a budget of epsilon 1"):
        other.open("credit", privacy_unit="client_id", budget=Budget(epsilon=9, delta=0))
    assert other.head().count == 1
