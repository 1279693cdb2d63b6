# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.federated.decentralized.graph import Graph

graphs = st.one_of(
    st.builds(Graph.ring, st.integers(2, 9)),
    st.builds(Graph.complete, st.integers(2, 9)),
    st.builds(
        lambda n, seed: Graph.random(n, probability=0.6, seed=seed), st.integers(2, 9), st.integers(0, 99)
    ),
)


@given(graphs)
def test_weights_are_symmetric_doubly_stochastic_and_follow_the_edges(graph):
    weights = graph.weights()
    assert torch.equal(weights, weights.T)
    assert torch.allclose(weights.sum(0), torch.ones(graph.nodes, dtype=torch.float64))
    assert (weights.diagonal() > 0).all() and (weights >= 0).all()
    for node in range(graph.nodes):
        others = tuple(n for n in range(graph.nodes) if n != node and weights[node, n] > 0)
        assert others == graph.neighbors(node)


@given(graphs)
def test_repeated_averages_tend_to_the_average_of_all(graph):
    values = torch.arange(float(graph.nodes), dtype=torch.float64)
    mixed = torch.linalg.matrix_power(graph.weights(), 500) @ values
    assert torch.allclose(mixed, values.mean().expand_as(mixed))


def test_weights_are_those_of_metropolis_and_hastings():
    star = Graph(4, ((0, 1), (0, 2), (0, 3))).weights()
    assert star[0].tolist() == pytest.approx([1 / 4] * 4)
    assert star[1].tolist() == pytest.approx([1 / 4, 3 / 4, 0, 0])


def test_a_ring_and_a_complete_graph_have_their_edges():
    assert Graph.ring(4).edges == ((0, 1), (0, 3), (1, 2), (2, 3))
    assert Graph.ring(2).edges == ((0, 1),)
    assert len(Graph.complete(5).edges) == 10


def test_a_public_seed_gives_one_graph():
    first, again, other = (Graph.random(12, probability=0.4, seed=seed) for seed in (1, 1, 2))
    assert first == again and first != other


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        (4, ((0, 1), (2, 3)), "not connected"),
        (3, ((0, 1), (1, 1)), "no edge"),
        (3, ((0, 1), (1, 3)), "no edge"),
        (3, ((0, 1), (1, 2), (2, 1)), "twice"),
        (1, (), "2 nodes"),
    ],
)
def test_a_graph_that_cannot_be_used_is_refused(nodes, edges, message):
    with pytest.raises(InvalidParameterError, match=message):
        Graph(nodes, edges)


def test_a_random_graph_that_is_too_thin_is_refused():
    with pytest.raises(InvalidParameterError, match="larger probability"):
        Graph.random(40, probability=0.001, seed=0, tries=3)
