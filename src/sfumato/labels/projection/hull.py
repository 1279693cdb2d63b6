# SPDX-License-Identifier: Apache-2.0
"""The nearest point in the convex hull of all label gradients.

Promise    A solver returns weights w >= 0 with sum 1 over all rows and classes, the point G w, and `gap`:
           the squared distance to the nearest point of the hull is at most `gap`. G is never formed. With
           `each`, every row has total weight 1 / rows: the average of the rows' own hulls, a smaller set.
Stop       gap(w) = <g, w> - min over the set of <g, .>, with g = G^T (G w - target), is at least |G w -
           x*|^2 and at least f(w) - f*, where f = |G w - target|^2 / 2. The half-space that it cuts off
           contains the hull, so f* >= lower = (2 f - gap)^2 / (4 f). Stop when f - lower is at most
           `tolerance` times lower, or, for a target in the hull or almost, times 1e-3 |target|^2 / 2.
           `reached` says whether it was.
Start      The weights given, or the neutral ones of `products`, for which G w = 0.
Privacy    Post-processing: features and weights only, and a target that is already noisy. No label is used.
Choice     `column_generation.ColumnGeneration` for the hull, `Accelerated` with `each`.
Source     Jaggi 2013 (gap); Beck, Teboulle 2009 and O'Donoghue, Candes 2015 (acceleration, restart);
           Lacoste-Julien, Jaggi 2015, arXiv:1511.05932 (away and pairwise steps); Ghazi et al. 2024,
           "LabelDP-Pro" (projected gradients for this problem).
"""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.labels.projection.simplex import onto_simplex
from sfumato.labels.projection.span import finite

__all__ = [
    "Accelerated",
    "FrankWolfe",
    "Problem",
    "Products",
    "ProjectedGradient",
    "Projection",
    "Solver",
    "State",
    "Variant",
    "check_stop",
    "dot",
]

_INSIDE: Final = 1e-3  # a target this near the hull, in squared length relative to its own, counts as inside
_POWER_ITERATIONS: Final = 6
_SLACK: Final = 1.1  # power iteration comes from below
_SHRINK: Final = 0.9  # how fast a curvature estimate forgets
_ROUNDING: Final = 1e-6


class Products(Protocol):
    """What is needed of the matrix G: see `products.LabelGradients`."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        ...

    @property
    def classes(self) -> int:
        """How many columns each row has."""
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
    """A point `gradient` = G `weights` of the hull, and how far it can be from the nearest one."""

    weights: Tensor  # [rows, classes]
    gradient: dict[str, Tensor]
    gap: float
    relative_gap: float
    relative_distance: float  # the bound on the distance, over the length of the target
    iterations: int
    reached: bool

    @property
    def distance_bound(self) -> float:
        """The most that `gradient` is away from the nearest point of the hull."""
        return math.sqrt(self.gap)


class Solver(Protocol):
    """A way to project on the hull."""

    def solve(
        self,
        products: Products,
        target: Mapping[str, Tensor],
        *,
        start: Tensor | None = None,
        each: bool = False,
    ) -> Projection:
        """Project a target on the hull, or with `each` on the average of the rows' hulls."""
        ...


@dataclass(frozen=True)
class State:
    """Where a solver is. Blocks are simplices: one of all columns, or one for each row."""

    weights: Tensor  # [blocks, columns of a block]
    point: Tensor  # G w, [parameters]
    slopes: Tensor  # G^T (G w - target), [blocks, columns of a block]

    def toward(self, other: "State", share: float) -> "State":
        """Return the state at self + share (other - self): all of it is affine in the weights."""
        return State(
            torch.lerp(self.weights, other.weights, share),
            torch.lerp(self.point, other.point, share),
            torch.lerp(self.slopes, other.slopes, share),
        )


