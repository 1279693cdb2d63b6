# SPDX-License-Identifier: Apache-2.0
"""Carry the answers of a few public rows to all public rows, along the graph of their nearest neighbors.

Each row passes what it believes to its neighbors, and answered rows also keep a part of their answer. An
answer is never fixed: if the neighbors of a row disagree with a wrong answer, they outvote it. The beliefs of
a class are then scaled to the class's share of the answers (5 are added to each class that has one);
otherwise the class with the most answers would win far from all answers.

If an `augment` is given, the distance of two rows is that of one row from the nearest of several changed
views of the other. Small rotations and shifts no longer separate rows. (On 9000 images of MNIST with 250
answers, of which 2% were wrong, this raised the share of right beliefs from 97.0% to 98.0%.)

Guarantee  Post-processing: rows are public, and answers were released and charged. Never pass private labels.
Edge cases A row that no answer reaches gets the shares of the classes. A class without an
           answer gets no belief, except in such rows. With one answered class all rows get it.
Source     Zhou, Bousquet, Lal, Weston, Schoelkopf 2004 (spreading); Zhu, Ghahramani, Lafferty 2003 (shares of
           classes). Graph: `labels.features`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sparse
import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.labels.features import (
    Neighbors,
    edges,
    k_means,
    nearest_neighbors,
    principal_components,
    spectrum,
)
from sfumato.labels.learning import Augment
from sfumato.labels.recipes import points_of
from sfumato.pate.students.answers import checked_answers

__all__ = ["Propagation", "nearest_views", "representative_rows"]

_ROWS_AT_ONCE = 512
_PRIOR_ANSWERS = 5.0  # added to each answered class: shares from few answers would be far off
_LEFT = 1e-6  # what further rounds would still change, at most


@dataclass(frozen=True, kw_only=True, slots=True)
class Propagation:
    """How answers are carried to all rows.

    Args:
        neighbors: The number of neighbors of each row. Fewer are used if there are not enough rows.
        reach: The part of a belief that comes from neighbors, between 0 and 1. Near 1, answers reach far.
        components: The number of principal components in which distances are measured, at most.
        views: The number of changed views of each row, if there is an `augment`.
        seed: The seed of the views.

    Raises:
        InvalidParameterError: If a setting is out of range.

    >>> rows = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]])
    >>> answers = [0, -1, -1, 1, -1, -1]
    >>> Propagation(neighbors=2)(rows, answers, classes=2).argmax(1)
    tensor([0, 0, 0, 1, 1, 1])
    """

    neighbors: int = 7
    reach: float = 0.95
    components: int = 100
    views: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        _check.count(neighbors=self.neighbors, components=self.components, views=self.views)
        _check.probability(reach=self.reach)
        _check.non_negative(seed=self.seed)

    def __call__(
        self,
        features: Tensor,
        answers: Any,
        *,
        classes: int,
        augment: Augment | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Return what each row is believed to be.

        Args:
            features: The public rows: images [rows, channels, height, width], or any other shape. Columns
                are compared as they are: scale them first if their units differ.
            answers: One class for each row, and -1 for rows that were not answered.
            classes: The number of classes.
            augment: Changes rows at random without changing their class, or None.
            device: The device to search neighbors on, or None for that of the features.

        Returns:
            Weights of the classes, float32 [rows, classes] on the CPU, with sum 1 in each row.

        Raises:
            InvalidParameterError: If answers do not fit, none is given, or there are fewer than two rows.
        """
        known = checked_answers(answers, classes=classes, rows=len(features))
        graph = self.graph(features, augment=augment, device=device)
        return torch.from_numpy(_spread(graph, known, classes=classes, reach=self.reach)).float()

    def graph(
        self, features: Tensor, *, augment: Augment | None = None, device: torch.device | str | None = None
    ) -> Any:
        """Return the weights of the graph of neighbors.

        Args:
            features: The public rows.
            augment: Changes rows at random without changing their class, or None.
            device: The device to search neighbors on, or None for that of the features.

        Returns:
            A symmetric sparse matrix of scipy, [rows, rows].

        Raises:
            InvalidParameterError: If there are fewer than two rows, or a value is not finite.
        """
        return edges(self._neighbors(features.to(features.device if device is None else device), augment))

    def _neighbors(self, features: Tensor, augment: Augment | None) -> Neighbors:
        count = min(self.neighbors, len(features) - 1)
        if count < 1:
            raise InvalidParameterError("propagation needs two public rows or more.")
        points = _points(features)
        found = principal_components(points, components=min(self.components, *points.shape))
        if augment is None:
            return nearest_neighbors(found.of(points), neighbors=count)
        draws = torch.Generator().manual_seed(self.seed)
        views = [found.of(_points(augment(features, draws))) for _ in range(self.views)]
        return nearest_views(found.of(points), views, neighbors=count)


def _points(features: Tensor) -> Tensor:
    """Return oriented gradients of images of 8 pixels a side or more, and other rows as they are."""
    found = points_of(features)
    return found if found.dtype == torch.float64 else found.float()


