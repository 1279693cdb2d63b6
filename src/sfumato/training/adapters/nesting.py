# SPDX-License-Identifier: Apache-2.0
"""Arguments and outputs of a private module and its criterion, as nested values (`tree`).

Guarantee  A value that `refuse_unsplit` accepts has rows in tensors alone: a leaf is a tensor, an output of
           the module, None, or a plain constant that all rows share. An object that is not looked into could
           hold rows that are not split, and a list of plain values could have one for each row; both are
           refused.
"""

from enum import Enum
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from sfumato.errors import InvalidParameterError
from sfumato.training.data import tree

__all__ = ["StandIn", "Withheld", "is_constant", "refuse_unsplit", "row_count"]

_CONSTANTS: Final = (
    *(bool, int, float, complex, str, bytes, Enum),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


class StandIn:
    """Stands for a part of a module's output."""


class Withheld(StandIn):
    """Stands for a part of an output that is not handed out, because it may hold rows."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __repr__(self) -> str:
        return f"<an output of type {self._kind}, withheld>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise InvalidParameterError(
            f"the module returned a {self._kind}, which is not handed out: it may hold rows. Let the module "
            "return tensors, in tuples, lists, dicts or dataclasses."
        )


def is_constant(leaf: Any) -> bool:
    """Whether a leaf is a plain value that all rows share."""
    return leaf is None or isinstance(leaf, _CONSTANTS)


def refuse_unsplit(value: Any, *, rows: int, what: str) -> None:
    """Raise unless all rows of a value are in tensors, whose first axis has `rows` entries.

    `what` names the value in messages: "the module".
    """
    _refuse_opaque(value, what)
    sizes = {tensor.shape[0] if tensor.dim() else None for tensor in tree.tensors(value)}
    if not sizes <= {rows}:
        raise InvalidParameterError(
            f"every tensor that {what} is called with must have one row for each example of the loader's "
            "batch, on its first axis. Reshape inside of the module or the criterion, make there what all "
            "examples share, and run other rows after module.eval() or under torch.no_grad()."
        )


def _refuse_opaque(value: Any, what: str, *, listed: bool = False) -> None:
    inner = tree.parts(value)
    if inner is not None:
        for part in inner:
            _refuse_opaque(part, what, listed=isinstance(value, list))
    elif isinstance(value, Tensor | StandIn) or value is None:
        return
    elif listed or not is_constant(value):
        where = "a list with " if listed else ""
        raise InvalidParameterError(
            f"{what} is called with {where}a {type(value).__name__}. It could hold values of single rows, "
            "and only tensors are split into rows. Pass tensors with one row for each example, in tuples, "
            "lists, dicts or dataclasses, and plain constants beside them."
        )


def row_count(batch: Any) -> int:
    """Return how many rows a batch has, by its first tensor.

    >>> row_count({"text": ["a", "b"], "x": torch.zeros(2, 3)})
    2
    """
    return next((tensor.shape[0] for tensor in tree.tensors(batch) if tensor.dim()), 0)
