# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.federated.flower.nodes import connected_nodes
from tests.federated.flower.local_grid import Clock, LocalGrid


class Growing(LocalGrid):
    """Each look finds one node more."""

    def get_node_ids(self):
        self.nodes[90 - len(self.nodes)] = None
        return list(self.nodes)


def found(grid, **options):
    clock = Clock()
    return connected_nodes(grid, clock=clock, sleep=clock.sleep, **options)


def test_nodes_are_returned_in_the_order_of_their_ids_once_there_are_enough():
    assert found(Growing({}), least=3, timeout=60) == (88, 89, 90)


def test_too_few_nodes_are_an_error():
    with pytest.raises(SfumatoError, match="1 nodes are connected after 5 seconds, but least_clients=2"):
        found(LocalGrid({3: None}), least=2, timeout=5)
    with pytest.raises(InvalidParameterError, match="least_clients"):
        found(LocalGrid({}), least=0, timeout=5)
