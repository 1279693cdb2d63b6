# SPDX-License-Identifier: Apache-2.0
"""Networks whose layers get inputs of mean zero and of more even variance, computed from public features.

Noise has the same size in every weight. A row's gradient is the input of its layer times the gradient of its
outputs. Inputs with a large mean, or with a few large directions, fill the clip norm with what all rows have
in common, and the noise hides the rest. From random weights on MNIST at epsilon 0.1 whitening gains six
points (docs/labels.md).

`whitened` puts a fixed affine map in front of each convolution and linear layer of a sequence. It has no
weights to learn, and the network can compute the same functions as before. With `same_outputs` it computes
the same function; else layers keep their weights and get the mapped inputs. The map is x -> A (x - m), with
m the mean and A a power of the covariance S of the layer's inputs (of a convolution: of its patches):
S^(-power / 2), scaled so that the mean variance is 1. Power 1 whitens, 0 centers. A ridge of 1% of the mean
variance keeps A finite.

Guarantee  None: m and A come from features without noise. This costs nothing if only labels are secret, and
           breaks privacy everywhere else. No label is used.
Edge cases Inputs without variance are only centered. Layers of other kinds stay as they are; so do sequences
           inside of the sequence, and convolutions with groups or with padding other than numbers of zeros.
           Statistics are computed in evaluation mode. Inputs that are not finite, no rows, layers that occur
           twice and features that the network cannot read raise InvalidParameterError.
Source     LeCun et al. 1998, "Efficient BackProp" (centered, decorrelated inputs).
"""

import copy
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.labels.input_checks import check_features

__all__ = ["whitened"]

_ROWS: Final = 2048  # that statistics are computed from, at most
_RIDGE: Final = 0.01
_MOST_PATCHES: Final = 2**18


