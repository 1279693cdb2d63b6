# SPDX-License-Identifier: Apache-2.0
"""The gradients of all rows for all labels they could have, known by their products alone.

Promise    Let G have one column for each row i and class k: the gradient of -log softmax(model(x_i))[k] by
           the model's present weights. `combine` returns G u and `against` returns G^T v without forming G.
           Memory does not grow with the number of columns; `columns` forms those few that are asked for.
Formed     With `most_bytes`, G is formed nevertheless if it takes no more than that: where models are small
           and passes are cheap, one over rows times classes costs less than a dozen products.
Privacy    Post-processing: features and weights only. No label is looked at, so no claim is needed or made.
Passes     The forward pass is done once and kept. `combine` is one backward pass. `against` is one backward
           pass through the backward pass, which needs no forward-mode rules and repeats no forward pass.
           With `microbatch_size`, no more rows than that are held, and each product repeats their forward
           pass.
Clipped    With `clip_norm`, each column is scaled down to at most this norm on its own, exactly as a step
           clips the gradient of a row with that label. Norms cost one pass for every class.
Zero       Is in the hull of each row's columns, clipped or not: `neutral` has the weights. So is, without
           `clip_norm`, every scaled-down column; with it, the column as a step would clip it. A mean of
           clipped gradients of these rows is thus in the hull, whatever their labels are.
Weights    Products are those of the weights at birth; ask no more after a step, but build anew.
Edges      No rows: zero from `combine`, nothing from `against`. A model that mixes rows (batch norm in
           training mode) or draws randomness (dropout in training mode) has no such columns, and is
           refused. Modes, buffers and gradients of the model stay as they were.
"""

import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sfumato import _check
from sfumato.errors import InvalidParameterError, UnsupportedModelError
from sfumato.training.engine import parameter_values
from sfumato.training.engine.book_keeping import BookKeeping
from sfumato.training.engine.functional import Functional, FunctionalPass

__all__ = ["LabelGradients"]

Vectors = dict[str, Tensor]


