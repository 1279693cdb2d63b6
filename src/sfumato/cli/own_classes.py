# SPDX-License-Identifier: Apache-2.0
"""The classes of the user's own data, which are public and come from flags."""

from collections.abc import Sequence

from sfumato import _check
from sfumato.errors import InvalidParameterError

__all__ = ["own_classes"]


def own_classes(number: int | None, names: Sequence[str] | None) -> int | list[str]:
    """Return the number of classes, or their names."""
    if number is not None:
        _check.in_range(2, 10**6, classes=number)
        return number
    listed = list(names or [])
    if len(listed) < 2 or len(set(listed)) < len(listed):
        raise InvalidParameterError("pass --label for each class: two or more different names.")
    return listed
