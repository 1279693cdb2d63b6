# SPDX-License-Identifier: Apache-2.0
"""Products with the gradients of all rows for all labels they could have.

G has one column for each row i and class k: the gradient of -log softmax(model(x_i))[k] by the model's
current weights. `combine` returns G u and `against` returns G^T v without forming G. Memory does not grow
with the number of columns; `columns` forms only the columns it is given. With `most_bytes`, if G would take
no more than that, one pass over rows times classes replaces the passes of all products (`column_factors`),
and solvers get the inner products of columns (`factors`). A model that this pass cannot run is run as above.

The forward pass is done once and kept. `combine` is one backward pass. `against` is one backward pass
through the backward pass, which needs no forward-mode rules and repeats no forward pass. With
`microbatch_size`, no more rows than that are held, and each product repeats their forward pass. Products are
those of the weights at construction: make a new object after a step.

With `clip_norm`, each column is scaled down to at most this norm, exactly as a step clips the gradient of a
row with that label. Norms take one pass for every class. Zero lies in the hull of each row's columns,
clipped or not: `neutral` returns the weights. Without `clip_norm` every scaled-down column lies in it too;
with it, the column as a step would clip it. So a mean of clipped gradients of these rows lies in the hull,
whatever their labels are.

Guarantee  Post-processing: features and weights only. No label is used, so nothing is claimed.
Edge cases No rows: zero from `combine`, nothing from `against`. A model that mixes rows (batch norm in
           training mode) or draws randomness (dropout in training mode) has no such columns and raises
           UnsupportedModelError. Modes, buffers and gradients of the model stay as they were.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato import _check
from sfumato.errors import InvalidParameterError, UnsupportedModelError
from sfumato.labels.projection.column_factors import ColumnFactors
from sfumato.labels.projection.label_losses import (
    LossGraph,
    label_losses,
    model_outputs,
    twice_differentiable,
)
from sfumato.training.engine import parameter_values
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.functional import Functional, FunctionalPass

__all__ = ["LabelGradients"]

Vectors = dict[str, Tensor]


class LabelGradients:
    """Products with the gradients of every row for every class, at the model's current weights.

    Args:
        model: The model. It is not changed.
        features: The rows, public.
        classes: The number of classes.
        parameters: The names of the parameters to differentiate by, or None for all trainable ones.
        clip_norm: The L2 bound on each column, or None for unclipped columns.
        microbatch_size: The number of rows in memory at once, or None for all.
        most_bytes: The size of G up to which all columns come from one pass. 0 never does that. It needs all
            rows in memory at once.

    Raises:
        InvalidParameterError: If a parameter is out of range.
        UnsupportedModelError: If the model mixes rows, draws randomness, or does not return one score for
            each class.

    >>> products = LabelGradients(nn.Linear(4, 3), torch.ones(5, 4), classes=3)
    >>> products.combine(torch.ones(5, 3))["weight"].shape
    torch.Size([3, 4])
    >>> products.against({"weight": torch.ones(3, 4), "bias": torch.ones(3)}).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        features: Tensor,
        *,
        classes: int,
        parameters: Sequence[str] | None = None,
        clip_norm: float | None = None,
        microbatch_size: int | None = None,
        most_bytes: int = 0,
    ) -> None:
        _check.count(classes=classes)
        _check.non_negative(most_bytes=most_bytes)
        if clip_norm is not None:
            _check.positive(clip_norm=clip_norm)
        if microbatch_size is not None:
            _check.count(microbatch_size=microbatch_size)
        if not features.dim():
            raise InvalidParameterError(
                "features must have one row for each example, but a scalar was given."
            )
        _refuse_mixing(model)
        self._model = model
        self._features = features.detach()
        self._classes = classes
        self._parameters = _chosen(model, parameters)
        rows = len(features)
        self._held = rows if microbatch_size is None else min(microbatch_size, rows)
        self._kept = self._graph(slice(0, rows)) if rows and self._held == rows else None
        self._factors = self._factored(clip_norm) if 0 < self._size() <= most_bytes else None
        self._scales = self._clipped(clip_norm)  # [rows, classes]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self._features)

    @property
    def classes(self) -> int:
        """The number of labels that a row could have."""
        return self._classes

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The parameters that the gradients are for, by name."""
        return self._parameters

    @property
    def factors(self) -> ColumnFactors | None:
        """All columns and their inner products, if one pass gave them."""
        return self._factors

    def neutral(self) -> Tensor:
        """Return weights for which the columns of each row cancel.

        They are the model's own probabilities, each over the scale of its column if columns are clipped.

        Returns:
            Weights [rows, classes] with sum 1 in each row.
        """
        found = [(-graph.losses.detach()).exp() for _, graph in self._graphs()]
        if not found:
            return self._nothing()
        weights = torch.cat(found) if self._scales is None else torch.cat(found) / self._scales
        return weights / weights.sum(1, keepdim=True)

    def combine(self, weights: Tensor) -> Vectors:
        """Return G u: the sum of all columns, times their weights.

        Args:
            weights: The weights u, [rows, classes].

        Returns:
            The combination, by the name of each parameter.

        Raises:
            InvalidParameterError: If the weights have another shape.
        """
        self._check_shape(weights)
        if self._factors is not None:
            return self._in_type(self._factors.combine(weights.flatten()))
        weights = weights if self._scales is None else weights * self._scales
        totals = {name: torch.zeros_like(p) for name, p in self._parameters.items()}
        for place, graph in self._graphs():
            found = graph.backward(weights[place])
            for name, gradient in zip(totals, found, strict=True):
                totals[name] += gradient
        return totals

    def against(self, direction: Mapping[str, Tensor]) -> Tensor:
        """Return G^T v: the inner product of each column with a direction.

        Args:
            direction: The direction v, by the name of each parameter.

        Returns:
            The inner products, [rows, classes].

        Raises:
            InvalidParameterError: If the direction has other names or shapes than the parameters.
        """
        tangents = self._checked(direction)
        if self._factors is not None:
            slopes = self._factors.against(dict(zip(self._parameters, tangents, strict=True)))
            return slopes.view(self.rows, self._classes).to(tangents[0].dtype)
        found = [graph.twice(tangents) for _, graph in self._graphs()]
        if not found:
            return self._nothing()
        return torch.cat(found) if self._scales is None else torch.cat(found) * self._scales

    def columns(self, rows: Tensor, classes: Tensor) -> Vectors:
        """Return some columns.

        Args:
            rows: The row of each column.
            classes: The class of each column.

        Returns:
            The columns, stacked, by the name of each parameter: [columns, *shape of the parameter].

        Raises:
            InvalidParameterError: If `rows` and `classes` are not vectors of the same length.
        """
        if rows.dim() != 1 or rows.shape != classes.shape:
            raise InvalidParameterError(
                "columns need one class for each row: two vectors of the same length."
            )
        if self._factors is not None:
            return self._in_type(self._factors.columns(rows * self._classes + classes))
        each = self._each(rows, classes)
        if self._scales is None:
            return each
        scales = self._scales[rows, classes]
        return {name: part * scales.view(-1, *[1] * (part.dim() - 1)) for name, part in each.items()}

    def _size(self) -> int:
        """Return how many bytes G takes."""
        return (
            self.rows * self._classes * sum(p.numel() * p.element_size() for p in self._parameters.values())
        )

    def _factored(self, clip_norm: float | None) -> ColumnFactors | None:
        """Return all columns from one pass, or None if that cannot run the model."""
        if self._kept is None:
            return None
        try:
            with twice_differentiable(self._model):
                return ColumnFactors(
                    self._model,
                    _cross_entropy,
                    self._features,
                    classes=self._classes,
                    parameters=self._parameters,
                    clip_norm=clip_norm,
                )
        except UnsupportedModelError:
            return None

    def _clipped(self, clip_norm: float | None) -> Tensor | None:
        """Return the factors that clip columns to this norm; None if they are not clipped."""
        if clip_norm is None or not self.rows:
            return None
        if self._factors is not None and self._factors.scales is not None:
            return self._factors.scales.view(self.rows, self._classes)
        return clip_norm / self._norms().clamp(min=clip_norm)

    def _in_type(self, vectors: Vectors) -> Vectors:
        return {name: vectors[name].to(p.dtype) for name, p in self._parameters.items()}

    def _each(self, rows: Tensor, classes: Tensor) -> Vectors:
        with twice_differentiable(self._model):
            found = self._reference((self._features[rows], classes))
        return {name: found.per_unit(name).detach() for name in self._parameters}

    def _norms(self) -> Tensor:
        """Return the norm of each column, [rows, classes]."""
        starts = range(0, self.rows, self._held)
        parts = [self._norms_of(self._features[start : start + self._held]) for start in starts]
        return torch.cat(parts).detach()

    def _norms_of(self, features: Tensor) -> Tensor:
        shape, place = (len(features),), features.device
        each = (torch.full(shape, label, device=place) for label in range(self._classes))
        return torch.stack([self._column_norms(features, labels) for labels in each], 1)

    def _column_norms(self, features: Tensor, labels: Tensor) -> Tensor:
        rows, groups = (features, labels), [list(self._parameters)]
        try:
            found = BookKeeping(self._model, _cross_entropy).run(rows).squared_norms(groups)
        except UnsupportedModelError:
            found = self._reference(rows).squared_norms(groups)
        return found[0].sqrt()

    def _reference(self, rows: tuple[Tensor, Tensor]) -> FunctionalPass:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.func.vmap cannot run")  # slow is fine: they are few
            return Functional(self._model, _cross_entropy).run(rows)

    def _graphs(self) -> Iterator[tuple[slice, LossGraph]]:
        if self._kept is not None:
            yield slice(0, self.rows), self._kept
            return
        for start in range(0, self.rows, max(self._held, 1)):
            place = slice(start, min(start + self._held, self.rows))
            yield place, self._graph(place)

    def _graph(self, place: slice) -> LossGraph:
        losses = label_losses(self._model, self._features[place], classes=self._classes)
        return LossGraph(losses, list(self._parameters.values()))

    def _nothing(self) -> Tensor:
        return next(iter(self._parameters.values())).new_zeros((0, self._classes))

    def _check_shape(self, weights: Tensor) -> None:
        if weights.shape != (self.rows, self._classes):
            raise InvalidParameterError(
                f"weights must be [rows, classes] = {[self.rows, self._classes]}, not {list(weights.shape)}."
            )

    def _checked(self, direction: Mapping[str, Tensor]) -> list[Tensor]:
        shapes = {name: p.shape for name, p in self._parameters.items()}
        if {name: v.shape for name, v in direction.items()} != shapes:
            raise InvalidParameterError(
                "direction must have a value of the right shape for each parameter, and no other: "
                f"{ {name: list(shape) for name, shape in shapes.items()} }."
            )
        return [direction[name].to(p.dtype) for name, p in self._parameters.items()]


def _chosen(model: nn.Module, names: Sequence[str] | None) -> dict[str, nn.Parameter]:
    trainable = parameter_values.find(model).parameters
    if names is None:
        return dict(trainable)
    unknown = [name for name in names if name not in trainable]
    if unknown or not names:
        raise InvalidParameterError(
            f"parameters must name trainable parameters of the model, at least one; {unknown} are not. "
            f"There are {sorted(trainable)}."
        )
    return {name: trainable[name] for name in names}


def _refuse_mixing(model: nn.Module) -> None:
    for name, module in model.named_modules():
        frozen = not module.training and getattr(module, "running_mean", None) is not None
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not frozen:  # pyright: ignore[reportPrivateUsage]
            raise UnsupportedModelError(
                f"layer {name!r} normalizes over the batch, so a row has no gradient of its own. Replace it "
                "by GroupNorm, or call model.eval()."
            )


def _cross_entropy(model: nn.Module, features: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(model_outputs(model, features), classes, reduction="none")