def nearest_views(points: Tensor, views: Sequence[Tensor], *, neighbors: int) -> Neighbors:
    """Return the nearest other rows of each row, by the nearest view of the other row.

    Args:
        points: The rows, [rows, columns].
        views: Views of all rows, each [rows, columns]. The rows themselves are one more view.
        neighbors: The number of neighbors of each row.

    Returns:
        The neighbors and their distances.

    Raises:
        InvalidParameterError: If there are too few rows.

    >>> near = nearest_views(torch.tensor([[0.0], [1.0], [9.0]]), [torch.tensor([[8.9], [1.0], [9.0]])],
    ...                      neighbors=1)
    >>> near.rows.flatten()  # a view of row 0 is near row 2
    tensor([1, 0, 0])
    """
    _check.count(neighbors=neighbors)
    if neighbors >= len(points):
        raise InvalidParameterError(f"neighbors={neighbors}, but there are {len(points)} rows.")
    centered = [view - points.mean(0) for view in (points, *views)]
    squares = [(view**2).sum(1) for view in centered]
    rows, distances = list[Tensor](), list[Tensor]()
    for start in range(0, len(points), _ROWS_AT_ONCE):
        part = centered[0][start : start + _ROWS_AT_ONCE]
        apart = torch.addmm(squares[0], part, centered[0].T, alpha=-2)
        for view, square in zip(centered[1:], squares[1:], strict=True):
            apart = torch.minimum(apart, torch.addmm(square, part, view.T, alpha=-2))
        apart += (part**2).sum(1, keepdim=True)
        here = torch.arange(len(part), device=points.device)
        apart[here, here + start] = math.inf
        nearest = apart.topk(neighbors, largest=False, sorted=True)
        rows.append(nearest.indices)
        distances.append(nearest.values.clamp(min=0).sqrt())
    return Neighbors(rows=torch.cat(rows), distances=torch.cat(distances))


def _spread(graph: Any, answers: np.ndarray[Any, Any], *, classes: int, reach: float) -> Any:
    """Return beliefs [rows, classes] with sum 1. Zhou et al. 2004, section 2, then shares of classes."""
    answered = np.flatnonzero(answers >= 0)
    given = np.zeros((len(answers), classes))
    given[answered, answers[answered]] = 1.0
    degrees = np.asarray(graph.sum(axis=1)).ravel()
    scale = sparse.diags(np.where(degrees > 0, degrees, 1.0) ** -0.5)
    passed = scale @ graph @ scale
    beliefs = given
    for _ in range(math.ceil(math.log(_LEFT) / math.log(reach))):
        beliefs = reach * (passed @ beliefs) + (1 - reach) * given
    mass = beliefs.sum(0)
    counts = np.where(mass > 0, given.sum(0) + _PRIOR_ANSWERS, 0.0)
    shares = counts / counts.sum()
    beliefs = beliefs * (shares / np.where(mass > 0, mass, 1.0))
    total = beliefs.sum(1, keepdims=True)
    return np.where(total > 0, beliefs / np.where(total > 0, total, 1.0), shares)


def representative_rows(
    features: Tensor,
    *,
    count: int,
    propagation: Propagation | None = None,
    augment: Augment | None = None,
    seed: int = 0,
) -> Tensor:
    """Choose public rows to ask about, by public features alone: the middle of each of `count` clusters.

    No vote is used, so the choice costs nothing. Where answers are few, rows of all kinds are meant to teach
    a student more than rows drawn at random.

    Args:
        features: The public rows.
        count: The number of rows to choose.
        propagation: The settings of the graph, or None for the defaults.
        augment: Changes rows at random without changing their class, or None.
        seed: The seed of the clusters.

    Returns:
        Row numbers, rising, int64; fewer than `count` where rows are copies of one another.

    Raises:
        InvalidParameterError: If there are fewer rows than `count`, or fewer than 8.

    >>> rows = torch.cat([torch.randn(20, 2), torch.randn(20, 2) + 50])
    >>> chosen = representative_rows(rows, count=2)
    >>> (chosen < 20).sum()
    tensor(1)
    """
    _check.count(count=count)
    settings = Propagation() if propagation is None else propagation
    if len(features) < max(count, 8):
        raise InvalidParameterError(f"count={count}, but there are {len(features)} rows (8 at least).")
    near = settings._neighbors(features, augment)  # pyright: ignore[reportPrivateUsage] - of this module
    points = spectrum(near, dimensions=min(50, len(features) // 4)).points()
    clusters = k_means(points, clusters=count, seed=seed)
    sums = torch.zeros(count, points.shape[1]).index_add_(0, clusters, points)
    centers = sums / clusters.bincount(minlength=count).clamp(min=1).unsqueeze(1)
    apart = (points - centers[clusters]).norm(dim=1)
    members = [(clusters == c).nonzero().flatten() for c in range(count)]
    return torch.stack([rows[apart[rows].argmin()] for rows in members if len(rows)]).sort().values
