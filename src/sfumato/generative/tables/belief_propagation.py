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

import numpy as np
import numpy.typing as npt

from sfumato.errors import SfumatoError
from sfumato.generative.tables.junction_tree import Clique, JunctionTree

__all__ = ["Beliefs", "Floats", "ImpossibleError", "aligned", "calibrated", "summed_to"]

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


def axes_of(tree: JunctionTree) -> tuple[Clique, ...]:
    """Return the columns of each clique's table: those shared with the parent, then the others.

    Args:
        tree: The tree.

    Returns:
        The columns.
    """
    return tuple(
        separator + tuple(column for column in clique if column not in separator)
        for clique, separator in zip(tree.cliques, tree.separators, strict=True)
    )


def calibrated(tree: JunctionTree, sizes: Sequence[int], potentials: Mapping[Clique, Floats]) -> Beliefs:
    """Return the marginals of the cliques of a tree.

    Args:
        tree: A tree that holds the columns of every potential in one clique.
        sizes: The number of values of each column.
        potentials: Log-potentials by their columns, whose order is that of the array's axes.

    Returns:
        The marginals.

    Raises:
        ImpossibleError: If every cell is forbidden.

    >>> tree = JunctionTree(((0, 1),), (-1,))
    >>> calibrated(tree, [2, 1], {(0,): np.log([1.0, 3.0])}).tables[0].ravel()
    array([0.25, 0.75])
    """
    axes = axes_of(tree)
    hosted = _hosted(tree, sizes, axes, potentials)
    rows: list[Floats] = [np.empty(0)] * len(axes)  # exponentials, whose largest in each row is 1
    sums: list[Floats] = [np.empty(0)] * len(axes)
    log_total = 0.0
    for place in range(len(axes) - 1, -1, -1):
        rows[place], sums[place], message = _row_exponentials(
            hosted[place], math.prod(sizes[c] for c in tree.separators[place])
        )
        parent = tree.parents[place]
        if parent < 0:
            log_total = float(message[0])
        else:
            shaped = message.reshape([sizes[c] for c in tree.separators[place]])
            hosted[parent] = hosted[parent] + aligned(shaped, tree.separators[place], axes[parent])
    if not log_total > -math.inf:
        raise ImpossibleError("every cell is forbidden, so there is no distribution.")
    return Beliefs(tree, axes, tuple(_downwards(tree, sizes, axes, rows, sums)), log_total)


def _hosted(
    tree: JunctionTree, sizes: Sequence[int], axes: Sequence[Clique], potentials: Mapping[Clique, Floats]
) -> list[Floats]:
    """Return the sum of the log-potentials of each clique's table, writable."""
    whole: list[Floats] = [np.zeros([sizes[c] for c in each]) for each in axes]
    for columns, values in potentials.items():
        place = tree.host(columns)
        if place is None:
            raise ValueError(f"no clique of the tree has the columns {columns}.")
        whole[place] += aligned(values, columns, axes[place])
    return whole


def _row_exponentials(values: Floats, rows: int) -> tuple[Floats, Floats, Floats]:
    """Return exponentials relative to the largest value of each row, their sums, and the logarithm of both."""
    flat = values.reshape(rows, -1)
    largest = flat.max(axis=1)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    found = flat - shift[:, None]
    np.exp(found, out=found)
    sums = found.sum(axis=1)
    with np.errstate(divide="ignore"):  # the logarithm of a row whose cells are all forbidden
        return found.reshape(values.shape), sums, shift + np.log(sums)


def _downwards(
    tree: JunctionTree,
    sizes: Sequence[int],
    axes: Sequence[Clique],
    rows: list[Floats],
    sums: list[Floats],
) -> list[Floats]:
    found: list[Floats] = []
    for place, each in enumerate(axes):
        parent, separator = tree.parents[place], tree.separators[place]
        above = np.ones(1) if parent < 0 else summed_to(found[parent], axes[parent], separator).ravel()
        scale = np.divide(above, sums[place], out=np.zeros_like(above), where=sums[place] > 0)
        flat = rows[place].reshape(len(scale), -1)
        flat *= scale[:, None]
        found.append(flat.reshape([sizes[c] for c in each]))
    return found


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
    kept = tuple(column for column in axes if column in columns)
    other = tuple(place for place, column in enumerate(axes) if column not in columns)
    found = table.sum(axis=other) if other else table
    return found.transpose([kept.index(column) for column in columns])
