# SPDX-License-Identifier: Apache-2.0
"""The rows of a ledger and the chain that binds them.

Guarantee  Row n carries the SHA-256 of all its fields and of row n - 1's hash. A row that was edited,
           inserted, moved or taken out of the middle breaks the chain at that place. Rows cut off the end
           show against a head (count and hash) remembered elsewhere: in the store, and in any printed
           statement.
Not here   Someone who can write the file and recompute every hash can forge a whole ledger; a head that was
           printed or mailed before is the defense. Storage: `store`. What rows mean: `state`.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from operator import attrgetter

from sfumato.errors import InvalidParameterError, LedgerCorruptError

__all__ = ["COLUMNS", "EMPTY", "GENESIS", "Entry", "Head", "Row", "chain", "seal"]

GENESIS = "0" * 64  # what the first row has as its previous hash


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A fact to be written: a row before it has its place in the chain.

    `kind` is one of open, reserve, begin, claim, commit, refund, grant. `terms` is JSON: what was agreed on
    opening, what was granted, or which claim holds from here on. `reservation` is the sequence number of the
    reserve row it speaks of.
    """

    account: str
    kind: str
    person: str
    code_version: str
    written_at: str  # UTC; for people: order comes from the sequence number, so a clock may go backwards
    relation: str = ""
    reservation: int | None = None
    event: str = ""
    purpose: str = ""
    terms: str = ""
    seeded: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Row(Entry):
    """A fact in its place."""

    sequence: int
    previous_hash: str
    row_hash: str


COLUMNS = tuple(field.name for field in fields(Row))
_FACTS = tuple(field.name for field in fields(Entry))
_facts_of = attrgetter(*_FACTS)
# ASCII-only JSON of a flat list: one text for one row, whatever the database or the locale.
_canonical = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class Head:
    """The number of rows of a ledger and the hash of the last: enough to detect any later change.

    Args:
        count: How many rows there are.
        hash: The hash of the last row, as 64 hexadecimal digits.

    >>> Head.parse("2:" + "ab" * 32).count
    2
    """

    count: int
    hash: str

    def __str__(self) -> str:
        return f"{self.count}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> "Head":
        """Return the head that statements print as text.

        Args:
            text: The number of rows and the hash, as "2:ab...".

        Returns:
            The head.

        Raises:
            InvalidParameterError: If the text is not a head.
        """
        count, _, digest = text.strip().partition(":")
        if not (re.fullmatch("[0-9]+", count) and re.fullmatch("[0-9a-f]{64}", digest)):
            raise InvalidParameterError(
                f"a head looks like 12:3f9c... (count, colon, 64 hex digits), but {text!r} was given. "
                "Copy it whole from a statement."
            )
        return cls(int(count), digest)


EMPTY = Head(0, GENESIS)


def seal(entry: Entry, head: Head) -> Row:
    """Give `entry` the place after `head`."""
    facts = _facts_of(entry)
    sequence = head.count + 1
    digest = _digest(sequence, head.hash, facts)
    named = dict(zip(_FACTS, facts, strict=True))
    return Row(**named, sequence=sequence, previous_hash=head.hash, row_hash=digest)


def chain(rows: Iterable[Row], start: Head = EMPTY) -> Iterator[tuple[Row, Head]]:
    """Yield each row with the head it makes; raise `LedgerCorruptError` if the chain does not hold."""
    head = start
    for row in rows:
        if row.sequence != head.count + 1:
            raise _broken(
                head.count + 1, f"the next row is number {row.sequence}: rows were removed or added"
            )
        if row.previous_hash != head.hash:
            raise _broken(row.sequence, "it does not continue the row before it")
        if row.row_hash != _digest(row.sequence, row.previous_hash, _facts_of(row)):
            raise _broken(row.sequence, "its content is not what was written")
        head = Head(row.sequence, row.row_hash)
        yield row, head


def _digest(sequence: int, previous_hash: str, facts: tuple[object, ...]) -> str:
    text = _canonical([sequence, previous_hash, *facts])
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _broken(sequence: int, why: str) -> LedgerCorruptError:
    return LedgerCorruptError(
        f"the ledger's chain breaks at row {sequence}: {why}. Someone or something changed it after it was "
        "written. Nothing more will be spent from it: restore a copy that verifies."
    )
