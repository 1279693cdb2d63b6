# SPDX-License-Identifier: Apache-2.0
"""Belief propagation: the marginals of a distribution that is given by log-potentials over a junction tree.

The cells of a clique with the same value of the separator from its parent are a row. Upwards, each clique
adds its children's messages to its log-potential, subtracts the largest value of each row, and takes
exponentials, so that each row has a 1 in it. Its message is the logarithm of the sums of rows. Downwards, a
row is divided by its sum, which is at least 1, and multiplied by the probability of the separator's value.

Guarantee  The beliefs are the marginals of the distribution proportional to the exponential of the sum of all
           log-potentials, up to rounding. No finite log-potential makes a belief NaN or infinite.
Edge cases A log-potential of minus infinity forbids a cell. If it forbids all cells of a row, the row keeps
           probability 0; if it forbids everything, `ImpossibleError` is raised.
Source     Shafer and Shenoy 1990; Koller and Friedman 2009, Section 10.3.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.errors import SfumatoError
from sfumato.generative.tables.model.junction_tree import Clique, JunctionTree

__all__ = ["Beliefs", "Floats", "ImpossibleError", "Propagation", "aligned", "summed_to"]

Floats = npt.NDArray[np.float64]
_LARGE = 4096  # cells of a table that is summed over one axis after another
_Part = tuple[Clique, int | None]  # columns of a log-potential, or of the message of a child


class ImpossibleError(SfumatoError, ValueError):
    """A condition has probability zero."""


@dataclass(frozen=True)
class Beliefs:
    """The marginals of all cliques of a tree.

    Attributes:
        tree: The junction tree.
        axes: The columns of each table, in the order of its axes.
        tables: The probabilities of each clique's cells.
        log_total: The logarithm of the sum of exponentials, which the distribution was divided by.
    """

    tree: JunctionTree
    axes: tuple[Clique, ...]
    tables: tuple[Floats, ...]
    log_total: float


class Propagation:
    """Belief propagation for log-potentials of given columns, to be run for many values of them.

    Args:
        tree: A tree that holds the columns of every potential in one clique.
        sizes: The number of values of each column.
        cliques: The columns of the potentials.

    Raises:
        ValueError: If no clique of the tree has the columns of a potential.

    >>> tree = JunctionTree(((0, 1),), (-1,))
    >>> Propagation(tree, [2, 1], [(0,)]).run({(0,): np.log([1.0, 3.0])}).tables[0].ravel()
    array([0.25, 0.75])
    """

    def __init__(self, tree: JunctionTree, sizes: Sequence[int], cliques: Sequence[Clique]) -> None:
        self._tree = tree
        self._edges = [tuple(sizes[column] for column in separator) for separator in tree.separators]
        # Whichever is longer comes last: then numpy adds up and compares along memory, in long runs.
        self._by_row = [
            math.prod(edge) ** 2 <= math.prod(sizes[column] for column in clique)
            for clique, edge in zip(tree.cliques, self._edges, strict=True)
        ]
        self._axes = tuple(map(_order, tree.cliques, tree.separators, self._by_row))
        self._shapes = [tuple(sizes[column] for column in axes) for axes in self._axes]
        hosted: list[list[_Part]] = [[] for _ in tree.cliques]
        for columns in cliques:
            place = tree.host(columns)
            if place is None:
                raise ValueError(f"no clique of the tree has the columns {columns}.")
            hosted[place].append((columns, None))
        for child, parent in enumerate(tree.parents):
            if parent >= 0:
                hosted[parent].append((tree.separators[child], child))
        self._parts = [_in_turn(parts, sizes) for parts in hosted]

    def run(self, potentials: Mapping[Clique, Floats]) -> Beliefs:
        """Return the marginals of the cliques of the tree.

        Args:
            potentials: Log-potentials by their columns, whose order is that of the array's axes.

        Returns:
            The marginals.

        Raises:
            ImpossibleError: If every cell is forbidden.
        """
        tree, count = self._tree, len(self._axes)
        messages: dict[int, Floats] = {}
        rows, sums, log_total = list[Floats](), list[Floats](), 0.0
        for place in range(count - 1, -1, -1):
            flat = self._flat(place, self._sum_of_parts(place, potentials, messages))
            found, total, message = _row_exponentials(flat, axis=1 if self._by_row[place] else 0)
            rows.append(found)
            sums.append(total)
            messages[place] = message.reshape(self._edges[place])
            if tree.parents[place] < 0:
                log_total = float(message[0])
        if not log_total > -math.inf:
            raise ImpossibleError("every cell is forbidden, so there is no distribution.")
        return Beliefs(tree, self._axes, self._downwards(rows[::-1], sums[::-1]), log_total)

    def _flat(self, place: int, table: Floats) -> Floats:
        """Return a clique's table as [rows, cells], or as [cells, rows] if there are more rows than cells."""
        rows = math.prod(self._edges[place])
        return table.reshape((rows, -1) if self._by_row[place] else (-1, rows))

    def _sum_of_parts(
        self, place: int, potentials: Mapping[Clique, Floats], messages: Mapping[int, Floats]
    ) -> Floats:
        """Return the sum of a clique's log-potentials and of its children's messages, as its own table."""
        axes = self._axes[place]
        found: Floats = np.zeros((1,) * len(axes))
        for columns, child in self._parts[place]:
            part = aligned(potentials[columns] if child is None else messages[child], columns, axes)
            found = np.add(found, part, order="C")
        if found.shape == self._shapes[place] and self._parts[place]:
            return found
        return np.array(np.broadcast_to(found, self._shapes[place]), order="C")

    def _downwards(self, rows: list[Floats], sums: list[Floats]) -> tuple[Floats, ...]:
        """Multiply each row by the probability of its separator's value, divided by the sum of the row."""
        found: list[Floats] = []
        known: dict[tuple[int, Clique], Floats] = {}
        for place, shape in enumerate(self._shapes):
            key = self._tree.parents[place], self._tree.separators[place]
            if key[0] < 0:
                above = np.ones(1)
            else:
                if key not in known:
                    known[key] = summed_to(found[key[0]], self._axes[key[0]], key[1]).ravel()
                above = known[key]
            scale = np.divide(above, sums[place], out=np.zeros_like(above), where=sums[place] > 0)
            flat = rows[place]
            flat *= scale[:, None] if self._by_row[place] else scale
            found.append(flat.reshape(shape))
        return tuple(found)


