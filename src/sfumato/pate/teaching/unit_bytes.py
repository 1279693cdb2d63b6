# SPDX-License-Identifier: Apache-2.0
"""Bytes that identify a privacy unit: the same for equal values of one kind, in every process and version.

Guarantee  Two rows with the same value are one unit, whatever numpy or pandas type holds the value. Nothing
           here raises an error that depends on a value.
Edge cases 1, "1", b"1" and True are four units. 1 and 1.0 are one, because a missing value turns a column of
           whole numbers into floats, and must move nobody else; so are 0.0 and -0.0. A naive moment is the
           same as a date, a datetime, a `datetime64` and a `Timestamp`. None, NaN, NaT and NA, and values of
           a kind that has no bytes here (a list, an object of your own), are all one unit together: one unit
           too large is safe, one unit in two parts is not.
"""

import datetime
import decimal
import struct
import uuid
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

import numpy as np

from sfumato.errors import InvalidParameterError

__all__ = ["MISSING", "unit_bytes", "unit_values"]

MISSING: Final = b"-"  # of every value that does not identify anyone


def unit_bytes(value: object) -> bytes:
    """Return the bytes of one unit.

    Args:
        value: What identifies the unit.

    Returns:
        The bytes; the first one states the kind of value.

    >>> unit_bytes(7) == unit_bytes(np.int8(7)), unit_bytes(7) == unit_bytes("7")
    (True, False)
    """
    try:
        return _form(type(value))(value)
    except Exception:  # such as a moment beyond 64 bits: what failed must not be visible
        return MISSING


def unit_values(units: Iterable[Any]) -> list[Any]:
    """Return what identifies the unit of each row, as Python's own values where there are some.

    Args:
        units: An array, a tensor, a series or a list. Entries of a list keep their own types.

    Returns:
        The values.

    Raises:
        InvalidParameterError: If there is not one value for each row, by shape.

    >>> unit_values(np.array([3, 4], dtype=np.uint8)), unit_values([1, "1"])
    ([3, 4], [1, '1'])
    """
    if len(getattr(units, "shape", (0,))) != 1:
        raise InvalidParameterError("units must have one entry for each row: a list or an array of one axis.")
    if isinstance(units, np.ndarray) and units.dtype.kind in "mM":
        return list(units)  # its own lists have whole numbers instead of moments
    listed: Callable[[], list[Any]] | None = getattr(units, "tolist", None)
    return list(units) if listed is None else listed()


@cache
def _form(kind: type) -> Callable[[Any], bytes]:
    return next((form for kinds, form in _FORMS if issubclass(kind, kinds)), _unknown)


def _unknown(value: Any) -> bytes:
    return MISSING


def _whole(value: Any) -> bytes:
    return b"i" + format(int(value), "x").encode()


def _real(value: Any) -> bytes:
    number = float(value)
    if number.is_integer():  # -0.0 is 0 here
        return _whole(number)
    return MISSING if number != number else b"f" + struct.pack(">d", number)


def _decimal(value: Any) -> bytes:
    over, under = value.as_integer_ratio()
    return b"d%x/%x" % (over, under)


def _moment(value: Any) -> bytes:
    aware = getattr(value, "tzinfo", None) is not None
    if aware:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    exact = value.to_datetime64() if hasattr(value, "to_datetime64") else np.datetime64(value)
    if np.isnat(exact):
        return MISSING
    micro = exact.astype("datetime64[us]")
    rest = (exact - micro).astype("timedelta64[as]")  # what is finer than a microsecond
    return (b"z" if aware else b"m") + b"%d,%d" % (micro.astype(np.int64), rest.astype(np.int64))


def _several(value: Any) -> bytes:
    parts = [unit_bytes(part) for part in value]
    return b"t" + b"".join(b"%d:%s" % (len(part), part) for part in parts)


_FORMS: Final[tuple[tuple[Any, Callable[[Any], bytes]], ...]] = (
    ((bool, np.bool_), lambda value: b"b1" if value else b"b0"),  # before int, of which bool is a kind
    (str, lambda value: b"s" + value.encode("utf-8", "surrogatepass")),
    ((int, np.integer), _whole),
    ((float, np.floating), _real),
    (bytes, lambda value: b"y" + bytes(value)),
    (uuid.UUID, lambda value: b"u" + value.bytes),
    (decimal.Decimal, _decimal),
    ((datetime.date, np.datetime64), _moment),
    (tuple, _several),
)
