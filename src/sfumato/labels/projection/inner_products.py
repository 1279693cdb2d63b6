# SPDX-License-Identifier: Apache-2.0
"""The nearest point in a convex hull, from inner products of its columns.

As `column_generation`, with three differences. Slopes and gaps come from inner products (`column_factors`),
in float64, so no iteration passes through the model. An iteration waits for the device twice, however many
columns have weight. And a target that is small beside the columns is projected on their span: each row has
weights that combine to zero, and adding these makes the weights of a projection on the span positive. If
their total is then at most 1, the projection on the span lies in the hull, so it is the nearest point. That
takes one system of linear equations, where almost every column has weight in the end.

Guarantee  Post-processing: features, weights and a target that is already noisy. No label is used. The result
           carries a bound on its distance to the nearest point (`hull`), whatever happened before. The bound
           is for the exact combination of the columns; the returned one is rounded to the type of the target.
Edge cases Columns that are not finite raise InvalidParameterError.
Source     von Hohenbalken 1977 (simplicial decomposition).
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfumato.errors import InvalidParameterError
from sfumato.labels.projection.column_factors import ColumnFactors
from sfumato.labels.projection.hull import Problem, Projection, measured, relative_gap
from sfumato.labels.projection.quadratic import minimize_on_simplex

__all__ = ["HullSettings", "project"]

Array = NDArray[Any]

_NEAR_ZERO: Final = 0.9  # weight left at the start, whose combination is zero: then the target is small
_RIDGE: Final = 1e-9  # of columns of length 1: directions that are rounding of float32 get no weight


@dataclass(frozen=True, kw_only=True, slots=True)
class HullSettings:
    """When to stop, and how many columns to take."""

    tolerance: float
    most_iterations: int
    columns_per_iteration: int
    most_columns: int


def project(columns: ColumnFactors, problem: Problem, settings: HullSettings) -> Projection:
    """Project a target on the hull of all columns.

    Args:
        columns: The columns.
        problem: The target, and the neutral weights of these columns.
        settings: When to stop.

    Returns:
        The nearest point found, with its bound.

    Raises:
        InvalidParameterError: If a column is not finite.
    """
    distance = _Distance(columns, problem)
    face, iterations = _Face.of(distance), 0
    view = distance.view(face, settings.columns_per_iteration)
    while iterations < settings.most_iterations and view.relative_gap > settings.tolerance:
        small = iterations == 1 and float(face.shares[0]) >= _NEAR_ZERO
        inside = distance.on_span() if small and columns.held else None
        iterations += 1
        if inside is not None:
            found = distance.result(inside, iterations, settings.tolerance)
            if found.reached:
                return found
        room = settings.most_columns - len(face.places)
        if not (room and len(view.fresh)):
            break
        face = face.joined(distance, view.fresh[:room])
        view = distance.view(face, settings.columns_per_iteration)
    return distance.result(view.weights, iterations, settings.tolerance)


@dataclass(frozen=True)
class _View:
    """What can be seen from a point: its gap, and which columns lower the distance."""

    weights: Tensor  # [columns]
    relative_gap: float
    fresh: Tensor  # the columns that lower the distance most, at most one of each row


class _Distance:
    """Half the squared distance to a target, as a function of weights: w'Qw/2 - b'w + |target|^2/2."""

    def __init__(self, columns: ColumnFactors, problem: Problem) -> None:
        self.columns, self.target, self.square = columns, problem.target, problem.square
        self.linear = columns.against(self.target)  # b
        neutral = problem.products.neutral().double()
        self.neutral = neutral / neutral.sum(1, keepdim=True)  # a coarse type rounds the sum
        self.origin = (self.neutral / columns.rows).flatten()

    def image(self, weights: Tensor) -> Tensor:
        """Return Q w."""
        return self.columns.against(self.columns.combine(weights))

    def view(self, face: "_Face", most: int) -> _View:
        shares = torch.from_numpy(face.shares).to(self.columns.place)
        slopes = shares @ face.images - self.linear
        weights = (shares[0] * self.origin).index_add(0, face.places, shares[1:])
        lowest = slopes.amin()
        others = slopes.index_fill(0, face.places, torch.inf).view(self.columns.rows, -1)
        values, classes = others.min(1)
        values, order = values.topk(min(most, len(values)), largest=False)
        gap, low, *wanted = torch.cat([torch.stack([(slopes - lowest) @ weights, lowest]), values]).tolist()
        _require_finite(gap)
        fresh = order * self.columns.classes + classes[order]
        lower = sum(value < gap + low for value in wanted)
        twice = self.square + float(face.shares @ (face.gram @ face.shares - 2 * face.linear))
        return _View(weights, relative_gap(max(twice, 0.0), gap, self.square), fresh[:lower])

    def on_span(self) -> Tensor | None:
        """Return weights of the projection on the span, or None if none were found that add up to 1."""
        rest = self._all_but_likeliest()
        gram = self.columns.inner(rest)[:, rest]
        lengths = gram.diagonal().sqrt()
        lengths = torch.where(lengths > 0, lengths, 1.0)  # long columns must not hide what others span
        gram = gram / lengths / lengths.unsqueeze(1)
        gram.diagonal().add_(_RIDGE)
        root, failed = torch.linalg.cholesky_ex(gram)

        def solved(right: Tensor) -> Tensor:
            found = torch.cholesky_solve((right[rest] / lengths).unsqueeze(1), root)
            return found.squeeze(1) / lengths

        weights = self._lifted(torch.zeros_like(self.linear).index_copy(0, rest, solved(self.linear)))
        # Neutral weights combine to zero only up to rounding of the columns.
        weights = weights.index_add(0, rest, solved(self.linear - self.image(weights)))
        total, least, fault = torch.stack([weights.sum(), weights.amin(), failed.double()]).tolist()
        return weights / total if fault == 0 and least >= 0 and total > 0 else None

    def _all_but_likeliest(self) -> Tensor:
        """Return all columns but one of each row, which the row's others make."""
        rows, classes = self.neutral.shape
        likeliest = self.neutral.argmax(1, keepdim=True)
        rest = torch.arange(classes - 1, device=self.columns.place).expand(rows, -1)
        first = classes * torch.arange(rows, device=self.columns.place).unsqueeze(1)
        return (first + rest + (rest >= likeliest)).flatten()

    def _lifted(self, weights: Tensor) -> Tensor:
        """Add multiples of each row's neutral weights, so that all are positive, with a sum of 1."""
        by_row = weights.view_as(self.neutral)
        need = (-by_row / self.neutral).amax(1, keepdim=True)
        left = 1 - (by_row + need * self.neutral).sum()
        return (by_row + (need + left / len(need)) * self.neutral).flatten()

    def result(self, weights: Tensor, iterations: int, tolerance: float) -> Projection:
        point = self.columns.combine(weights)
        slopes = self.columns.against(point) - self.linear
        away = torch.cat([(point[name] - v.double()).flatten() for name, v in self.target.items()])
        gap, twice = torch.stack([(slopes - slopes.amin()) @ weights, away.square().sum()]).tolist()
        _require_finite(gap)
        one = next(iter(self.target.values()))
        return measured(
            weights=weights.view_as(self.neutral).to(one.dtype),
            gradient={name: point[name].to(v.dtype) for name, v in self.target.items()},
            gap=gap,
            twice=twice,
            square=self.square,
            iterations=iterations,
            tolerance=tolerance,
        )


