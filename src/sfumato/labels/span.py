# SPDX-License-Identifier: Apache-2.0
"""The nearest point in the span of all label gradients.

Promise    `Span.solve` returns the orthogonal projection G w of a target on the span of G's columns, by
           conjugate gradients on the normal equations (CGLS): one `combine` and one `against` each
           iteration, G never formed.
Stop       When |G^T residual| is at most `tolerance` times |G^T target|: the residual is then orthogonal to
           all columns, up to that much. `reached` says whether it came to that.
Privacy    Post-processing: features and weights only, and a target that is already noisy.
Edges      A target orthogonal to all columns, zero among them, and no rows: zero, at once.
Source     Hestenes, Stiefel 1952; CGLS as in Bjorck 1996, Numerical Methods for Least Squares Problems,
           7.4.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError

__all__ = ["Span", "SpanProjection"]


class Products(Protocol):
    """What is needed of a matrix G: its products."""

    def combine(self, weights: Tensor) -> dict[str, Tensor]:
        """Return G u."""
        ...

    def against(self, direction: Mapping[str, Tensor]) -> Tensor:
        """Return G^T v."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class SpanProjection:
    """A point `gradient` = G `weights` of the span, and how nearly the rest is orthogonal to the span."""

    weights: Tensor  # [rows, classes], of any sign
    gradient: dict[str, Tensor]
    relative_residual: float  # |G^T (target - gradient)| / |G^T target|
    iterations: int
    reached: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Conjugate gradients, up to a relative residual or a number of iterations.

    >>> from sfumato.labels.products import LabelGradients
    >>> model = torch.nn.Linear(2, 2)
    >>> products = LabelGradients(model, torch.tensor([[1.0, 0.0]]), classes=2)
    >>> target = {"weight": torch.tensor([[3.0, 5.0], [1.0, 5.0]]), "bias": torch.zeros(2)}
    >>> Span().solve(products, target).gradient["weight"].round(decimals=3)
    tensor([[ 0.5000,  0.0000],
            [-0.5000,  0.0000]])
    """

    tolerance: float = 1e-3
    most_iterations: int = 50

    def __post_init__(self) -> None:
        _check.positive(tolerance=self.tolerance)
        _check.count(most_iterations=self.most_iterations)

    def solve(self, products: Products, target: Mapping[str, Tensor]) -> SpanProjection:
        """Project a target on the span."""
        left = finite(target)
        slope = products.against(left)  # G^T residual
        weights, direction = torch.zeros_like(slope), slope
        first = size = squared(slope)
        iterations = 0
        while iterations < self.most_iterations and size > self.tolerance**2 * first:
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
        return SpanProjection(
            weights=weights,
            gradient={name: target[name] - v for name, v in left.items()},
            relative_residual=(size / first) ** 0.5 if first > 0 else 0.0,
            iterations=iterations,
            reached=size <= self.tolerance**2 * first,
        )


def squared(values: Tensor) -> float:
    """Return the squared length of a tensor, added up in float64."""
    return float(values.double().square().sum())


def finite(target: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a target as it is, or refuse what has no nearest point."""
    if not all(bool(v.isfinite().all()) for v in target.values()):
        raise InvalidParameterError("target holds a NaN or an infinity: it has no nearest point.")
    return {name: v.detach() for name, v in target.items()}
