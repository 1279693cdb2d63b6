# SPDX-License-Identifier: Apache-2.0
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sfumato import Budget, Ledger
from sfumato.accounting.events import PureDpEvent
from sfumato.cli.doctor import ledger_health
from sfumato.cli.doctor.findings import State
from sfumato.ledger.migrations import CURRENT_VERSION
from sfumato.ledger.store import schema_version


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = Ledger("ledger.db")
    made.open("people", privacy_unit="id", budget=Budget(epsilon=100, delta=1e-6))
    return made


def found(location="ledger.db", *, is_named=True):
    return list(ledger_health.check(location, is_named=is_named))


def states(findings):
    return {each.name: each.state for each in findings}


def change(statement):
    with closing(sqlite3.connect("ledger.db")) as connection:
        connection.execute(statement)
        connection.commit()


def reserved(ledger, purpose):
    return ledger.account("people").reserve(PureDpEvent(0.1), purpose=purpose, relation="add-remove")


def test_a_good_ledger_is_fine_and_stays_as_it_is(ledger):
    before = Path("ledger.db").read_bytes()
    assert states(found()) == dict.fromkeys(("schema", "chain of hashes", "accounts"), State.OK)
    assert Path("ledger.db").read_bytes() == before
    assert [path.name for path in Path().iterdir()] == ["ledger.db"]


def test_no_ledger_is_broken_only_if_one_is_named(ledger):
    (absent,) = found("none.db", is_named=False)
    assert absent.state is State.ABSENT and "sfumato init" in absent.advice
    (broken,) = found("none.db")
    assert broken.state is State.BROKEN and "there is no ledger" in broken.found
    assert not Path("none.db").exists()


def test_a_row_that_was_changed_is_broken(ledger):
    change("DROP TRIGGER sfumato_journal_no_update")
    change("UPDATE sfumato_journal SET purpose = 'other'")
    (broken,) = [each for each in found() if each.state is State.BROKEN]
    assert broken.name == "ledger" and broken.advice


def test_another_file_is_broken(ledger):
    Path("ledger.db").write_bytes(b"not a database")
    assert State.BROKEN in states(found()).values()


def test_an_older_ledger_is_reported_and_not_taken_to_the_newest_version(ledger):
    change(f"DELETE FROM sfumato_schema WHERE version = {CURRENT_VERSION}")
    before = Path("ledger.db").read_bytes()
    (old,) = found()
    assert old.state is State.WARNING and f"version {CURRENT_VERSION - 1}, of an older" in old.found
    assert Path("ledger.db").read_bytes() == before
    assert schema_version("ledger.db") == CURRENT_VERSION - 1
    Ledger("ledger.db")
    assert schema_version("ledger.db") == CURRENT_VERSION


def test_a_newer_ledger_is_broken(ledger):
    change(f"INSERT INTO sfumato_schema VALUES ({CURRENT_VERSION + 1}, 'later')")
    (broken,) = found()
    assert broken.state is State.BROKEN and "Upgrade sfumato" in broken.found


def test_releases_that_were_not_finished_are_named_by_number(ledger):
    begun, waiting = reserved(ledger, "mean of age"), reserved(ledger, "count")
    begun.begin()
    done = reserved(ledger, "median")
    done.begin()
    done.commit()
    reserved(ledger, "refunded").refund()
    first, second = [each for each in found() if each.state is State.WARNING]
    assert first.found == f"number {begun.number}, 'mean of age': begun, not finished"
    assert "stays spent" in first.advice
    assert second.found == f"number {waiting.number}, 'count': reserved, not finished"
    assert f"reservation({waiting.number}).refund()" in second.advice


def test_many_unfinished_releases_are_counted(ledger):
    for number in range(8):
        reserved(ledger, f"release {number}")
    warnings = [each for each in found() if each.state is State.WARNING]
    assert len(warnings) == 6 and warnings[-1].found == "3 more are not finished"


def test_an_account_over_its_budget_is_broken(ledger, monkeypatch):
    with ledger.account("people").spend(PureDpEvent(0.5), purpose="mean", relation="add-remove"):
        pass
    # Prices of a later version may be higher: then what was admitted does not fit any more.
    monkeypatch.setattr("sfumato.ledger.state.AccountState.kept", property(lambda self: False))
    (broken,) = [each for each in found() if each.state is State.BROKEN]
    assert broken.name == "account people" and "do not fit its budget" in broken.found


def test_a_ledger_without_accounts_is_fine(tmp_path):
    Ledger(tmp_path / "empty.db")
    assert states(found(str(tmp_path / "empty.db")))["accounts"] is State.OK


def test_who_can_read_the_file(ledger):
    assert "permissions" not in states(found())
    for mode in (0o604, 0o602, 0o644):
        Path("ledger.db").chmod(mode)
        said = {each.name: each for each in found()}["permissions"]
        assert said.state is State.WARNING and said.advice == "Run: chmod 600 ledger.db"
    Path("ledger.db").chmod(0o640)  # a group that shares a ledger is a choice
    assert "permissions" not in states(found())


def test_another_journal_mode_is_a_warning(ledger):
    change("PRAGMA journal_mode = WAL")
    assert states(found())["journal mode"] is State.WARNING


def test_a_network_drive_is_known_by_its_mount(tmp_path):
    mounts = tmp_path / "mounts"
    share = tmp_path / "a share"
    (share / "deep").mkdir(parents=True)
    shown = str(share).replace(" ", "\\040")
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {shown} nfs4 rw 0 0\nbroken\n")
    assert ledger_health.file_system_of(share / "deep" / "ledger.db", mounts) == "nfs4"
    assert ledger_health.file_system_of(tmp_path / "ledger.db", mounts) == "ext4"
    assert ledger_health.file_system_of(tmp_path, tmp_path / "none") is None


@pytest.mark.parametrize(
    ("system", "named"), [("nfs4", True), ("cifs", True), ("ext4", False), (None, False)]
)
def test_a_ledger_on_a_network_drive_is_a_warning(ledger, monkeypatch, system, named):
    monkeypatch.setattr(ledger_health, "file_system_of", lambda path: system)
    assert ("place" in states(found())) == named


def test_a_file_that_cannot_be_written_is_a_warning(ledger, monkeypatch):
    monkeypatch.setattr(ledger_health.os, "access", lambda path, mode: False)
    assert states(found())["writable"] is State.WARNING


def test_a_password_is_never_shown(ledger):
    findings = found("postgresql://ann:s3cret@localhost:1/none")
    assert [each.state for each in findings] == [State.BROKEN]
    assert "s3cret" not in str([each.to_dict() for each in findings])