def _require_finite(gap: float) -> None:
    if not abs(gap) < float("inf"):
        raise InvalidParameterError(
            "the gradients of some rows hold a NaN or an infinity, so the hull has no nearest point. Look "
            "for missing or huge values in the features, or use a smaller learning rate."
        )


@dataclass(frozen=True)
class _Face:
    """A convex combination of the starting point and some columns. What is small is on the host."""

    places: Tensor  # which columns these are, [held]
    images: Tensor  # inner products of the starting point and of them with all columns, [1 + held, columns]
    gram: Array  # inner products with one another, [1 + held, 1 + held]
    linear: Array  # inner products with the target, [1 + held]
    shares: Array  # [1 + held]

    @classmethod
    def of(cls, distance: _Distance) -> "_Face":
        image, origin = distance.image(distance.origin), distance.origin
        own = torch.stack([image @ origin, distance.linear @ origin]).cpu().numpy()
        none = torch.zeros(0, dtype=torch.long, device=origin.device)
        return cls(none, image.unsqueeze(0), own[:1].reshape(1, 1), own[1:], np.ones(1))

    def joined(self, distance: _Distance, fresh: Tensor) -> "_Face":
        """Return the nearest combination to the target with more columns, of which those with weight stay."""
        images = torch.cat([self.images, distance.columns.inner(fresh)])
        found = torch.cat([images[:, fresh], distance.linear[fresh].unsqueeze(0)])
        *added, last = found.cpu().numpy()  # waits for the device
        across = np.stack(added)  # [1 + held + fresh, fresh]
        gram = np.block([[self.gram, across[: len(self.gram)]], [across.T]])
        linear = np.concatenate([self.linear, last])
        shares = _shares(gram, linear, self.shares)
        kept = np.flatnonzero(shares > 0)
        kept = kept if kept[0] == 0 else np.concatenate([[0], kept])  # the start stays
        here = torch.from_numpy(kept).to(images.device)
        places = torch.cat([self.places, fresh])[here[1:] - 1]
        return _Face(places, images[here], gram[np.ix_(kept, kept)], linear[kept], shares[kept])


def _shares(gram: Array, linear: Array, before: Array) -> Array:
    """Return the shares of the nearest combination; of what is new, all are tried first."""
    start = torch.zeros(len(linear), dtype=torch.float64)
    start[: len(before)] = torch.from_numpy(before)
    free = start > 0
    free[len(before) :] = True
    found = minimize_on_simplex(torch.from_numpy(gram), torch.from_numpy(linear), start=start, free=free)
    return found.numpy()
