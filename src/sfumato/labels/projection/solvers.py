# SPDX-License-Identifier: Apache-2.0
"""Iterative solvers for the projection on a convex hull.

`Accelerated` is the best of them for `each`; `column_generation.ColumnGeneration` is the default for the
hull of all columns. All of them start from the weights given, or from neutral weights, for which G w = 0.

Guarantee  Post-processing: a solver uses features, weights and a target that is already noisy. It uses no
           label. The result carries a bound on its distance to the nearest point (`hull`).
Source     Beck, Teboulle 2009 and O'Donoghue, Candes 2015 (acceleration, restart); Lacoste-Julien, Jaggi
           2015, arXiv:1511.05932 (away and pairwise steps); Ghazi et al. 2024, "LabelDP-Pro" (projected
           gradients for this problem).
"""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from sfumato import _check
from sfumato.labels.projection.hull import Problem, Products, Projection, State, check_stop, dot

__all__ = ["Accelerated", "FrankWolfe", "ProjectedGradient", "Variant"]

_POWER_ITERATIONS: Final = 6
_SLACK: Final = 1.1  # power iteration underestimates the largest eigenvalue
_SHRINK: Final = 0.9  # the factor on the curvature estimate in each iteration
_ROUNDING: Final = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectedGradient:
    """Plain projected gradients.

    If no step size is given, it is 1 / L. L, the largest eigenvalue of G^T G, is estimated by power
    iteration, which takes six more products.

    Args:
        tolerance: The relative gap at which the solver stops.
        most_iterations: The largest number of iterations.
        step_size: The step size, or None for 1 / L.

    Raises:
        InvalidParameterError: If a setting is out of range.
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
        """Project a target on the hull.

        Args:
            products: The products with the matrix G, as `LabelGradients`.
            target: The vector to project, by the name of each parameter.
            start: Weights [rows, classes] to start from, or None for weights whose combination is zero.
            each: Whether to project on the average of the rows' own hulls instead of the hull of all
                columns.

        Returns:
            The nearest point found, with its bound.

        Raises:
            InvalidParameterError: If the target is not finite, there are no rows, or `start` has another
                shape.
        """
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
    """Accelerated projected gradients (FISTA), restarted when momentum points uphill.

    The step size follows the curvature that is observed, so no product is spent on estimating it.

    Args:
        tolerance: The relative gap at which the solver stops.
        most_iterations: The largest number of iterations.
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
        """Project a target on the hull.

        Args:
            products: The products with the matrix G, as `LabelGradients`.
            target: The vector to project, by the name of each parameter.
            start: Weights [rows, classes] to start from, or None for weights whose combination is zero.
            each: Whether to project on the average of the rows' own hulls instead of the hull of all
                columns.

        Returns:
            The nearest point found, with its bound.

        Raises:
            InvalidParameterError: If the target is not finite, there are no rows, or `start` has another
                shape.
        """
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
        if enough or length <= _ROUNDING**2 * dot(weights, weights):  # below that there is only rounding
            return problem.at(weights, point), curvature
        curvature = max(met / length, 1.5 * curvature)


class Variant(enum.Enum):
    """How Frank-Wolfe moves weight from a bad vertex."""

    AWAY = "away"  # move away from the worst vertex in use, or toward the best one
    PAIRWISE = "pairwise"  # move weight from the worst vertex in use to the best one


@dataclass(frozen=True, kw_only=True, slots=True)
class FrankWolfe:
    """Frank-Wolfe with exact line search: no projections, and one vertex in each iteration.

    Args:
        tolerance: The relative gap at which the solver stops.
        most_iterations: The largest number of iterations.
        variant: How weight is moved from a bad vertex.
    """

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
        """Project a target on the hull.

        Args:
            products: The products with the matrix G, as `LabelGradients`.
            target: The vector to project, by the name of each parameter.
            start: Weights [rows, classes] to start from, or None for weights whose combination is zero.
            each: Whether to project on the average of the rows' own hulls instead of the hull of all
                columns.

        Returns:
            The nearest point found, with its bound.

        Raises:
            InvalidParameterError: If the target is not finite, there are no rows, or `start` has another
                shape.
        """
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
            if (
                share == longest
            ):  # weights that reach zero are set to zero exactly, and rounding errors are dropped
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
    """Return the step in the block where it goes down most. With all blocks together, the shortest step
    would limit the others.
    """
    block = (slopes * step).sum(-1).argmin()
    return torch.zeros_like(step).index_put((block,), step[block])


def _vertices(slopes: Tensor, total: float, *, among: Tensor | None = None) -> Tensor:
    """Return `total` at the lowest slope of each block, or at the highest among those that `among` marks."""
    place = slopes.argmin(-1) if among is None else slopes.masked_fill(~among, -torch.inf).argmax(-1)
    return torch.zeros_like(slopes).scatter_(-1, place.unsqueeze(-1), total)
