# SPDX-License-Identifier: Apache-2.0
"""Units in columns of floats: which numbers name one unit, and not several.

Guarantee  A number names a unit if no other whole number is rounded to it. Larger ones are missing, whatever
           the other rows are: two people who are rounded to one number would be one unit, and the rows of one
           would decide which rows of the other count. An infinite number is such a one.
"""

from typing import Any

__all__ = ["apart", "told_apart"]

_DIGITS = {2: 11, 4: 24, 8: 53}  # binary digits of floats, by their size in bytes


def apart(size: int) -> float:
    """Return the first number of floats of so many bytes that stands for several whole numbers.

    >>> apart(8) == 2.0**53, apart(4) == 2.0**24
    (True, True)
    """
    return 2.0 ** _DIGITS[min(size, 8)]


def told_apart(unit: Any) -> Any:
    """Return a column of units in an engine; null where floats do not tell them apart."""
    import ibis

    kind = unit.type()
    if not kind.is_floating():
        return unit
    most = ibis.literal(apart(kind.nbytes)).cast(kind)
    return ibis.ifelse(unit.abs() < most, unit, ibis.null(kind))
