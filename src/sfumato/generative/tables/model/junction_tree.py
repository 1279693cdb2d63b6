# SPDX-License-Identifier: Apache-2.0
"""Junction trees: sets of columns, arranged so that a distribution over many columns factorizes over them.

Columns are numbers 0, 1, ...; `sizes` are the numbers of their values. Two columns are joined if one measured
marginal has both. The graph is triangulated by eliminating one column after another, each time the one whose
new clique has the fewest cells.

Guarantee  Every given clique is a subset of a clique of the tree. For every column, the tree cliques that
           have it are connected (the running intersection property), so that belief propagation is exact.
Edge cases Columns without a clique get one of their own. Parts that share no column are joined by an empty
           separator.
Source     Koller and Friedman 2009, Sections 9.4 and 10.4; Jensen and Jensen 1994 (a spanning tree of largest
           separators is a junction tree).
Not here   Nothing here reads data: cliques are chosen from noisy results and public sizes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

__all__ = ["Clique", "JunctionTree", "junction_tree", "tree_cells"]

Clique = tuple[int, ...]  # numbers of columns, rising


@dataclass(frozen=True)
class JunctionTree:
    """A tree of cliques; clique 0 is the root, and a parent stands before its children.

    Attributes:
        cliques: The cliques, each with its columns in rising order.
        parents: The place of each clique's parent; -1 for the root.
    """

    cliques: tuple[Clique, ...]
    parents: tuple[int, ...]

    @cached_property
    def separators(self) -> tuple[Clique, ...]:
        """The columns that each clique shares with its parent."""
        return tuple(
            () if parent < 0 else _shared(clique, self.cliques[parent])
            for clique, parent in zip(self.cliques, self.parents, strict=True)
        )

    @cached_property
    def neighbors(self) -> tuple[tuple[int, ...], ...]:
        """The places of the cliques that each clique is joined with."""
        found: list[list[int]] = [[] for _ in self.cliques]
        for place, parent in enumerate(self.parents):
            if parent >= 0:
                found[place].append(parent)
                found[parent].append(place)
        return tuple(tuple(each) for each in found)

    @cached_property
    def _sets(self) -> tuple[frozenset[int], ...]:
        return tuple(map(frozenset, self.cliques))

    def host(self, columns: Iterable[int]) -> int | None:
        """Return the place of the shortest clique that has all of these columns, or None.

        Args:
            columns: The columns.

        Returns:
            The place.
        """
        wanted = frozenset(columns)
        holding = [place for place, clique in enumerate(self._sets) if wanted <= clique]
        return min(holding, key=lambda place: len(self.cliques[place]), default=None)


def junction_tree(sizes: Sequence[int], cliques: Iterable[Clique]) -> JunctionTree:
    """Return a junction tree whose cliques hold the given ones.

    Args:
        sizes: The number of values of each column.
        cliques: Sets of columns.

    Returns:
        The tree.

    >>> junction_tree([2, 2, 2], [(0, 1), (1, 2)]).cliques
    ((0, 1), (1, 2))
    """
    found = _maximal(_eliminated(sizes, cliques))
    order, parents = [0], {0: -1}
    near = {place: (len(_shared(found[place], found[0])), 0) for place in range(1, len(found))}
    while near:  # Prim's algorithm: always the clique that shares most with the tree
        place = max(near, key=lambda each: (near[each][0], -each))
        parents[place] = near.pop(place)[1]
        order.append(place)
        for other in near:
            shared = len(_shared(found[other], found[place]))
            if shared > near[other][0]:
                near[other] = shared, place
    position = {place: new for new, place in enumerate(order)}
    return JunctionTree(
        tuple(found[place] for place in order),
        tuple(-1 if parents[place] < 0 else position[parents[place]] for place in order),
    )


def tree_cells(sizes: Sequence[int], cliques: Iterable[Clique]) -> int:
    """Return the number of cells of all cliques of the junction tree, which is what a model holds in memory.

    Args:
        sizes: The number of values of each column.
        cliques: Sets of columns.

    Returns:
        The number of cells.

    >>> tree_cells([2, 3, 5], [(0, 1), (1, 2)])
    21
    """
    return sum(_cells(tuple(sizes), bits) for bits in _maximal_bits(_eliminated(sizes, cliques)))


def _shared(one: Clique, two: Clique) -> Clique:
    return tuple(column for column in one if column in two)


def _eliminated(sizes: Sequence[int], cliques: Iterable[Clique]) -> list[int]:
    """Return the clique of each eliminated column, as bits."""
    sizes = tuple(sizes)
    joined = [1 << column for column in range(len(sizes))]
    for clique in cliques:
        bits = sum(1 << column for column in clique)
        for column in clique:
            joined[column] |= bits
    cells = {column: _cells(sizes, joined[column]) for column in range(len(sizes))}
    found: list[int] = []
    while cells:  # of equal ones the first column
        column = min(cells, key=cells.__getitem__)
        bits = joined[column]
        found.append(bits)
        del cells[column]
        for other in _columns(bits & ~(1 << column)):
            after = (joined[other] | bits) & ~(1 << column)
            if after != joined[other]:
                joined[other], cells[other] = after, _cells(sizes, after)
    return found


@lru_cache(maxsize=1 << 16)
def _cells(sizes: tuple[int, ...], bits: int) -> int:
    return math.prod(sizes[column] for column in _columns(bits))


@lru_cache(maxsize=1 << 16)
def _columns(bits: int) -> Clique:
    return tuple(place for place in range(bits.bit_length()) if bits >> place & 1)


def _maximal_bits(found: list[int]) -> list[int]:
    """Return the cliques that no other one holds."""
    kept: list[int] = []
    for bits in sorted(set(found), key=lambda each: (-each.bit_count(), each)):
        if not any(bits & other == bits for other in kept):
            kept.append(bits)
    return kept


def _maximal(found: list[int]) -> list[Clique]:
    """Return the cliques that no other one holds, largest first."""
    return sorted(map(_columns, _maximal_bits(found)), key=lambda clique: (-len(clique), clique))
