# SPDX-License-Identifier: Apache-2.0
"""Divide a public benchmark set among simulated clients.

This simulates a federation, to measure what one would learn. A real federation is not partitioned: its
clients hold what they hold. Partitions look at labels and at the number of rows, so use them on public data.

Guarantee  Every row belongs to exactly one client. A partition depends on the data, the number of clients and
           the seed alone.
Edge cases More clients than rows, or a small `alpha`: some clients have no row.
Source     Hsu et al. 2019, arXiv:1909.06335 (label skew by a Dirichlet distribution), in the form of Li et
           al. 2021, arXiv:2102.02079: the rows of each class are divided, so that all rows are used.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato import _check
from sfumato.datasets import Dataset, Examples
from sfumato.errors import InvalidParameterError
from sfumato.federated.clients.client_rows import AssignedRows
from sfumato.training.data import rows as row_trees

__all__ = ["by_user", "dirichlet", "iid"]

Data = Dataset | Examples | Sequence[Any]


def iid(data: Data, *, clients: int, seed: int = 0) -> AssignedRows:
    """Divide rows at random, so that all clients have equally many, up to one.

    Args:
        data: Public rows: tensors with one row an example, or a data set, whose training rows are divided.
        clients: How many clients to simulate.
        seed: The seed of the simulation. It protects nobody.

    Returns:
        The rows of each client.

    Raises:
        InvalidParameterError: If the number of clients is no positive whole number.

    >>> [len(iid((torch.arange(7),), clients=3).rows(client)[0]) for client in range(3)]
    [3, 2, 2]
    """
    _check.count(clients=clients)
    rows = _rows(data)
    order = torch.randperm(row_trees.count(rows), generator=torch.Generator().manual_seed(seed))
    assignment = torch.empty_like(order)
    assignment[order] = torch.arange(len(order)) % clients
    return AssignedRows(rows, assignment, clients=clients)


def dirichlet(data: Data, *, clients: int, alpha: float, seed: int = 0) -> AssignedRows:
    """Divide the rows of each class among clients by shares from a Dirichlet distribution.

    Args:
        data: Public rows: tensors with one row an example, the last of them labels; or a data set, whose
            training rows are divided.
        clients: How many clients to simulate.
        alpha: The concentration. Near 0, a class belongs to few clients; large values are nearly IID.
        seed: The seed of the simulation. It protects nobody.

    Returns:
        The rows of each client.

    Raises:
        InvalidParameterError: If a setting is out of range, or there is not one label for each row.

    >>> rows = torch.zeros(6, 2), torch.tensor([0, 0, 0, 1, 1, 1])
    >>> parts = dirichlet(rows, clients=3, alpha=0.3)
    >>> sum(len(parts.rows(client)[1]) for client in range(3))
    6
    """
    _check.count(clients=clients)
    _check.positive(alpha=alpha)
    rows = _rows(data)
    labels = _labels(rows)
    draws = np.random.default_rng(seed)
    assignment = torch.empty(len(labels), dtype=torch.int64)
    for label in labels.unique():
        members = (labels == label).nonzero()[:, 0].numpy()
        shares = draws.dirichlet(np.full(clients, alpha))
        ends = np.floor(shares.cumsum()[:-1] * len(members)).astype(np.int64)
        counts = np.diff(ends, prepend=0, append=len(members))
        assignment[draws.permutation(members)] = torch.from_numpy(np.repeat(np.arange(clients), counts))
    return AssignedRows(rows, assignment, clients=clients)


def by_user(data: Dataset | Examples) -> AssignedRows:
    """Make each user of a data set a client, with all of its rows.

    The clients of `load("shakespeare")` are speaking roles.

    Args:
        data: A public data set with users, whose training rows are divided; or examples with users.

    Returns:
        The rows of each client, in the order of user ids.

    Raises:
        InvalidParameterError: If the data has no user ids.

    >>> examples = Examples(torch.arange(4.0), torch.zeros(4), user_ids=torch.tensor([7, 3, 7, 7]))
    >>> [by_user(examples).rows(client)[0].tolist() for client in range(2)]
    [[1.0], [0.0, 2.0, 3.0]]
    """
    examples = data.train if isinstance(data, Dataset) else data
    if examples.user_ids is None:
        raise InvalidParameterError("this data has no user ids. Divide it with `iid` or `dirichlet`.")
    users, assignment = examples.user_ids.unique(return_inverse=True)
    return AssignedRows(examples.tensors, assignment, clients=len(users))


def _rows(data: Data) -> Sequence[Any]:
    if isinstance(data, Dataset):
        return data.train.tensors
    return data.tensors if isinstance(data, Examples) else data


def _labels(rows: Sequence[Any]) -> Tensor:
    labels = rows[-1]
    if not isinstance(labels, Tensor) or labels.dim() != 1 or labels.is_floating_point():
        raise InvalidParameterError(
            "the last tensor must have one label for each row, as whole numbers. Without labels, use `iid`."
        )
    return labels.cpu()
