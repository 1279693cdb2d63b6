# SPDX-License-Identifier: Apache-2.0
"""Random groups of units, whose average gradient is clipped instead of each unit's own.

Guarantee  Each unit's group is drawn for that unit alone, independently of all other units and of their
           number. One unit is in one group, so it changes one clipped average.
Edge cases Groups are padded to the same number of rows with rows of zeros, whose weight is 0. A group without
           units is padding alone.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sfumato.mechanisms.random import Generator, uniform_below
from sfumato.training import distributed
from sfumato.training.data import rows

__all__ = ["RandomGroups"]


class RandomGroups:
    """Sorts the units of a batch into groups. Groups of one unit leave a batch as it is.

    >>> RandomGroups(1, expected_batch_size=10.5).expected, RandomGroups(4, expected_batch_size=10.5).expected
    (10.5, 3)
    """

    def __init__(self, group_size: int, *, expected_batch_size: float) -> None:
        self._size = group_size
        # How many units, or groups if averages are clipped, a batch is expected to have.
        self.expected = (
            expected_batch_size if group_size == 1 else max(1, round(expected_batch_size / group_size))
        )

    def weights(self, batch: Sequence[Any], row_weights: Tensor | None) -> Tensor | None:
        """Return the weights of the rows of a batch. Groups need some, so that padding can have none."""
        if row_weights is not None or self._size == 1:
            return row_weights
        return next(iter(rows.tensors(batch))).new_ones(rows.count(batch), dtype=torch.float32)

    def drawn(
        self, batch: Sequence[Any], per_unit: int, generator: Generator, *, step: int
    ) -> tuple[Sequence[Any], int]:
        """Return a batch sorted into groups, and the number of rows of each group.

        The first part of `batch` holds the weights of rows. They are divided by the size of a group, so that
        the sum over a group is its average.
        """
        if self._size == 1:
            return batch, per_unit
        distributed.refuse_groups(self._size)
        units, groups = rows.count(batch) // per_unit, int(self.expected)
        members = uniform_below(groups, units, generator.fork("groups", step))
        index = _places(torch.from_numpy(members), groups)
        flat = (index[:, :, None] * per_unit + torch.arange(per_unit)).flatten()
        with_zeros = rows.padded(batch, (units + 1) * per_unit)
        device = next(iter(rows.tensors(batch))).device
        weights, *rest = rows.take(with_zeros, flat.to(device))
        return (weights / self._size, *rest), index.shape[1] * per_unit


def _places(members: Tensor, groups: int) -> Tensor:
    """Return the units of each group, [groups, largest group]; one past the last unit if there is none."""
    units = len(members)
    order = members.argsort(stable=True)
    sizes = members.bincount(minlength=groups)
    place = torch.arange(units) - (sizes.cumsum(0) - sizes)[members[order]]
    index = torch.full((groups, int(sizes.max())), units)
    index[members[order], place] = order
    return index
