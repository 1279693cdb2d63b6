# SPDX-License-Identifier: Apache-2.0
"""Parameters of canaries: one coordinate for each, beside the parameters of the model.

The coordinates lie in tables before and after the model's parameters, also in memory, so that noise that is
shared by canaries and model shows. Their gradients are float32 numbers, whatever the type of the model is.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["CanaryCoordinates", "ModelWithCanaries"]


class CanaryCoordinates(nn.Module):
    """Coordinates for canaries, in tables before and after the model's; number 0 is not read.

    In two tables, each canary has its coordinate in one of them, by turns, and nobody uses the other. In
    four, each canary has a part in all, in equal shares.
    """

    weights: Tensor

    def __init__(self, count: int, *, tables: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count + 1, 1, dtype=torch.float32) for _ in range(tables))
        for table in self.tables:
            nn.init.zeros_(table.weight)  # type: ignore[arg-type]  # an embedding's
        turns = torch.arange(count + 1) % 2
        shares = (
            torch.stack([turns, 1 - turns]).float() if tables == 2 else torch.full((tables, count + 1), 0.5)
        )
        self.register_buffer("weights", shares, persistent=False)

    def forward(self, places: Tensor) -> Tensor:
        parts = [
            w[places] * table(places).squeeze(-1) for w, table in zip(self.weights, self.tables, strict=True)
        ]
        return functools.reduce(torch.add, parts)

    @property
    def device(self) -> torch.device:
        """Where the coordinates are."""
        return self.weights.device

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Return the gradient in the direction of each canary, and in its place in the other table."""
        found = torch.stack([table.weight.grad[1:, 0] for table in self.tables])  # type: ignore[index,union-attr]  # a step was taken
        weights = self.weights[:, 1:]
        return (found * weights).sum(0), (found * (1 - weights)).sum(0)


class ModelWithCanaries(nn.Module):
    """The model between two halves of the tables: parameters are in this order in memory, too."""

    def __init__(self, model: nn.Module, canaries: CanaryCoordinates) -> None:
        super().__init__()
        half = len(canaries.tables) // 2
        self.before = nn.ModuleList(list(canaries.tables)[:half])
        self.model = model
        self.canaries = canaries

    def forward(self, *inputs: Any) -> Any:
        return self.model(*inputs)
