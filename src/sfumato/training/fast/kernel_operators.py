# SPDX-License-Identifier: Apache-2.0
"""The kernels as operators of torch: a tracer records their calls, and a compiler leaves them as they are.

Each operator is the kernel of the same name (`triton_kernels`). Beside it stands the shape of what it
returns, which is all that a compiler asks of it. No operator has a derivative: norms are not differentiated.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sfumato.training.fast import triton_kernels

__all__ = ["correlation_norm", "feature_norm_gradients", "ghost_norm"]


@torch.library.custom_op("sfumato::ghost_norm", mutates_args=())
def ghost_norm(x: Tensor, g: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """Return the squared norm of each unit's gradient of a linear map, and its mass."""
    return triton_kernels.ghost_norm(x.contiguous(), g.contiguous(), precision)


@ghost_norm.register_fake
def _(x: Tensor, g: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    return _sums(x, x.shape[0]), _sums(x, x.shape[0])


@torch.library.custom_op("sfumato::feature_norm_gradients", mutates_args=())
def feature_norm_gradients(
    x: Tensor, grad: Tensor, mean: Tensor | None, rstd: Tensor, units: int
) -> tuple[Tensor, Tensor]:
    """Return each unit's gradients of the scale and the shift of a norm over features."""
    return triton_kernels.feature_norm_gradients(x.contiguous(), grad.contiguous(), mean, rstd, units)


@feature_norm_gradients.register_fake
def _(x: Tensor, grad: Tensor, mean: Tensor | None, rstd: Tensor, units: int) -> tuple[Tensor, Tensor]:
    return _sums(x, units, x.shape[1]), _sums(x, units, x.shape[1])


@torch.library.custom_op("sfumato::correlation_norm", mutates_args=())
def correlation_norm(
    image: Tensor,
    factors: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    before: Sequence[int],
    precision: str,
    ghost: bool,
) -> Tensor:
    """Return the squared norm of each image's gradient of a two-dimensional convolution."""
    return triton_kernels.correlation_norm(
        image,
        factors,
        kernel=_pair(kernel),
        stride=_pair(stride),
        dilation=_pair(dilation),
        before=_pair(before),
        precision=precision,
        ghost=ghost,
    )


@correlation_norm.register_fake
def _(
    image: Tensor,
    factors: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    before: Sequence[int],
    precision: str,
    ghost: bool,
) -> Tensor:
    return _sums(image, image.shape[0])


def _pair(numbers: Sequence[int]) -> tuple[int, int]:
    first, second = numbers
    return first, second


def _sums(like: Tensor, *shape: int) -> Tensor:
    """Return the shape of sums, which kernels add up in float32."""
    return like.new_empty(shape, dtype=torch.float32)
