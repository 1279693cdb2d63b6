# SPDX-License-Identifier: Apache-2.0
"""The tables of a ledger, read and written as rows.

Guarantee  Opening never changes what a ledger says: an older one is taken forward (`migrations`), a newer
           one, a damaged one or a file that is something else is refused and left as it is.
Not here   Locks and durability (`backends`); what rows mean (`state`); whether they can be believed
           (`journal`).
"""

import os
from contextlib import AbstractContextManager

import sqlalchemy as sa
from sqlalchemy import Connection

from sfumato.errors import LedgerCorruptError, LedgerError, LedgerVersionError
from sfumato.ledger import backends
from sfumato.ledger.journal import COLUMNS, Head, Row
from sfumato.ledger.migrations import CURRENT_VERSION, migrate

__all__ = ["Store", "schema_version"]

_metadata = sa.MetaData()
_NOT_TEXT = {"sequence": sa.BigInteger, "reservation": sa.BigInteger, "seeded": sa.Boolean}
_journal = sa.Table("sfumato_journal", _metadata, *(sa.Column(n, _NOT_TEXT.get(n, sa.Text)) for n in COLUMNS))
_head = sa.Table(
    "sfumato_head", _metadata, sa.Column("row_count", sa.BigInteger), sa.Column("row_hash", sa.Text)
)
_schema = sa.Table("sfumato_schema", _metadata, sa.Column("version", sa.Integer))
_select_rows = sa.select(_journal).order_by(_journal.c.sequence)
# A row with a number that is none of ours must not hide before the first.
_has_no_place = sa.or_(_journal.c.sequence < 1, _journal.c.sequence.is_(None))
# SQLite keeps any type in any column, so what comes back is looked at before it is believed.
_TYPES = {"sequence": int, "seeded": bool}
_SHAPES = {
    tuple(reservation if name == "reservation" else _TYPES.get(name, str) for name in COLUMNS)
    for reservation in (int, type(None))
}


class Store:
    """The rows of one ledger."""

    def __init__(self, location: str | os.PathLike[str], *, create: bool) -> None:
        self._backend = backends.find(location)
        self.location = self._backend.location
        if not self._backend.exists():
            if not create:
                raise _no_ledger(self.location)
            self._backend.create()
        self._bring_up_to_date()

    @classmethod
    def create(cls, location: str | os.PathLike[str]) -> "Store":
        """Make a new ledger."""
        backend = backends.find(location)
        if not backend.create():
            raise LedgerError(
                f"there is a ledger at {backend.location} already. It was left as it is. "
                "Open it, or give another place for a new one."
            )
        return cls(location, create=False)

    def reading(self) -> AbstractContextManager[Connection]:
        """Give a connection that sees one moment of the ledger."""
        return self._backend.reading()

    def writing(self) -> AbstractContextManager[Connection]:
        """Give a connection with the only write lock, and make its work durable at the end."""
        return self._backend.writing()

    def user(self) -> str | None:
        """Return the role that the database knows this user by; None where it knows none."""
        return self._backend.user()

    def rows(self, connection: Connection, *, start: int = 0) -> list[Row]:
        """Return the rows from number `start` on, in order, unverified; 0 is before the first."""
        wanted = _select_rows
        if start > 0:
            wanted = wanted.where(sa.or_(_journal.c.sequence >= start, _has_no_place))
        try:
            found = connection.execute(wanted).all()
        except (ValueError, TypeError):
            raise self._unreadable("a row") from None
        if any(tuple(map(type, values)) not in _SHAPES for values in found):
            raise self._unreadable("a row")
        return [Row(**dict(zip(COLUMNS, values, strict=True))) for values in found]

    def head(self, connection: Connection) -> Head:
        """Return the head as the store remembers it, beside the journal."""
        found = connection.execute(sa.select(_head)).all()
        if len(found) != 1:
            raise LedgerCorruptError(
                f"the ledger {self.location} has {len(found)} heads where it must have one. "
                "Restore a copy that verifies."
            )
        count, digest = found[0]
        if not (isinstance(count, int) and isinstance(digest, str)):
            raise self._unreadable("a head")
        return Head(count, digest)

    def append(self, connection: Connection, row: Row) -> None:
        """Write a sealed row and move the head to it."""
        connection.execute(_journal.insert().values({name: getattr(row, name) for name in COLUMNS}))
        connection.execute(_head.update().values(row_count=row.sequence, row_hash=row.row_hash))

    def _unreadable(self, what: str) -> LedgerCorruptError:
        # The text in its place is not shown: it was chosen by whoever changed the file.
        return LedgerCorruptError(
            f"the ledger {self.location} has {what} that cannot be read: something else than text or a "
            "number stands there. Nothing more will be spent from it: restore a copy that verifies."
        )

    def _bring_up_to_date(self) -> None:
        with self._backend.reading() as connection:
            version = _version(connection, self.location)
        if version < CURRENT_VERSION:
            with self._backend.upgrading() as connection:
                migrate(connection, _version(connection, self.location))


def _no_ledger(location: str) -> LedgerError:
    return LedgerError(
        f"there is no ledger at {location}. Check the place, or make one there with `sfumato ledger init`."
    )


def schema_version(location: str | os.PathLike[str]) -> int:
    """Return the version of the tables of a ledger, which is left as it is, also if it is an older one.

    Args:
        location: The path of a file, or the URL of a database.

    Returns:
        The version.

    Raises:
        LedgerError: If there is no ledger, or it cannot be read.
    """
    backend = backends.find(location)
    if not backend.exists():
        raise _no_ledger(backend.location)
    with backend.reading() as connection:
        return _version(connection, backend.location)


def _version(connection: Connection, location: str) -> int:
    if not sa.inspect(connection).has_table("sfumato_schema"):
        raise LedgerCorruptError(
            f"there is a database at {location}, but no sfumato ledger is in it. It was left as it "
            "is. Give the place of a ledger, or one where nothing is yet."
        )
    version = connection.execute(sa.select(sa.func.max(_schema.c.version))).scalar()
    if not isinstance(version, int) or version < 1:
        raise LedgerCorruptError(
            f"the ledger at {location} has no version number. Restore a copy that verifies."
        )
    if version > CURRENT_VERSION:
        raise LedgerVersionError(
            f"the ledger at {location} has schema version {version}, and this sfumato reads up to "
            f"{CURRENT_VERSION}. It was left as it is. Upgrade sfumato to use it."
        )
    return version
