# SPDX-License-Identifier: Apache-2.0
"""Any change to what was written shows."""

import sqlite3
import traceback
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError, LedgerCorruptError, LedgerError
from sfumato.ledger import Account, Budget, Head, Ledger, journal
from sfumato.ledger.journal import EMPTY, Entry, Row

ADD_REMOVE = Relation.ADD_REMOVE


def _rows(count: int = 4) -> list[Row]:
    rows, head = [], EMPTY
    for number in range(count):
        entry = Entry(
            account="credit",
            kind="grant",
            person="ada",
            code_version="0",
            written_at="t",
            purpose=str(number),
        )
        rows.append(journal.seal(entry, head))
        head = Head(rows[-1].sequence, rows[-1].row_hash)
    return rows


def _holds(rows: list[Row]) -> bool:
    try:
        list(journal.chain(rows))
    except LedgerCorruptError:
        return False
    return True


def test_an_untouched_chain_holds() -> None:
    assert _holds(_rows())
    assert _holds([])


@pytest.mark.parametrize("name", [field.name for field in fields(Row)])
def test_a_change_of_any_field_breaks_the_chain(name: str) -> None:
    rows = _rows()
    other = {"sequence": 7, "reservation": 3, "seeded": True}.get(name, "0" * 63 + "1")
    rows[1] = replace(rows[1], **{name: other})
    assert not _holds(rows)


@pytest.mark.parametrize(
    "tamper",
    [
        lambda rows: rows[1:],
        lambda rows: rows[:1] + rows[2:],
        lambda rows: [rows[0], rows[2], rows[1], rows[3]],
        lambda rows: [*rows[:2], rows[1], *rows[2:]],
        lambda rows: [*rows[:2], journal.seal(rows[0], Head(2, rows[1].row_hash)), *rows[2:]],
        lambda rows: [*rows, replace(rows[-1], sequence=5)],
    ],
    ids=["first removed", "middle removed", "reordered", "repeated", "inserted", "appended"],
)
def test_rows_removed_moved_or_added_break_the_chain(tamper: Callable[[list[Row]], list[Row]]) -> None:
    assert not _holds(tamper(_rows()))


def test_a_text_moved_from_one_field_to_the_next_is_another_row() -> None:
    one = Entry(account="ab", kind="c", person="d", code_version="e", written_at="f")
    other = replace(one, account="a", kind="bc")
    assert journal.seal(one, EMPTY).row_hash != journal.seal(other, EMPTY).row_hash


def test_a_head_reads_back_what_it_writes() -> None:
    head = Head(12, "3f" * 32)
    assert Head.parse(f" {head} ") == head
    for text in ("", "12", "12:", ":" + "3f" * 32, "-1:" + "3f" * 32, "12:" + "xy" * 32, "٣:" + "3f" * 32):
        with pytest.raises(InvalidParameterError, match="a head looks like"):
            Head.parse(text)


# --- in a stored ledger -----------------------------------------------------------------------------------


@pytest.fixture
def spent(location: str) -> Account:
    budget = Budget(epsilon=1, delta=1e-6)
    account = Ledger(location, person="ada").open("credit", privacy_unit="client_id", budget=budget)
    for purpose in ("one", "two", "three"):
        account.reserve(PureDpEvent(0.2), purpose=purpose, relation=ADD_REMOVE)
    return account


