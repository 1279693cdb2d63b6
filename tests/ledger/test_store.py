# SPDX-License-Identifier: Apache-2.0
"""Where a ledger may be, and what happens where it may not: specific errors, nothing lost or changed."""

import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import pytest
import sqlalchemy as sa

from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import (
    InvalidParameterError,
    LedgerCorruptError,
    LedgerError,
    LedgerReadOnlyError,
    LedgerVersionError,
)
from sfumato.ledger import Account, Budget, Ledger, backends
from sfumato.ledger.migrations import CURRENT_VERSION

BUDGET = Budget(epsilon=1, delta=1e-6)
ADD_REMOVE = Relation.ADD_REMOVE


def _opened(location: str | Path) -> Account:
    return Ledger(location, person="ada").open("credit", privacy_unit="client_id", budget=BUDGET)


def _spent(location: str | Path) -> Account:
    account = _opened(location)
    account.reserve(PureDpEvent(0.25), purpose="mean of age", relation=ADD_REMOVE)
    return account


def _engine(url: str) -> sa.Engine:
    return sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"), poolclass=sa.NullPool)


# --- making and finding -----------------------------------------------------------------------------------


def test_a_ledger_is_made_where_none_is_unless_told_not_to(location: str) -> None:
    with pytest.raises(LedgerError, match=r"there is no ledger at .*sfumato ledger init"):
        Ledger(location, create=False)
    _spent(location)
    assert _opened(location).spent().epsilon == 0.25
    with pytest.raises(LedgerError, match=r"there is a ledger at .* already"):
        Ledger.create(location)
    assert Ledger(location, create=False).account("credit").spent().epsilon == 0.25


def test_create_makes_an_empty_ledger_and_leaves_nothing_else(path: Path) -> None:
    assert Ledger.create(path).head().count == 0
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_ledger_is_one_file_between_transactions(path: Path, tmp_path: Path) -> None:
    _spent(path)
    copy = tmp_path / "elsewhere" / "copy.db"
    copy.parent.mkdir()
    shutil.copy(path, copy)
    assert Ledger(copy).verify(head=Ledger(path).head()).overspent == ()


def test_a_file_system_without_hard_links_will_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", no_links)
    assert _spent(path).spent().epsilon == 0.25
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def _modes(folder: Path) -> set[int]:
    return {entry.stat().st_mode & 0o777 for entry in folder.iterdir()}


@pytest.mark.parametrize("links", [True, False])
def test_a_new_file_is_for_its_owner_alone_until_the_owner_shares_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def no_links(*_: object) -> None:
        raise OSError("not supported")

    seen: set[int] = set()
    migrate = backends.migrate  # type: ignore[attr-defined]

    def watched(connection: sa.Connection, version: int) -> None:
        migrate(connection, version)
        assert len(list(path.parent.iterdir())) == 2  # the draft, and its journal beside it
        seen.update(_modes(path.parent))

    monkeypatch.setattr(backends, "migrate", watched)
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    umask = os.umask(0o022)
    try:
        account = _spent(path)
        assert seen == _modes(path.parent) == {0o600}
        path.chmod(0o660)
        account.reserve(PureDpEvent(0.25), purpose="p", relation=ADD_REMOVE)
        assert _modes(path.parent) == {0o660}
        with backends.find(path).writing() as connection:
            connection.exec_driver_sql("UPDATE sfumato_head SET row_count = row_count + 1")
            assert _modes(path.parent) == {0o660} and len(list(path.parent.iterdir())) == 2
    finally:
        os.umask(umask)


def test_a_ledger_made_by_another_process_meanwhile_is_the_ledger(path: Path) -> None:
    _spent(path)
    other = path.with_name("draft.db")
    Ledger.create(other)
    assert not backends._place(other, path)  # type: ignore[attr-defined]
    assert _opened(path).spent().epsilon == 0.25


def test_a_ledger_that_goes_away_is_not_replaced_by_an_empty_one(path: Path) -> None:
    account = _spent(path)
    path.unlink()
    with pytest.raises(LedgerError, match="could not be used"):
        account.reserve(PureDpEvent(0.25), purpose="p", relation=ADD_REMOVE)
    assert not path.exists()