@dataclass
class Problem:
    """A target, the set to project it on, and when to stop."""

    products: Products
    target: Mapping[str, Tensor]
    each: bool
    tolerance: float
    flat: Tensor = field(init=False)  # the target, [parameters]

    def __post_init__(self) -> None:
        if not self.products.rows:
            raise InvalidParameterError("there are no rows, so the hull is empty. Give at least one row.")
        self.target = finite(self.target)
        self.flat = _packed(self.target)

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
        # From the lowest slope of each block: a sum of terms that cannot be negative, so it does not cancel.
        above = state.slopes - state.slopes.amin(-1, keepdim=True)
        return float((above.double() * state.weights.double()).sum())

    def relative_gap(self, state: State) -> float:
        twice = float((state.point - self.flat).double().square().sum())
        if not twice:
            return 0.0
        lower = max(twice - self.gap(state), 0.0) ** 2 / (2 * twice)
        scale = max(lower, _INSIDE * float(self.flat.double().square().sum()) / 2)
        return (twice / 2 - lower) / scale if scale else math.inf

    def relative_distance(self, state: State) -> float:
        length = float(self.flat.double().norm())
        return math.sqrt(self.gap(state)) / length if length else math.inf if self.gap(state) else 0.0

    def done(self, state: State) -> bool:
        return self.relative_gap(state) <= self.tolerance

    def result(self, state: State, iterations: int) -> Projection:
        return Projection(
            weights=self.by_row(state.weights),
            gradient=_shaped(state.point, self.target),
            gap=self.gap(state),
            relative_gap=self.relative_gap(state),
            relative_distance=self.relative_distance(state),
            iterations=iterations,
            reached=self.done(state),
        )


