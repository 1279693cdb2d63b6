# SPDX-License-Identifier: Apache-2.0
"""The schema of a ledger, as numbered migrations that only go forward.

To change the schema, write a function and append it to `MIGRATIONS`. Never edit an old one: old files were
made by it. The SQL is written out, because a migration must not change when a table definition elsewhere
does.

Guarantee  A ledger of any older version reaches the newest in one transaction: it is either untouched or
           done, and no journal row is changed on the way. There is no way back, and a version from the
           future is refused (`LedgerVersionError`), because it may hold facts that this code would overlook.
"""

from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import Connection, text

__all__ = ["CURRENT_VERSION", "MIGRATIONS", "migrate"]

_APPEND_ONLY = "the journal of a sfumato ledger is append-only"


def _create_the_journal(connection: Connection) -> None:
    connection.exec_driver_sql(
        "CREATE TABLE sfumato_schema (version INTEGER PRIMARY KEY, applied_at TEXT NOT NULL)"
    )
    connection.exec_driver_sql(
        "CREATE TABLE sfumato_journal ("
        "sequence BIGINT PRIMARY KEY, account TEXT NOT NULL, kind TEXT NOT NULL, person TEXT NOT NULL, "
        "code_version TEXT NOT NULL, written_at TEXT NOT NULL, relation TEXT NOT NULL, reservation BIGINT, "
        "event TEXT NOT NULL, purpose TEXT NOT NULL, terms TEXT NOT NULL, seeded BOOLEAN NOT NULL, "
        "previous_hash TEXT NOT NULL, row_hash TEXT NOT NULL)"
    )


def _remember_the_head_and_refuse_changes(connection: Connection) -> None:
    # A key that can have one value, so that there can be one head.
    connection.exec_driver_sql(
        "CREATE TABLE sfumato_head (id INTEGER PRIMARY KEY CHECK (id = 1), "
        "row_count BIGINT NOT NULL, row_hash TEXT NOT NULL)"
    )
    connection.exec_driver_sql(
        "INSERT INTO sfumato_head SELECT 1, COUNT(*), COALESCE("
        "(SELECT row_hash FROM sfumato_journal ORDER BY sequence DESC LIMIT 1), "
        f"'{'0' * 64}') FROM sfumato_journal"
    )
    {"sqlite": _sqlite_triggers, "postgresql": _postgresql_triggers}[connection.dialect.name](connection)


def _sqlite_triggers(connection: Connection) -> None:
    for verb in ("UPDATE", "DELETE"):
        connection.exec_driver_sql(
            f"CREATE TRIGGER sfumato_journal_no_{verb.lower()} BEFORE {verb} ON sfumato_journal "
            f"BEGIN SELECT RAISE(ABORT, '{_APPEND_ONLY}'); END"
        )


def _postgresql_triggers(connection: Connection) -> None:
    connection.exec_driver_sql(
        "CREATE FUNCTION sfumato_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{_APPEND_ONLY}'; END $$"
    )
    connection.exec_driver_sql(
        "CREATE TRIGGER sfumato_journal_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON sfumato_journal "
        "FOR EACH STATEMENT EXECUTE FUNCTION sfumato_append_only()"
    )


def _admit_claims(connection: Connection) -> None:
    """Change no table: rows of the kind "claim" may follow, which older versions would call corrupt."""


def _let_accounts_name_their_rule(connection: Connection) -> None:
    """Change no table: from here on an opening row may name a rule, which older versions would not follow."""


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    _create_the_journal,
    _remember_the_head_and_refuse_changes,
    _admit_claims,
    _let_accounts_name_their_rule,
)
CURRENT_VERSION = len(MIGRATIONS)


def migrate(connection: Connection, version: int) -> None:
    """Take a ledger from `version` (0: there is none yet) to the newest, inside the caller's transaction."""
    record = text("INSERT INTO sfumato_schema (version, applied_at) VALUES (:version, :applied_at)")
    for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
        step(connection)
        connection.execute(record, {"version": number, "applied_at": datetime.now(UTC).isoformat()})
