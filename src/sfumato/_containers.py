# SPDX-License-Identifier: Apache-2.0
"""What counts as a container, for training batches and for the outputs of mechanisms.

Edge cases Containers are tuples, named tuples, lists, mappings and dataclasses. Everything else is a leaf: a
           tensor, whatever its class inherits from, and None.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

__all__ = ["parts"]


def parts(value: Any) -> list[Any] | None:
    """Return what a container holds, in order; None where the value is a leaf.

    >>> parts({"a": 1, "b": [2]}), parts((1, None)), parts("text")
    ([1, [2]], [1, None], None)
    """
    kind = _kind(type(value))
    if kind is None:
        return None
    if kind is Mapping:
        return list(value.values())
    return list(value) if kind is Sequence else [getattr(value, field.name) for field in fields(value)]


@cache
def _kind(of: type) -> Any:
    """Return what values of a type are: `Mapping`, `Sequence`, `object` for a dataclass; None for a leaf."""
    torch: Any = sys.modules.get("torch")  # where it is not imported, no type can be one of its tensors
    if torch is not None and issubclass(of, torch.Tensor):
        return None
    if issubclass(of, Mapping):  # first: a ModelOutput is a dataclass too, whose absent fields are no keys
        return Mapping
    if issubclass(of, tuple | list):
        return Sequence
    return object if is_dataclass(of) else None
