# SPDX-License-Identifier: Apache-2.0
"""Nested batches: tensors inside of tuples, lists, mappings and dataclasses.

Guarantee  Walking, mapping and refilling visit the same tensors in the same order. A rebuilt container has
           the type, the names and the order of the original, which is not changed.
Edge cases Containers are tuples, named tuples, lists, mappings (`dict`, `OrderedDict`, `BatchEncoding` and
           `ModelOutput` of transformers) and dataclasses, of any depth. Everything else is a leaf, also None.
           A mapping that cannot be written to becomes a `dict`. A `UserDict` keeps its items alone: what a
           `BatchEncoding` has besides them are the texts of all its rows.
Not here   What a batch may hold besides tensors: the caller decides (`data.rows` allows None only).
"""

import copy
from collections import UserDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import fields
from typing import Any, cast

from torch import Tensor

from sfumato._containers import parts

__all__ = ["changed", "leaves", "mapped", "parts", "rebuilt", "refilled", "structure", "tensors", "zipped"]


def rebuilt(value: Any, new: Iterable[Any]) -> Any:
    """Return a container like this one that holds other parts, in the order of `parts`.

    >>> rebuilt({"a": 1, "b": 2}, [3, 4])
    {'a': 3, 'b': 4}
    """
    if isinstance(value, Mapping):
        return _rebuilt_mapping(cast("Mapping[Any, Any]", value), new)
    if isinstance(value, tuple):
        make = getattr(type(value), "_make", type(value))  # `_make` is a named tuple's
        return make(new)
    changed = copy.copy(value)
    if isinstance(value, list):
        changed[:] = new
        return changed
    for field, part in zip(fields(value), new, strict=True):
        object.__setattr__(changed, field.name, part)  # also of a frozen one: it is a new copy
    return changed


def _rebuilt_mapping(value: Mapping[Any, Any], new: Iterable[Any]) -> Any:
    named = zip(value, new, strict=True)
    if type(value) is dict or not isinstance(value, MutableMapping):
        return dict(named)
    if isinstance(value, UserDict):
        return type(value)(dict(named))
    changed = copy.copy(value)
    for key, part in list(named):
        changed[key] = part
    return changed


def leaves(value: Any) -> Iterator[Any]:
    """Yield whatever is no container, in order.

    >>> list(leaves(({"a": 1}, [None, "text"])))
    [1, None, 'text']
    """
    inner = parts(value)
    if inner is None:
        yield value
        return
    for part in inner:
        if part is None or type(part) is Tensor:  # most are: saves a generator
            yield part
        else:
            yield from leaves(part)


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors, in order; other leaves are passed over."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, Tensor))


def mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return a copy with each tensor changed; other leaves stay.

    >>> mapped(({"a": Tensor([1.0])}, "text"), len)
    ({'a': 1}, 'text')
    """
    return changed(value, lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf)


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy with each leaf changed; `change` sees them in order.

    >>> changed({"x": (1, [2])}, lambda leaf: leaf + 1)
    {'x': (2, [3])}
    """
    inner = parts(value)
    return change(value) if inner is None else rebuilt(value, [changed(part, change) for part in inner])


def refilled(value: Any, new: Iterable[Tensor]) -> Any:
    """Return a copy with the next of `new` in each tensor's place, in the order of `tensors`."""
    left = iter(new)
    return mapped(value, lambda _: next(left))


def zipped(values: Sequence[Any], join: Callable[[list[Tensor]], Any]) -> Any:
    """Return one value nested like each of these, with their tensors at the same place joined.

    >>> zipped([(Tensor([1.0]), None), (Tensor([2.0]), None)], lambda both: float(sum(both)))
    (3.0, None)
    """
    columns = zip(*(tensors(value) for value in values), strict=True)
    return refilled(values[0], [join(list(column)) for column in columns])


def structure(value: Any) -> Hashable:
    """Return how the tensors are nested, in containers of which type and under which names; no value.

    >>> structure({"a": Tensor([1.0])}) == structure({"a": Tensor([2.0])}) != structure([Tensor([1.0])])
    True
    """
    inner = parts(value)
    if inner is None:
        return type(value)
    names = tuple(cast("Mapping[Any, Any]", value)) if isinstance(value, Mapping) else ()
    return type(value), names, tuple(structure(part) for part in inner)