@torch.no_grad()
def whitened(
    model: nn.Sequential, features: Tensor, *, power: float = 0.5, same_outputs: bool = False
) -> nn.Sequential:
    """Return a copy of a network with a fixed map before each convolution and linear layer.

    Args:
        model: The network, a sequence of layers. It is not changed.
        features: Public features. Never use private ones: their statistics are not protected.
        power: How far variances are evened out: 1 whitens, 0 only centers.
        same_outputs: Whether weights are changed so that the network computes the same function as before.

    Returns:
        The network with the maps, in the mode of `model`.

    Raises:
        InvalidParameterError: If the model is not a sequence of different layers, or a layer cannot use the
            features.

    >>> network = whitened(nn.Sequential(nn.Linear(4, 3)), torch.randn(100, 4) + 5.0)
    >>> [layer.weight.requires_grad for layer in network]
    [False, True]
    """
    _check.in_range(0, 1, power=power)
    check_features(features)
    _require_sequence(model)
    rows = features[:: max(1, -(-len(features) // _ROWS))]
    layers: list[nn.Module] = []
    for place, layer in enumerate(model):
        try:
            added = _mapped(layer, rows, power, same_outputs=same_outputs)
            for one in added:
                rows = one.eval()(rows)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise InvalidParameterError(
                f"layer {place}, {type(layer).__name__}, cannot be run on the outputs of the layers before "
                f"it: {str(error).splitlines()[0]}"
            ) from error
        layers += added
    return nn.Sequential(*layers).train(model.training)


def _require_sequence(model: nn.Module) -> None:
    """Raise unless layers follow one another, each once: a second use would learn apart from the first."""
    if not isinstance(model, nn.Sequential) or not len(model):
        raise InvalidParameterError(
            "the network must be a torch.nn.Sequential with at least one layer. Put its layers into one, or "
            "map the inputs of single layers."
        )
    shared = [p for layer in model for p in layer.parameters()]
    if len({id(p) for p in shared}) < len(shared):
        raise InvalidParameterError(
            "a layer of the network, or a parameter, is used twice: with mapped inputs it would become two. "
            "Use a separate layer for each place."
        )


def _mapped(layer: nn.Module, rows: Tensor, power: float, *, same_outputs: bool) -> list[nn.Module]:
    """Return the layer, with the map of its inputs before it."""
    if not isinstance(layer, nn.Linear | nn.Conv2d) or not _is_plain(layer):
        return [copy.deepcopy(layer)]
    inputs = _patches(layer, rows) if isinstance(layer, nn.Conv2d) else rows.flatten(0, -2)
    mean, matrix = _map_of(inputs, power)
    weights = layer.weight.flatten(1)
    bias = weights.new_zeros(len(weights)) if layer.bias is None else layer.bias
    if same_outputs:
        bias = bias + weights @ mean
        weights = torch.linalg.solve(matrix, weights, left=False)
    return [_before(layer, mean, matrix), _after(layer, weights, bias)]


def _is_plain(layer: nn.Linear | nn.Conv2d) -> bool:
    """Whether all of a layer's inputs meet all of its weights, and what is padded is zero."""
    return isinstance(layer, nn.Linear) or (
        layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    )


def _patches(layer: nn.Conv2d, rows: Tensor) -> Tensor:
    """Return the patches that a convolution multiplies with its weights, evenly spaced if they are many."""
    assert not isinstance(layer.padding, str)
    found = F.unfold(
        rows,
        layer.kernel_size,  # pyright: ignore[reportArgumentType] - a tuple of two, which torch does not say
        dilation=layer.dilation,
        padding=layer.padding,
        stride=layer.stride,
    )
    flat = found.transpose(1, 2).flatten(0, 1)
    return flat[:: max(1, -(-len(flat) // _MOST_PATCHES))]


def _map_of(inputs: Tensor, power: float) -> tuple[Tensor, Tensor]:
    """Return the mean m [d] and the matrix A [d, d] of inputs [how many, d]."""
    exact = inputs.double()
    mean = exact.mean(0)
    covariance = torch.cov(exact.T, correction=0).reshape(len(mean), len(mean))
    if not bool(covariance.isfinite().all()):
        raise InvalidParameterError("a layer's inputs are not finite. Standardize the features first.")
    level = float(covariance.diagonal().mean())
    if not level > 0:
        return mean.to(inputs), torch.eye(len(mean)).to(inputs)
    values, vectors = torch.linalg.eigh(covariance / level)
    matrix = (vectors * (values.clamp(min=0) + _RIDGE) ** (-power / 2)) @ vectors.T
    spread = float((matrix @ covariance @ matrix).diagonal().mean())
    return mean.to(inputs), (matrix / spread**0.5).to(inputs)


def _before(layer: nn.Linear | nn.Conv2d, mean: Tensor, matrix: Tensor) -> nn.Module:
    """Return the map x -> A (x - m) of a layer's inputs, which learns nothing."""
    size = len(mean)
    made = (
        nn.Linear(size, size)
        if isinstance(layer, nn.Linear)
        else nn.Conv2d(
            layer.in_channels,
            size,
            layer.kernel_size,  # pyright: ignore[reportArgumentType]
            stride=layer.stride,  # pyright: ignore[reportArgumentType]
            padding=layer.padding,  # pyright: ignore[reportArgumentType]
            dilation=layer.dilation,  # pyright: ignore[reportArgumentType]
        )
    )
    return _with(made, matrix, -matrix @ mean).requires_grad_(False)


def _after(layer: nn.Linear | nn.Conv2d, weights: Tensor, bias: Tensor) -> nn.Module:
    """Return the layer on mapped inputs."""
    outputs, size = weights.shape
    made = nn.Linear(size, outputs) if isinstance(layer, nn.Linear) else nn.Conv2d(size, outputs, 1)
    return _with(made, weights, bias)


def _with(layer: nn.Linear | nn.Conv2d, weights: Tensor, bias: Tensor) -> nn.Linear | nn.Conv2d:
    assert layer.bias is not None
    layer.to(weights)
    layer.weight.copy_(weights.reshape(layer.weight.shape))
    layer.bias.copy_(bias)
    return layer
