# SPDX-License-Identifier: Apache-2.0
"""JSON as releases, statements and the command line write it.

The output is JSON as in RFC 8259: a number that is not finite becomes null, because JSON has no such number.
Text, whole numbers, true and false are unchanged. Dates and times become text in ISO 8601; anything else
becomes its own text. Half of a surrogate pair, which no UTF-8 can hold, is written as its escape, such as
\\ud800.
"""

import json
from collections.abc import Mapping
from datetime import date, time
from typing import Any

import numpy as np

__all__ = ["dumps", "plain", "text"]


def dumps(value: Any) -> str:
    """Return a value as JSON.

    >>> print(dumps({"epsilon": float("inf"), "day": date(2024, 5, 1)}))
    {
      "epsilon": null,
      "day": "2024-05-01"
    }
    """
    return json.dumps(plain(value), indent=2, allow_nan=False)


def plain(value: Any) -> Any:
    """Return a value as JSON knows it: None, true, false, numbers, text, lists and objects.

    >>> plain((np.float64(0.5), np.int64(3), float("nan"), b"text"))
    [0.5, 3, None, 'text']
    """
    if isinstance(value, np.generic):
        value = value.item() if not isinstance(value, np.datetime64) else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item) for item in value]
    if isinstance(value, date | time):
        return value.isoformat()
    return text(value)


def text(value: Any) -> str:
    """Return the text of a value, as UTF-8 can hold it.

    >>> text("half of \\ud83d"), text(b"bytes")
    ('half of \\\\ud83d', 'bytes')
    """
    said = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return said.encode(errors="backslashreplace").decode()
