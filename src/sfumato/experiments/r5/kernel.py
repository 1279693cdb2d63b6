# SPDX-License-Identifier: Apache-2.0
"""The matrix that governs the loss when gradients are clipped: the tangent kernel times clipping factors.

A network has one output f(x_i) for each row, and the loss is half of the squared errors e_i = f(x_i) - y_i.
With J_r the gradients of the outputs by the parameters of layer r, one row for each example, the clipped sum
of layer r is J_r^T (c_r e): c_r has the clipping factor of each example. In continuous time the errors follow

    e' = -M e,    M = sum over r of J_r J_r^T diag(c_r),    and the loss follows  L' = -e^T M e.

Without clipping M is the tangent kernel H: symmetric and positive semi-definite, so the loss never rises.
Flat local clipping has M = H C: no longer symmetric, but its eigenvalues are those of C^(1/2) H C^(1/2), real
and not negative. With factors for each layer M is a sum of such products, of which neither is known.

Source     Bu, Wang and Long 2021, arXiv:2106.07830.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sfumato.training import Clipping, Scaling

__all__ = [
    "BatchFactor",
    "Spectrum",
    "Style",
    "Tangents",
    "descend",
    "factors",
    "reach",
    "spectrum",
    "tangents",
]

ROUNDING: Final = 1e-10  # of eigenvalues, relative to the largest


@dataclass(frozen=True)
class BatchFactor:
    """Global clipping as the slides word it: one factor for a batch, which the largest norm in it decides.

    Attributes:
        clip_norm: What the largest norm is scaled to.
    """

    clip_norm: float


Style = Clipping | BatchFactor | None  # None: no clipping


@dataclass(frozen=True)
class Tangents:
    """Outputs of a network and their gradients, layer by layer.

    Attributes:
        outputs: One for each row, [n].
        layers: For each layer the gradients of outputs, [n, parameters of the layer].
    """

    outputs: Tensor
    layers: Mapping[str, Tensor]

    def norms(self, errors: Tensor, layers: Sequence[str] | None = None) -> Tensor:
        """Return the norms of the rows' gradients of the loss, by all parameters or those of layers, [n]."""
        chosen = self.layers if layers is None else layers
        return torch.cat([self.layers[name] for name in chosen], 1).norm(dim=1) * errors.abs()

    def without_first(self) -> "Tangents":
        """Return the same without the first row."""
        return Tangents(self.outputs[1:], {name: jacobian[1:] for name, jacobian in self.layers.items()})

    def moved(self, errors: Tensor, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the clipped sum of each layer: `weights` has the factors of the rows, [n]."""
        return {name: jacobian.T @ (weights[name] * errors) for name, jacobian in self.layers.items()}

    def matrix(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the matrix M of the module's docstring, [n, n]."""
        parts = [jacobian @ jacobian.T * weights[name] for name, jacobian in self.layers.items()]
        return torch.stack(parts).sum(0)


def tangents(model: nn.Module, x: Tensor) -> Tangents:
    """Return outputs and their gradients; the layers are modules with parameters, as in `Clipping`."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def output(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        return functional_call(model, weights, (row[None],)).reshape(())

    slopes: dict[str, Tensor] = vmap(grad(output), in_dims=(None, 0))(parameters, x)
    layers: dict[str, list[Tensor]] = {}
    for name, slope in slopes.items():
        layers.setdefault(name.rpartition(".")[0], []).append(slope.flatten(1))
    with torch.no_grad():
        outputs = model(x).flatten()
    return Tangents(outputs, {name: torch.cat(parts, 1) for name, parts in layers.items()})


def factors(style: Style, found: Tangents, errors: Tensor) -> dict[str, Tensor]:
    """Return the clipping factor of each row for each layer, as `sfumato.training` clips."""
    names = list(found.layers)
    if style is None:
        return dict.fromkeys(names, torch.ones_like(errors))
    if isinstance(style, BatchFactor):
        factor = (style.clip_norm / found.norms(errors).max()).clamp(max=1.0)
        return dict.fromkeys(names, factor.expand_as(errors))
    parameters = [f"{name}.weight" for name in names]
    weights: dict[str, Tensor] = {}
    for group, threshold in zip(style.groups(parameters), style.thresholds(parameters), strict=True):
        layers = [name.rpartition(".")[0] for name in group]
        weights |= dict.fromkeys(layers, _scaled(style, found.norms(errors, layers), threshold))
    return weights


def reach(style: Style, found: Tangents, errors: Tensor) -> float:
    """Return how far the first row moves the clipped sum, as it is or with 1000 times its error."""
    rest, others = found.without_first(), errors[1:]
    without = rest.moved(others, factors(style, rest, others))
    farthest = 0.0
    for times in (1.0, 1000.0):
        larger = torch.cat([errors[:1] * times, others])
        moved = found.moved(larger, factors(style, found, larger))
        farthest = max(farthest, float(torch.cat([moved[name] - without[name] for name in without]).norm()))
    return farthest


def _scaled(style: Clipping, norms: Tensor, threshold: float) -> Tensor:
    if style.scaling is Scaling.LOCAL:
        return (threshold / norms).clamp(max=1.0)
    assert style.drop_above is not None  # global clipping has one
    return torch.where(norms <= style.drop_above, threshold / style.drop_above, 0.0)


@dataclass(frozen=True)
class Spectrum:
    """What the matrix M is like; numbers are relative to its largest eigenvalue, in absolute value.

    Attributes:
        asymmetry: The norm of M - M^T over that of M; 0 for a symmetric one.
        form: The least e^T M e of a unit vector e: the loss may rise if it is below 0.
        real: The least real part of an eigenvalue: errors may grow if it is below 0.
    """

    asymmetry: float
    form: float
    real: float

    @property
    def semi_definite(self) -> bool:
        """Whether M is symmetric and positive semi-definite."""
        return self.asymmetry <= ROUNDING and self.form >= -ROUNDING


def spectrum(matrix: Tensor) -> Spectrum:
    """Return what a matrix is like."""
    eigenvalues = torch.linalg.eigvals(matrix)
    size = eigenvalues.abs().max()
    form = torch.linalg.eigvalsh((matrix + matrix.T) / 2).min()
    return Spectrum(
        asymmetry=float((matrix - matrix.T).norm() / matrix.norm()),
        form=float(form / size),
        real=float(eigenvalues.real.min() / size),
    )


def descend(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    style: Style,
    learning_rate: float,
    steps: int,
    watch: Callable[[int, Tangents, Tensor], object] = lambda step, found, errors: None,
) -> list[float]:
    """Train a network in place by clipped sums of all rows, without noise; return the losses."""
    parameters = dict(model.named_parameters())
    losses: list[float] = []
    for step in range(steps):
        found = tangents(model, x)
        errors = found.outputs - y
        losses.append(float(errors.square().mean() / 2))
        watch(step, found, errors)
        for layer, change in found.moved(errors, factors(style, found, errors)).items():
            _move(parameters, layer, change, -learning_rate / len(y))
    return losses


@torch.no_grad()
def _move(parameters: Mapping[str, nn.Parameter], layer: str, change: Tensor, rate: float) -> None:
    place = 0
    for name, parameter in parameters.items():
        if name.rpartition(".")[0] == layer:
            part = change[place : place + parameter.numel()]
            parameter.add_(part.view_as(parameter), alpha=rate)
            place += parameter.numel()
