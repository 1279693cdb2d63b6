# SPDX-License-Identifier: Apache-2.0
"""Errors of the database, explained as errors of the ledger.

Guarantee  Whatever the database raises inside `explained` comes out as a `LedgerError` that says what
           happened and what to do, and does not say more about what was spent than is known. The transaction
           was rolled back, or its end is unknown; in neither case is a release that was reported as reserved
           lost.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from sfumato.errors import LedgerCorruptError, LedgerError, LedgerReadOnlyError

__all__ = ["busy", "explained"]


# Also true where a release was reserved, and perhaps run, before the call that failed.
_UNCHANGED = "This call recorded nothing; what was reserved before stays spent."


def _damaged(location: str, cause: str) -> LedgerError:
    return LedgerCorruptError(
        f"{location} is damaged or is not a sfumato ledger ({cause}). It was left as it is. "
        "Restore a copy that verifies, or give the path of a ledger."
    )


def _read_only(location: str, cause: str) -> LedgerError:
    return LedgerReadOnlyError(
        f"the ledger {location} cannot be written ({cause}). {_UNCHANGED} "
        "Make the file and its folder writable, or move the ledger to a place that is."
    )


def _standby(location: str, cause: str) -> LedgerError:
    return LedgerReadOnlyError(
        f"the ledger {location} cannot be written ({cause}): the database, or this server, is read-only. "
        f"{_UNCHANGED} Connect to a server that accepts writes."
    )


def _not_permitted(location: str, cause: str) -> LedgerError:
    return LedgerReadOnlyError(
        f"the ledger {location} cannot be used with the rights of this role ({cause}). {_UNCHANGED} "
        "Ask the owner of its tables to GRANT it: SELECT, INSERT ON sfumato_journal; SELECT, UPDATE ON "
        "sfumato_head; SELECT ON sfumato_schema. `sfumato ledger roles` prints the statements."
    )


def _against_a_policy(location: str, cause: str) -> LedgerError:
    return LedgerReadOnlyError(
        f"the owner of the ledger {location} does not let this role write that ({cause}). {_UNCHANGED} "
        "A role that only charges may not open accounts, grant budget, or change what others reserved; ask "
        "somebody who may. And each role signs with its own name: leave the person out."
    )


def busy(location: str, cause: str) -> LedgerError:
    """Return the error for a ledger that another process holds."""
    return LedgerError(
        f"the ledger {location} is held by another process ({cause}). {_UNCHANGED} "
        "Try again; if it stays so, end the process that holds it."
    )


def _full(location: str, cause: str) -> LedgerError:
    return LedgerError(f"no space is left for the ledger {location} ({cause}). {_UNCHANGED} Free some space.")


def _unusable(location: str, cause: str) -> LedgerError:
    return LedgerError(
        f"the ledger {location} could not be used ({cause}). The record that was being written may or may "
        "not have been recorded. Check that the file or the server is there, and look at the account's "
        "releases before you try again."
    )


# By the primary part of SQLite's error name, https://www.sqlite.org/rescode.html
_SQLITE: dict[str, Callable[[str, str], LedgerError]] = {
    "SQLITE_NOTADB": _damaged,
    "SQLITE_CORRUPT": _damaged,
    "SQLITE_ERROR": _damaged,  # a table or column that must be there is not
    "SQLITE_MISMATCH": _damaged,
    "SQLITE_CONSTRAINT": _damaged,
    "SQLITE_READONLY": _read_only,
    "SQLITE_PERM": _read_only,
    "SQLITE_AUTH": _read_only,
    "SQLITE_BUSY": busy,
    "SQLITE_LOCKED": busy,
    "SQLITE_FULL": _full,
}

# By SQLSTATE, https://www.postgresql.org/docs/current/errcodes-appendix.html
_POSTGRESQL: dict[str, Callable[[str, str], LedgerError]] = {
    "25006": _standby,  # read-only transaction or standby
    "55P03": busy,  # lock timeout
    "40001": busy,  # serialization failure
    "40P01": busy,  # deadlock
    "53100": _full,
    "42P01": _damaged,  # undefined table
    "42703": _damaged,  # undefined column
    "23505": _damaged,  # a row with this number is there already, though the head says otherwise
}


_NO_RIGHT = "42501"  # insufficient privilege, or a row that a policy refuses
_NOT_UTF_8 = "Could not decode to UTF-8"  # raised by Python's sqlite3 itself, so without an error name


@contextmanager
def explained(location: str) -> Generator[None]:
    """Turn a database's error into ours."""
    try:
        yield
    except DBAPIError as error:
        if str(error.orig).startswith(_NOT_UTF_8):  # and goes on with the bytes themselves
            raise _damaged(location, "a text in it is not UTF-8") from None
        raise _explain(location, error.orig) from error
    except UnicodeDecodeError:  # sqlite3 quotes a damaged schema in an error, and fails at that
        raise _damaged(location, "a text in it is not UTF-8") from None
    except SQLAlchemyError as error:
        raise _unusable(location, type(error).__name__) from error


def _explain(location: str, cause: BaseException | None) -> LedgerError:
    name = getattr(cause, "sqlite_errorname", None)
    if isinstance(name, str):
        primary = "_".join(name.split("_")[:2])
        if name == "SQLITE_READONLY_DBMOVED":
            return _unusable(location, name)
        return _SQLITE.get(primary, _unusable)(location, name)
    state = getattr(cause, "sqlstate", None)
    if state == _NO_RIGHT:
        # What PostgreSQL says of a right names tables, policies and roles, and no values.
        explain = _against_a_policy if _is_policy(cause) else _not_permitted
        return explain(location, f"SQLSTATE {state}: {_first_line(cause)}")
    return _POSTGRESQL.get(str(state), _unusable)(
        location, f"SQLSTATE {state}" if state else _first_line(cause)
    )


def _is_policy(cause: BaseException | None) -> bool:
    # Messages are translated; the place in the server's code that refuses a row is not.
    return getattr(getattr(cause, "diag", None), "source_function", None) == "ExecWithCheckOptions"


def _first_line(cause: BaseException | None) -> str:
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]
