# SPDX-License-Identifier: Apache-2.0
"""What a cell of a private table says: a number, a text, or nothing, whatever the type of its column.

A file reader chooses one type for a column by looking at all of its cells: one word among numbers makes all
of them text, one empty cell turns whole numbers into floats. So a cell is read by what it says, and not by
the type in which it came: 1, 1.0, True, "1", "01" and "TRUE" are one value.

Guarantee  What is returned for a cell depends on that cell alone. Nothing raises or warns.
Edge cases Numbers are float64, rounded to 15 significant digits, because readers of files differ in the last
           bits: every decimal of at most 15 digits is one value, however it was read. As a key a number is
           below 1e15; larger and infinite ones are missing. Words that pandas takes for missing values are
           missing: it keeps them as words if the column has whole numbers beyond 63 bits. Dates and times are
           their text in ISO format, and so is text of them.
Not here   Decimals with more than 15 digits, if readers differ in them just where the 15th digit is rounded.
           Dates that a caller parsed from text in another format than ISO. Do both before rows are private.
"""

import math
import re
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from sfumato.statistics.arrays import Floats
from sfumato.statistics.columns.input_values import quietly

__all__ = ["key_of", "numbers_said", "said"]

_NUMBERS = (bool, int, float, np.floating, Decimal, Fraction)
_TRUTH: Final = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
_MISSING: Final = frozenset(
    {
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"),
        *("N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
    }
)  # the words of pandas
_ISO_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DIGITS: Final = 15  # of a decimal that float64 always holds
_LARGEST: Final = 10.0**_DIGITS  # of a number that may be a key


def said(cell: object) -> float | str | None:
    """Return what a cell says: a number, perhaps an infinite one; a text; or None if it is missing.

    >>> [said(cell) for cell in ("01", 1, True, "TRUE", "1e400", "tea", "NULL", None)]
    [1.0, 1.0, 1.0, 1.0, inf, 'tea', None, None]
    """
    plain: Any = quietly(cell.item) if isinstance(cell, np.generic) else cell
    if isinstance(plain, complex) and plain.imag == 0:
        plain = plain.real
    if isinstance(plain, str):
        return _said_by(plain)
    if isinstance(plain, date):
        return quietly(lambda: _dated(plain))
    number = _number(plain) if isinstance(plain, _NUMBERS) else math.nan
    return None if math.isnan(number) else number


def numbers_said(array: npt.NDArray[Any]) -> Floats:
    """Return the numbers that the cells of an array of numbers or booleans say.

    >>> numbers_said(np.array([0.1 + 0.2, 3.0, np.inf]))
    array([0.3, 3. , inf])
    """
    with np.errstate(all="ignore"):  # a long double may be too large
        found = array.astype(np.float64)
        rest = np.isfinite(found) & ~((found == np.floor(found)) & (np.abs(found) < _LARGEST))
    found[rest] = [_rounded(number) for number in found[rest].tolist()]
    return found


def key_of(cell: object) -> str | None:
    """Return the text by which a cell is compared with others; None if it is missing, or a too large number.

    >>> key_of(7.0), key_of("1.50"), key_of("tea"), key_of(1e15), key_of("1234567890123456789")
    ('7', '1.5', 'tea', None, None)
    """
    found = said(cell)
    if not isinstance(found, float):
        return found if isinstance(found, str) else None
    if not abs(found) < _LARGEST:
        return None
    return str(int(found)) if found.is_integer() else repr(found)


def _said_by(text: str) -> float | str | None:
    if text in _TRUTH:
        return _TRUTH[text]
    if text.strip() in _MISSING:
        return None
    try:
        number = _rounded(float(text))
    except ValueError:  # no number; the message quotes it
        time = (
            quietly(lambda: datetime.fromisoformat(text.strip())) if _ISO_DATE.match(text.strip()) else None
        )
        return text if time is None else _dated(time)
    return None if math.isnan(number) else number


def _number(plain: Any) -> float:
    try:
        return _rounded(float(plain))
    except OverflowError:  # a whole number or a fraction beyond float64
        return math.inf if cast(int, plain) > 0 else -math.inf
    except Exception:  # a signaling NaN
        return math.nan


def _rounded(number: float) -> float:
    if number.is_integer() and abs(number) < _LARGEST:
        return number
    return float(f"{number:.{_DIGITS}g}")


def _dated(day: date) -> str | None:
    """Return a date or a time as text; None for pandas' NaT, which is a date that does not equal itself."""
    if day != day:
        return None
    if not isinstance(day, datetime):
        return day.isoformat()
    midnight = day.tzinfo is None and not (day.hour or day.minute or day.second or day.microsecond)
    return day.date().isoformat() if midnight else datetime.isoformat(day)