@pytest.mark.parametrize(
    "location", ["", "  ", ":memory:", "mysql://host/db", "sqlite://", "http://x", "a\0b", "://"]
)
def test_other_places_are_refused(location: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidParameterError, match=r"a ledger (needs|lives)"):
        Ledger(location)
    assert list(tmp_path.iterdir()) == []


def test_odd_paths_are_just_paths(tmp_path: Path) -> None:
    for name in ("a b?mode=memory#x%20.db", "'; --.db", "信用.db"):
        assert _spent(tmp_path / name).spent().epsilon == 0.25
        assert (tmp_path / name).is_file()
    assert Ledger(f"sqlite:///{tmp_path}/信用.db").head().count == 2


def test_a_folder_or_a_missing_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="is not one"):
        Ledger(tmp_path)
    with pytest.raises(LedgerError, match="does not exist"):
        Ledger(tmp_path / "missing" / "ledger.db")
    with pytest.raises(LedgerError, match="cannot be looked at"):
        Ledger(tmp_path / ("x" * 300))
    assert list(tmp_path.iterdir()) == []


def test_a_password_is_never_shown() -> None:
    url = "postgresql://ada:s3cret@127.0.0.1:1/none"
    with pytest.raises(LedgerError, match="could not be used") as refused:
        Ledger(url)
    assert "s3cret" not in str(refused.value)
    assert "postgresql://ada@127.0.0.1:1/none" in str(refused.value)


SECRET = "s3cret"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:s3cret@127.0.0.1:1/db",
        "postgresql://ada@127.0.0.1:1/db?password=s3cret",
        "postgresql://127.0.0.1:1/db?user=ada&password=s3cret&sslpassword=s3cret",
        "postgresql://ada:s3cret@127.0.0.1:1/db?bogus=1",
        "postgresql://ada@127.0.0.1:1/db?port=s3cret",
        "postgresql://ada@/db?host=127.0.0.1&port=s3cret",
        "postgresql://ada:s3cret@127.0.0.1:abc/db",
        "postgresql://ada:x@s3cret@127.0.0.1:1/db",
        "postgresql://ada:s3cret",
        "postgresql:/ada:s3cret@127.0.0.1:1/db",
        "postgresql:://ada:s3cret@127.0.0.1:1/db",
        " postgresql://ada:s3cret@127.0.0.1:1/db",
        "postgresql://ada:s3cret@127.0.0.1:1/db\0",
        "host=127.0.0.1 user=ada password=s3cret",
        "host=127.0.0.1 user=ada password = s3cret",
        Path("postgresql://ada:s3cret@127.0.0.1:1/db"),
        "mysql://ada:s3cret@h/db",
        "mysql://ada@h/db?password=s3cret",
    ],
)
def test_no_spelling_of_a_password_is_shown_or_becomes_a_file(
    url: str | Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((LedgerError, InvalidParameterError)) as refused:
        Ledger(url)
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    assert list(tmp_path.iterdir()) == []


def test_nothing_that_shows_a_ledger_shows_its_password(postgresql_url: str) -> None:
    account = _spent(f"{postgresql_url}&application_name={SECRET}")
    ledger = Ledger(sa.make_url(postgresql_url).set(password=SECRET).render_as_string(hide_password=False))
    shown = [
        repr(ledger),
        ledger.location,
        repr(account),
        repr(account.reservation(2)),
        str(account.statement()),
    ]
    assert not any(SECRET in text for text in [*shown, account.statement().to_json()])
    assert all(text.count("postgresql://") == 1 for text in shown)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:s3cret@/db?host=/run/db&port=5433", "postgresql://ada@/db?host=/run/db&port=5433"),
        ("postgresql://ada@/db?host=a,b&password=s3cret", "postgresql://ada@/db?host=a,b"),
        ("postgresql://ada@/db?host=a&host=b&host=s3cret%40c", "postgresql://ada@/db"),
        ("postgresql://ada@h:1/db?sslpassword=s3cret&hostaddr=s3cret", "postgresql://ada@h:1/db"),
    ],
)
def test_where_a_server_is_is_shown_also_if_the_query_says_it(url: str, shown: str) -> None:
    assert backends.find(url).location == shown


