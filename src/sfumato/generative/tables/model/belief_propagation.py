# SPDX-License-Identifier: Apache-2.0
"""Belief propagation: the marginals of a distribution that is given by log-potentials over a junction tree.

A clique's table is [separator with its parent, other columns]. Upwards, each clique adds its children's
messages to its log-potential, subtracts the largest value of each row, and takes exponentials, so that each
row has a 1 in it. Its message is the logarithm of the sums of rows. Downwards, a row is divided by its sum,
which is at least 1, and multiplied by the probability of the separator's value.

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


class ImpossibleError(SfumatoError, ValueError):
    """A condition has probability zero."""


@dataclass(frozen=True)
class Beliefs:
    """The marginals of all cliques of a tree.

    Attributes:
        tree: The junction tree.
        axes: The columns of each table: the separator, then the others.
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
        self._axes = tuple(
            separator + tuple(column for column in clique if column not in separator)
            for clique, separator in zip(tree.cliques, tree.separators, strict=True)
        )
        self._shapes = [tuple(sizes[column] for column in axes) for axes in self._axes]
        self._edges = [tuple(sizes[column] for column in separator) for separator in tree.separators]
        self._hosted: list[list[Clique]] = [[] for _ in tree.cliques]
        for columns in cliques:
            place = tree.host(columns)
            if place is None:
                raise ValueError(f"no clique of the tree has the columns {columns}.")
            self._hosted[place].append(columns)

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
        whole = [self._sum_of_potentials(place, potentials) for place in range(count)]
        rows, sums, log_total = list[Floats](), list[Floats](), 0.0
        for place in range(count - 1, -1, -1):
            found, total, message = _row_exponentials(whole[place], math.prod(self._edges[place]))
            rows.append(found)
            sums.append(total)
            parent = tree.parents[place]
            if parent < 0:
                log_total = float(message[0])
            else:
                shaped = message.reshape(self._edges[place])
                whole[parent] += aligned(shaped, tree.separators[place], self._axes[parent])
        if not log_total > -math.inf:
            raise ImpossibleError("every cell is forbidden, so there is no distribution.")
        return Beliefs(tree, self._axes, self._downwards(rows[::-1], sums[::-1]), log_total)

    def _sum_of_potentials(self, place: int, potentials: Mapping[Clique, Floats]) -> Floats:
        """Return the sum of the log-potentials of a clique, as a table of its own."""
        axes, parts = self._axes[place], sorted(self._hosted[place], key=len)
        # Small tables are added up first; only the last sum is as large as the clique.
        found: Floats = np.zeros((1,) * len(axes))
        for columns in parts:
            found = found + aligned(potentials[columns], columns, axes)
        if found.shape == self._shapes[place] and found.flags.c_contiguous:
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
            flat *= scale[:, None]
            found.append(flat.reshape(shape))
        return tuple(found)


def _row_exponentials(values: Floats, rows: int) -> tuple[Floats, Floats, Floats]:
    """Return exponentials relative to the largest value of each row, their sums, and the logarithm of both.

    The table is overwritten.
    """
    flat = values.reshape(rows, -1)
    largest = flat.max(axis=1)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    flat -= shift[:, None]
    np.exp(flat, out=flat)
    sums = flat.sum(axis=1)
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
    # einsum is several times as fast as sum for tables of many axes. Its labels are small numbers.
    sums: Any = np.einsum  # its annotations lack this form
    return sums(table, range(len(axes)), [axes.index(column) for column in columns])
