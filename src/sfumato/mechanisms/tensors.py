# SPDX-License-Identifier: Apache-2.0
"""Gaussian and Laplace noise in tensors, from the cryptographic stream.

Promise    Each draw can be paired with an ideal real one so that, save with probability 2^-63, the two
           differ by at most 2^-46 stddev or scale, before one rounding to `dtype`. (A Gaussian pair of radius
           r below 1/64 stddev, one in 8000: by at most 2^-52 / r, never above 2^-25.)
           The exception is the tail: a Gaussian radius stops at sqrt(2 ln 2^64) = 9.42 stddev and a Laplace
           magnitude at ln 2^64 = 44.4 scale, beyond which an ideal draw falls with probability 2^-64. So d
           draws are within d * 2^-63 of ideal ones in total variation, rounding aside.
Rounding   Floating-point numbers are not the reals, and a proof about real noise does not cover the last
           bits (Mironov 2012). Where the guarantee must be exact, use the integer grid
           (`mechanisms.discrete`). Sums are rounded once, in float64, then to `dtype`.
Edges      Noise is never infinite and never NaN. `stddev` 0, NaN, infinite, negative, or so large that the
           noise could overflow `dtype` is refused. An empty tensor stays empty. NaN in the tensor stays NaN:
           clip before adding noise.
Fast path  With a `FastGenerator` the Gaussian is torch's own, with that generator's device and quality.
Devices    The stream lives on the CPU; noise for another device is drawn there and copied.
Source     Box and Muller 1958.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import FastGenerator, Generator, resolve

__all__ = ["add_gaussian_", "add_laplace_", "gaussian", "laplace"]

_CHUNK = 1 << 14  # pairs; the four float64 buffers of a chunk (512 KiB) stay in a second-level cache
_HALF_STEP = 2.0**-64  # stands for the uniform 0, whose logarithm is not finite
_OVERFLOW = 64.0  # no draw is this many stddevs or scales from zero
_TO_UNIT = 2.0**-63  # from a signed 64-bit word to (-1, 1)

Noise = Callable[[int, float, Generator], Iterator[Tensor]]


def gaussian(
    shape: Sequence[int] | Tensor,
    *,
    stddev: float,
    generator: Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return Gaussian noise of the given shape, or like the given tensor.

    >>> gaussian((2, 3), stddev=1.0).shape
    torch.Size([2, 3])
    """
    _check.positive(stddev=stddev)
    return _fresh(_gaussian_chunks, shape, stddev, generator, dtype, device)


