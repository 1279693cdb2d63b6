# SPDX-License-Identifier: Apache-2.0
"""A ledger that cannot be read or written says so in its own words, and nothing about it that is false."""

import random
import sqlite3
from functools import partial
from pathlib import Path

import pytest

from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import LedgerError
from sfumato.ledger import Account, Budget, Ledger

ADD_REMOVE = Relation.ADD_REMOVE


def _spent(path: Path) -> Account:
    budget = Budget(epsilon=1, delta=1e-6)
    account = Ledger(path, person="ada").open("credit", privacy_unit="client_id", budget=budget)
    account.reserve(PureDpEvent(0.25), purpose="mean of age", relation=ADD_REMOVE)
    return account


def _read_everything(path: Path) -> None:
    ledger = Ledger(path, create=False)
    ledger.head()
    ledger.verify()
    for account in ledger.accounts():
        _ = account.budget, account.relation, account.privacy_unit, account.spent(), account.remaining()
        _ = account.releases(), account.grants(), account.event(), account.admits(PureDpEvent(0.1))
        _ = account.statement().text, account.statement().to_json()


@pytest.mark.parametrize("seeds", [range(150), pytest.param(range(150, 4000), marks=pytest.mark.slow)])
def test_a_ledger_with_any_bit_flipped_reads_as_before_or_is_refused_as_a_ledger(
    path: Path, tmp_path: Path, seeds: range
) -> None:
    account = _spent(path)
    account.grant(epsilon=1, reason="more")
    _read_everything(path)
    whole, flipped = path.read_bytes(), tmp_path / "flipped.db"
    filled = [place for place, byte in enumerate(whole) if byte]
    refused = 0
    for seed in seeds:
        chance = random.Random(seed)
        content = bytearray(whole)
        content[chance.choice(filled)] ^= 1 << chance.randrange(8)
        flipped.write_bytes(content)
        try:
            _read_everything(flipped)
        except LedgerError:
            refused += 1
    assert refused > len(seeds) / 2  # most bits matter


@pytest.mark.parametrize("step", ["begin", "commit", "refund"])
@pytest.mark.parametrize("fault", ["busy", "full", "read-only"])
def test_no_error_after_a_reservation_says_that_nothing_was_spent(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str, fault: str
) -> None:
    account = _spent(path)
    reservation = account.reserve(PureDpEvent(0.25), purpose="p", relation=ADD_REMOVE)
    if step == "commit":
        reservation.begin()
    codes = {"busy": "SQLITE_BUSY", "full": "SQLITE_FULL", "read-only": "SQLITE_READONLY"}

    def fail(*_: object) -> None:
        error = sqlite3.OperationalError(fault)
        error.sqlite_errorname = codes[fault]
        raise error

    class Failing(sqlite3.Connection):
        def commit(self) -> None:
            fail()

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Failing))
    with pytest.raises(LedgerError) as failed:
        getattr(reservation, step)()
    assert "othing was spent" not in str(failed.value)
    assert "This call recorded nothing; what was reserved before stays spent" in str(failed.value)
    monkeypatch.undo()
    assert account.spent().epsilon == 0.5
    getattr(reservation, step)()  # nothing was recorded, so it can be tried again
