# SPDX-License-Identifier: Apache-2.0
"""The nearest point in the convex hull of all label gradients, found by exact solutions for a few columns.

Few columns have weight if the target is noisy (by Caratheodory's theorem, and far fewer in practice), so an
exact solution for these takes a few products. If noise is small, the target is almost inside and many
columns have weight: then accelerated gradients continue.

Guarantee  Post-processing: features, weights and a target that is already noisy. No label is used. The result
           carries a bound on its distance to the nearest point (`hull`).
Source     von Hohenbalken 1977 (simplicial decomposition).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.labels.projection.column_factors import ColumnFactors
from sfumato.labels.projection.hull import Problem, Products, Projection, State, check_stop, dot
from sfumato.labels.projection.inner_products import HullSettings, project
from sfumato.labels.projection.quadratic import minimize_on_simplex
from sfumato.labels.projection.solvers import Accelerated

__all__ = ["ColumnGeneration"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnGeneration:
    """Solve exactly for the columns with weight, and add columns that lower the distance.

    Each iteration takes one `against` and forms the columns of lowest slope, at most one of each row.
    Columns without weight are dropped.

    Args:
        tolerance: The relative gap at which the solver stops.
        most_iterations: The largest number of iterations.
        columns_per_iteration: The number of columns added in each iteration.
        most_columns: The largest number of columns held.
        most_accelerated: The largest number of iterations of accelerated gradients, if the columns do not
            suffice. 0 for none.

    Raises:
        InvalidParameterError: If a setting is out of range.
    """

    tolerance: float = 1e-3
    most_iterations: int = 40
    columns_per_iteration: int = 64
    most_columns: int = 512
    most_accelerated: int = 200

    def __post_init__(self) -> None:
        check_stop(self.tolerance, self.most_iterations)
        _check.count(columns_per_iteration=self.columns_per_iteration, most_columns=self.most_columns)
        _check.non_negative(most_accelerated=self.most_accelerated)

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
            each: Must be False: too many columns would have weight. Use `Accelerated`.

        Returns:
            The nearest point found, with its bound.

        Raises:
            InvalidParameterError: If `each` is True, the target is not finite, there are no rows, or `start`
                has another shape.
        """
        if each:
            raise InvalidParameterError("ColumnGeneration does not support each=True. Use Accelerated.")
        problem = Problem(products, target, each, self.tolerance)
        factors = getattr(products, "factors", None)
        if isinstance(factors, ColumnFactors) and start is None and problem.square:
            return self._accelerated(project(factors, problem, self._settings()), products, target)
        state, iterations = problem.start(start), 0
        face = _Face.of(state)
        while iterations < self.most_iterations and not problem.done(state):
            room = min(self.columns_per_iteration, self.most_columns - len(face.places))
            fresh = _best(problem, state, face.places, room)
            if not len(fresh):
                break
            face = face.joined(fresh, _formed(problem, fresh)).minimized(problem.flat)
            state = problem.at(face.weights(), face.point())
            iterations += 1
        return self._accelerated(problem.result(state, iterations), products, target)

    def _settings(self) -> HullSettings:
        return HullSettings(
            tolerance=self.tolerance,
            most_iterations=self.most_iterations,
            columns_per_iteration=self.columns_per_iteration,
            most_columns=self.most_columns,
        )

    def _accelerated(self, found: Projection, products: Products, target: Mapping[str, Tensor]) -> Projection:
        """Continue from a projection whose columns did not suffice; return the one with the smaller gap."""
        if found.reached or not self.most_accelerated:
            return found
        solver = Accelerated(tolerance=self.tolerance, most_iterations=self.most_accelerated)
        later = solver.solve(products, target, start=found.weights)
        better = later if later.gap < found.gap else found
        return replace(better, iterations=found.iterations + later.iterations)


def _best(problem: Problem, state: State, used: Tensor, most: int) -> Tensor:
    """Return the columns that lower the distance most: at most one of each row, and none in use."""
    level = dot(state.slopes, state.weights)
    slopes = state.slopes.index_fill(1, used, torch.inf)
    lowest, classes = problem.by_row(slopes).min(1)
    order = lowest.argsort()[:most]
    order = order[lowest[order] < level]
    return order * problem.products.classes + classes[order]


def _formed(problem: Problem, places: Tensor) -> Tensor:
    """Return columns as rows of a matrix, [places, parameters]."""
    classes = problem.products.classes
    found = problem.products.columns(places // classes, places % classes)
    return torch.cat([found[name].flatten(1) for name in problem.target], 1)


def _inner(first: Tensor, second: Tensor) -> Tensor:
    return (first @ second.T).double().cpu()


@dataclass(frozen=True)
class _Face:
    """A convex combination of the starting point and some columns."""

    origin: Tensor  # the weights at the start, [1, columns of G]
    places: Tensor  # which columns of G these are, [columns]
    points: Tensor  # the starting point and the columns, [1 + columns, parameters]
    gram: Tensor  # the points' inner products, [1 + columns, 1 + columns], float64 on the CPU
    shares: Tensor  # [1 + columns], float64 on the CPU

    @classmethod
    def of(cls, state: State) -> "_Face":
        none = torch.zeros(0, dtype=torch.long, device=state.weights.device)
        points, one = state.point.unsqueeze(0), torch.ones(1, dtype=torch.float64)
        return cls(state.weights, none, points, _inner(points, points), one)

    def joined(self, places: Tensor, columns: Tensor) -> "_Face":
        across, within = _inner(self.points, columns), _inner(columns, columns)
        return _Face(
            self.origin,
            torch.cat([self.places, places]),
            torch.cat([self.points, columns]),
            torch.cat([torch.cat([self.gram, across], 1), torch.cat([across.T, within], 1)]),
            torch.cat([self.shares, torch.zeros(len(places), dtype=torch.float64)]),
        )

    def minimized(self, target: Tensor) -> "_Face":
        """Return the nearest combination to the target, with only the columns that have weight."""
        linear = (self.points @ target).double().cpu()
        shares = minimize_on_simplex(self.gram, linear, start=self.shares)
        kept = (shares > 0).index_fill(0, torch.tensor(0), True)
        here = kept.to(self.places.device)
        gram = self.gram[kept][:, kept]
        return _Face(self.origin, self.places[here[1:]], self.points[here], gram, shares[kept])

    def weights(self) -> Tensor:
        shares = self.shares.to(self.origin)
        return (shares[0] * self.origin).index_add(1, self.places, shares[1:].unsqueeze(0))

    def point(self) -> Tensor:
        return self.shares.to(self.points) @ self.points
