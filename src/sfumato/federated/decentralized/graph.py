# SPDX-License-Identifier: Apache-2.0
"""Who talks to whom: connected graphs, and weights for averages over neighbors.

The graph is public. Weights are those of Metropolis and Hastings: for an edge between i and j,
1 / (1 + max(degree i, degree j)), and what is left to 1 for the node itself. The matrix is symmetric and
doubly stochastic, and each node has a weight above 0 for itself. So repeated averages tend to the plain
average of all nodes, and each node needs to know the degrees of its neighbors only.

Source     Xiao, Boyd and Lall 2006, "Distributed average consensus with time-varying Metropolis weights".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError

__all__ = ["Graph"]


@dataclass(frozen=True, slots=True)
class Graph:
    """An undirected connected graph.

    Args:
        nodes: How many nodes there are: 2 or more, numbered from 0.
        edges: Pairs of nodes that talk to each other, each pair once.

    Raises:
        InvalidParameterError: If an edge is not between two different nodes, is there twice, or if the graph
            is not connected.

    >>> Graph(3, ((0, 1), (2, 1))).neighbors(1)
    (0, 2)
    """

    nodes: int
    edges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        _check.count(nodes=self.nodes)
        if self.nodes < 2:
            raise InvalidParameterError("a graph needs 2 nodes or more: one alone has no neighbors.")
        edges = sorted((min(pair), max(pair)) for pair in self.edges)
        for first, last in edges:
            if not (0 <= first < last < self.nodes):
                raise InvalidParameterError(
                    f"({first}, {last}) is no edge. Use two different nodes from 0 to {self.nodes - 1}."
                )
        if len(set(edges)) < len(edges):
            raise InvalidParameterError("an edge is there twice. State each pair of neighbors once.")
        object.__setattr__(self, "edges", tuple(edges))
        if not self._connected():
            raise InvalidParameterError(
                "the graph is not connected: some nodes would never learn from others. Add edges."
            )

    @classmethod
    def ring(cls, nodes: int) -> "Graph":
        """Return a ring, in which each node has two neighbors.

        Args:
            nodes: How many nodes there are.

        Returns:
            The graph; of two nodes, one edge.
        """
        return cls(nodes, tuple({tuple(sorted((i, (i + 1) % nodes))) for i in range(nodes)}))  # pyright: ignore[reportArgumentType]

    @classmethod
    def complete(cls, nodes: int) -> "Graph":
        """Return the graph in which all nodes are neighbors.

        Args:
            nodes: How many nodes there are.

        Returns:
            The graph.
        """
        return cls(nodes, tuple(combinations(range(nodes), 2)))

    @classmethod
    def random(cls, nodes: int, *, probability: float, seed: int, tries: int = 1000) -> "Graph":
        """Return a random graph (Erdos-Renyi): the first connected one that a public seed gives.

        Args:
            nodes: How many nodes there are.
            probability: The probability of each edge.
            seed: A public seed. All nodes that know it know the graph.
            tries: How many graphs are drawn before giving up.

        Returns:
            The graph.

        Raises:
            InvalidParameterError: If a number is out of range, or no graph that was drawn is connected.
        """
        _check.rate(probability=probability)
        _check.count(nodes=nodes, tries=tries)
        pairs = list(combinations(range(nodes), 2))
        draws = np.random.default_rng(seed)
        for _ in range(tries):
            drawn = draws.random(len(pairs)) < probability
            edges = tuple(pair for pair, there in zip(pairs, drawn, strict=True) if there)
            if _reached(nodes, edges) == nodes:
                return cls(nodes, edges)
        raise InvalidParameterError(
            f"no connected graph was found in {tries} tries. Use a larger probability: log(nodes) / nodes is "
            "about the least."
        )

    def neighbors(self, node: int) -> tuple[int, ...]:
        """Return the neighbors of a node, in order.

        Args:
            node: The number of the node.

        Returns:
            Their numbers.
        """
        return tuple(sorted(b if a == node else a for a, b in self.edges if node in (a, b)))

    def weights(self) -> Tensor:
        """Return the Metropolis-Hastings weights, [nodes, nodes] of float64.

        Returns:
            A symmetric matrix whose rows and columns add up to 1.

        >>> Graph.ring(4).weights()[0]
        tensor([0.3333, 0.3333, 0.0000, 0.3333], dtype=torch.float64)
        """
        degrees = [len(self.neighbors(node)) for node in range(self.nodes)]
        weights = torch.zeros(self.nodes, self.nodes, dtype=torch.float64)
        for a, b in self.edges:
            weights[a, b] = weights[b, a] = 1 / (1 + max(degrees[a], degrees[b]))
        return weights + torch.diag(1 - weights.sum(1))

    def _connected(self) -> bool:
        return _reached(self.nodes, self.edges) == self.nodes


def _reached(nodes: int, edges: Iterable[tuple[int, int]]) -> int:
    """Return how many nodes can be reached from node 0."""
    links: dict[int, list[int]] = {node: [] for node in range(nodes)}
    for a, b in edges:
        links[a].append(b)
        links[b].append(a)
    seen, waiting = {0}, [0]
    while waiting:
        new = set(links[waiting.pop()]) - seen
        seen |= new
        waiting.extend(new)
    return len(seen)
