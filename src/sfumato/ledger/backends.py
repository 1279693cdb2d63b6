# SPDX-License-Identifier: Apache-2.0
"""The two places of a ledger: a SQLite file, or a PostgreSQL database for a team.

SQLite: the file is made for its owner alone; who shares it with a group changes its mode. Writers of one
machine queue (`_queue`), so that none of many starves. BEGIN IMMEDIATE takes the only write lock before
anything is read. The journal mode is the rollback journal, not WAL: the ledger is one file, which can be
copied whole between transactions, and it works where shared memory does not. In that mode synchronous=FULL
does not sync the folder after a commit, so a power failure could bring the rollback journal back and undo a
reservation; EXTRA does sync it.

PostgreSQL: transactions are SERIALIZABLE, after an exclusive lock on the one-row head table, so the snapshot
is taken when the lock is held. Members of a team need SELECT and INSERT on the journal and UPDATE on the
head (which the lock asks for, too), nothing more. `roles` prints these rights, and what limits them.

Every transaction has a connection of its own (no pool), and no fork interrupts one (`_forks`).

`location`, which messages, statements and `repr` show, has no password, and of a query the host and the port
alone. A location that cannot be parsed is never shown, because it may contain a password.

Guarantee  What a `writing` block did is either all there or not at all, and it is on disk when the block
           ends: a kill -9 or a power cut later loses nothing. Two `writing` blocks on one ledger never
           overlap, in any number of processes, so what is read inside one is still true when it commits.
"""

import os
import re
import secrets
import shutil
import sqlite3
import stat
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa
from sqlalchemy import Connection, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from sfumato import _files
from sfumato._extras import how_to_install
from sfumato.errors import InvalidParameterError, LedgerCorruptError, LedgerError, LedgerReadOnlyError
from sfumato.ledger import _forks, _queue
from sfumato.ledger._failures import busy, explained
from sfumato.ledger._words import line
from sfumato.ledger.migrations import migrate

__all__ = ["BUSY_SECONDS", "Backend", "find"]

BUSY_SECONDS = 60  # a transaction lasts milliseconds; who waits this long waits for something stuck


class Backend(Protocol):
    """What the store needs of a database. `location` is for messages: no password is in it."""

    location: str

    def exists(self) -> bool:
        """Whether a ledger is there; raise if another file is."""
        ...

    def create(self) -> bool:
        """Make an empty ledger unless one is there; return whether it was made."""
        ...

    def user(self) -> str | None:
        """Return the name that the database knows its user by, None for a file."""
        ...

    def reading(self) -> AbstractContextManager[Connection]:
        """Give a connection that sees one moment of the ledger."""
        ...

    def writing(self) -> AbstractContextManager[Connection]:
        """Give a connection with the only write lock, and make its work durable at the end."""
        ...

    def upgrading(self) -> AbstractContextManager[Connection]:
        """Do as `writing`, on a ledger whose tables are still those of an older version."""
        ...


def find(location: str | os.PathLike[str]) -> Backend:
    """Tell from a path or a URL which backend is meant."""
    text = os.fspath(location)
    if not text.strip() or text.strip() == ":memory:" or "\0" in text:
        raise InvalidParameterError(
            "a ledger needs a path or a postgresql:// URL, but nothing, :memory: or a text with a NUL was "
            "given. To work without a record, use no ledger at all."
        )
    if "://" in text:
        return _at_url(text)
    if _like_a_connection(text):
        raise _elsewhere("what looks like a connection string but is no URL")
    return SqliteFile(Path(text))


def _at_url(text: str) -> Backend:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # Its text, and so the error it caused, may hold a password.
        raise _elsewhere("a URL that cannot be read") from None
    if url.get_backend_name() == "sqlite" and url.database:
        return SqliteFile(Path(url.database))
    if url.get_backend_name() not in {"postgresql", "postgres"}:
        raise _elsewhere(f"a {url.get_backend_name()} URL")
    if "@" in f"{url.host}{url.database}":
        # Where a password has an @, its second half would be read, and shown, as the host.
        raise _elsewhere("a URL with more than one @ (in a user or password, write it as %40)")
    return PostgresqlDatabase(url.set(drivername="postgresql+psycopg"))


def _like_a_connection(text: str) -> bool:
    lowered = text.strip().lower()
    return (lowered.startswith("postgres") and ":" in lowered) or "password=" in lowered.replace(" ", "")


def _elsewhere(given: str) -> InvalidParameterError:
    return InvalidParameterError(
        "a ledger lives in a file (give its path) or in PostgreSQL (postgresql://user@host/database), not at "
        f"{given}."
    )


