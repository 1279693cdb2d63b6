# SPDX-License-Identifier: Apache-2.0
"""The outputs of a private module: copies, to look at and to pass to the criterion.

Guarantee  No gradient flows through a tensor that was handed out: a backward pass that reaches one raises.
           The criterion recognizes such a tensor wherever it is in its arguments, and computes with the rows
           that it is a copy of. Whatever is done to the copy reaches no gradient.
Edge cases A row's output of shape [1, ...] is handed out as [rows, ...]; one of any other shape, such as a
           single number, as [rows, *shape].
           What is neither a tensor nor a constant, such as a cache of keys and values, is withheld.
           An output may also be passed to the module again.
Failure    A tensor that was changed in place, or that was computed from one that was handed out, is refused:
           operations on outputs outside of module and criterion could mix rows.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sfumato.errors import InvalidParameterError
from sfumato.training.adapters.nesting import StandIn

__all__ = ["HandedOut", "Output"]

_INSIDE = (
    "Compute the loss with the criterion that make_private returned, from the module's outputs as they are, "
    "and do what you do with outputs inside of it, where each row is alone."
)


class _Copy(torch.autograd.Function):
    """The place in the graph at which a backward pass is refused."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:  # type: ignore[override]
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        raise InvalidParameterError(
            f"a backward pass went through an output of the private module. {_INSIDE}"
        )


class Output(StandIn):
    """A tensor of a module's output: the `place`-th of the `call`-th call.

    `rows` is [rows, *shape of one row], with its graph; None if the call was not recorded. `shown` is what
    is handed out, and `shape` that of one row.
    """

    def __init__(self, shown: Tensor, rows: Tensor | None = None) -> None:
        self.call, self.place = 0, 0
        self.shown, self.rows = shown, rows
        self.shape = (1, *shown.shape[1:]) if rows is None else rows.shape[1:]

    def zeros(self) -> Tensor:
        """Return an output of one row, with zeros for its values."""
        return self.shown.new_zeros(self.shape)


@dataclass(frozen=True, slots=True)
class _Known:
    copy: Tensor  # held, so that no other object gets its id
    version: int
    output: Output


class HandedOut:
    """The tensors that were handed out for one batch."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def give(self, output: Output) -> Tensor:
        """Return a copy of an output, which is known from now on."""
        with torch.enable_grad():
            apart = output.shown.detach()
            copied = _Copy.apply(apart.requires_grad_()) if apart.is_floating_point() else apart.clone()
        assert isinstance(copied, Tensor)
        self._known[id(copied)] = _Known(copied, copied._version, output)
        return copied

    def find(self, tensor: Tensor) -> Output | None:
        """Return which output a tensor is a copy of; None for tensors that come from elsewhere."""
        known = self._known.get(id(tensor))
        if known is None:
            if tensor.requires_grad:
                raise InvalidParameterError(
                    "module and criterion take tensors without gradients and outputs of the module for this "
                    "batch, but a tensor was given that was computed from one, or belongs to another batch. "
                    f"{_INSIDE}"
                )
            return None
        if known.version != tensor._version:
            raise InvalidParameterError(f"an output of the module was changed in place. {_INSIDE}")
        return known.output