def test_the_person_is_the_role_where_the_database_knows_one(
    postgresql_url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "somebody")
    for location, person in ((postgresql_url, sa.make_url(postgresql_url).username), (path, "somebody")):
        account = Ledger(location).open("credit", privacy_unit="client_id", budget=BUDGET)
        account.reserve(PureDpEvent(0.25), purpose="p", relation=ADD_REMOVE)
        Ledger(location, person="ada").account("credit").grant(epsilon=1, reason="more")
        assert [release.person for release in account.releases()] == [person]
        assert [grant.person for grant in account.grants()] == ["ada"]


# --- damaged, foreign, newer, older -----------------------------------------------------------------------


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "content", [b"", b"not a database, but long enough to look at" * 100, b"SQLite format 3\0"]
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(LedgerError):
        Ledger.create(path)
    with pytest.raises(LedgerCorruptError, match="Restore a copy"):
        Ledger(path)
    assert path.read_bytes() == content


def test_a_cut_off_or_scrambled_ledger_is_refused_and_left_alone(path: Path) -> None:
    account = _opened(path)
    for number in range(40):
        account.reserve(PureDpEvent(0.001), purpose=f"release {number}", relation=ADD_REMOVE)
    whole = path.read_bytes()
    for damaged in (
        whole[: len(whole) // 2],
        whole[:5000],
        whole[:4096] + b"\xff" * 4096 + whole[8192:],
        whole.replace(b"release 7", b"release 8"),
    ):
        assert damaged != whole
        path.write_bytes(damaged)
        with pytest.raises(LedgerCorruptError, match="estore a copy"):
            Ledger(path).verify()
        assert path.read_bytes() == damaged
    path.write_bytes(whole)
    assert Ledger(path).verify().head.count == 41


def test_a_database_of_something_else_is_refused_and_left_alone(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    before = _digest(path)
    with pytest.raises(LedgerCorruptError, match="no sfumato ledger is in it"):
        Ledger(path)
    assert _digest(path) == before


def test_a_ledger_in_a_shared_postgresql_database_leaves_other_tables_alone(postgresql_url: str) -> None:
    engine = _engine(postgresql_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE recipes (name TEXT)")
    assert _spent(postgresql_url).spent().epsilon == 0.25
    with engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT COUNT(*) FROM recipes").scalar() == 0


def test_a_newer_ledger_is_refused_and_left_alone(path: Path) -> None:
    _spent(path)
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO sfumato_schema VALUES (?, 'tomorrow')", (CURRENT_VERSION + 1,))
    connection.commit()
    connection.close()
    before = _digest(path)
    with pytest.raises(LedgerVersionError, match=rf"version {CURRENT_VERSION + 1}.*Upgrade sfumato"):
        Ledger(path)
    assert _digest(path) == before


@pytest.mark.parametrize(
    "meddle", ["DELETE FROM sfumato_schema", "DROP TABLE sfumato_journal", "DROP TABLE sfumato_head"]
)
def test_a_ledger_without_one_of_its_parts_is_refused(path: Path, meddle: str) -> None:
    _spent(path)
    connection = sqlite3.connect(path)
    connection.execute(meddle)
    connection.commit()
    connection.close()
    with pytest.raises(LedgerCorruptError):
        Ledger(path)


VERSION_1 = """
CREATE TABLE sfumato_schema (version INTEGER PRIMARY KEY, applied_at TEXT NOT NULL);
INSERT INTO sfumato_schema VALUES (1, '2026-01-01T00:00:00+00:00');
CREATE TABLE sfumato_journal (
  sequence BIGINT PRIMARY KEY, account TEXT NOT NULL, kind TEXT NOT NULL, person TEXT NOT NULL,
  code_version TEXT NOT NULL, written_at TEXT NOT NULL, relation TEXT NOT NULL, reservation BIGINT,
  event TEXT NOT NULL, purpose TEXT NOT NULL, terms TEXT NOT NULL, seeded BOOLEAN NOT NULL,
  previous_hash TEXT NOT NULL, row_hash TEXT NOT NULL);
"""
# Rows as version 1 wrote them, hashes included: however hashes are made one day, old ledgers must still hold.
VERSION_1_ROWS = [
    (
        1, "credit", "open", "ada", "0.1.0", "2026-01-01T00:00:00.000000+00:00", "add-remove", None, "", "",
        '{"delta": 1e-06, "epsilon": 1.0, "order": 25.0, "privacy_unit": "client_id"}', False,
    ),
    (
        2, "credit", "reserve", "ada", "0.1.0", "2026-01-01T00:00:01.000000+00:00", "add-remove", None,
        '{"epsilon": 0.25, "type": "PureDpEvent"}', "mean of age", "", False,
    ),
    (3, "credit", "begin", "ada", "0.1.0", "2026-01-01T00:00:02.000000+00:00", "", 2, "", "", "", False),
]  # fmt: skip
VERSION_1_HASHES = [
    "1563d9250c018bdcdf6d8be2f43dc9bb91cd982d9a12b125a16c090f4f81f8d0",
    "66d3c2f3d425fb831eb042f411a0d532b7e3b33b39793dbda1121c228b727b2a",
    "e6190baa18db05f0ddc4751ba86ddedb7d7f66ecad6cc0fee73857e774f7c300",
]


def _version_1_file(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_1)
    previous = "0" * 64
    for row, digest in zip(VERSION_1_ROWS, VERSION_1_HASHES, strict=True):
        connection.execute(
            f"INSERT INTO sfumato_journal VALUES ({', '.join('?' * 14)})", (*row, previous, digest)
        )
        previous = digest
    connection.commit()
    connection.close()


def _version_of(path: Path) -> int:
    connection = sqlite3.connect(path)
    (version,) = connection.execute("SELECT MAX(version) FROM sfumato_schema").fetchone()
    connection.close()
    return version


def test_an_old_ledger_is_taken_forward_with_everything_in_it(path: Path) -> None:
    _version_1_file(path)
    account = Ledger(path, create=False).account("credit")
    assert _version_of(path) == CURRENT_VERSION
    assert account.spent().epsilon == 0.25
    assert account.releases()[0].progress.value == "begun"
    account.reservation(2).commit()
    account.reserve(PureDpEvent(0.25), purpose="written by the new version", relation=ADD_REMOVE)
    verification = Ledger(path).verify(head=f"3:{VERSION_1_HASHES[-1]}")
    assert verification.head.count == 5


def test_an_old_ledger_that_was_changed_does_not_pass_by_being_taken_forward(path: Path) -> None:
    _version_1_file(path)
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM sfumato_journal WHERE sequence = 2")
    connection.commit()
    connection.close()
    with pytest.raises(LedgerCorruptError, match="chain breaks at row 2"):
        Ledger(path)


def test_a_migration_that_fails_leaves_the_old_ledger_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _version_1_file(path)
    before = _digest(path)

    def breaks(connection: sa.Connection) -> None:
        raise sa.exc.OperationalError("...", {}, sqlite3.OperationalError("disk I/O error"))

    monkeypatch.setattr("sfumato.ledger.migrations._sqlite_triggers", breaks)
    with pytest.raises(LedgerError):
        Ledger(path)
    assert _digest(path) == before
    monkeypatch.undo()
    assert Ledger(path).account("credit").spent().epsilon == 0.25


# --- read-only, busy, full --------------------------------------------------------------------------------

# Root may write anywhere, so the question is asked as nobody. Everything is imported before the change of
# user, who may not be allowed to read the installation.
AS_NOBODY = """
import json, os, sys, tempfile
from sfumato.ledger import Budget, Ledger
from sfumato.accounting.events import PureDpEvent
with tempfile.TemporaryDirectory() as folder:
    Ledger(folder + "/warm.db").open("a", privacy_unit="u", budget=Budget(epsilon=1, delta=1e-6)).spent()
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
said = {}
def reserve(at):
    Ledger(at).account("credit").reserve(PureDpEvent(0.1), relation="add-remove", purpose="p")
def ask(name, question):
    try:
        said[name] = ["fine", str(question())]
    except Exception as error:
        said[name] = [type(error).__name__, str(error)]
path = sys.argv[1]
ask("create", lambda: Ledger(os.path.dirname(path) + "/new.db"))
ask("read", lambda: Ledger(path).account("credit").spent().epsilon)
ask("reserve", lambda: reserve(path))
ask("migrate", lambda: Ledger(sys.argv[2]))
ask("folder", lambda: reserve(sys.argv[3]))
print(json.dumps(said))
"""


def test_a_ledger_on_a_read_only_place_can_be_read_but_not_spent_from() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        places = [Path(folder, name) for name in ("ledger.db", "old.db", "writable.db")]
        _spent(places[0])
        _version_1_file(places[1])
        _spent(places[2])
        before = [_digest(place) for place in places]
        for place, mode in zip(places, (0o444, 0o444, 0o666), strict=True):
            place.chmod(mode)
        Path(folder).chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, *map(str, places)], capture_output=True, text=True, check=True
        )
        Path(folder).chmod(0o755)
        said = json.loads(done.stdout)
        assert [_digest(place) for place in places] == before
    assert said["read"] == ["fine", "0.25"]
    assert said["create"][0] == "LedgerReadOnlyError"
    assert "folder cannot be written" in said["create"][1]
    for name in ("reserve", "migrate", "folder"):
        assert said[name][0] == "LedgerReadOnlyError", said
        assert "This call recorded nothing" in said[name][1]


def test_a_read_only_postgresql_can_be_read_but_not_spent_from(postgresql_url: str) -> None:
    account = _spent(postgresql_url)
    engine = _engine(postgresql_url)
    name = sa.make_url(postgresql_url).database
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    assert account.spent().epsilon == 0.25
    with pytest.raises(LedgerReadOnlyError, match=r"This call recorded nothing.*Connect to a server"):
        account.reserve(PureDpEvent(0.1), purpose="p", relation=ADD_REMOVE)
    assert account.spent().epsilon == 0.25


def test_a_team_member_needs_no_right_to_change_rows(postgresql_url: str) -> None:
    _spent(postgresql_url)
    with _engine(postgresql_url).begin() as connection:
        connection.exec_driver_sql("DROP ROLE IF EXISTS member")
        connection.exec_driver_sql("CREATE ROLE member LOGIN")
    as_member = sa.make_url(postgresql_url).set(username="member").render_as_string(hide_password=False)
    with pytest.raises(
        LedgerReadOnlyError, match=r"permission denied for table sfumato_\w+.*to GRANT it"
    ) as refused:
        Ledger(as_member, create=False)
    # The error names the rights that are needed, and they are enough.
    rights = re.findall(r"(SELECT[A-Z, ]* ON \w+)[;.]", str(refused.value))
    assert len(rights) == 3
    with _engine(postgresql_url).begin() as connection:
        for right in rights:
            connection.exec_driver_sql(f"GRANT {right} TO member")
    account = Ledger(as_member, create=False).account("credit")
    account.reserve(PureDpEvent(0.25), purpose="p", relation=ADD_REMOVE)
    assert account.spent().epsilon == 0.5
    with (
        _engine(as_member).connect() as connection,
        pytest.raises(sa.exc.ProgrammingError, match="permission"),
    ):
        connection.exec_driver_sql("DELETE FROM sfumato_journal")


def test_a_ledger_that_another_process_holds_is_busy_not_broken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = _spent(path)
    monkeypatch.setattr(backends, "BUSY_SECONDS", 0.05)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="held by another process"):
        account.reserve(PureDpEvent(0.1), purpose="p", relation=ADD_REMOVE)
    holder.execute("ROLLBACK")
    holder.close()
    account.reserve(PureDpEvent(0.1), purpose="p", relation=ADD_REMOVE)
    assert account.spent().epsilon == 0.35


def test_a_full_disk_spends_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = _spent(path)
    connect = sqlite3.connect

    def small(*arguments: object, **named: object) -> sqlite3.Connection:
        connection = connect(*arguments, **named)  # type: ignore[call-overload]
        connection.execute("PRAGMA max_page_count = 1")  # raised by SQLite to what is there already
        return connection

    monkeypatch.setattr(sqlite3, "connect", small)
    before = account.spent()
    with pytest.raises(LedgerError, match=r"no space is left.*Free some space"):
        for number in range(200):
            account.reserve(PureDpEvent(0.001), purpose=f"{number} " + "x" * 400, relation=ADD_REMOVE)
    monkeypatch.undo()
    assert account.spent().epsilon >= before.epsilon
    assert Ledger(path).verify().overspent == ()


def test_commits_are_as_durable_as_the_databases_can_make_them(path: Path, postgresql_url: str) -> None:
    _spent(path)
    with backends.find(path).writing() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 3  # EXTRA
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "delete"
    _spent(postgresql_url)
    with _engine(postgresql_url).begin() as connection:
        name = sa.make_url(postgresql_url).database
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    with backends.find(postgresql_url).writing() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "serializable"
