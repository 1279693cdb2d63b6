# SPDX-License-Identifier: Apache-2.0
"""Clipped gradients of rows that are not private: as in DP-SGD, without noise.

The discriminator's gradient on generated images is clipped like that on private ones, but apart from it:
otherwise one side of the game would pull harder than the other.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from sfumato.mechanisms.random import resolve
from sfumato.training.engine import parameter_values
from sfumato.training.engine.losses import Loss, weighted
from sfumato.training.engine.passes import Passes
from sfumato.training.engine.step.settings import PassSettings
from sfumato.training.privacy.clipping import ClippedSums, Clipper, Clipping

__all__ = ["ClippedGradients"]


class ClippedGradients:
    """Means of clipped gradients.

    Args:
        model: The model.
        loss: `loss(model, *rows)` returns one number for each row.
        clip_norm: The L2 norm to which the gradient of a row is clipped.
        rows: How many rows there are each time.
        cuda_graphs: Whether to launch the kernels of a pass at once.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, *, clip_norm: float, rows: int, cuda_graphs: bool
    ) -> None:
        self._rows = rows
        parameters = dict(parameter_values.find(model).parameters)
        self._passes = Passes(
            model,
            weighted(loss),
            Clipper(Clipping(clip_norm=clip_norm), parameters),
            settings=PassSettings(check=False, cuda_graphs=cuda_graphs),
            projections=None,
            generator=resolve(None),
            expected_batch_size=rows,
            step=lambda: 0,
        )

    def mean(self, *batch: Any) -> Mapping[str, Tensor]:
        """Return the mean of the clipped gradients of a batch, by parameter.

        Args:
            batch: The rows.

        Returns:
            The gradients; those of parameters without any are left out.
        """
        totals: dict[str, Tensor] = {}

        def add(found: ClippedSums) -> None:
            for name, part in found.sums.items():
                totals[name] = totals[name] + part if name in totals else part

        self._passes.run((None, *batch), 1, add)
        if not self._passes.finite:
            totals.clear()
            self._passes.again(add)
        self._passes.clear()
        return {name: total / self._rows for name, total in totals.items()}
