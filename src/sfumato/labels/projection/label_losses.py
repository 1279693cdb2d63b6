# SPDX-License-Identifier: Apache-2.0
"""The losses of rows for all labels they could have, in a form that can be differentiated twice.

Edge cases A model that draws randomness in its forward pass (dropout in training mode), or has an operation
           that can be differentiated only once, raises UnsupportedModelError. Buffers of the model stay as
           they were.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sfumato.errors import UnsupportedModelError
from sfumato.training.engine import parameter_values

__all__ = ["LossGraph", "label_losses", "model_outputs", "twice_differentiable"]


def label_losses(model: nn.Module, features: Tensor, *, classes: int) -> Tensor:
    """Return -log softmax of the model's output for some rows, with its graph.

    Args:
        model: The model at its current weights.
        features: The rows.
        classes: The number of classes.

    Returns:
        The loss of each row for each class, [rows, classes].

    Raises:
        UnsupportedModelError: If the model draws randomness, or does not return one score for each class.

    >>> label_losses(nn.Identity(), torch.zeros(1, 2), classes=2)
    tensor([[0.6931, 0.6931]])
    """
    before = _draws(features)
    with torch.enable_grad(), twice_differentiable(model):
        logits = model_outputs(model, features)
    if any(not torch.equal(a, b) for a, b in zip(before, _draws(features), strict=True)):
        raise UnsupportedModelError(
            "the model draws randomness in its forward pass, as dropout does in training mode: each pass "
            "would have other gradients. Call model.eval() first, or leave dropout out."
        )
    return -_logits(logits, len(features), classes).log_softmax(1)


class LossGraph:
    """The losses of some rows, and their backward pass as a function of the weights of the losses.

    Args:
        losses: The losses [rows, classes], with their graph, as `label_losses` returns them.
        parameters: The parameters to differentiate by.
    """

    def __init__(self, losses: Tensor, parameters: Sequence[nn.Parameter]) -> None:
        self.losses = losses
        self._parameters = list(parameters)
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
    """Return the gradients with the right type: torch returns None for a parameter without influence."""
    return found


_ONLY_ONCE: Final = (
    "the model has an operation that cannot be differentiated twice, which is needed. Replace it, or "
    "freeze the parameters before it."
)


def _no_second_derivative(error: RuntimeError) -> Exception:
    if isinstance(error, torch.OutOfMemoryError):
        return error
    return UnsupportedModelError(f"{_ONLY_ONCE} Torch says: {str(error).splitlines()[0]}")


def _refuse_once_differentiable(gradients: Sequence[Tensor]) -> None:
    """Refuse functions that can be differentiated once: their own error would never be reached."""
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


def _logits(logits: object, rows: int, classes: int) -> Tensor:
    shape = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if not isinstance(logits, Tensor) or shape != [rows, classes] or not logits.is_floating_point():
        raise UnsupportedModelError(
            f"the model must return one score for each row and class, [{rows}, {classes}], but it returned "
            f"{shape}."
        )
    return logits


def model_outputs(model: nn.Module, features: Tensor) -> Tensor:
    """Run a model on copies of its buffers: what the pass writes there is dropped."""
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    return torch.func.functional_call(model, buffers, (features,))


def _draws(features: Tensor) -> list[Tensor]:
    """Return the state of torch's random generators, to detect whether a pass drew from them."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(features.device)] if features.is_cuda else states


@contextmanager
def twice_differentiable(model: nn.Module) -> Generator[None]:
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
