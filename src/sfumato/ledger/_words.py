# SPDX-License-Identifier: Apache-2.0
"""Text that people give and a ledger keeps: names, purposes, persons.

Guarantee  What comes out is one line of printable characters, of limited length, without space at the ends
           and in one Unicode form, so that two names that look the same are the same account with the same
           budget.
"""

import getpass
import importlib.metadata
import os
import unicodedata

from sfumato import _check
from sfumato.errors import InvalidParameterError

__all__ = ["code_version", "line", "this_person"]

_LONGEST = 500  # characters: a sentence or two


def line(**values: str) -> str:
    """Return the one value given, cleaned; raise where it is empty, too long or has control characters.

    >>> line(name=" credit ")
    'credit'
    """
    ((what, value),) = values.items()
    _check.text(**{what: value})
    cleaned = unicodedata.normalize("NFC", value).strip()
    if len(cleaned) > _LONGEST:
        raise InvalidParameterError(
            f"{what} must have at most {_LONGEST} characters, but it has {len(cleaned)}. Say it shorter."
        )
    if not cleaned.isprintable():
        raise InvalidParameterError(
            f"{what} must be one line of printable characters, but {value!r} was given. "
            "Leave out line breaks, tabs and invisible characters."
        )
    return cleaned


def this_person() -> str:
    """Return the name of the operating system's user."""
    try:
        return line(person=getpass.getuser())
    except (OSError, KeyError, InvalidParameterError):
        # A container may run under a number that has no name.
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "unknown user"


def code_version() -> str:
    """Return the version of sfumato that writes."""
    return importlib.metadata.version("sfumato")
