# SPDX-License-Identifier: Apache-2.0
"""Batches as rows: tensors, nested in any way that `data.tree` knows, whose first axis counts rows.

A row is one example, or one augmented view of it. Rows are grouped into units by a public rule: `per_unit`
consecutive rows belong to one unit, whose gradients are added before clipping.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.training.data import tree
from sfumato.training.data.tree import mapped

__all__ = [
    "Grouping",
    "cloned",
    "converted",
    "count",
    "made_up",
    "mapped",
    "padded",
    "refilled",
    "repeat_to",
    "take",
    "tensors",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Grouping:
    """How many units a batch holds, and how many consecutive rows each of them has."""

    units: int
    per_unit: int = 1

    def __post_init__(self) -> None:
        _check.count(per_unit=self.per_unit)

    @property
    def rows(self) -> int:
        """The number of rows of the batch."""
        return self.units * self.per_unit

    def summed(self, per_row: Tensor) -> Tensor:
        """Add up the rows of each unit: [rows, ...] to [units, ...]."""
        if self.per_unit == 1:
            return per_row
        return per_row.unflatten(0, (self.units, self.per_unit)).sum(1)

    def spread(self, per_unit: Tensor) -> Tensor:
        """Give each row its unit's value: [units] to [rows]."""
        return per_unit if self.per_unit == 1 else per_unit.repeat_interleave(self.per_unit)


def tensors(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, in order.

    >>> [t.shape[0] for t in tensors((torch.zeros(3, 2), {"y": torch.zeros(3)}))]
    [3, 3]
    """
    for leaf in tree.leaves(batch):
        if isinstance(leaf, Tensor):
            yield leaf
        elif leaf is not None:
            raise InvalidParameterError(
                "a batch is made of tensors in tuples, lists, mappings and dataclasses, but it holds a "
                f"{type(leaf).__name__}. Convert it to a tensor with one row an example, or keep it out."
            )


def count(batch: Any) -> int:
    """Return how many rows a batch has; all its tensors must agree.

    >>> count((torch.zeros(3, 2), torch.zeros(3)))
    3
    """
    sizes = [t.shape[0] if t.dim() else None for t in tensors(batch)]
    if not sizes:
        raise InvalidParameterError("the batch holds no tensor. Pass at least one, with one row an example.")
    if None in sizes or len(set(sizes)) > 1:
        raise InvalidParameterError(
            "the tensors of a batch must have the same number of rows on their first axis, one an example. "
            "Move the batch axis to the front, and repeat what all examples share."
        )
    return int(sizes[0])  # type: ignore[arg-type]  # None was refused


def cloned(batch: Any) -> Any:
    """Return a copy of a batch."""
    return mapped(batch, Tensor.clone)


def refilled(batch: Any, parts: Iterable[Tensor]) -> Any:
    """Return a batch nested like this one, of other tensors.

    >>> refilled({"x": torch.zeros(1), "y": None}, [torch.ones(1)])
    {'x': tensor([1.]), 'y': None}
    """
    return tree.refilled(batch, parts)


def converted(batch: Any, dtype: torch.dtype) -> Any:
    """Return a batch whose floating-point tensors have another type."""
    return mapped(batch, lambda t: t.to(dtype) if t.is_floating_point() else t)


def take(batch: Any, index: slice | Tensor) -> Any:
    """Return the rows that an index or a slice selects."""
    return mapped(batch, lambda t: t[index])


def repeat_to(batch: Any, rows: int) -> Any:
    """Return a batch of exactly `rows` rows, repeating those there are from the start; one row at least.

    >>> repeat_to(torch.arange(2), 5).tolist()
    [0, 1, 0, 1, 0]
    """
    index = torch.arange(rows) % count(batch)
    return mapped(batch, lambda t: t[index.to(t.device)])


def padded(batch: Any, rows: int) -> Any:
    """Return a batch of `rows` rows: those there are, then zeros.

    Rows of zeros, never copies: a copy would let one example into the place of another.

    >>> padded(torch.ones(2), 4).tolist()
    [1.0, 1.0, 0.0, 0.0]
    """
    missing = rows - count(batch)
    return mapped(batch, lambda t: torch.cat([t, t.new_zeros((missing, *t.shape[1:]))]) if missing else t)


def made_up(batch: Any) -> Iterator[Any]:
    """Yield batches nested and shaped like this one that hold nothing of it: zeros, ones, random numbers.

    >>> [b.tolist() for b in made_up(torch.tensor([7, 8]))]
    [[0, 0], [1, 1], [1, 1]]
    """
    draws = torch.Generator().manual_seed(0)

    def drawn(t: Tensor) -> Tensor:
        random = torch.randn(t.shape, generator=draws).to(t)
        return random if t.is_floating_point() else torch.ones_like(t)

    for make in (torch.zeros_like, torch.ones_like, drawn):
        yield mapped(batch, make)
