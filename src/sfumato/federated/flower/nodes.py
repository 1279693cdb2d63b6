# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a grid are the clients of a run.

The nodes that are connected at the start, in the order of their ids, are the clients 0, 1, 2 ... of the run.
Nodes that join later are not sampled in it. Who operates the server knows how many nodes are connected, so
their number is public (`public_size`), unless another number is given.
"""

import time
from collections.abc import Callable
from itertools import pairwise

from flwr.serverapp import Grid

from sfumato import _check
from sfumato.errors import SfumatoError

__all__ = ["connected_nodes"]

_PAUSE = 1.0  # seconds between two looks


def connected_nodes(
    grid: Grid,
    *,
    least: int,
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[int, ...]:
    """Wait until there are enough nodes; return their ids in order.

    Raises:
        SfumatoError: If there are not enough within the time.
    """
    _check.count(least_clients=least)
    _check.positive(timeout=timeout)
    end = clock() + timeout
    while True:
        nodes = tuple(sorted(grid.get_node_ids()))
        if len(nodes) >= least and all(one != other for one, other in pairwise(nodes)):
            return nodes
        if clock() >= end:
            raise SfumatoError(
                f"{len(nodes)} nodes are connected after {timeout:g} seconds, but least_clients={least}. "
                "Start more SuperNodes, wait longer (timeout=...), or ask for fewer."
            )
        sleep(_PAUSE)
