# SPDX-License-Identifier: Apache-2.0
"""The problem of projecting a vector on the convex hull of all label gradients, and when to stop.

A solver returns weights w >= 0 with sum 1 over all rows and classes, the point G w, and `gap`: the squared
distance of G w to the nearest point of the hull is at most `gap`. G is never formed. With `each`, every row
has total weight 1 / rows: the average of the rows' own hulls, a smaller set.

The gap is gap(w) = <g, w> - min over the set of <g, .>, with g = G^T (G w - target). It is at least |G w -
x*|^2 and at least f(w) - f*, where f = |G w - target|^2 / 2. The half-space that it cuts off contains the
hull, so f* >= lower = (2 f - gap)^2 / (4 f). A solver stops when f - lower is at most `tolerance` times
lower or, for a target that is almost in the hull, times 1e-3 |target|^2 / 2. `reached` tells whether it
stopped there.

Guarantee  Post-processing: features, weights and a target that is already noisy. No label is used.
Edge cases A target with a NaN or an infinity, and a hull without rows, raise InvalidParameterError.
Source     Jaggi 2013 (gap).
Not here   The solvers (`solvers`, `column_generation`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.labels.projection.simplex import onto_simplex
from sfumato.labels.projection.span import finite, squared

__all__ = [
    "Problem",
    "Products",
    "Projection",
    "Solver",
    "State",
    "check_stop",
    "dot",
    "measured",
    "relative_gap",
]

_INSIDE: Final = 1e-3  # a target this near the hull, in squared length relative to its own, counts as inside


class Products(Protocol):
    """The products with the matrix G that a solver needs; see `gradient_products.LabelGradients`."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        ...

    @property
    def classes(self) -> int:
        """The number of columns of each row."""
        ...

    def neutral(self) -> Tensor:
        """Return weights of each row's columns whose combination is zero."""
        ...

    def combine(self, weights: Tensor) -> dict[str, Tensor]:
        """Return G u."""
        ...

    def against(self, direction: Mapping[str, Tensor]) -> Tensor:
        """Return G^T v."""
        ...

    def columns(self, rows: Tensor, classes: Tensor) -> dict[str, Tensor]:
        """Return some columns."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Projection:
    """A point of the hull, and a bound on its distance to the nearest one.

    Attributes:
        weights: The weights of the columns, [rows, classes].
        gradient: The point G `weights`, by the name of each parameter.
        gap: A bound on the squared distance to the nearest point.
        relative_gap: The gap that the tolerance of a solver refers to.
        relative_distance: The bound on the distance, over the length of the target.
        iterations: The number of iterations.
        reached: Whether the solver stopped within its tolerance.
    """

    weights: Tensor
    gradient: dict[str, Tensor]
    gap: float
    relative_gap: float
    relative_distance: float
    iterations: int
    reached: bool

    @property
    def distance_bound(self) -> float:
        """The largest possible distance of `gradient` to the nearest point of the hull."""
        return math.sqrt(self.gap)


class Solver(Protocol):
    """A solver of the projection on the hull."""

    def solve(
        self,
        products: Products,
        target: Mapping[str, Tensor],
        *,
        start: Tensor | None = None,
        each: bool = False,
    ) -> Projection:
        """Project a target on the hull.

        Args:
            products: The products with the matrix G, as `LabelGradients`.
            target: The vector to project, by the name of each parameter.
            start: Weights [rows, classes] to start from, or None for weights whose combination is zero.
            each: Whether to project on the average of the rows' own hulls instead of the hull of all
                columns.

        Returns:
            The nearest point found, with its bound.
        """
        ...


@dataclass(frozen=True)
class State:
    """The current point of a solver. Blocks are simplices: one of all columns, or one for each row."""

    weights: Tensor  # [blocks, columns of a block]
    point: Tensor  # G w, [parameters]
    slopes: Tensor  # G^T (G w - target), [blocks, columns of a block]

    def toward(self, other: "State", share: float) -> "State":
        """Return the state at self + share (other - self). All parts of it are affine in the weights."""
        return State(
            torch.lerp(self.weights, other.weights, share),
            torch.lerp(self.point, other.point, share),
            torch.lerp(self.slopes, other.slopes, share),
        )


@dataclass
class Problem:
    """A target, the set to project it on, and the tolerance."""

    products: Products
    target: Mapping[str, Tensor]
    each: bool
    tolerance: float
    flat: Tensor = field(init=False)  # the target, [parameters]
    square: float = field(init=False)  # its squared length

    def __post_init__(self) -> None:
        if not self.products.rows:
            raise InvalidParameterError("there are no rows, so the hull is empty. Give at least one row.")
        self.target = finite(self.target)
        self.flat = _packed(self.target)
        self.square = squared(self.flat)

    @property
    def total(self) -> float:
        return 1 / self.products.rows if self.each else 1.0

    def blocks(self, values: Tensor) -> Tensor:
        return values if self.each else values.reshape(1, -1)

    def by_row(self, values: Tensor) -> Tensor:
        return values.reshape(self.products.rows, self.products.classes)

    def start(self, weights: Tensor | None) -> State:
        if weights is None:
            own = self.blocks(self.products.neutral() / self.products.rows)
            own = own * (self.total / own.sum(-1, keepdim=True))
            return self.at(own, torch.zeros_like(self.flat))
        if weights.shape != (self.products.rows, self.products.classes):
            raise InvalidParameterError(f"start must be [rows, classes], but it is {list(weights.shape)}.")
        return self.at(self.nearest(self.blocks(weights)))

    def at(self, weights: Tensor, point: Tensor | None = None) -> State:
        point = self.combine(weights) if point is None else point
        return State(weights, point, self.slopes(point))

    def combine(self, weights: Tensor) -> Tensor:
        return _packed(self.products.combine(self.by_row(weights)))

    def slopes(self, point: Tensor) -> Tensor:
        return self.blocks(self.products.against(_shaped(point - self.flat, self.target)))

    def nearest(self, weights: Tensor) -> Tensor:
        return onto_simplex(weights, total=self.total)

    def gap(self, state: State) -> float:
        # Measured from the lowest slope of each block: no term is negative, so the sum does not cancel.
        above = state.slopes - state.slopes.amin(-1, keepdim=True)
        return float((above.double() * state.weights.double()).sum())

    def relative_gap(self, state: State) -> float:
        return relative_gap(squared(state.point - self.flat), self.gap(state), self.square)

    def done(self, state: State) -> bool:
        return self.relative_gap(state) <= self.tolerance

    def result(self, state: State, iterations: int) -> Projection:
        return measured(
            weights=self.by_row(state.weights),
            gradient=_shaped(state.point, self.target),
            gap=self.gap(state),
            twice=squared(state.point - self.flat),
            square=self.square,
            iterations=iterations,
            tolerance=self.tolerance,
        )


def relative_gap(twice: float, gap: float, square: float) -> float:
    """Return the gap that the tolerance of a solver refers to.

    Args:
        twice: The squared distance of a point to the target.
        gap: The gap of the point.
        square: The squared length of the target.

    Returns:
        The relative gap.

    >>> relative_gap(1.0, 0.0, 4.0), round(relative_gap(1.0, 0.5, 4.0), 3)
    (0.0, 3.0)
    """
    if not twice:
        return 0.0
    lower = max(twice - gap, 0.0) ** 2 / (2 * twice)
    scale = max(lower, _INSIDE * square / 2)
    return (twice / 2 - lower) / scale if scale else math.inf


def measured(
    *,
    weights: Tensor,
    gradient: dict[str, Tensor],
    gap: float,
    twice: float,
    square: float,
    iterations: int,
    tolerance: float,
) -> Projection:
    """Return a point with all that follows from its gap.

    Args:
        weights: The weights of the columns, [rows, classes].
        gradient: The point.
        gap: Its gap.
        twice: Its squared distance to the target.
        square: The squared length of the target.
        iterations: The number of iterations.
        tolerance: The relative gap at which the solver stops.

    Returns:
        The projection.
    """
    gap = max(gap, 0.0)
    relative = relative_gap(twice, gap, square)
    length = math.sqrt(square)
    return Projection(
        weights=weights,
        gradient=gradient,
        gap=gap,
        relative_gap=relative,
        relative_distance=math.sqrt(gap) / length if length else math.inf if gap else 0.0,
        iterations=iterations,
        reached=relative <= tolerance,
    )


def _packed(vectors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([v.flatten() for v in vectors.values()])


def _shaped(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = flat.split([v.numel() for v in like.values()])
    return {name: part.reshape(v.shape) for (name, v), part in zip(like.items(), parts, strict=True)}


def dot(first: Tensor, second: Tensor) -> float:
    """Return an inner product, added up in float64."""
    return float((first.double() * second.double()).sum())


def check_stop(tolerance: float, most_iterations: int) -> None:
    """Raise unless a solver can stop at these numbers."""
    _check.positive(tolerance=tolerance)
    _check.count(most_iterations=most_iterations)