def _packed(vectors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([v.flatten() for v in vectors.values()])


def _shaped(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = flat.split([v.numel() for v in like.values()])
    return {name: part.reshape(v.shape) for (name, v), part in zip(like.items(), parts, strict=True)}


def dot(first: Tensor, second: Tensor) -> float:
    """Return an inner product, added up in float64."""
    return float((first.double() * second.double()).sum())


def _vertices(slopes: Tensor, total: float, *, among: Tensor | None = None) -> Tensor:
    """Return `total` at the lowest slope of each block, or at the highest among those that `among` marks."""
    place = slopes.argmin(-1) if among is None else slopes.masked_fill(~among, -torch.inf).argmax(-1)
    return torch.zeros_like(slopes).scatter_(-1, place.unsqueeze(-1), total)


def check_stop(tolerance: float, most_iterations: int) -> None:
    """Require numbers at which a solver can stop."""
    _check.positive(tolerance=tolerance)
    _check.count(most_iterations=most_iterations)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectedGradient:
    """Plain projected gradients, with step size 1 / L where none is given.

    L, the largest eigenvalue of G^T G, is estimated by power iteration, at the price of six more products.
    """

    tolerance: float = 1e-3
    most_iterations: int = 100
    step_size: float | None = None

    def __post_init__(self) -> None:
        check_stop(self.tolerance, self.most_iterations)
        if self.step_size is not None:
            _check.positive(step_size=self.step_size)

    def solve(
        self,
        products: Products,
        target: Mapping[str, Tensor],
        *,
        start: Tensor | None = None,
        each: bool = False,
    ) -> Projection:
        """Project a target on the hull, or with `each` on the average of the rows' hulls."""
        problem = Problem(products, target, each, self.tolerance)
        state, iterations = problem.start(start), 0
        step = self.step_size
        while iterations < self.most_iterations and not problem.done(state):
            step = _step_size(problem, state) if step is None else step
            state = problem.at(problem.nearest(state.weights - step * state.slopes))
            iterations += 1
        return problem.result(state, iterations)


def _step_size(problem: Problem, state: State) -> float:
    direction, largest = state.slopes, 0.0
    for _ in range(_POWER_ITERATIONS):
        direction = direction / direction.norm()
        image = problem.combine(direction)
        largest = max(largest, dot(image, image))
        direction = problem.slopes(image + problem.flat)
    return 1 / (_SLACK * largest) if largest else 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerated:
    """Accelerated projected gradients (FISTA) that restart when momentum points uphill.

    The step size follows the curvature that is met on the way: no product is spent on estimating it.
    """

    tolerance: float = 1e-3
    most_iterations: int = 60

    def __post_init__(self) -> None:
        check_stop(self.tolerance, self.most_iterations)

    def solve(
        self,
        products: Products,
        target: Mapping[str, Tensor],
        *,
        start: Tensor | None = None,
        each: bool = False,
    ) -> Projection:
        """Project a target on the hull, or with `each` on the average of the rows' hulls."""
        problem = Problem(products, target, each, self.tolerance)
        state, iterations = problem.start(start), 0
        ahead, momentum, curvature = state, 1.0, None
        while iterations < self.most_iterations and not problem.done(state):
            curvature = _first_curvature(problem, state) if curvature is None else curvature * _SHRINK
            found, curvature = _descend(problem, ahead, curvature)
            if dot(ahead.slopes, found.weights - state.weights) > 0:
                momentum = 1.0
            later = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            ahead = state.toward(found, 1 + (momentum - 1) / later)
            state, momentum = found, later
            iterations += 1
        return problem.result(state, iterations)


def _first_curvature(problem: Problem, state: State) -> float:
    step = _vertices(state.slopes, problem.total) - state.weights
    image = problem.combine(step)
    return max(dot(image, image), torch.finfo(torch.float32).tiny) / max(dot(step, step), _ROUNDING)


def _descend(problem: Problem, state: State, curvature: float) -> tuple[State, float]:
    """Take the longest projected step for which a parabola of at least this curvature lies above."""
    while True:
        weights = problem.nearest(state.weights - state.slopes / curvature)
        step = weights - state.weights
        point = problem.combine(weights)
        met, length = dot(point - state.point, point - state.point), dot(step, step)
        enough = met <= (1 + _ROUNDING) * curvature * length
        if enough or length <= _ROUNDING**2 * dot(weights, weights):  # below that, rounding is all there is
            return problem.at(weights, point), curvature
        curvature = max(met / length, 1.5 * curvature)


class Variant(enum.Enum):
    """How Frank-Wolfe leaves a bad vertex."""

    AWAY = "away"  # move away from the worst vertex in use, or toward the best one
    PAIRWISE = "pairwise"  # move weight from the worst vertex in use to the best one


@dataclass(frozen=True, kw_only=True, slots=True)
class FrankWolfe:
    """Frank-Wolfe with exact line search: no projections, and one vertex an iteration."""

    tolerance: float = 1e-3
    most_iterations: int = 200
    variant: Variant = Variant.PAIRWISE

    def __post_init__(self) -> None:
        check_stop(self.tolerance, self.most_iterations)

    def solve(
        self,
        products: Products,
        target: Mapping[str, Tensor],
        *,
        start: Tensor | None = None,
        each: bool = False,
    ) -> Projection:
        """Project a target on the hull, or with `each` on the average of the rows' hulls."""
        problem = Problem(products, target, each, self.tolerance)
        state, iterations = problem.start(start), 0
        while iterations < self.most_iterations and not problem.done(state):
            step = self._direction(problem, state)
            image = problem.combine(step)
            bend = dot(image, image)
            if not bend > 0:
                break
            reach = torch.where(step < 0, state.weights / -step, torch.inf)
            longest = float(reach.amin())
            share = min(-dot(state.slopes, step) / bend, longest)
            weights = (state.weights + share * step).clamp(min=0)
            if share == longest:  # who is used up is used up exactly, and rounding starts afresh
                state = problem.at(weights.masked_fill(reach <= longest, 0.0))
            else:
                state = problem.at(weights, state.point + share * image)
            iterations += 1
        return problem.result(state, iterations)

    def _direction(self, problem: Problem, state: State) -> Tensor:
        best = _vertices(state.slopes, problem.total)
        worst = _vertices(state.slopes, problem.total, among=state.weights > 0)
        if self.variant is Variant.PAIRWISE:
            return _worst_block(state.slopes, best - worst)
        toward, away = best - state.weights, state.weights - worst
        return toward if dot(state.slopes, toward) <= dot(state.slopes, away) else away


def _worst_block(slopes: Tensor, step: Tensor) -> Tensor:
    """Return the step in the block where it goes down most: all together, the shortest would hold them up."""
    block = (slopes * step).sum(-1).argmin()
    return torch.zeros_like(step).index_put((block,), step[block])
