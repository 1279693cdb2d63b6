# SPDX-License-Identifier: Apache-2.0
"""The interface between engines, which compute gradients, and clipping, which bounds them."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

__all__ = ["Engine", "GradientPass"]


class GradientPass(Protocol):
    """The gradients of one batch, as any engine gives them."""

    def squared_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        """Return the squared norm of each unit's gradient in each group of parameters: [groups, units]."""
        ...

    def weighted_sums(
        self, groups: Sequence[Sequence[str]], weights: Tensor, *, last: bool = False
    ) -> dict[str, Tensor]:
        """Return for each parameter the sum of all units' gradients times their weights [groups, units].

        If it is the `last` call on this pass, memory is freed during the call.
        """
        ...

    def per_unit(self, name: str) -> Tensor:
        """Return each unit's gradient of one parameter: [units, *shape]."""
        ...


class Engine(Protocol):
    """Computes the gradients of the units of a batch."""

    def run(self, batch: Sequence[Any], *, per_unit: int = 1) -> GradientPass:
        """Return the gradients of a batch, `per_unit` consecutive rows to a unit."""
        ...