def _in_turn(parts: list[_Part], sizes: Sequence[int]) -> list[_Part]:
    """Return parts in an order in which their sum stays small as long as possible."""
    rest, found, columns = list(parts), list[_Part](), frozenset[int]()
    while rest:
        union = {part: columns.union(part[0]) for part in rest}
        part = min(rest, key=lambda each: math.prod(sizes[column] for column in union[each]))
        columns = union[part]
        rest.remove(part)
        found.append(part)
    return found


def _order(clique: Clique, separator: Clique, by_row: bool) -> Clique:
    others = tuple(column for column in clique if column not in separator)
    return separator + others if by_row else others + separator


def _row_exponentials(flat: Floats, *, axis: int) -> tuple[Floats, Floats, Floats]:
    """Return exponentials relative to the largest value of each row, their sums, and the logarithm of both.

    The cells of a row lie along `axis`. The table is overwritten.
    """
    largest = flat.max(axis=axis)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    flat -= np.expand_dims(shift, axis)
    np.exp(flat, out=flat)
    sums = flat.sum(axis=axis)
    with np.errstate(divide="ignore"):  # the logarithm of a row whose cells are all forbidden
        return flat, sums, shift + np.log(sums)


def aligned(values: Floats, columns: Clique, axes: Clique) -> Floats:
    """Return an array with its axes in another order, and axes of length 1 for the columns it has not.

    Args:
        values: The array.
        columns: The columns of its axes.
        axes: The columns of the new axes, which hold all of the old ones.

    Returns:
        A view of the array.

    >>> aligned(np.zeros((2, 3)), (5, 1), (1, 4, 5)).shape
    (3, 1, 2)
    """
    turned = values.transpose([columns.index(column) for column in axes if column in columns])
    return turned[tuple(slice(None) if column in columns else None for column in axes)]


def summed_to(table: Floats, axes: Clique, columns: Clique) -> Floats:
    """Return the sums of a table over all but some columns.

    Args:
        table: The table.
        axes: The columns of its axes.
        columns: The columns to keep, in the order of the result.

    Returns:
        The sums.

    >>> summed_to(np.ones((2, 3)), (7, 8), (8,))
    array([2., 2., 2.])
    """
    # einsum is several times as fast as sum for tables of many axes, and one axis of a large table at a time
    # faster still. Its labels are small numbers.
    sums: Any = np.einsum  # its annotations lack this form
    kept, shape = list(range(len(axes))), table.shape
    if table.size > _LARGE:
        dropped = [place for place in kept if axes[place] not in columns]
        for place in sorted(dropped, key=lambda place: -shape[place])[:-1]:
            after = [each for each in kept if each != place]
            table, kept = sums(table, kept, after), after
    return sums(table, kept, [axes.index(column) for column in columns])