class SqliteFile:
    """A ledger in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path.expanduser().absolute()
        self.location = str(self._path)
        # mode=rw: a file that went away is an error. SQLite's default would put an empty ledger in its place.
        self._address = f"{self._path.as_uri()}?mode=rw"
        self._engine = sa.create_engine("sqlite://", creator=self._connect, poolclass=sa.NullPool)
        event.listen(self._engine, "begin", _begin)

    def exists(self) -> bool:
        """Whether a file is there; an empty one or a folder is an error."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise LedgerError(
                f"{self.location} cannot be looked at ({error.strerror}). Give a path that you may use."
            ) from error
        if not stat.S_ISREG(found.st_mode):
            raise InvalidParameterError(
                f"a ledger is a file, but {self.location} is not one. Give a file's path."
            )
        if found.st_size == 0:
            raise LedgerCorruptError(
                f"{self.location} is empty, and a ledger never is: it may have been cut off. "
                "Restore a copy that verifies, or remove the file to begin a new ledger."
            )
        return True

    def create(self) -> bool:
        """Build the ledger aside and put it in place whole, so that no kill leaves half of one."""
        if self.exists():
            return False
        if not self._path.parent.is_dir():
            raise LedgerError(
                f"the folder {self._path.parent} does not exist. Make it, or give another path."
            )
        draft = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        try:
            os.close(_new_file(draft))
            with SqliteFile(draft).writing() as connection:
                migrate(connection, 0)
            return _place(draft, self._path)
        except (LedgerError, OSError) as error:
            raise self._cannot_create(error) from error
        finally:
            draft.unlink(missing_ok=True)

    def user(self) -> str | None:
        """See `Backend.user`."""
        return None

    @contextmanager
    def reading(self) -> Generator[Connection]:
        """See `Backend.reading`."""
        with (
            _forks.uncut(),
            explained(self.location),
            self._engine.connect() as connection,
            connection.begin(),
        ):
            yield connection

    @contextmanager
    def writing(self) -> Generator[Connection]:
        """See `Backend.writing`."""
        with _queue.turn(self._path, seconds=BUSY_SECONDS) as came:
            if not came:
                raise busy(self.location, f"no turn to write in {BUSY_SECONDS:g} seconds")
            with _forks.uncut(), explained(self.location), self._engine.connect() as plain:
                connection = plain.execution_options(begin_immediate=True)
                with connection.begin():
                    yield connection

    upgrading = writing

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA fullfsync = ON")  # macOS: a plain fsync stops at the drive's cache
        except BaseException:
            connection.close()
            raise
        return connection

    def _cannot_create(self, error: Exception) -> LedgerError:
        if os.access(self._path.parent, os.W_OK) and not isinstance(error, LedgerReadOnlyError):
            return LedgerError(f"no ledger can be made at {self.location} ({error}). Give another path.")
        return LedgerReadOnlyError(
            f"no ledger can be made at {self.location}: the folder cannot be written. Nothing was spent. "
            "Make it writable, or give another path."
        )


def _begin(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("begin_immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _new_file(path: Path) -> int:
    """Make an empty file for its owner alone; SQLite gives the journal beside it the same mode."""
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)


def _place(draft: Path, path: Path) -> bool:
    """Give a finished file its name, never over another; return whether it was placed."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return False  # another process was first: its ledger is the ledger
    except OSError:
        # No hard links here. A kill in mid-copy leaves a file that is refused, never a short ledger.
        try:
            with draft.open("rb") as source, os.fdopen(_new_file(path), "wb") as target:
                shutil.copyfileobj(source, target)
                target.flush()
                os.fsync(target.fileno())
        except FileExistsError:
            return False
    _files.sync_folder(path.parent)
    return True


class PostgresqlDatabase:
    """A ledger in a database that a team shares; its tables are named sfumato_..."""

    def __init__(self, url: URL) -> None:
        self.location = _without_secrets(url)
        try:
            self._engine = sa.create_engine(url, poolclass=sa.NullPool)
        except ModuleNotFoundError as error:
            raise LedgerError(
                f"a ledger in PostgreSQL needs psycopg, which is not installed. {how_to_install('postgres')}"
            ) from error
        except ArgumentError:
            raise _elsewhere("a URL that cannot be read") from None  # as in `_at_url`

    def exists(self) -> bool:
        """Whether the ledger's tables are there."""
        with self.reading() as connection:
            return sa.inspect(connection).has_table("sfumato_schema")

    def create(self) -> bool:
        """Make the tables in one transaction, unless another process just did."""
        with self.upgrading() as connection:
            if sa.inspect(connection).has_table("sfumato_schema"):
                return False
            migrate(connection, 0)
            return True

    def user(self) -> str | None:
        """Return the role that was authenticated; SET ROLE does not change it."""
        with self.reading() as connection:
            return line(role=str(connection.exec_driver_sql("SELECT session_user").scalar_one()))

    @contextmanager
    def reading(self) -> Generator[Connection]:
        """See `Backend.reading`."""
        with self._transaction("REPEATABLE READ") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Generator[Connection]:
        """See `Backend.writing`."""
        with self._transaction("SERIALIZABLE") as connection:
            _set_durable(connection)
            connection.exec_driver_sql("LOCK TABLE sfumato_head IN SHARE ROW EXCLUSIVE MODE")
            yield connection

    @contextmanager
    def upgrading(self) -> Generator[Connection]:
        """See `Backend.upgrading`; there may be no table yet to lock."""
        # READ COMMITTED: what is read after the lock was got must be newer than the wait for it.
        with self._transaction("READ COMMITTED") as connection:
            _set_durable(connection)
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
            yield connection

    @contextmanager
    def _transaction(self, isolation_level: str) -> Generator[Connection]:
        with _forks.uncut(), explained(self.location), self._engine.connect() as plain:
            connection = plain.execution_options(isolation_level=isolation_level)
            with connection.begin():
                yield connection


_PUBLIC = ("host", "port")
_PLAIN = re.compile(r"[\w./:,-]+")  # of a host, a folder with a socket, a port, or several of these


def _without_secrets(url: URL) -> str:
    """Build a URL from the parts that may be shown: a password can also stand in the query."""
    shown = URL.create(
        "postgresql", username=url.username, host=url.host, port=url.port, database=url.database
    )
    asked = {name: ",".join(url.normalized_query.get(name, ())) for name in _PUBLIC}
    query = "&".join(f"{name}={value}" for name, value in asked.items() if _PLAIN.fullmatch(value))
    return shown.render_as_string() + (f"?{query}" if query else "")


_ADVISORY_LOCK = int.from_bytes(b"sfumato", "big")  # any constant that no other application is likely to use


def _set_durable(connection: Connection) -> None:
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{BUSY_SECONDS}s'")
    # A server may be set to answer before a commit is on disk; a reservation must not be lost that way.
    connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