class LabelGradients:
    """Products with the gradients of every row for every class, at the model's present weights.

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
        self._kept = _Graph(self, slice(0, rows)) if rows and self._held == rows else None
        self._formed = self._form() if 0 < self._size() <= most_bytes else None  # [rows, classes, parameters]
        self._scales = (  # [rows, classes]
            None if clip_norm is None or not rows else clip_norm / self._norms().clamp(min=clip_norm)
        )

    @property
    def rows(self) -> int:
        """How many rows of features there are."""
        return len(self._features)

    @property
    def classes(self) -> int:
        """How many labels a row could have."""
        return self._classes

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The parameters that the gradients are for, by name."""
        return self._parameters

    def neutral(self) -> Tensor:
        """Return weights [rows, classes] of sum 1 in each row, for which the columns of each row cancel.

        They are the model's own probabilities, each over the scale of its column where columns are clipped.
        """
        found = [(-graph.losses.detach()).exp() for graph in self._graphs()]
        if not found:
            return self._nothing()
        weights = torch.cat(found) if self._scales is None else torch.cat(found) / self._scales
        return weights / weights.sum(1, keepdim=True)

    def combine(self, weights: Tensor) -> Vectors:
        """Return G u: the sum of all columns, times their weights [rows, classes]."""
        self._check_shape(weights)
        weights = weights if self._scales is None else weights * self._scales
        if self._formed is not None:
            return self._shaped(weights.flatten().to(self._formed) @ self._formed.flatten(0, 1))
        totals = {name: torch.zeros_like(p) for name, p in self._parameters.items()}
        for graph in self._graphs():
            found = graph.backward(weights[graph.place])
            for name, gradient in zip(totals, found, strict=True):
                totals[name] += gradient
        return totals

    def against(self, direction: Mapping[str, Tensor]) -> Tensor:
        """Return G^T v: the inner product of each column with a direction, [rows, classes]."""
        tangents = self._checked(direction)
        if self._formed is not None:
            slopes = self._formed @ torch.cat([tangent.flatten() for tangent in tangents])
            return slopes if self._scales is None else slopes * self._scales
        found = [graph.twice(tangents) for graph in self._graphs()]
        if not found:
            return self._nothing()
        return torch.cat(found) if self._scales is None else torch.cat(found) * self._scales

    def columns(self, rows: Tensor, classes: Tensor) -> Vectors:
        """Return some columns themselves, stacked: [how many, *shape of the parameter]."""
        if rows.dim() != 1 or rows.shape != classes.shape:
            raise InvalidParameterError(
                "columns need one class for each row: two vectors of the same length."
            )
        each = (
            self._each(rows, classes) if self._formed is None else self._shaped(self._formed[rows, classes])
        )
        if self._scales is None:
            return each
        scales = self._scales[rows, classes]
        return {name: part * scales.view(-1, *[1] * (part.dim() - 1)) for name, part in each.items()}

    def _size(self) -> int:
        """Return how many bytes G takes."""
        return (
            self.rows * self._classes * sum(p.numel() * p.element_size() for p in self._parameters.values())
        )

    def _form(self) -> Tensor:
        """Return G, [rows, classes, parameters]."""
        rows = torch.arange(self.rows, device=self._features.device).repeat_interleave(self._classes)
        labels = torch.arange(self._classes, device=self._features.device).repeat(self.rows)
        step = self._held * self._classes
        parts = [self._each(*pair) for pair in zip(rows.split(step), labels.split(step), strict=True)]
        flat = [torch.cat([v.flatten(1) for v in part.values()], 1) for part in parts]
        return torch.cat(flat).view(self.rows, self._classes, -1)

    def _shaped(self, flat: Tensor) -> Vectors:
        parts = flat.split([p.numel() for p in self._parameters.values()], -1)
        named = zip(self._parameters.items(), parts, strict=True)
        return {name: part.reshape(*part.shape[:-1], *p.shape) for (name, p), part in named}

    def _each(self, rows: Tensor, classes: Tensor) -> Vectors:
        with _twice_differentiable(self._model):
            found = self._reference((self._features[rows], classes))
        return {name: found.per_unit(name).detach() for name in self._parameters}

    def _norms(self) -> Tensor:
        """Return the norm of each column, [rows, classes]."""
        if self._formed is not None:
            return self._formed.norm(dim=2)
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

    def losses(self, place: slice) -> Tensor:
        """Return -log softmax of the model's output for some rows, [rows, classes], with its graph."""
        features = self._features[place]
        before = _draws(features)
        with torch.enable_grad(), _twice_differentiable(self._model):
            logits = _outputs(self._model, features)
        if any(not torch.equal(a, b) for a, b in zip(before, _draws(features), strict=True)):
            raise UnsupportedModelError(
                "the model draws randomness in its forward pass, as dropout does in training mode: each pass "
                "would have other gradients. Call model.eval() first, or leave dropout out."
            )
        return -_logits(logits, len(features), self._classes).log_softmax(1)

    def _graphs(self) -> Iterator["_Graph"]:
        if self._kept is not None:
            yield self._kept
            return
        for start in range(0, self.rows, max(self._held, 1)):
            yield _Graph(self, slice(start, min(start + self._held, self.rows)))

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


