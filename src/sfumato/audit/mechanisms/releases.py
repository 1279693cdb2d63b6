# SPDX-License-Identifier: Apache-2.0
"""Functions under attack: what they are called with.

Guarantee  Each run gets data of its own, so a function that changes its data, or uses up an iterator, cannot
           hide from the next run what it does to whole data.
"""

import copy
import inspect
from collections.abc import Callable
from typing import Any

from sfumato._torch import is_tensor
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import FastGenerator, SecureGenerator
from sfumato.mechanisms.random import SeededGenerator

__all__ = ["copied", "require_two_arguments"]


def copied(value: Any) -> Any:
    """Return a copy that later changes of the value do not affect.

    Args:
        value: Numbers, arrays, tensors, tables, or containers of these.

    Returns:
        The copy.

    Raises:
        InvalidParameterError: If the value cannot be copied.

    >>> rows = [[1.0], [2.0]]
    >>> copied(rows) == rows, copied(rows)[0] is rows[0]
    (True, False)
    """
    if isinstance(value, SecureGenerator | SeededGenerator | FastGenerator):
        return value  # no data, and it refuses to be copied
    if is_tensor(value):
        return value.detach().clone()
    if type(value) in (tuple, list):
        return type(value)(copied(part) for part in value)
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise InvalidParameterError(
            f"a {type(value).__name__} cannot be copied, so changes to it would be missed. Pass numbers, "
            "arrays, or lists of these."
        ) from error


def require_two_arguments(release: Callable[..., Any]) -> None:
    """Raise if a function cannot be called with data and a generator.

    Args:
        release: The function.

    Raises:
        InvalidParameterError: If it takes fewer or more arguments than these two.

    >>> require_two_arguments(lambda data: 0)
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: the function is called with two arguments, data and a generator. ...
    """
    try:
        inspect.signature(release).bind(None, None)
    except TypeError:
        raise InvalidParameterError(
            "the function is called with two arguments, data and a generator. If it draws its noise by "
            "itself, wrap it: lambda data, generator: function(data)."
        ) from None
    except ValueError:  # functions of C have no signature
        return
