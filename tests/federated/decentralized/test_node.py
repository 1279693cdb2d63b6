# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from torch import nn

from sfumato.federated.clients.client_rows import LazyRows
from sfumato.federated.clients.local_training import LocalTraining
from sfumato.federated.decentralized.graph import Graph
from sfumato.federated.decentralized.node import Node
from sfumato.federated.decentralized.processes import node_generator
from sfumato.federated.decentralized.protection import ClippedUpdates, state_of
from sfumato.federated.messages.clipped_noise import ClippedNoise
from sfumato.mechanisms.tensors import gaussian

CLIP, SLACK, ROUNDS, SEED = 0.5, 1e-4, 6, 7
GRAPH = Graph.ring(4)
NOISE = ClippedNoise(noise_multiplier=1.0, clip_norm=CLIP)
PROTECTION = ClippedUpdates(noise=NOISE, local=LocalTraining(learning_rate=2.0, batch_size=4))


def rows_of(node, label):
    features = torch.randn(8, 3, generator=torch.Generator().manual_seed(node)) + 1
    return features, torch.full((8,), label, dtype=torch.int64)


def model_of():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def nodes_of(changed=None, kind=Node):
    """Return four nodes; the rows of node 0 are those of `changed`, if given."""

    def read(node):
        return changed if node == 0 and changed is not None else rows_of(node, node % 2)

    clients = LazyRows(read, clients=4, like=rows_of(0, 0))
    weights, model = GRAPH.weights(), model_of()
    return [
        kind(
            n,
            {m: float(weights[n, m]) for m in (n, *GRAPH.neighbors(n))},
            state_of(model),
            PROTECTION.open(model_of(), clients, node=n, generator=node_generator(SEED, n)),
        )
        for n in range(4)
    ]


def transcript(nodes):
    """Run all nodes, and return all messages by round."""
    heard = []
    for step in range(ROUNDS):
        heard.append({node.number: node.message(step) for node in nodes})
        for node in nodes:
            node.mix(heard[-1])
    return heard


def noise_of(node, step):
    """Return the noise in the update of a round, which only the seed tells."""
    stddev = NOISE.noise_multiplier * CLIP
    return gaussian((8,), stddev=stddev, generator=node_generator(SEED, node).fork("noise", step))


class KeepsItsModel(Node):
    """A planted bug: the node averages with its own model before noise."""

    def message(self, step):
        self.sent = super().message(step)
        self.exact = self.sent + noise_of(self.number, step)
        return self.sent

    def mix(self, messages):
        super().mix({**messages, self.number: self.exact})


def unexplained(kind):
    """Return the largest part of a message that neither earlier messages nor its noise explain."""
    heard = transcript(nodes_of(kind=kind))
    outsiders = nodes_of()  # an outsider knows the graph and the first state, and averages what it heard
    most = 0.0
    for step, messages in enumerate(heard):
        for node in outsiders:
            learned = node.state - messages[node.number] - noise_of(node.number, step)
            most = max(most, float(learned.norm()))
            node.mix(messages)
    return most


def largest_move(kind):
    """Return how far other rows of node 0 move its next message, given the same messages before."""
    first = nodes_of(rows_of(0, 0), kind=kind)
    heard = transcript(first)
    moves = []
    for changed in (rows_of(0, 0), rows_of(0, 1), (torch.full((8, 3), math.nan), rows_of(0, 1)[1])):
        node, moved = nodes_of(changed, kind=kind)[0], []
        for step, messages in enumerate(heard):
            moved.append(float((node.message(step) - messages[0]).norm()))
            node.mix(messages)
        moves.append(moved)
    assert max(moves[0]) < SLACK  # the same rows: the same messages
    return max(max(moved) for moved in moves)


def test_each_message_is_the_public_state_plus_one_clipped_update_and_its_noise():
    assert CLIP / 2 < unexplained(Node) <= CLIP * (1 + SLACK)


def test_other_rows_of_a_node_move_its_next_message_by_at_most_two_clip_norms():
    assert CLIP < largest_move(Node) <= 2 * CLIP * (1 + SLACK)


def test_a_node_that_keeps_its_model_without_noise_is_caught():
    assert unexplained(KeepsItsModel) > CLIP * (1 + SLACK)
    assert largest_move(KeepsItsModel) > 2 * CLIP * (1 + SLACK)


def one(weights):
    return Node(1, weights, torch.zeros(2), lambda state, step: state + 1)


def test_a_state_becomes_the_weighted_average():
    node = one({0: 0.25, 1: 0.5, 2: 0.25})
    node.mix(
        {
            0: torch.tensor([4.0, 0.0]),
            1: torch.ones(2),
            2: torch.tensor([0.0, 8.0]),
            9: torch.full((2,), 99.0),
        }
    )
    assert node.state.tolist() == [1.5, 2.5]


BAD = [
    None,
    torch.tensor([math.nan, 0.0]),
    torch.tensor([math.inf, 0.0]),
    torch.zeros(3),
    torch.zeros(2).double(),
]


@pytest.mark.parametrize("bad", BAD)
def test_what_is_missing_or_not_a_message_contributes_nothing(bad):
    node = one({0: 0.25, 1: 0.5, 2: 0.25})
    node.mix({1: torch.ones(2), 2: torch.full((2,), 4.0)} | ({} if bad is None else {0: bad}))
    assert node.state.tolist() == [2.0, 2.0]  # (0.5 * 1 + 0.25 * 4) / 0.75


def test_a_node_without_any_message_keeps_its_state():
    node = one({0: 0.5, 1: 0.5})
    node.mix({1: torch.tensor([math.nan, 0.0])})
    assert node.state.tolist() == [0.0, 0.0]


def test_a_state_is_not_shared_with_the_message():
    node = one({1: 1.0})
    start = node.state
    assert node.message(0).tolist() == [1.0, 1.0] and start.tolist() == [0.0, 0.0]