class _Graph:
    """The passes of some rows: the losses, and their backward pass as a function of the weights."""

    def __init__(self, products: LabelGradients, place: slice) -> None:
        self.place = place
        self.losses = products.losses(place)
        self._parameters = list(products.parameters.values())
        self._reverse: tuple[Tensor, list[tuple[int, Tensor]]] | None = None

    def backward(self, weights: Tensor) -> list[Tensor]:
        """Return the gradient of the weighted sum of losses by each parameter."""
        if not self.losses.requires_grad:
            return [torch.zeros_like(p) for p in self._parameters]
        return list(
            torch.autograd.grad(
                self.losses,
                self._parameters,
                weights.to(self.losses),
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        )

    def twice(self, direction: Sequence[Tensor]) -> Tensor:
        """Return the losses' derivatives along a direction.

        The backward pass is linear in its weights u, so they are the derivative of <backward(u), v> by u.
        """
        if self._reverse is None:
            self._reverse = self._differentiable_backward()
        weights, gradients = self._reverse
        outputs = [gradient for _, gradient in gradients]
        if not outputs:
            return torch.zeros_like(weights)
        tangents = [direction[place] for place, _ in gradients]
        try:
            found = _or_none(
                torch.autograd.grad(outputs, weights, tangents, retain_graph=True, allow_unused=True)
            )[0]
        except RuntimeError as error:  # NotImplementedError is one too
            raise _no_second_derivative(error) from error
        return torch.zeros_like(weights) if found is None else found

    def _differentiable_backward(self) -> tuple[Tensor, list[tuple[int, Tensor]]]:
        weights = torch.zeros_like(self.losses, requires_grad=True)
        if not self.losses.requires_grad:
            return weights, []
        found = _or_none(
            torch.autograd.grad(self.losses, self._parameters, weights, create_graph=True, allow_unused=True)
        )
        gradients = [(i, g) for i, g in enumerate(found) if g is not None and g.requires_grad]
        _refuse_once_differentiable([g for _, g in gradients])
        return weights, gradients


def _or_none(found: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Say what torch's annotation leaves out: a gradient that nothing depends on is None."""
    return found


_ONLY_ONCE: Final = (
    "the model has an operation that cannot be differentiated twice, which products need. Replace it, or "
    "freeze the parameters before it."
)


def _no_second_derivative(error: RuntimeError) -> Exception:
    if isinstance(error, torch.OutOfMemoryError):
        return error
    return UnsupportedModelError(f"{_ONLY_ONCE} Torch says: {str(error).splitlines()[0]}")


def _refuse_once_differentiable(gradients: Sequence[Tensor]) -> None:
    """Refuse functions marked so: their error waits on a path that leads to no weight, and is never met."""
    waiting = [g.grad_fn for g in gradients]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        if node.name().endswith("::Error"):
            raise UnsupportedModelError(_ONLY_ONCE)
        fresh = [following for following, _ in node.next_functions if following not in seen]
        seen.update(fresh)
        waiting += fresh


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


def _logits(logits: object, rows: int, classes: int) -> Tensor:
    shape = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if not isinstance(logits, Tensor) or shape != [rows, classes] or not logits.is_floating_point():
        raise UnsupportedModelError(
            f"the model must return one score for each row and class, [{rows}, {classes}], but it returned "
            f"{shape}."
        )
    return logits


def _cross_entropy(model: nn.Module, features: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(_outputs(model, features), classes, reduction="none")


def _outputs(model: nn.Module, features: Tensor) -> Tensor:
    """Run a model on copies of its buffers: what the pass writes there is dropped."""
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    return torch.func.functional_call(model, buffers, (features,))


def _draws(features: Tensor) -> list[Tensor]:
    """Return the state of torch's random generators, to see whether a pass drew from them."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(features.device)] if features.is_cuda else states


@contextmanager
def _twice_differentiable(model: nn.Module) -> Generator[None]:
    """Keep attention and recurrent layers from fused kernels, which can be differentiated only once."""
    with sdpa_kernel(SDPBackend.MATH), parameter_values.as_written():
        if not any(isinstance(module, nn.RNNBase) for module in model.modules()):
            yield
            return
        before = torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled
        try:
            torch.backends.mkldnn.enabled = torch.backends.cudnn.enabled = False  # type: ignore[assignment]
            yield
        finally:
            torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled = before  # type: ignore[assignment]
