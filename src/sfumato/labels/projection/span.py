# SPDX-License-Identifier: Apache-2.0
"""The nearest point in the span of all label gradients, with a bound on the distance to it.

`Span.solve` returns a point G w of the span of G's columns, and `distance_bound`: the distance of G w to the
orthogonal projection of the target is at most that. `reached` tells whether it is at most `tolerance` times
the length of the target.

- At most `most_columns` columns that fit in 1 GiB are formed in float64, and the projection is exact up to
  rounding. An orthonormal basis U of the span comes from the eigenvectors of G^T G. With the residual r =
  target - G w the distance is |U^T r| over the least singular value of U, which is checked. Columns are
  scaled to length 1 first. Directions in which they then have less than 1e-6 of their largest extent are
  rounding of float32 gradients, and do not count as spanned.
- With more columns G is never formed: conjugate gradients on the normal equations (CGLS) take one `combine`
  and one `against` in each iteration. G w and the projection P target both lie in the span, so their
  distance is |P r| <= |r|, which is the bound. It becomes small only if the span holds most of the target,
  as that of more columns than parameters does. |G^T r| would not bound the distance: a direction in which
  columns are short adds little to it.

Guarantee  Post-processing: features, weights and a target that is already noisy. No label is used.
Edge cases A target orthogonal to all columns, a zero target, and no rows: the result is zero, without
           iterations.
Source     Hestenes, Stiefel 1952; CGLS as in Bjorck 1996, Numerical Methods for Least Squares Problems,
           7.4; bases by twice-repeated projection: Giraud, Langou, Rozloznik 2005.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError

__all__ = ["Products", "Span", "SpanProjection"]

_MOST_BYTES: Final = 2**30  # of formed columns
_RANK: Final = 1e-12  # of squared extents, relative to the largest: float32 rounds at 1e-7
_ROUNDING: Final = 100  # slopes of so many units of rounding, relative to the first, are zero
_PASSES: Final = 3  # each takes the share of the span that the one before left over from rounding


class Products(Protocol):
    """The products with a matrix G, and its columns if there are few."""

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
class SpanProjection:
    """A point of the span, and a bound on its distance to the nearest one.

    Attributes:
        weights: The weights of the columns, [rows, classes], of any sign.
        gradient: The point G `weights`, by the name of each parameter.
        distance_bound: A bound on the distance to the nearest point.
        relative_distance: The bound over the length of the target.
        iterations: The number of iterations; 0 if columns were formed.
        reached: Whether the bound is within the tolerance.
    """

    weights: Tensor
    gradient: dict[str, Tensor]
    distance_bound: float
    relative_distance: float
    iterations: int
    reached: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Project on the span: exactly if there are few columns, else by conjugate gradients.

    Args:
        tolerance: The bound on the distance, over the length of the target, at which iterations stop.
        most_iterations: The largest number of iterations.
        most_columns: The largest number of columns that are formed for the exact projection.

    Raises:
        InvalidParameterError: If a setting is out of range.

    >>> from sfumato.labels.projection.gradient_products import LabelGradients
    >>> model = torch.nn.Linear(2, 2)
    >>> products = LabelGradients(model, torch.tensor([[1.0, 0.0]]), classes=2)
    >>> target = {"weight": torch.tensor([[3.0, 5.0], [1.0, 5.0]]), "bias": torch.zeros(2)}
    >>> Span().solve(products, target).gradient["weight"].round(decimals=3)
    tensor([[ 0.5000,  0.0000],
            [-0.5000,  0.0000]])
    """

    tolerance: float = 1e-3
    most_iterations: int = 50
    most_columns: int = 2560

    def __post_init__(self) -> None:
        _check.positive(tolerance=self.tolerance)
        _check.count(most_iterations=self.most_iterations)
        _check.non_negative(most_columns=self.most_columns)

    def solve(self, products: Products, target: Mapping[str, Tensor]) -> SpanProjection:
        """Project a target on the span.

        Args:
            products: The products with the matrix G, as `LabelGradients`.
            target: The vector to project, by the name of each parameter.

        Returns:
            The nearest point found, with its bound.

        Raises:
            InvalidParameterError: If the target holds a NaN or an infinity.
        """
        start = finite(target)
        slope = products.against(start)
        columns, parameters = slope.numel(), sum(v.numel() for v in start.values())
        if columns and columns <= self.most_columns and 8 * columns * parameters <= _MOST_BYTES:
            return self._exact(products, start, slope)
        return self._iterated(products, start, slope)

    def _exact(self, products: Products, target: Mapping[str, Tensor], slope: Tensor) -> SpanProjection:
        rows, classes = torch.meshgrid(
            *(torch.arange(n, device=slope.device) for n in slope.shape), indexing="ij"
        )
        formed = products.columns(rows.flatten(), classes.flatten())
        matrix = torch.cat([formed[name].flatten(1) for name in target], 1).double()  # G^T
        basis, weights = _basis(matrix)  # [rank, parameters], [rank, columns]
        left = torch.cat([v.flatten() for v in target.values()]).double()
        length, shares = float(left.norm()), left.new_zeros(len(basis))
        for _ in range(_PASSES):
            again = basis @ left
            left, shares = left - again @ basis, shares + again
        bound = float((basis @ left).norm()) / _least_singular_value(basis)
        point = _unpacked(shares @ basis, target)
        return self._result((shares @ weights).reshape(slope.shape).to(slope), point, bound, length, 0)

    def _iterated(self, products: Products, target: Mapping[str, Tensor], slope: Tensor) -> SpanProjection:
        left = dict(target)
        weights, direction = torch.zeros_like(slope), slope
        size, iterations, length = squared(slope), 0, _length(target)
        noise = (_ROUNDING * torch.finfo(slope.dtype).eps) ** 2 * size
        while iterations < self.most_iterations and size > noise and _length(left) > self.tolerance * length:
            image = products.combine(direction)
            bend = sum(squared(v) for v in image.values())
            if not bend > 0:
                break
            step = size / bend
            weights = weights + step * direction
            left = {name: v - step * image[name] for name, v in left.items()}
            slope = products.against(left)
            size, before = squared(slope), size
            direction = slope + (size / before) * direction
            iterations += 1
        bound = 0.0 if size == 0 else _length(left)  # orthogonal to all columns: this is the projection
        point = {name: target[name] - v for name, v in left.items()}
        return self._result(weights, point, bound, length, iterations)

    def _result(
        self, weights: Tensor, gradient: dict[str, Tensor], bound: float, length: float, iterations: int
    ) -> SpanProjection:
        return SpanProjection(
            weights=weights,
            gradient=gradient,
            distance_bound=bound,
            relative_distance=bound / length if length else 0.0,
            iterations=iterations,
            reached=bound <= self.tolerance * length,
        )


