# SPDX-License-Identifier: Apache-2.0
"""Names of columns that an engine may take for one another.

Ibis distinguishes x from X. DuckDB and Spark do not: of two columns with these names DuckDB reads the first.
A column that replaces another in all but case would then be ignored, and with it the checks of its
expression. So names that are equal after `folded` are not used together.
"""

import unicodedata
from collections.abc import Iterable

__all__ = ["alike", "folded", "unused"]


def folded(name: str) -> str:
    """Return one form of all names that an engine could take for the same, and of some more.

    >>> folded("Straße "), folded("STRASSE"), folded("K")
    ('strasse', 'strasse', 'k')
    """
    plain = unicodedata.normalize("NFKC", name).casefold()
    return unicodedata.normalize("NFKC", plain).casefold().strip()


def alike(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first two names that an engine could take for one another, if there are any.

    >>> alike(["age", "Zip", "zip"]), alike(["age", "age"]), alike(["age", "zip"])
    (('Zip', 'zip'), ('age', 'age'), None)
    """
    seen: dict[str, str] = {}
    for name in names:
        form = folded(name)
        if form in seen:
            return seen[form], name
        seen[form] = name
    return None


def unused(wanted: str, names: Iterable[str]) -> str:
    """Return a name that cannot be taken for one of the others: the wanted one, or that with a number.

    >>> unused("X", ["x", "X (2)"])
    'X (3)'
    """
    taken, name, place = {folded(each) for each in names}, wanted, 1
    while folded(name) in taken:
        place += 1
        name = f"{wanted} ({place})"
    return name
