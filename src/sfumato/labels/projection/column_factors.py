# SPDX-License-Identifier: Apache-2.0
"""All label gradients of some rows from one pass, with their inner products.

One forward and one backward pass over rows times classes gives every column of G. Where a layer is a linear
map of one vector, a column is the outer product of that vector and of the gradient of the output. Its two
factors are kept instead, so that G need not be formed: inner products of columns are then products of inner
products of factors, which take few operations. Gradients of other parameters are kept as they are.

Guarantee  Post-processing: features and weights only. No label is used: each row has all of them.
Edge cases Columns are those of the model in its own type; everything here is computed from them in float64.
           A NaN or an infinity in a column is passed on.
Failure    A model that book-keeping cannot run raises UnsupportedModelError.
Source     Bu et al. 2023, arXiv:2210.00038 (book-keeping).
"""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.losses import Loss

__all__ = ["ColumnFactors", "launch_bound"]

_ON_CPU: Final = 256  # columns in one pass on a CPU: with more, activations do not stay in its caches
_HELD: Final = 4096  # columns: all of their inner products take 128 MiB


def launch_bound(place: torch.device) -> bool:
    """Whether few large operations are faster than many small ones with less work in all.

    >>> launch_bound(torch.device("cuda")), launch_bound(torch.device("cpu"))
    (True, False)
    """
    return place.type == "cuda"


class ColumnFactors:
    """The columns of G, row by row, a row's classes in turn.

    Args:
        model: The model at its current weights. It is not changed.
        loss: The loss of each row for its class.
        features: The rows, at least one.
        classes: The number of classes.
        parameters: The parameters to differentiate by.
        clip_norm: The L2 bound on each column, or None for unclipped columns.

    Raises:
        UnsupportedModelError: If the model cannot be run by book-keeping.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        features: Tensor,
        *,
        classes: int,
        parameters: Mapping[str, nn.Parameter],
        clip_norm: float | None = None,
    ) -> None:
        self.rows, self.classes = len(features), classes
        self._parameters = parameters
        held = self.rows if launch_bound(features.device) else max(1, _ON_CPU // classes)
        engine = BookKeeping(model, loss)
        parts = [self._part(engine, some) for some in features.split(held)]
        self._dense = torch.cat([dense for dense, _ in parts])  # [columns, numbers of other parameters]
        self._outer = {  # inputs [rows, in], output gradients [columns, out]
            name: (
                torch.cat([outer[name][0] for _, outer in parts]),
                torch.cat([g[name][1] for _, g in parts]),
            )
            for name in parts[0][1]
        }
        self._gram: Tensor | None = None
        self.scales = None if clip_norm is None else clip_norm / self._norms().clamp(min=clip_norm)

    def _part(self, engine: BookKeeping, features: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
        """Return columns of some rows: parts that are kept as they are, and the factors of the others."""
        labels = torch.arange(self.classes, device=features.device).repeat(len(features))
        run = engine.run((features.repeat_interleave(self.classes, 0), labels))
        found = {name: run.factors(name) for name in self._parameters}
        dense = [run.per_unit(name).flatten(1) for name, pair in found.items() if pair is None]
        none = next(iter(self._parameters.values())).new_zeros((len(labels), 0))
        outer = {
            name: (pair[0][:: self.classes].double(), pair[1].double())
            for name, pair in found.items()
            if pair is not None
        }
        return torch.cat([none, *dense], 1).double(), outer

    def __len__(self) -> int:
        return self.rows * self.classes

    @property
    def place(self) -> torch.device:
        """The device of the columns."""
        return self._dense.device

    @property
    def held(self) -> bool:
        """Whether there are few enough columns to hold the inner products of all pairs."""
        return len(self) <= _HELD

    def combine(self, weights: Tensor) -> dict[str, Tensor]:
        """Return G u, in float64.

        Args:
            weights: The weight of each column.

        Returns:
            The combination, by the name of each parameter.
        """
        weights = weights.double() if self.scales is None else weights.double() * self.scales
        sizes = [p.numel() for name, p in self._parameters.items() if name not in self._outer]
        others = iter((weights @ self._dense).split(sizes))
        return {
            name: self._outer_sum(name, weights) if name in self._outer else next(others).view(p.shape)
            for name, p in self._parameters.items()
        }

    def _outer_sum(self, name: str, weights: Tensor) -> Tensor:
        inputs, gradients = self._outer[name]
        each = torch.bmm(weights.view(self.rows, 1, self.classes), self._by_row(gradients))  # over classes
        return each.squeeze(1).T @ inputs

    def _by_row(self, columns: Tensor) -> Tensor:
        return columns.view(self.rows, self.classes, -1)

    def against(self, direction: Mapping[str, Tensor]) -> Tensor:
        """Return G^T v, in float64.

        Args:
            direction: The direction v, by the name of each parameter.

        Returns:
            The inner product of each column with the direction.
        """
        others = [direction[name].flatten() for name in self._parameters if name not in self._outer]
        total = self._dense @ torch.cat(others).double() if others else self._dense.new_zeros(len(self))
        for name, (inputs, gradients) in self._outer.items():
            along = inputs @ direction[name].double().T  # [rows, out]
            total = total + torch.bmm(self._by_row(gradients), along.unsqueeze(2)).flatten()
        return total if self.scales is None else total * self.scales

    def columns(self, places: Tensor) -> dict[str, Tensor]:
        """Return some columns, in float64.

        Args:
            places: The numbers of the columns.

        Returns:
            The columns, stacked, by the name of each parameter.
        """
        sizes = [p.numel() for name, p in self._parameters.items() if name not in self._outer]
        others, found = iter(self._dense[places].split(sizes, 1)), dict[str, Tensor]()
        for name, p in self._parameters.items():
            if name in self._outer:
                inputs, gradients = self._outer[name]
                part = gradients[places].unsqueeze(2) * inputs[places // self.classes].unsqueeze(1)
            else:
                part = next(others).reshape(-1, *p.shape)
            scales = None if self.scales is None else self.scales[places].view(-1, *[1] * p.dim())
            found[name] = part if scales is None else part * scales
        return found

    def inner(self, places: Tensor) -> Tensor:
        """Return the inner products of some columns with all columns.

        On a GPU those of all pairs are computed at once, if there are few enough columns.

        Args:
            places: The numbers of the columns.

        Returns:
            The inner products, [places, columns], in float64.
        """
        if self._gram is None and self.held and launch_bound(self.place):
            self._gram = self._inner(torch.arange(len(self), device=self.place))
        return self._inner(places) if self._gram is None else self._gram[places]

    def _inner(self, places: Tensor) -> Tensor:
        total = self._dense[places] @ self._dense.T
        for inputs, gradients in self._outer.values():
            alike = inputs[places // self.classes] @ inputs.T  # [places, rows]
            outputs = (gradients[places] @ gradients.T).view(-1, self.rows, self.classes)
            total = total.addcmul_(outputs.flatten(1), alike.unsqueeze(2).expand_as(outputs).flatten(1))
        return total if self.scales is None else total * self.scales[places].unsqueeze(1) * self.scales

    def _norms(self) -> Tensor:
        total = self._dense.square().sum(1)
        for inputs, gradients in self._outer.values():
            lengths = inputs.square().sum(1, keepdim=True)
            total = total + (self._by_row(gradients).square().sum(2) * lengths).flatten()
        return total.sqrt()