def laplace(
    shape: Sequence[int] | Tensor,
    *,
    scale: float,
    generator: Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return Laplace noise of the given shape, or like the given tensor.

    >>> laplace(torch.zeros(4, dtype=torch.float64), scale=0.5).dtype
    torch.float64
    """
    _check.positive(scale=scale)
    return _fresh(_laplace_chunks, shape, scale, generator, dtype, device)


def add_gaussian_(tensor: Tensor, *, stddev: float, generator: Generator | None = None) -> Tensor:
    """Add Gaussian noise to a float32 or float64 tensor in place, and return it.

    >>> total = torch.zeros(3)
    >>> add_gaussian_(total, stddev=1.0) is total
    True
    """
    _check.positive(stddev=stddev)
    return _apply_(tensor, _gaussian_chunks, stddev, generator, add=True)


def add_laplace_(tensor: Tensor, *, scale: float, generator: Generator | None = None) -> Tensor:
    """Add Laplace noise to a float32 or float64 tensor in place, and return it."""
    _check.positive(scale=scale)
    return _apply_(tensor, _laplace_chunks, scale, generator, add=True)


def _fresh(
    noise: Noise,
    shape: Sequence[int] | Tensor,
    size: float,
    generator: Generator | None,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> Tensor:
    if isinstance(shape, Tensor):
        out = torch.empty(shape.shape, dtype=dtype or shape.dtype, device=device or shape.device)
    else:
        out = torch.empty(tuple(shape), dtype=dtype or torch.float32, device=device)
    return _apply_(out, noise, size, generator, add=False)


@torch.no_grad()
def _apply_(tensor: Tensor, noise: Noise, size: float, generator: Generator | None, *, add: bool) -> Tensor:
    if tensor.dtype not in (torch.float32, torch.float64):
        raise InvalidParameterError(
            f"noise needs a float32 or float64 tensor, but {tensor.dtype} was given. "
            "Add it in float32, then convert: a coarser type would round the noise away."
        )
    if size > torch.finfo(tensor.dtype).max / _OVERFLOW:
        raise InvalidParameterError(
            f"noise of size {size!r} could overflow {tensor.dtype}. Use float64 or smaller noise."
        )
    if isinstance(generator, FastGenerator) and noise is _gaussian_chunks:
        drawn = torch.empty(tensor.shape, dtype=tensor.dtype, device=generator.torch.device)
        drawn.normal_(0.0, size, generator=generator.torch)
        return tensor.add_(drawn.to(tensor.device)) if add else tensor.copy_(drawn)
    direct = tensor.device.type == "cpu" and tensor.is_contiguous()
    flat = tensor.view(-1) if direct else torch.empty(tensor.numel(), dtype=torch.float64)
    begin = 0
    for chunk in noise(tensor.numel(), size, resolve(generator)):
        part = flat[begin : begin + len(chunk)]
        part.add_(chunk) if add and direct else part.copy_(chunk)
        begin += len(chunk)
    if not direct:
        drawn = flat.view(tensor.shape).to(tensor.device)
        tensor.add_(drawn) if add else tensor.copy_(drawn)
    return tensor


def _gaussian_chunks(count: int, stddev: float, generator: Generator) -> Iterator[Tensor]:
    """Yield float64 buffers that together hold `count` draws; each is overwritten by the next."""
    size = min(2 * _CHUNK, count + count % 2)
    words = np.empty(size, dtype="<i8")
    uniform, out = torch.empty(size, dtype=torch.float64), torch.empty(size, dtype=torch.float64)
    for begin in range(0, count, 2 * _CHUNK):
        wanted = min(2 * _CHUNK, count - begin)
        pairs = -(-wanted // 2)
        _signed_uniform(words[: 2 * pairs], uniform[: 2 * pairs], generator)
        radius, angle = uniform[:pairs], uniform[pairs : 2 * pairs].mul_(math.pi)
        # |word| 2^-63 is at most 1, so its logarithm is never positive and the root never NaN.
        radius.abs_().clamp_(min=_HALF_STEP).log_().mul_(-2.0).sqrt_().mul_(stddev)
        torch.cos(angle, out=out[:pairs]).mul_(radius)
        torch.sin(angle, out=out[pairs : 2 * pairs]).mul_(radius)
        yield out[:wanted]


def _laplace_chunks(count: int, scale: float, generator: Generator) -> Iterator[Tensor]:
    size = min(2 * _CHUNK, count)
    words = np.empty(size, dtype="<i8")
    uniform = torch.empty(size, dtype=torch.float64)
    for begin in range(0, count, 2 * _CHUNK):
        wanted = min(2 * _CHUNK, count - begin)
        signed = _signed_uniform(words[:wanted], uniform[:wanted], generator)
        magnitude = signed.abs().clamp_(min=_HALF_STEP).log_().mul_(-scale)
        yield torch.copysign(magnitude, signed)


def _signed_uniform(words: np.ndarray, out: Tensor, generator: Generator) -> Tensor:
    """Fill `out` with uniforms of (-1, 1): 63 bits of magnitude, and a sign that is independent of it."""
    generator.fill(words.data.cast("B"))
    native = torch.from_numpy(words.astype(np.int64, copy=False))
    return out.copy_(native).mul_(_TO_UNIT)
