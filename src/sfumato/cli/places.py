# SPDX-License-Identifier: Apache-2.0
"""The account that a run is charged to, and the places that it will write to, tried before the charge.

Failure    A page that cannot be written, and an output that would replace another one or a file that is read,
           are told before the charge. Nothing is left at the place of a page until it is complete.
"""

from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path

from sfumato import _files
from sfumato.errors import InvalidParameterError
from sfumato.ledger import Account, Ledger

__all__ = ["account_at", "begin_page", "require_apart", "require_public"]


def account_at(ledger: str | None, name: str | None, *, purpose: str | None = None) -> Account | None:
    """Return the account to charge, if one is named; a purpose is of no use without one."""
    if (ledger is None) != (name is None):
        raise InvalidParameterError("give both --ledger and --account to charge the run, or neither.")
    if ledger is None or name is None:
        if purpose is not None:
            raise InvalidParameterError(
                "--purpose is written into an account: give --ledger and --account, too, or leave it out."
            )
        return None
    return Ledger(ledger, create=False).account(name)


def begin_page(report: str) -> None:
    """Raise if a page cannot be written; what is there stays until there is a complete one."""
    place = Path(report)
    try:
        if place.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        place.parent.mkdir(parents=True, exist_ok=True)
        part = _files.part_of(place)  # where it will be written to first
        part.touch()
        part.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidParameterError(
            f"the page {report!r} cannot be written: {error.strerror}. Give another --report."
        ) from error


def require_apart(writes: Iterable[tuple[str, str | Path | None]], reads: Mapping[str, str | None]) -> None:
    """Raise if a run would write two things to one file, or over what it reads, or into a folder it reads.

    Args:
        writes: The option, and a file or folder that is written because of it; options may be repeated.
        reads: Files and folders that are read, by what the command calls them.
    """
    outputs = [(option, Path(place)) for option, place in writes if place is not None]
    for (first, one), (second, other) in combinations(outputs, 2):
        if first != second and _same(one, other):
            raise InvalidParameterError(f"{first} and {second} would write to one place, {str(one)!r}.")
    for option, place in outputs:
        for name, read in reads.items():
            if read is not None and _within(place, Path(read)):
                raise InvalidParameterError(
                    f"{option} would write to {str(place)!r}, which is {name} or in it. Give another one."
                )


def require_public(private: str | None, public: Mapping[str, str | None]) -> None:
    """Raise if files that must be public are the private data, or in them.

    Args:
        private: The private file or folder.
        public: Files and folders that are read as public, by the option that names them.
    """
    for option, place in public.items():
        if private is not None and place is not None and _within(Path(place), Path(private)):
            raise InvalidParameterError(
                f"{option} must be public, because what is measured on it is not protected, but {place!r} is "
                "the private data or in it. Give other data, or leave it out."
            )


def _same(one: Path, other: Path) -> bool:
    """Return whether two paths name one file, by whatever links."""
    try:
        return one.resolve() == other.resolve() or one.samefile(other)
    except OSError:  # one of them is not there
        return False


def _within(place: Path, held: Path) -> bool:
    if _same(place, held):
        return True
    try:
        return held.is_dir() and place.resolve().is_relative_to(held.resolve())
    except OSError:
        return False
