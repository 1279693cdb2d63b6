# SPDX-License-Identifier: Apache-2.0
"""Functions under attack: what they are called with, and whether two of their runs can be compared.

Guarantee  Each run gets data of its own, so a function that changes its data cannot hide from the next run
           what it does to whole data. Iterators are refused.
Edge cases Objects of classes that are not known here are shared by all runs.
"""

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from sfumato._torch import is_tensor
from sfumato.audit.mechanisms.neighbor_distances import LeakError
from sfumato.audit.mechanisms.outputs import read
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import FastGenerator, SecureGenerator
from sfumato.mechanisms.random import Generator, SeededGenerator
from sfumato.testing import seeded

__all__ = [
    "by_the_neighbor",
    "copied",
    "data_of_its_own",
    "require_repeatable",
    "require_two_arguments",
    "same",
    "twins",
]

_COPIED: Final = ("collections", "numpy", "pandas", "polars", "pyarrow")  # packages of containers


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


def data_of_its_own(value: Any) -> Any:
    """Return data for one run, which later runs do not share.

    Args:
        value: The data. Containers, arrays, tensors and frames are copied; tables of databases, which nothing
            changes in place, and objects of other classes are passed on as they are.

    Returns:
        The data.

    Raises:
        InvalidParameterError: For an iterator, which the first run would use up.

    >>> rows = {"ages": [30.0]}
    >>> data_of_its_own(rows)["ages"] is rows["ages"]
    False
    """
    if isinstance(value, Iterator):
        raise InvalidParameterError(
            f"a {type(value).__name__} is used up by the first run. Pass a list: each run gets a copy of it."
        )
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(data_of_its_own(part) for part in value)
    if isinstance(value, dict):
        parts = cast(dict[Any, Any], value)
        return type(parts)((name, data_of_its_own(part)) for name, part in parts.items())
    known = is_tensor(value) or type(value).__module__.partition(".")[0] in _COPIED
    return copied(value) if known else value


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


def same(one: Any, two: Any) -> bool:
    """Return whether two answers are the same, bit for bit."""
    return read([one]).keys() == read([two]).keys()


def require_repeatable(once: Any, again: Any) -> None:
    """Refuse to judge a release that answers differently on the same data."""
    if not same(once, again):
        raise InvalidParameterError(
            "the release gives different answers on the same data with the same generator, so a difference "
            "on a neighbor shows nothing. Draw all noise from the generator that it is given. For noise "
            "from elsewhere use audit_mechanism."
        )


def twins(generator: Generator | None) -> Iterator[Generator]:
    """Yield generators with the same randomness."""
    source = seeded(0) if generator is None else generator
    if not source.seeded:
        raise InvalidParameterError(
            "both runs need the same randomness, but a secure generator does not repeat. Leave the "
            "generator out, or use sfumato.testing.seeded(n)."
        )
    while True:
        yield source.fork("replay", 0)


def by_the_neighbor(release: Callable[[Any, Generator], Any], neighbor: Any, generator: Generator) -> Any:
    """Release on the neighbor. The first run raised nothing, so an error here separates the two."""
    try:
        return release(neighbor, generator)
    except LeakError:
        raise
    except Exception as error:
        raise LeakError(
            f"the neighbor's run raises {type(error).__name__}, and the first run did not: whether there is "
            "an error depends on the data"
        ) from error