def _meddle(location: str, *statements: str) -> None:
    """Change the tables behind the ledger's back, its triggers first."""
    url = sa.make_url(location if "://" in location else f"sqlite:///{location}")
    engine = sa.create_engine(url.set(drivername=url.drivername.replace("postgresql", "postgresql+psycopg")))
    off = {
        "sqlite": ["DROP TRIGGER sfumato_journal_no_update", "DROP TRIGGER sfumato_journal_no_delete"],
        "postgresql": ["DROP TRIGGER sfumato_journal_append_only ON sfumato_journal"],
    }[engine.dialect.name]
    with engine.begin() as connection:
        for statement in [*off, *statements]:
            connection.exec_driver_sql(statement)
    engine.dispose()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sfumato_journal SET event = REPLACE(event, '0.2', '0.1') WHERE sequence = 3",
        "UPDATE sfumato_journal SET person = 'eve' WHERE sequence = 2",
        "UPDATE sfumato_journal SET terms = REPLACE(terms, '1.0', '9.0') WHERE sequence = 1",
        "DELETE FROM sfumato_journal WHERE sequence = 2",
        "DELETE FROM sfumato_journal WHERE sequence = 4",
        "DELETE FROM sfumato_journal",
        "UPDATE sfumato_journal SET sequence = 9 WHERE sequence = 4",
        "UPDATE sfumato_head SET row_count = 3",
        "DELETE FROM sfumato_head",
    ],
)
def test_a_meddled_ledger_is_refused_everywhere(location: str, spent: Account, statement: str) -> None:
    _meddle(location, statement)
    with pytest.raises(LedgerCorruptError, match="estore"):
        Ledger(location)
    with pytest.raises(LedgerCorruptError, match="estore"):
        spent.reserve(
            PureDpEvent(0.1), purpose="more", relation=ADD_REMOVE
        )  # a handle from before notices too, or verify does
        Ledger(location)


@pytest.mark.parametrize("number", ["0", "-3", "NULL"])
def test_a_row_before_the_first_is_noticed(path: Path, number: str) -> None:
    account = Ledger(path).open("credit", privacy_unit="client_id", budget=Budget(epsilon=1, delta=0))
    names = ", ".join(["sequence", *(name for name in journal.COLUMNS if name != "sequence")])
    rest = names.removeprefix("sequence, ")
    _meddle(str(path), f"INSERT INTO sfumato_journal ({names}) SELECT {number}, {rest} FROM sfumato_journal")
    ways: list[Callable[[], object]] = [
        lambda: Ledger(path),
        account.spent,  # a handle from before
        lambda: account.reserve(PureDpEvent(0.1), purpose="p", relation=ADD_REMOVE),
    ]
    for way in ways:
        with pytest.raises(LedgerCorruptError, match="estore"):
            way()


@pytest.mark.parametrize("value", ["X'00c0ffee'", "9e999", "CAST(X'ffc0ffee' AS TEXT)", "'c0ffee'"])
@pytest.mark.parametrize("column", [name for name in journal.COLUMNS if name != "seeded"])
def test_a_value_of_the_wrong_kind_is_noticed_and_not_echoed(path: Path, column: str, value: str) -> None:
    ledger = Ledger(path)
    ledger.open("credit", privacy_unit="client_id", budget=Budget(epsilon=1, delta=0))
    _meddle(str(path), f"UPDATE sfumato_journal SET {column} = {value}")
    for way in (lambda: Ledger(path), ledger.verify):
        with pytest.raises(LedgerCorruptError, match="estore") as refused:
            way()
        said = "".join(traceback.format_exception(refused.value))
        assert "\\xc0" not in said and "c0ffee" not in said and "\xff" not in said


@pytest.mark.parametrize("change", ["row_count = 'zz'", "row_hash = X'00'", "row_hash = CAST(X'ff' AS TEXT)"])
def test_a_head_of_the_wrong_kind_is_noticed(path: Path, change: str) -> None:
    Ledger(path)
    _meddle(str(path), f"UPDATE sfumato_head SET {change}")
    with pytest.raises(LedgerCorruptError, match="estore"):
        Ledger(path)


def test_the_newest_rows_cut_off_with_their_head_show_against_a_noted_head(
    location: str, spent: Account
) -> None:
    ledger = Ledger(location)
    before, third = ledger.head(), ledger.account("credit").releases()[1]
    assert ledger.verify(head=before).head == before
    _meddle(
        location,
        "DELETE FROM sfumato_journal WHERE sequence = 4",
        "UPDATE sfumato_head SET row_count = 3, "
        "row_hash = (SELECT row_hash FROM sfumato_journal WHERE sequence = 3)",
    )
    shortened = Ledger(location)
    assert shortened.verify().head.count == third.reservation  # nothing in the ledger itself can tell
    with pytest.raises(LedgerCorruptError, match="does not contain the head 4:"):
        shortened.verify(head=str(before))
    with pytest.raises(LedgerCorruptError, match="row 4 of the ledger is not what it was"):
        ledger.head()  # and a process that had read it notices


