# SPDX-License-Identifier: Apache-2.0
"""Marginals of any columns of a calibrated junction tree, also if no clique has all of them.

Between cliques a marginal is a product of conditional probabilities along the tree: each clique is first
summed to the columns that are needed there, divided by the marginal of the separator, and multiplied with
what lies beyond it. Messages are kept, as many marginals need the same ones.

Guarantee  Post-processing of a model. The result is exact up to rounding.
Source     Koller and Friedman 2009, Section 10.3.3 (queries outside a clique).
"""

from collections.abc import Sequence

import numpy as np

from sfumato.generative.tables.model.belief_propagation import Beliefs, Floats, aligned, summed_to
from sfumato.generative.tables.model.junction_tree import Clique

__all__ = ["MarginalQueries"]


class MarginalQueries:
    """Answers questions about marginals of one calibrated tree.

    Args:
        beliefs: The marginals of the tree's cliques.
        sizes: The number of values of each column.
    """

    def __init__(self, beliefs: Beliefs, sizes: Sequence[int]) -> None:
        self._beliefs, self._sizes = beliefs, sizes
        self._messages: dict[tuple[int, int, Clique], tuple[Clique, Floats]] = {}
        self._reach: dict[tuple[int, int], frozenset[int]] = {}

    def marginal(self, columns: Clique) -> Floats:
        """Return the probabilities of the values of some columns together.

        Args:
            columns: The columns, in the order of the result's axes.

        Returns:
            The probabilities.
        """
        tree = self._beliefs.tree
        host = tree.host(columns)
        if host is not None:
            return summed_to(self._beliefs.tables[host], self._beliefs.axes[host], columns)
        root = max(range(len(tree.cliques)), key=lambda each: len(set(columns) & set(tree.cliques[each])))
        found, values = self._message(root, -1, tuple(sorted(columns)))
        return values.transpose([found.index(column) for column in columns])

    def _message(self, place: int, toward: int, wanted: Clique) -> tuple[Clique, Floats]:
        """Return P(wanted columns on this side | separator), with the columns of its axes."""
        key = place, toward, wanted
        if key not in self._messages:
            self._messages[key] = self._computed(place, toward, wanted)
        return self._messages[key]

    def _computed(self, place: int, toward: int, wanted: Clique) -> tuple[Clique, Floats]:
        tree = self._beliefs.tree
        clique = tree.cliques[place]
        separator = () if toward < 0 else tuple(c for c in clique if c in tree.cliques[toward])
        parts: list[tuple[Clique, Floats]] = []
        for other in tree.neighbors[place]:
            beyond = self._beyond(other, place)
            asked = tuple(c for c in wanted if c in beyond and c not in clique)
            if other != toward and asked:
                parts.append(self._message(other, place, asked))
        outer = {column for columns, _ in parts for column in columns}
        needed = tuple(c for c in clique if c in separator or c in wanted or c in outer)
        result = tuple(sorted({*separator, *wanted} & {*needed, *outer}))
        local = self._conditional(place, needed, separator)
        label = {column: place for place, column in enumerate(sorted({*needed, *outer}))}.__getitem__
        operands: list[object] = [local, [*map(label, needed)]]
        for columns, values in parts:
            operands += [values, [*map(label, columns)]]
        return result, np.einsum(*operands, [*map(label, result)], optimize=True)  # type: ignore[call-overload] # pairs

    def _conditional(self, place: int, needed: Clique, separator: Clique) -> Floats:
        table = summed_to(self._beliefs.tables[place], self._beliefs.axes[place], needed)
        if not separator:
            return table
        below = aligned(summed_to(table, needed, separator), separator, needed)
        return np.divide(table, below, out=np.zeros_like(table), where=below > 0)

    def _beyond(self, place: int, toward: int) -> frozenset[int]:
        """Return the columns of all cliques on the far side of an edge."""
        key = place, toward
        if key not in self._reach:
            tree = self._beliefs.tree
            found = set(tree.cliques[place])
            for other in tree.neighbors[place]:
                if other != toward:
                    found |= self._beyond(other, place)
            self._reach[key] = frozenset(found)
        return self._reach[key]
