# SPDX-License-Identifier: Apache-2.0
"""Validation of the texts in a ledger: names, purposes, persons.

Guarantee  The result is one line of visible characters, of limited length, without space at the ends and
           in one Unicode form. Names are in the compatibility form (NFKC), and `spelling` tells which of them
           differ only in upper and lower case.
Not here   Letters of different alphabets that look alike stay different names.
"""

import getpass
import importlib.metadata
import os
import re
import unicodedata
from typing import Literal

from sfumato import _check
from sfumato.errors import InvalidParameterError

__all__ = ["code_version", "line", "name", "spelling", "this_person"]

_LONGEST = 500  # characters: a sentence or two

# Characters that Unicode says to draw as nothing (Default_Ignorable_Code_Point): two texts that differ by one
# look the same. Python calls many of them printable.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)


def line(**values: str) -> str:
    """Return the one value given, cleaned; raise if it is empty, too long or has invisible characters.

    >>> line(purpose=" mean of x² ")
    'mean of x²'
    """
    ((what, value),) = values.items()
    return _cleaned(what, value, "NFC")


def name(**values: str) -> str:
    """Return the one name given, cleaned as a line is, and in the compatibility form.

    >>> name(name=" ｃredit²")
    'credit2'
    """
    ((what, value),) = values.items()
    return _cleaned(what, value, "NFKC")


def spelling(name: str) -> str:
    """Return what all spellings of a name that differ only in upper and lower case have in common."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _cleaned(what: str, value: str, form: Literal["NFC", "NFKC"]) -> str:
    _check.text(**{what: value})
    cleaned = unicodedata.normalize(form, value).strip()
    if len(cleaned) > _LONGEST:
        raise InvalidParameterError(
            f"{what} must have at most {_LONGEST} characters, but it has {len(cleaned)}. Shorten it."
        )
    if not cleaned.isprintable() or _INVISIBLE.search(cleaned):
        raise InvalidParameterError(
            f"{what} must be one line of printable characters, but {value!a} was given. "
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
