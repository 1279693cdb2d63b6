# SPDX-License-Identifier: Apache-2.0
"""Growing one classification tree from noisy histograms, level by level.

At each level, the class counts in the bins of some features of every node are released. Each node then
takes the split with the largest gain of the Gini index, less what noise gains by chance, or becomes a leaf.
Bins of numbers stay in order, that of missing values last. Categories are put in the order of their share of
the node's largest class; for two classes this order has the best split (Breiman et al. 1984). At last the
class counts of the leaves are released.

Guarantee  At each level a row is in at most one node, and there in one cell (bin and class) of each feature
           that is looked at. So it moves a level by a count of one in each of these features, and the leaves
           by one count. Which features a node looks at is drawn without the data. Everything else is
           computed from noisy counts: also whether a node is split, and where growing stops.
Edge cases A node without a split that leaves `_FEWEST` stddevs of noise on both sides is a leaf. The levels
           below are paid for, whether or not a node reaches them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.estimators.base import Floats
from sfumato.estimators.cell_noise import Part
from sfumato.estimators.trees.bins import Bins, Places
from sfumato.mechanisms.random import Generator, words

__all__ = ["Tree", "grow"]

Integers = npt.NDArray[np.intp]

_FEWEST = 3.0  # stddevs of the noise of a cell that a child must have in rows
_BY_CHANCE = 2.0  # of the gain that noise alone is expected to show, how much is taken off
_PRIOR = 0.5  # rows of each class that a leaf is thought to have beforehand, beside the noise
_NOISE_PRIOR = 0.25  # of a stddev, likewise


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """A fitted tree: node 0 is the root, and a leaf has feature -1."""

    feature: Integers  # [nodes]
    goes_left: npt.NDArray[np.bool_]  # [nodes, bins]
    children: Integers  # [nodes, 2]: left and right
    value: Floats  # [nodes, classes]: probabilities, of leaves

    def leaves(self, places: Places) -> Integers:
        """Return the leaf of each row, from its bins."""
        at = np.zeros(len(places), dtype=np.intp)
        moving = np.flatnonzero(self.feature[at] >= 0)
        while len(moving):
            node = at[moving]
            left = self.goes_left[node, places[moving, self.feature[node]]]
            at[moving] = self.children[node, np.where(left, 0, 1)]
            moving = moving[self.feature[at[moving]] >= 0]
        return at


def grow(
    places: Places,
    labels: npt.NDArray[np.int64],
    *,
    classes: int,
    bins: Bins,
    levels: int,
    features: int,
    level: Part,
    leaf: Part,
    generator: Generator,
) -> Tree:
    """Return a tree of so many levels, each of which looks at so many features of a node.

    Args:
        places: The bins of the rows: private.
        labels: The places of the rows' classes: private.
        classes: How many classes there are.
        bins: The bins of the features.
        levels: How many levels of splits there are at most.
        features: How many features each node looks at.
        level: The noise of the counts of one level.
        leaf: The noise of the counts of the leaves.
        generator: The source of noise, and of the features that nodes look at.

    Returns:
        The tree.
    """
    growing = _Growing(classes=classes, bins=bins, nodes=[_Node()])
    at, live = np.zeros(len(places), dtype=np.intp), [0]
    for _ in range(levels):
        looked = np.stack([_some(len(bins.sizes), features, generator) for _ in live])
        counted = _counted(places, labels, at, live, looked, growing, level, generator)
        live = growing.split(live, looked, counted, level.stddev)
        if not live:
            break
        at = growing.tree().leaves(places)
    nodes = len(growing.nodes)
    held = leaf.count(at * classes + labels, (nodes, classes), generator)
    return growing.tree(np.maximum(held, 0.0) + _PRIOR + _NOISE_PRIOR * leaf.stddev)


def _some(features: int, count: int, generator: Generator) -> Integers:
    """Return different features, drawn without the data; all of them in order, if all are wanted."""
    if count >= features:
        return np.arange(features)
    return np.argsort(words(features, generator), kind="stable")[:count].astype(np.intp)


def _counted(
    places: Places,
    labels: npt.NDArray[np.int64],
    at: Integers,
    live: list[int],
    looked: Integers,
    growing: "_Growing",
    level: Part,
    generator: Generator,
) -> Floats:
    """Return noisy class counts: [live nodes, features looked at, bins, classes]."""
    slot = np.full(len(growing.nodes), -1)
    slot[live] = np.arange(len(live))
    known = np.flatnonzero(slot[at] >= 0)
    slots, width = slot[at[known]], growing.width
    features = looked.shape[1]
    bin_ = np.take_along_axis(places[known], looked[slots], axis=1)  # [rows, features]
    cell = (slots[:, None] * features + np.arange(features)) * width + bin_
    shape = (len(live), features, width, growing.classes)
    return level.count(cell * growing.classes + labels[known][:, None], shape, generator)


@dataclass(slots=True)
class _Node:
    feature: int = -1
    left: Any = None  # the bins that go left
    children: tuple[int, int] = (0, 0)


@dataclass(kw_only=True, slots=True)
class _Growing:
    classes: int
    bins: Bins
    nodes: list[_Node]

    @property
    def width(self) -> int:
        return int(self.bins.sizes.max())

    def split(self, live: list[int], looked: Integers, counted: Floats, stddev: float) -> list[int]:
        """Split nodes where that gains something, by noisy counts; return the new nodes."""
        new: list[int] = []
        for slot, node in enumerate(live):
            found = [
                self._best(int(feature), counted[slot, i], stddev) for i, feature in enumerate(looked[slot])
            ]
            gain, feature, left = max(found, key=lambda one: one[0])
            if gain > 0:
                first = len(self.nodes)
                self.nodes += [_Node(), _Node()]
                self.nodes[node] = _Node(feature, left, (first, first + 1))
                new += [first, first + 1]
        return new

    def _best(self, feature: int, counted: Floats, stddev: float) -> tuple[float, int, Integers]:
        """Return the largest gain of a split by one feature, and the bins that go left: all public."""
        size = int(self.bins.sizes[feature])
        known = counted[:size]
        order = np.arange(size)
        if self.bins.categorical[feature]:
            order = np.argsort(_shares(known, _FEWEST * stddev), kind="stable")
        left = np.cumsum(known[order], axis=0)[:-1]
        right = np.maximum(known.sum(axis=0) - left, 0.0)
        left = np.maximum(left, 0.0)
        rows = np.stack([left.sum(axis=1), right.sum(axis=1)])
        cells = np.stack([np.arange(1, size), np.arange(size - 1, 0, -1)])  # on each side
        gains = _impurity(left + right) - _impurity(left) - _impurity(right)
        by_chance = self.classes * stddev**2 * (cells / np.maximum(rows, 1.0)).sum(axis=0)
        gains = np.where(rows.min(axis=0) > _FEWEST * stddev, gains - _BY_CHANCE * by_chance, 0.0)
        best = int(gains.argmax())
        return float(gains[best]), feature, order[: best + 1]

    def tree(self, weights: Floats | None = None) -> Tree:
        """Return the tree so far, with the probabilities that weights of classes give."""
        goes_left = np.zeros((len(self.nodes), self.width), dtype=bool)
        for at, node in enumerate(self.nodes):
            if node.feature >= 0:
                goes_left[at, node.left] = True
        weights = np.ones((len(self.nodes), self.classes)) if weights is None else weights
        return Tree(
            feature=np.array([node.feature for node in self.nodes], dtype=np.intp),
            goes_left=goes_left,
            children=np.array([node.children for node in self.nodes], dtype=np.intp),
            value=weights / weights.sum(axis=1, keepdims=True),
        )


def _shares(counted: Floats, prior: float) -> Floats:
    """Return how much of each bin is of the largest class, pulled to the share of all bins."""
    known = np.maximum(counted, 0.0)
    total = known.sum(axis=0)
    largest = int(total.argmax())
    usual = (total[largest] + 1) / (total.sum() + len(total))
    return (known[:, largest] + prior * usual) / (known.sum(axis=1) + prior)


def _impurity(counted: Floats) -> Floats:
    """Return the Gini index times the number of rows."""
    rows = counted.sum(axis=1)
    return rows - (counted**2).sum(axis=1) / np.where(rows > 0, rows, 1.0)
