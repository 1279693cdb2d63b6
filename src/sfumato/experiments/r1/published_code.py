# SPDX-License-Identifier: Apache-2.0
"""R1's training as its published code does it, which is not what its algorithms say and not private.

Two things differ (docs/errata.md, R1-14 and R1-15). The mean gradient of a batch is clipped, where Algorithms
1 and 2 clip the gradient of each row. And weights of columns are projected on one simplex for each row, where
the report says one simplex for all; with the average of Algorithm 4 the result is a tenth of the projection.

Guarantee  None. This is here to find out whether it explains the report's accuracies. Never use it for data
           that must be protected.
Source     github.com/AlgoSarthak/Privacy-Preservation-in-Deep-Learning-UGP-, read for what it computes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from sfumato.labels import LabelGradients, ProjectedGradient
from sfumato.training import cross_entropy

__all__ = ["PublishedSettings", "train_as_published"]

_ITERATIONS, _STEP_SIZE = 20, 0.05
_NEVER: Final = 1e-30  # a gap that no projection reaches: all iterations are taken


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedSettings:
    """The settings of a run of the published code."""

    noise: float
    steps: int
    batch: int
    clip_norm: float
    learning_rate: float
    project: bool  # whether noisy gradients are projected, as AltConv does
    classes: int
    seed: int


def train_as_published(model: nn.Module, x: Tensor, y: Tensor, settings: PublishedSettings) -> None:
    """Train a model in place; no row is protected."""
    draws = torch.Generator().manual_seed(settings.seed)
    named = dict(model.named_parameters())
    for _ in range(settings.steps):
        rows = torch.randperm(len(x), generator=draws)[: settings.batch].to(x.device)
        gradient = _noisy(model, named, x[rows], y[rows], settings, draws)
        if settings.project:
            other = torch.randperm(len(x), generator=draws)[: settings.batch].to(x.device)
            gradient = _projected(model, gradient, x[other], settings.classes)
        with torch.no_grad():
            for name, weights in named.items():
                weights -= settings.learning_rate * gradient[name]


def _noisy(
    model: nn.Module,
    named: Mapping[str, Tensor],
    x: Tensor,
    y: Tensor,
    settings: PublishedSettings,
    draws: torch.Generator,
) -> dict[str, Tensor]:
    """Return the mean gradient, each tensor of it clipped, with noise."""
    found = torch.autograd.grad(cross_entropy(model, x, y).mean(), list(named.values()))
    stddev = settings.noise * settings.clip_norm / settings.batch
    return {
        name: torch.renorm(part.unsqueeze(0), 2, 0, settings.clip_norm).squeeze(0)
        + stddev * torch.randn(part.shape, generator=draws).to(part)
        for name, part in zip(named, found, strict=True)
    }


def _projected(model: nn.Module, target: Mapping[str, Tensor], x: Tensor, classes: int) -> dict[str, Tensor]:
    """Return what twenty steps of the code's projected descent arrive at."""
    columns = _Averaged(LabelGradients(model, x, classes=classes))
    # The code's step is 2 x 0.05 for weights that add up to 1 in each row, and for columns that are not
    # averaged; here they add up to 1 / rows, and columns are a tenth.
    descent = ProjectedGradient(
        tolerance=_NEVER, most_iterations=_ITERATIONS, step_size=2 * _STEP_SIZE * classes / len(x)
    )
    even = torch.full((len(x), classes), 1 / (len(x) * classes), device=x.device)
    return descent.solve(columns, target, start=even, each=True).gradient


class _Averaged:
    """Products with columns that are divided by the number of classes, by Algorithm 4's average."""

    def __init__(self, whole: LabelGradients) -> None:
        self._whole = whole
        self.rows, self.classes = whole.rows, whole.classes

    def neutral(self) -> Tensor:
        return self._whole.neutral()

    def combine(self, weights: Tensor) -> dict[str, Tensor]:
        return self._whole.combine(weights / self.classes)

    def against(self, direction: Mapping[str, Tensor]) -> Tensor:
        return self._whole.against(direction) / self.classes

    def columns(self, rows: Tensor, classes: Tensor) -> dict[str, Tensor]:
        return {name: part / self.classes for name, part in self._whole.columns(rows, classes).items()}
