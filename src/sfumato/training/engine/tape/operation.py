# SPDX-License-Identifier: Apache-2.0
"""One use of parameters by one operation, and the gradients of units that follow from it.

Guarantee  Norms and sums over a batch are computed in float32 at least. A sum over a batch is never rounded
           to a coarser type.
Unit       Consecutive rows of axis 0, as `rows.Grouping` states; the gradients of a unit's rows are added.
Not here   What an operation computes from its input and its output's gradient: one file of `rules` each.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any, ClassVar, Final, Protocol

import torch
from torch import Tensor

from sfumato.training.data.rows import Grouping

__all__ = [
    "Memory",
    "Op",
    "Pass",
    "autocast",
    "norm_dtype",
    "product",
    "squared_norm",
    "weighable",
    "weighted_sum",
    "without_autocast",
]

_LONG: Final = 1 << 19  # numbers that a CPU adds up one after another in float32 without much rounding


def autocast(x: Tensor) -> Tensor:
    """Return `x` in the type that autocast would compute with, so that it is cast and kept once."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype == torch.float32:
        return x.to(torch.get_autocast_dtype(device))
    return x


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which norms and sums are computed in the types of their operands, or in finer ones.

    Autocast would round a sum over the batch, and norms of numbers whose sum is not rounded alike.
    """
    enabled = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if enabled else nullcontext()


class Memory:
    """How many bytes of per-unit gradients one pass may keep between taking norms and adding up."""

    def __init__(self, limit: int) -> None:
        self.left = limit

    def admits(self, size: int) -> bool:
        """Whether `size` bytes are left."""
        return size <= self.left

    def take(self, size: int) -> bool:
        """Take `size` bytes, if they are left."""
        taken = self.admits(size)
        self.left -= size if taken else 0
        return taken


class Pass(Protocol):
    """What an operation knows of its pass: a tape, or another operation of it."""

    grouping: Grouping
    memory: Memory


class Op:
    """One use of parameters by one operation. Subclasses know how to read gradients off it.

    `names` maps the operation's own slots ("weight", "bias") to parameter names; only trainable ones are in.
    `grad` is the gradient of the output, rows first, once the backward pass is done.
    """

    slots: ClassVar[tuple[str, ...]] = ()

    def __init__(self, names: Mapping[str, str | None], tape: Pass) -> None:
        self.names = {slot: name for slot, name in names.items() if name is not None}
        self.grouping = tape.grouping
        self.memory = tape.memory
        self.grad: Tensor
        self._kept: dict[str, Tensor] = {}

    def saved(self) -> Sequence[Tensor]:
        """Return the tensors that must stay as they were when they were noted."""
        raise NotImplementedError

    def receive(self, grad: Tensor) -> None:
        """Take the gradient of the output, rows first."""
        self.grad = grad

    @property
    def is_half(self) -> bool:
        """Whether the units' gradients are rounded to 16 bits."""
        grad = getattr(self, "grad", None)  # it is gone if they were computed at once, in float32
        return grad is not None and grad.element_size() == 2

    def release(self) -> None:
        """Compute the gradients of all slots now, keep them whatever the limit, and drop everything else."""
        for slot in self.names:
            if slot not in self._kept:
                self._kept[slot] = self.per_unit(slot)
        del self.grad

    def squared_norm(self, slot: str) -> Tensor:
        """Return the squared norm of each unit's gradient: [units]."""
        return squared_norm(self.gradient(slot))

    def per_unit(self, slot: str) -> Tensor:
        """Compute each unit's gradient: [units, *shape]."""
        raise NotImplementedError

    def gradient(self, slot: str) -> Tensor:
        """Return each unit's gradient, [units, *shape], kept for a second use if memory allows."""
        found = self._kept.get(slot)
        if found is None:
            found = self.per_unit(slot)
            if self.memory.take(found.numel() * found.element_size()):
                self._kept[slot] = found
        return found

    def weighted_sum(self, slot: str, weights: Tensor) -> Tensor:
        """Return the sum of all units' gradients, each times its weight [units]: [*shape]."""
        return weighted_sum(self.gradient(slot), weights)

    def is_kept(self, slot: str) -> bool:
        """Whether the units' gradients are at hand, so that their weighted sum costs next to nothing."""
        return slot in self._kept

    def inner(self, slot: str, other: "Op", other_slot: str) -> Tensor:
        """Return, for each unit, the inner product with another use of the same parameter: [units]."""
        found = other.inner_with(other_slot, self, slot)
        if found is not None:
            return found
        units = self.grouping.units
        mine, theirs = (g.reshape(units, -1) for g in (self.gradient(slot), other.gradient(other_slot)))
        return torch.linalg.vecdot(mine.to(norm_dtype(mine)), theirs.to(norm_dtype(theirs)))

    def inner_with(self, slot: str, other: "Op", other_slot: str) -> Tensor | None:
        """Return `inner` if this kind of operation knows a cheap way to it with that kind, else None."""
        return None


def norm_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which norms of `x` are summed: float64 stays, anything coarser becomes float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def squared_norm(per_unit: Tensor) -> Tensor:
    """Return the squared norm of each first-axis entry: [units, ...] to [units]."""
    flat = _flat(per_unit)
    if flat.shape[1] > _LONG and not flat.is_cuda:  # its norm on a CPU would be too small by up to 1e-2
        flat = flat.to(norm_dtype(flat))
        return torch.linalg.vecdot(flat, flat)
    return torch.linalg.vector_norm(flat, dim=1, dtype=norm_dtype(flat)).square_()


def _flat(per_unit: Tensor) -> Tensor:
    return per_unit if per_unit.dim() == 2 else per_unit.reshape(per_unit.shape[0], prod(per_unit.shape[1:]))


def weighted_sum(per_unit: Tensor, weights: Tensor) -> Tensor:
    """Return the sum of all first-axis entries, each times its weight: [units, ...] to [...]."""
    flat = weighable(_flat(per_unit))
    return product(weights.to(flat.dtype)[None], flat).reshape(per_unit.shape[1:])


def weighable(x: Tensor) -> Tensor:
    """Return `x` in a type whose range is that of weights, so that they are not rounded by much.

    In float16 a weight of 1e-7, or its product with a small number, may be rounded up to twice its size.
    """
    return x.float() if x.dtype is torch.float16 else x


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right, in float32 at least.

    A sum over a batch must not be rounded to a coarser type: bfloat16 rounds it by 2^-9 of its size, so that
    one unit more could move a sum of a thousand by more than its bound.
    """
    device = left.device.type
    if torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return product(left, right)
    right = right.to(left.dtype)
    if left.dtype == norm_dtype(left):
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()
