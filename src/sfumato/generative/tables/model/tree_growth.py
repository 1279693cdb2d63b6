# SPDX-License-Identifier: Apache-2.0
"""How large a junction tree becomes with one more clique: a quick bound for many candidates, exact for few.

A clique is added to a tree by carrying its columns along the paths between the tree's cliques that hold them.
Each clique on a path gets a new one beside it: the separators of the path there, and the columns that are
carried. That is a junction tree, so its cells are a bound, and it costs no elimination. Candidates beyond the
bound are counted exactly. A count stays valid as a lower bound, because trees only grow.

Guarantee  Nothing here reads data: sizes are public, and measured cliques were chosen from noisy results.
Edge cases The tree of greedy elimination may be larger than the bound. So what is chosen is counted exactly
           before it is used (`admits`).
"""

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise

from sfumato.generative.tables.model.junction_tree import Clique, JunctionTree, junction_tree, tree_cells

__all__ = ["TreeGrowth"]


_SURE = 4  # times the bound: elimination is hardly ever so much worse


class TreeGrowth:
    """A junction tree that grows by one clique after another.

    Args:
        sizes: The number of values of each column.

    >>> growth = TreeGrowth((2, 3, 5))
    >>> growth.add((0, 1))
    >>> growth.fitting([(0, 1), (0, 2), (1, 2)], most_cells=20), growth.admits((1, 2), most_cells=20)
    ([(0, 1), (0, 2)], False)
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = tuple(sizes)
        self._measured: list[Clique] = []
        self._least: dict[Clique, int] = {}  # cells that a candidate was once found to need
        self._paths = _Paths(junction_tree(self._sizes, ()), self._sizes)

    def add(self, clique: Clique) -> None:
        """Let the tree hold a clique.

        Args:
            clique: The columns.
        """
        if self._paths.tree.host(clique) is None:
            self._paths = _Paths(junction_tree(self._sizes, [*self._measured, clique]), self._sizes)
        self._measured.append(clique)

    def fitting(self, candidates: Iterable[Clique], *, most_cells: float) -> list[Clique]:
        """Return the candidates with which the tree has no more cells than allowed, or that it holds already.

        Args:
            candidates: Sets of columns.
            most_cells: The most cells of the tree.

        Returns:
            The candidates, in their order.
        """
        return [each for each in candidates if self._fits(each, most_cells)]

    def admits(self, clique: Clique, *, most_cells: float) -> bool:
        """Return whether the tree with a clique has no more cells than allowed, counted exactly.

        Args:
            clique: The columns.
            most_cells: The most cells of the tree.

        Returns:
            Whether it fits, or is held already.
        """
        if self._paths.tree.host(clique) is not None:
            return True
        self._least[clique] = tree_cells(self._sizes, [*self._measured, clique])
        return self._least[clique] <= most_cells

    def _fits(self, clique: Clique, most_cells: float) -> bool:
        if self._paths.tree.host(clique) is not None:
            return True
        if self._least.get(clique, 0) > most_cells:
            return False
        return _SURE * self._paths.cells_with(clique) <= most_cells or self.admits(
            clique, most_cells=most_cells
        )


class _Paths:
    """Paths between the cliques of one tree, and the cells of the cliques beside them."""

    def __init__(self, tree: JunctionTree, sizes: tuple[int, ...]) -> None:
        self.tree, self._sizes = tree, sizes
        self._sets = [frozenset(clique) for clique in tree.cliques]
        self._toward: dict[int, list[tuple[int, int]]] = {}
        self._cells: dict[frozenset[int], int] = {}

    @cached_property
    def cells(self) -> int:
        """The cells of the tree."""
        return sum(map(self._cells_of, self._sets))

    @cached_property
    def _homes(self) -> list[list[int]]:
        """The places of the cliques that have each column."""
        return [
            [p for p, clique in enumerate(self._sets) if column in clique]
            for column in range(len(self._sizes))
        ]

    def cells_with(self, wanted: Clique) -> int:
        """Return a bound on the cells of a tree that also has the wanted columns in one clique."""
        columns = frozenset(wanted)
        root = max(self._homes[wanted[0]], key=lambda place: len(columns & self._sets[place]))
        here = columns & self._sets[root]
        paths = {column: self._path(root, column) for column in columns - here}
        if len(paths) == 1:  # the last clique that has all the others is nearer
            ((column, path),) = paths.items()
            while here <= self._sets[path[1]]:
                path = path[1:]
            paths = {column: path}
        beside: dict[int, frozenset[int]] = {path[0]: columns for path in paths.values()}
        for column, path in paths.items():
            for one, two in pairwise(path):
                shared = self._sets[one] & self._sets[two]
                beside[one] = beside.get(one, frozenset()) | shared | {column}
                beside[two] = beside.get(two, frozenset()) | shared | {column}
        new = (each for place, each in beside.items() if not each <= self._sets[place])
        return self.cells + sum(map(self._cells_of, new))

    def _path(self, root: int, column: int) -> list[int]:
        """Return the places from a clique to the nearest one that has a column."""
        back = self._back(root)
        path = [min(self._homes[column], key=lambda place: back[place][0])]
        while path[-1] != root:
            path.append(back[path[-1]][1])
        return path[::-1]

    def _back(self, root: int) -> list[tuple[int, int]]:
        """Return for each clique its distance from the root, and the next clique toward it."""
        if root not in self._toward:
            found = {root: (0, root)}
            queue = [root]
            for place in queue:
                for other in self.tree.neighbors[place]:
                    if other not in found:
                        found[other] = found[place][0] + 1, place
                        queue.append(other)
            self._toward[root] = [found[place] for place in range(len(self._sets))]
        return self._toward[root]

    def _cells_of(self, columns: frozenset[int]) -> int:
        if columns not in self._cells:
            self._cells[columns] = math.prod(self._sizes[column] for column in columns)
        return self._cells[columns]