def test_a_rewritten_ledger_shows_against_a_noted_head(path: Path, tmp_path: Path) -> None:
    def made(where: Path, epsilon: float) -> Ledger:
        ledger = Ledger(where)
        ledger.open("credit", privacy_unit="client_id", budget=Budget(epsilon=epsilon, delta=0))
        return ledger

    true, forged = made(path, 1), made(tmp_path / "forged.db", 9)
    assert forged.verify(head=forged.head()).overspent == ()
    with pytest.raises(LedgerCorruptError, match="gone or different"):
        forged.verify(head=true.head())


def test_the_database_itself_refuses_to_change_a_row(location: str, spent: Account) -> None:
    url = sa.make_url(location if "://" in location else f"sqlite:///{location}")
    engine = sa.create_engine(url.set(drivername=url.drivername.replace("postgresql", "postgresql+psycopg")))
    for statement in ("UPDATE sfumato_journal SET person = 'eve'", "DELETE FROM sfumato_journal"):
        with pytest.raises(sa.exc.DBAPIError, match="append-only"), engine.begin() as connection:
            connection.exec_driver_sql(statement)
    engine.dispose()
    assert spent.spent().epsilon == pytest.approx(0.6)


def test_a_forged_row_with_a_right_hash_shows_as_overspent(path: Path) -> None:
    ledger = Ledger(path)
    account = ledger.open("credit", privacy_unit="client_id", budget=Budget(epsilon=1, delta=0))
    account.reserve(PureDpEvent(0.9), purpose="honest", relation=ADD_REMOVE)
    _append_by_hand(path, kind="reserve", event='{"epsilon": 0.9, "type": "PureDpEvent"}')
    assert ledger.verify().overspent == ("credit",)
    assert account.remaining().epsilon == 0


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"kind": "refund", "reservation": 2}, "refund of a release that is begun"),
        ({"kind": "refund", "reservation": 77}, "cannot be read"),
        ({"kind": "commit"}, "names no reservation"),
        ({"kind": "open", "terms": "{}"}, "a second time"),
        ({"kind": "open", "account": "new", "terms": "not json"}, "cannot be read"),
        ({"kind": "grant", "terms": '{"epsilon": -1, "delta": 0}'}, "cannot be read"),
        ({"kind": "reserve", "relation": "replace-one"}, "relation is not its account's"),
        ({"kind": "steal"}, "cannot be read"),
        ({"kind": "grant", "terms": '{"delta": 0, "epsilon": 1' + "0" * 400 + "}"}, "cannot be read"),
        ({"kind": "grant", "terms": "[" * 100_000}, "cannot be read"),
    ],
)
def test_a_row_that_sfumato_could_not_have_written_is_refused(
    path: Path, facts: dict[str, object], why: str
) -> None:
    account = Ledger(path).open("credit", privacy_unit="client_id", budget=Budget(epsilon=1, delta=0))
    account.reserve(PureDpEvent(0.5), purpose="begun", relation=ADD_REMOVE).begin()
    _append_by_hand(path, **facts)
    with pytest.raises(LedgerCorruptError, match=why):
        Ledger(path)
    with pytest.raises(LedgerCorruptError, match=why):
        account.spent()
    with pytest.raises(LedgerError, match=why):
        account.spent()  # and again: nothing half-read stays behind


def _append_by_hand(path: Path, **facts: object) -> None:
    """Forge a row as someone would who knows how the hashes are made."""
    connection = sqlite3.connect(path)
    count, digest = connection.execute("SELECT row_count, row_hash FROM sfumato_head").fetchone()
    common = {"account": "credit", "person": "eve", "code_version": "0", "written_at": "t"}
    row = journal.seal(Entry(**(common | {"relation": "add-remove"} | facts)), Head(count, digest))
    names = ", ".join(journal.COLUMNS)
    marks = ", ".join("?" for _ in journal.COLUMNS)
    values = [getattr(row, name) for name in journal.COLUMNS]
    connection.execute(f"INSERT INTO sfumato_journal ({names}) VALUES ({marks})", values)
    connection.execute("UPDATE sfumato_head SET row_count = ?, row_hash = ?", (row.sequence, row.row_hash))
    connection.commit()
    connection.close()
