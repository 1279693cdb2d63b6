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

__all__ = ["expected_groups", "grouped"]


def expected_groups(expected_batch_size: float, group_size: int) -> float:
    """Return how many units, or groups if averages are clipped, a batch is expected to have.

    >>> expected_groups(10.5, 1), expected_groups(10.5, 4)
    (10.5, 3)
    """
    return expected_batch_size if group_size == 1 else max(1, round(expected_batch_size / group_size))


def grouped(
    batch: Sequence[Any], per_unit: int, *, group_size: int, groups: int, generator: Generator
) -> tuple[Sequence[Any], int]:
    """Return a batch sorted into groups, and the number of rows of each group.

    The first part of `batch` holds the weights of rows. They are divided by `group_size`, so that the sum
    over a group is its average.
    """
    distributed.refuse_groups(group_size)
    units = rows.count(batch) // per_unit
    index = _places(torch.from_numpy(uniform_below(groups, units, generator)), groups)
    flat = (index[:, :, None] * per_unit + torch.arange(per_unit)).flatten()
    with_zeros = rows.padded(batch, (units + 1) * per_unit)
    device = next(iter(rows.tensors(batch))).device
    weights, *rest = rows.take(with_zeros, flat.to(device))
    return (weights / group_size, *rest), index.shape[1] * per_unit


def _places(members: Tensor, groups: int) -> Tensor:
    """Return the units of each group, [groups, largest group]; one past the last unit if there is none."""
    units = len(members)
    order = members.argsort(stable=True)
    sizes = members.bincount(minlength=groups)
    place = torch.arange(units) - (sizes.cumsum(0) - sizes)[members[order]]
    index = torch.full((groups, int(sizes.max())), units)
    index[members[order], place] = order
    return index