def _basis(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return an orthonormal basis of the rows of a matrix, and the weights of the rows that make it."""
    lengths = matrix.norm(dim=1, keepdim=True)
    unit = matrix / torch.where(
        lengths > 0, lengths, 1.0
    )  # a long column must not hide that others span, too
    extents, directions = torch.linalg.eigh(unit @ unit.T)
    kept = extents > _RANK * extents.amax()
    weights = (directions[:, kept] / extents[kept].sqrt()).T
    return weights @ unit, weights / torch.where(lengths > 0, lengths, 1.0).T


def _least_singular_value(basis: Tensor) -> float:
    """Return a lower bound by Gershgorin circles: the Gram matrix is almost the identity."""
    apart = basis @ basis.T - torch.eye(len(basis), dtype=basis.dtype, device=basis.device)
    off = float(apart.abs().sum(1).amax()) if len(basis) else 0.0
    return math.sqrt(max(1 - off, torch.finfo(basis.dtype).tiny))


def _unpacked(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = flat.split([v.numel() for v in like.values()])
    return {name: part.reshape(v.shape).to(v) for (name, v), part in zip(like.items(), parts, strict=True)}


def _length(vectors: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(squared(v) for v in vectors.values()))


def squared(values: Tensor) -> float:
    """Return the squared length of a tensor, summed in float64."""
    return float(values.double().square().sum())


def finite(target: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a detached copy of a target, or raise if it is not finite."""
    if not bool(torch.cat([v.flatten() for v in target.values()]).isfinite().all()):
        raise InvalidParameterError("target holds a NaN or an infinity: it has no nearest point.")
    return {name: v.detach() for name, v in target.items()}
