# SPDX-License-Identifier: Apache-2.0
"""Marginals of any columns of a calibrated junction tree, also if no clique has all of them.

Between cliques a marginal is a product of conditional probabilities along the tree: each clique is first
summed to the columns that are needed there, divided by the marginal of the separator, and multiplied with
what lies beyond it. Messages and sums are kept, as many marginals need the same ones. A clique is summed over
one column after another, the largest first, so that few sums read all of its cells.

Guarantee  Post-processing of a model. The result is exact up to rounding.
Source     Koller and Friedman 2009, Section 10.3.3 (queries outside a clique).
"""

import math
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
        self._sums: dict[tuple[int, Clique], Floats] = {}
        self._conditionals: dict[tuple[int, Clique, Clique], Floats] = {}
        self._sets = [frozenset(clique) for clique in beliefs.tree.cliques]

    def marginal(self, columns: Clique) -> Floats:
        """Return the probabilities of the values of some columns together.

        Args:
            columns: The columns, in the order of the result's axes.

        Returns:
            The probabilities.
        """
        host, rising = self._beliefs.tree.host(columns), tuple(sorted(columns))
        if host is not None:
            values = self._summed(host, rising)
        else:
            wanted = frozenset(columns)
            root = max(range(len(self._sets)), key=lambda each: len(wanted & self._sets[each]))
            rising, values = self._message(root, -1, rising)
        return values.transpose([rising.index(column) for column in columns])

    def _summed(self, place: int, columns: Clique) -> Floats:
        """Return a clique's probabilities of some of its columns, in rising order."""
        key = place, columns
        if key not in self._sums:
            rest = [column for column in self._beliefs.tree.cliques[place] if column not in columns]
            if len(rest) <= 1:
                values = summed_to(self._beliefs.tables[place], self._beliefs.axes[place], columns)
            else:
                more = tuple(sorted((*columns, min(rest, key=lambda column: (self._sizes[column], column)))))
                values = summed_to(self._summed(place, more), more, columns)
            self._sums[key] = values
        return self._sums[key]

    def _message(self, place: int, toward: int, wanted: Clique) -> tuple[Clique, Floats]:
        """Return P(wanted columns on this side | separator), with the columns of its axes."""
        key = place, toward, wanted
        if key not in self._messages:
            self._messages[key] = self._computed(place, toward, wanted)
        return self._messages[key]

    def _computed(self, place: int, toward: int, wanted: Clique) -> tuple[Clique, Floats]:
        tree, inside = self._beliefs.tree, self._sets[place]
        clique = tree.cliques[place]
        separator = () if toward < 0 else tuple(c for c in clique if c in self._sets[toward])
        parts: list[tuple[Clique, Floats]] = []
        for other in tree.neighbors[place]:
            beyond = self._beyond(other, place)
            asked = tuple(c for c in wanted if c in beyond and c not in inside)
            if other != toward and asked:
                parts.append(self._message(other, place, asked))
        outer = {column for columns, _ in parts for column in columns}
        needed = tuple(c for c in clique if c in separator or c in wanted or c in outer)
        result = tuple(sorted({*separator, *wanted} & {*needed, *outer}))
        local = self._conditional(place, needed, separator)
        return result, _product([(needed, local), *parts], result)

    def _conditional(self, place: int, needed: Clique, separator: Clique) -> Floats:
        table = self._summed(place, needed)
        if not separator:
            return table
        key = place, needed, separator
        if key not in self._conditionals:
            below = aligned(summed_to(table, needed, separator), separator, needed)
            self._conditionals[key] = np.divide(table, below, out=np.zeros_like(table), where=below > 0)
        return self._conditionals[key]

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


def _product(parts: list[tuple[Clique, Floats]], result: Clique) -> Floats:
    """Return the product of tables, summed over the columns that the result has not."""
    if len(parts) == 2:
        return _pair_product(*parts[0], *parts[1], result)
    label = {column: place for place, column in enumerate(sorted({c for each, _ in parts for c in each}))}
    operands: list[object] = []
    for columns, values in parts:
        operands += [values, [label[column] for column in columns]]
    return np.einsum(*operands, [label[c] for c in result], optimize=True)  # type: ignore[call-overload] # pairs


def _pair_product(first: Clique, one: Floats, second: Clique, two: Floats, result: Clique) -> Floats:
    """Return the product of two tables as products of matrices, one for each value of shared kept columns."""
    both = [column for column in first if column in second]
    fixed, summed = ([c for c in both if (c in result) == kept] for kept in (True, False))
    left = [column for column in first if column in result and column not in both]
    right = [column for column in second if column in result and column not in both]
    sizes = dict(zip((*first, *second), (*one.shape, *two.shape), strict=True))
    shapes = [[sizes[column] for column in columns] for columns in (fixed, left, summed, right)]
    batch, rows, inner, cells = map(math.prod, shapes)
    a = one.transpose([first.index(c) for c in (*fixed, *left, *summed)]).reshape(batch, rows, inner)
    b = two.transpose([second.index(c) for c in (*fixed, *summed, *right)]).reshape(batch, inner, cells)
    order = (*fixed, *left, *right)
    found = (a @ b).reshape([*shapes[0], *shapes[1], *shapes[3]])
    return found.transpose([order.index(column) for column in result])
