# SPDX-License-Identifier: Apache-2.0
"""Labels as places among public classes.

A file reader chooses one type for a column: one word among numbers turns all of them into text, and one empty
cell turns whole numbers into floats. So a label is compared by what it says, and not by the type in which
it came.

Guarantee  The place of a label depends on that label and on the classes alone: "1", 1, 1.0 and True are the
           same label, whatever else is in the column. Nothing raises or warns because of a label.
Edge cases A label that says no finite number is the class of the same text, if there is one. Whole numbers
           are exact up to 2^53; other numbers are the same within 1e-12 of them, as readers of files differ
           in the last digit.
"""

import contextlib
import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["alike", "codes", "same"]

_WORDS: Final = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
_CLOSE: Final = 1e-12
_EXACT: Final = 2.0**53  # from here on neighboring whole numbers are the same float64


def codes(labels: npt.NDArray[Any], classes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return each label's place among the public classes, -1 if it is none of them.

    >>> codes(np.array(["no", "yes", "maybe"]), np.array(["no", "yes"])).tolist()
    [0, 1, -1]
    >>> codes(np.array(["1", "?", "0.0"]), np.array([0, 1])).tolist()
    [1, -1, 0]
    """
    found = np.full(len(labels), -1, dtype=np.int64)
    numbers, words = _read(labels)
    class_numbers, class_words = _read(classes)
    for place, (number, word) in enumerate(zip(class_numbers.tolist(), class_words, strict=True)):
        found[_near(numbers, number) if math.isfinite(number) else words == word] = place
    return found


def same(labels: npt.NDArray[Any], others: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which labels say the same, each pair by itself.

    >>> same(np.array(["1", "no", "?"]), np.array(["1.0", "no", "1"])).tolist()
    [True, True, False]
    """
    (numbers, words), (other_numbers, other_words) = _read(labels), _read(others)
    with np.errstate(all="ignore"):
        close = np.abs(numbers - other_numbers) <= _CLOSE * np.abs(other_numbers)
    exact = other_numbers == np.floor(other_numbers)
    near = np.where(exact, numbers == other_numbers, close)
    return near | np.array(
        [w is not None and w == v for w, v in zip(words, other_words, strict=True)], dtype=bool
    )


def alike(classes: npt.NDArray[Any]) -> tuple[Any, Any] | None:
    """Return two classes that no column could tell apart, if there are any.

    >>> alike(np.array(["1", "1.0"]))
    ('1', '1.0')
    """
    for place in range(len(classes)):
        others = codes(classes[place + 1 :], classes[place : place + 1])
        if (others == 0).any():
            return classes[place].item(), classes[place + 1 + int(others.argmax())].item()
    return None


def _near(numbers: npt.NDArray[np.float64], number: float) -> npt.NDArray[np.bool_]:
    if number.is_integer():
        return numbers == number
    with np.errstate(all="ignore"):
        return np.abs(numbers - number) <= _CLOSE * abs(number)


def _read(labels: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any]]:
    """Return what each label says: a number, NaN if it says none, and its text where it says none."""
    if labels.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            return _in_range(labels.astype(np.float64)), np.full(len(labels), None, dtype=object)
    numbers = np.full(len(labels), math.nan)
    words = np.full(len(labels), None, dtype=object)
    for place, entry in enumerate(labels.tolist()):
        numbers[place], words[place] = _said(entry)
    return _in_range(numbers), words


def _in_range(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    with np.errstate(all="ignore"):
        return np.where(np.abs(numbers) < _EXACT, numbers, math.nan)


def _said(entry: Any) -> tuple[float, str | bytes | None]:
    """Return the number that a label says, or NaN and its text."""
    plain, number = entry, math.nan
    with contextlib.suppress(Exception):  # of entries of any kind
        plain = entry.item() if isinstance(entry, np.ndarray | np.generic) and entry.ndim == 0 else entry
        if isinstance(plain, str):
            number = _WORDS.get(plain, math.nan)
            number = float(plain) if math.isnan(number) else number
        elif not isinstance(plain, bytes | list | tuple | np.ndarray | complex):
            number = float(plain)
    text = plain if isinstance(plain, str | bytes) and not math.isfinite(number) else None
    return (number if math.isfinite(number) else math.nan), text
