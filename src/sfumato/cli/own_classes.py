# SPDX-License-Identifier: Apache-2.0
"""The classes of the user's own data, which are public and come from flags."""

from collections.abc import Sequence

from sfumato.errors import InvalidParameterError

__all__ = ["own_classes"]

_MOST = 1_000_000


def own_classes(number: int | None, names: Sequence[str] | None) -> int | list[str]:
    """Return the number of classes, or their names."""
    if number is not None:
        if not 2 <= number <= _MOST:
            raise InvalidParameterError(f"--classes must be from 2 to {_MOST:,}, but {number} was given.")
        return number
    listed = list(names or [])
    if len(listed) < 2 or len(set(listed)) < len(listed):
        raise InvalidParameterError("pass --label for each class: two or more different names.")
    return listed
