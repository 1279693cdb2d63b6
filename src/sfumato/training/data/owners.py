# SPDX-License-Identifier: Apache-2.0
"""Which rows belong to which owner, and which of them take part in a step.

Guarantee  An owner takes part with at most `contribution_bound` of its rows, a fresh random subset if it has
           more. Their weights add up to 1, so that its gradients are averaged before they are clipped.
Edge cases Owners are whole numbers in a tensor, or names or numbers in any sequence: what is equal is one
           owner, and 7 is not "7". Rows whose owner is missing (None, NaN) take part in no step.
           Owners with fewer rows than others are padded with copies of their own rows at weight 0: never with
           another owner's row, nor with a row of zeros, whose loss might not be a number.
Failure    Owners that cannot be told apart by their values are refused, and not shown.
"""

from collections.abc import Hashable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator, words

__all__ = ["Owned"]


class Owned:
    """Which rows belong to which owner."""

    def __init__(self, owners: Tensor, contribution_bound: int, present: Tensor | None = None) -> None:
        rows = np.arange(len(owners)) if present is None else np.flatnonzero(present.numpy())
        _, members, counts = np.unique(owners.cpu().numpy()[rows], return_inverse=True, return_counts=True)
        self._order = rows[np.argsort(members, kind="stable")]
        self._counts = counts
        self._starts = np.cumsum(counts) - counts
        self._bound = contribution_bound

    @classmethod
    def of(
        cls, owners: Tensor | Sequence[Hashable] | None, contribution_bound: int | None, count: int
    ) -> "Owned | None":
        """Return None if rows are the units."""
        if owners is None:
            if contribution_bound is not None:
                raise InvalidParameterError(
                    "contribution_bound bounds the rows of one owner. Say who owns each row with owners=..., "
                    "or leave it out: a unit is then one row."
                )
            return None
        if contribution_bound is None:
            raise InvalidParameterError(
                "rows have owners, so one unit may own many: pass contribution_bound, the most rows of one "
                "owner that take part in a step. To protect single rows instead, pass the tensors without "
                "owners."
            )
        _check.count(contribution_bound=contribution_bound)
        numbers = owners if isinstance(owners, Tensor) else _numbers(owners)
        if numbers.dim() != 1 or numbers.is_floating_point() or numbers.is_complex():
            raise InvalidParameterError(
                "owners must be a tensor of whole numbers, one for each row, or names."
            )
        if len(numbers) != count:
            raise InvalidParameterError(
                "owners must have one entry for each row of the data, but it has another number."
            )
        return cls(numbers, contribution_bound, None if numbers is owners else numbers >= 0)

    def __len__(self) -> int:
        return len(self._counts)

    def held(self) -> tuple[Tensor, Tensor]:
        """Return the numbers of all rows, owner after owner, and how many each has."""
        return torch.from_numpy(self._order), torch.from_numpy(self._counts)

    def first_rows(self, units: Tensor) -> Tensor:
        """Return the numbers of the first rows of some owners, at most `contribution_bound` of each."""
        found = [self._order[self._starts[u] :][: min(self._counts[u], self._bound)] for u in units.tolist()]
        return torch.from_numpy(np.concatenate(found))

    def draw(self, units: Tensor, generator: Generator | None) -> tuple[Tensor, int, Tensor]:
        """Return rows of some owners: their numbers, how many each owner has here, and their weights."""
        shuffled, starts, counts = self._shuffled(units.numpy(), generator)
        taken = np.minimum(counts, self._bound)
        width = int(taken.max())
        place = np.arange(width)[None, :]
        index = shuffled[starts[:, None] + place % taken[:, None]]  # [owners, width]
        weights = np.where(place < taken[:, None], 1.0 / taken[:, None], 0.0)
        flat = torch.from_numpy(index.reshape(-1))
        return flat, width, torch.from_numpy(weights.reshape(-1)).to(torch.float32)

    def _shuffled(self, units: Any, generator: Generator | None) -> tuple[Any, Any, Any]:
        """Return owners' rows, each owner's in random order; where each owner begins, and how many it has."""
        counts = self._counts[units]
        starts = np.cumsum(counts) - counts
        owner = np.repeat(np.arange(len(units)), counts)
        place = np.arange(len(owner)) - starts[owner]
        order = np.lexsort((words(len(owner), generator), owner))
        return self._order[self._starts[units][owner] + place][order], starts, counts


def _numbers(owners: Sequence[Hashable]) -> Tensor:
    """Return a number for each row's owner, -1 for a missing one."""
    from sfumato.statistics.columns.input_values import objects_of  # here: training starts without statistics
    from sfumato.statistics.columns.row_owners import numbered_owners

    if isinstance(owners, str | bytes | Mapping | Set):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError("owners must be a sequence with one entry for each row.")
    numbers, _ = numbered_owners(objects_of(owners, what="owners"))
    return torch.from_numpy(numbers)
