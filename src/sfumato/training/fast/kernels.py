# SPDX-License-Identifier: Apache-2.0
"""Fused GPU kernels for norms, in Triton. They keep in registers what torch writes to memory and reads back.

Guarantee  Each function returns the value of the torch expression in its docstring, summed in float32. If
           tf32 is allowed, float32 norms are rounded up.
Edge cases Kernels need CUDA tensors, and Triton, which is installed with torch there: call `available` first.
           Everything works without them, more slowly. A tracer does not see what Triton launches: while it
           traces, kernels are called as operators of torch (`kernel_operators`), which are the same kernels.
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from sfumato.training.fast.precision import TF32_EPS, uses_tf32

__all__ = [
    "available",
    "correlation_norm",
    "feature_norm_gradients",
    "ghost_norm",
    "ghost_takes_less",
    "installed",
    "operand_eps",
    "seen_by_tracers",
]

_HALF: Final = 0.5  # of a symmetric matrix is all that is computed
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


_traced: list[object] = []  # of the whole process: autograd computes on threads of its own


@contextmanager
def seen_by_tracers() -> Generator[None]:
    """Call kernels as operators of torch for a while, which takes longer for each call."""
    _traced.append(None)
    try:
        yield
    finally:
        _traced.pop()


def _kernels() -> Any:
    if not _traced:
        return _triton()
    from sfumato.training.fast import kernel_operators  # takes a while, so only when something is traced

    return kernel_operators


def available(*tensors: Tensor) -> bool:
    """Whether the kernels take these tensors."""
    if not all(t.is_cuda and t.dtype in _TYPES and t.dtype == tensors[0].dtype for t in tensors):
        return False
    return _triton() is not None


def installed() -> bool:
    """Whether Triton is installed, so that there are kernels at all."""
    return _triton() is not None


@cache
def _triton() -> Any:
    try:
        from sfumato.training.fast import triton_kernels
    except ImportError:
        return None
    return triton_kernels


def ghost_norm(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return ((x @ x.mT) * (g @ g.mT)).sum((1, 2)) for x [units, t, in] and g [units, t, out], and the mass.

    The mass is (x.norm(dim=2) * g.norm(dim=2)).sum(1): what the errors of the first are relative to. So
    float32 operands are not cut here as tf32 would cut them: three products of tensor cores make one.
    """
    return _kernels().ghost_norm(x.contiguous(), g.contiguous(), _exact_precision())


def correlation_norm(
    image: Tensor,
    factors: Tensor,
    *,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    before: tuple[int, ...],
) -> Tensor:
    """Return the squared norm of each image's weight gradient of a two-dimensional convolution: [images].

    image is [images, channels, h, w], factors [images, outputs, *places]; the gradient is that of
    `rules.correlation`, without groups. It is computed tile by tile, or, where that takes fewer
    multiplications, its norm is that of two Gram matrices, whose terms are rounded as those of `ghost_norm`.
    """
    ghost = ghost_takes_less(image, factors, kernel)
    precision = _exact_precision() if ghost else _precision()
    shape = (kernel, stride, dilation, before)
    found = _kernels().correlation_norm(image, factors, *shape, precision, ghost)
    return found if ghost else found * _upwards(image)


def ghost_takes_less(image: Tensor, factors: Tensor, kernel: tuple[int, ...]) -> bool:
    """Whether the Gram matrices of a correlation take fewer multiplications than its gradient.

    >>> wide, narrow = torch.zeros(1, 512, 4, 4), torch.zeros(1, 16, 32, 32)
    >>> ghost_takes_less(wide, wide, (3, 3)), ghost_takes_less(narrow, narrow, (3, 3))
    (True, False)
    """
    places, taps = prod(factors.shape[2:]), prod(kernel)
    read, written = taps * image.shape[1], factors.shape[1]
    products = 3 if image.dtype is torch.float32 and _precision() == "tf32" else 1
    return products * _HALF * places * (read + written) < read * written


def _precision() -> str:
    return "tf32" if uses_tf32() else "ieee"


def _exact_precision() -> str:
    """Return how float32 operands are multiplied where they may not be cut: in three products."""
    return "tf32x3" if _precision() == "tf32" else "ieee"


def operand_eps(x: Tensor) -> float:
    """Return how coarsely the kernels round the operands of their products, relative to them."""
    return TF32_EPS if x.is_cuda and x.dtype is torch.float32 and _precision() == "tf32" else 0.0


def _upwards(x: Tensor) -> float:
    """Return what a squared norm is multiplied by so that it errs upwards, hence clipping downwards.

    Tensor cores cut float32 operands to 10 bits, which makes squared norms too small by about 1.4e-3.
    """
    return 1 + TF32_EPS if x.dtype is torch.float32 and _precision() == "tf32" else 1.0


def feature_norm_gradients(
    x: Tensor, grad: Tensor, mean: Tensor | None, rstd: Tensor, units: int
) -> tuple[Tensor, Tensor]:
    """Return the sums over each unit's vectors of grad * (x - mean) * rstd and of grad: [units, features].

    x and grad are [vectors, features], example after example; mean (None: zero) and rstd are [vectors].
    """
    return _kernels().feature_norm_gradients(x.contiguous(), grad.contiguous(), mean, rstd, units)
