# SPDX-License-Identifier: Apache-2.0
"""Gaussian and Laplace noise in tensors, from the cryptographic stream.

Floating-point numbers are not the reals, and a proof about real noise does not cover the last bits (Mironov
2012). If the guarantee must be exact, use the integer grid (`mechanisms.discrete`). A sum is rounded once to
`dtype`.

The float32 bound 2^-20 r holds because three 32-bit words make a pair: a and b its radius, c its angle. u = x
mod 1, for x = (a + b 2^-32) 2^-32 with signed a and b, is uniform on the multiples of 2^-64, exactly. Two
roundings leave x off by 2^-23 |x|, so both ends of u keep their relative precision: u near 0, the tail, as x
>= 0; and 1 - u near 0, the center where noise would vanish, as x < 0. There u = 1 + x is rounded to z, and
log u = log z - e with e = (z - 1) - x, which is exact, up to 2^-24 of log u. The logarithm is off by 2^-21.8
of its size (numpy's, the largest error over all float32 from 2^-65 to 1). So -log u is off by 2^-21 of its
size, and its root by 2^-22. The angle pi 2^-31 c is off by 2^-24 (word), 2^-24 (product) and 2^-25 (pi) of
itself, below 2^-21. Root, cosine (off by 2^-23.75) and product add less than 2^-22. In all, 2^-20 r.

The number of words that a draw takes does not depend on them, and neither does any branch.

A seed gives the same noise on every platform, up to rounding in its mathematical library, and for any number
of threads. A tensor of another `dtype`, on another device or beside other tensors gets other draws:
`add_gaussian_many_` is not a loop over `add_gaussian_`.

Few float32 draws of a secure generator are taken from more that were made at once; each is given once.
With a `FastGenerator` the Gaussian noise is torch's own, with that generator's device and quality.

Gaussian noise for a CUDA tensor is drawn there (`mechanisms.device`) if Triton is installed. Other noise is
drawn on the CPU and copied.

Guarantee  Each draw can be paired with an ideal real one, at most so far away before one rounding to `dtype`
           (r is the radius of a Gaussian draw and its partner in stddevs, or a Laplace magnitude in scales):
           float32 Gaussian: 2^-20 r, or the step of the radius, 2^-65 exp(r^2 / 2) / r, where that is more:
           beyond r = 8.4, where an ideal pair falls with probability 2^-50.
           float64, and Laplace: 2^-46, or the step, 2^-64 exp(r^2 / 2) / r or 2^-64 exp(r), where that is
           more: beyond r = 5.3, one pair in 2^20, or r = 12.5, one draw in 2^18. And a Gaussian pair of
           radius r below 1/64, one in 8000: 2^-52 / r, never above 2^-25.
           The exception is the tail: a float32 radius stops at sqrt(2 ln 2^65) = 9.49, a float64 one at
           9.42, a Laplace magnitude at ln 2^64 = 44.4, and an ideal draw falls beyond with probability 2^-64
           at most. So d draws are, these distances aside, within d * 2^-64 of ideal ones in total variation.
Edge cases Noise is never infinite and never NaN. A `stddev` that is 0, NaN, infinite, negative, so large that
           the noise could overflow `dtype` or so small that it could vanish in it is refused. An empty tensor
           stays empty. NaN in the tensor stays NaN: clip before adding noise.
Source     Box and Muller 1958.
"""

import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.arrays import CHUNK, HALF_STEP, OVERFLOW, TO_UNIT
from sfumato.mechanisms.draws_ahead import DrawsAhead
from sfumato.mechanisms.random import FastGenerator, Generator, SecureGenerator, resolve

__all__ = ["add_gaussian_", "add_gaussian_many_", "add_laplace_", "gaussian", "laplace", "require_size"]

_PAIRS = 1 << 16  # float32 pairs: 1.25 MiB, for a second-level cache; a seed's noise depends on it
_FEW = 1 << 14  # float32 draws: for fewer, calls cost more than draws, so more are made than are needed
_AHEAD = 1 << 16  # float32 draws that are made at once then
_SMALLEST = np.float32(2.0**-65)  # stands for the uniform 0 in float32, where the step is 2^-64
_SIZES = {  # the least and the largest noise that a type can hold
    dtype: (torch.finfo(dtype).tiny, torch.finfo(dtype).max / OVERFLOW)
    for dtype in (torch.float32, torch.float64)
}
_WORD_SCALES = tuple(map(np.float32, (2.0**-32, 2.0**-64, math.pi * 2.0**-31)))  # of a, b and c

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

    Args:
        shape: The shape of the noise, or a tensor whose shape, dtype and device it takes.
        stddev: The standard deviation.
        generator: Source of randomness. None uses the secure generator; any other kind is for study only.
        dtype: float32 or float64. None takes that of the tensor, or float32.
        device: The device. None takes that of the tensor, or the CPU.

    Returns:
        The noise.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> gaussian((2, 3), stddev=1.0).shape
    torch.Size([2, 3])
    """
    _check.positive(stddev=stddev)
    out = _empty(shape, dtype, device)
    _gaussian_([out], stddev, generator, add=False)
    return out


def laplace(
    shape: Sequence[int] | Tensor,
    *,
    scale: float,
    generator: Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return Laplace noise of the given shape, or like the given tensor.

    Args:
        shape: The shape of the noise, or a tensor whose shape, dtype and device it takes.
        scale: The scale.
        generator: Source of randomness. None uses the secure generator; any other kind is for study only.
        dtype: float32 or float64. None takes that of the tensor, or float32.
        device: The device. None takes that of the tensor, or the CPU.

    Returns:
        The noise.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> laplace(torch.zeros(4, dtype=torch.float64), scale=0.5).dtype
    torch.float64
    """
    _check.positive(scale=scale)
    return _laplace_(_empty(shape, dtype, device), scale, generator, add=False)


def add_gaussian_(tensor: Tensor, *, stddev: float, generator: Generator | None = None) -> Tensor:
    """Add Gaussian noise to a float32 or float64 tensor in place, and return it.

    Args:
        tensor: The tensor, which is changed.
        stddev: The standard deviation of the noise.
        generator: Source of randomness. None uses the secure generator; any other kind is for study only.

    Returns:
        The same tensor.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> total = torch.zeros(3)
    >>> add_gaussian_(total, stddev=1.0) is total
    True
    """
    add_gaussian_many_([tensor], stddev=stddev, generator=generator)
    return tensor


def add_gaussian_many_(
    tensors: Sequence[Tensor], *, stddev: float, generator: Generator | None = None
) -> None:
    """Add Gaussian noise to every tensor in place, with one draw for all of them.

    Args:
        tensors: The tensors, which are changed.
        stddev: The standard deviation of the noise.
        generator: Source of randomness. None uses the secure generator; any other kind is for study only.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> sums = [torch.zeros(3), torch.zeros(2, 2)]
    >>> add_gaussian_many_(sums, stddev=1.0)
    >>> all(total.abs().min() > 0 for total in sums)
    True
    """
    _check.positive(stddev=stddev)
    _gaussian_(list(tensors), stddev, generator, add=True)


def add_laplace_(tensor: Tensor, *, scale: float, generator: Generator | None = None) -> Tensor:
    """Add Laplace noise to a float32 or float64 tensor in place, and return it.

    Args:
        tensor: The tensor, which is changed.
        scale: The scale of the noise.
        generator: Source of randomness. None uses the secure generator; any other kind is for study only.

    Returns:
        The same tensor.

    Raises:
        InvalidParameterError: If a parameter is out of range.
    """
    _check.positive(scale=scale)
    return _laplace_(tensor, scale, generator, add=True)


def _empty(
    shape: Sequence[int] | Tensor, dtype: torch.dtype | None, device: torch.device | str | None
) -> Tensor:
    if isinstance(shape, Tensor):
        return torch.empty(shape.shape, dtype=dtype or shape.dtype, device=device or shape.device)
    return torch.empty(tuple(shape), dtype=dtype or torch.float32, device=device)


@torch.no_grad()
def _gaussian_(tensors: list[Tensor], stddev: float, generator: Generator | None, *, add: bool) -> None:
    for tensor in tensors:  # all of them before the first is changed
        _refuse_what_cannot_hold_noise(tensor, stddev)
    if isinstance(generator, FastGenerator):
        for tensor in tensors:
            _fast_(tensor, stddev, generator, add=add)
        return
    generator = resolve(generator)
    if there := [tensor for tensor in tensors if _on_gpu(tensor)]:
        from sfumato.mechanisms import device

        device.write_gaussian_(there, stddev=stddev, generator=generator, add=add)
        tensors = [tensor for tensor in tensors if not _on_gpu(tensor)]
    if single := [tensor for tensor in tensors if tensor.dtype == torch.float32]:
        count = sum(tensor.numel() for tensor in single)
        ahead = count <= _FEW and type(generator) is SecureGenerator
        chunks = _ahead.taken(count, generator) if ahead else _single_chunks(count, generator)
        _pour_(single, chunks, scale=math.sqrt(2.0) * stddev, add=add)
    if double := [tensor for tensor in tensors if tensor.dtype == torch.float64]:
        chunks = _gaussian_chunks(sum(tensor.numel() for tensor in double), stddev, generator)
        _pour_(double, chunks, scale=1.0, add=add)


@torch.no_grad()
def _laplace_(tensor: Tensor, scale: float, generator: Generator | None, *, add: bool) -> Tensor:
    _refuse_what_cannot_hold_noise(tensor, scale)
    chunks = _laplace_chunks(tensor.numel(), scale, resolve(generator))
    _pour_([tensor], chunks, scale=1.0, add=add)
    return tensor


def require_size(size: float, dtype: torch.dtype) -> None:
    """Raise unless tensors of a type can hold noise of a size.

    Args:
        size: The standard deviation or the scale of the noise.
        dtype: The type of the tensors.

    Raises:
        InvalidParameterError: If the type is too coarse for noise, or the noise could overflow or vanish.

    >>> require_size(1.0, torch.float32)
    >>> require_size(1e38, torch.float32)
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: noise of size 1e+38 could overflow torch.float32. Use float64, ...
    """
    limits = _SIZES.get(dtype)
    if limits is None:
        raise InvalidParameterError(
            f"noise needs a float32 or float64 tensor, but {dtype} was given. "
            "Add it in float32, then convert: a coarser type would round the noise away."
        )
    if not limits[0] <= size <= limits[1]:
        wrong = "overflow" if size > 1 else "vanish in"
        raise InvalidParameterError(
            f"noise of size {size!r} could {wrong} {dtype}. Use float64, or scale data and noise."
        )


def _refuse_what_cannot_hold_noise(tensor: Tensor, size: float) -> None:
    require_size(size, tensor.dtype)
    if tensor.is_cuda:
        from sfumato.mechanisms import device

        device.refuse_replay(tensor)


def _on_gpu(tensor: Tensor) -> bool:
    if not tensor.is_cuda:
        return False
    from sfumato.mechanisms import device  # brings Triton, which only GPUs need

    return device.available()


def _fast_(tensor: Tensor, stddev: float, generator: FastGenerator, *, add: bool) -> None:
    drawn = torch.empty(tensor.shape, dtype=tensor.dtype, device=generator.torch.device)
    drawn.normal_(0.0, stddev, generator=generator.torch)
    tensor.add_(drawn.to(tensor.device)) if add else tensor.copy_(drawn)


def _pour_(tensors: Iterable[Tensor], chunks: Iterator[Tensor], *, scale: float, add: bool) -> None:
    """Write the draws over the tensors, or add them, in order: `scale` times each."""
    chunk, used, size = None, 0, 0
    for tensor in tensors:
        direct = tensor.is_cpu and tensor.is_contiguous()
        flat = tensor.view(-1) if direct else torch.empty(tensor.numel(), dtype=tensor.dtype, device="cpu")
        begin, end = 0, flat.numel()
        while begin < end:
            if chunk is None or used == size:
                chunk, used = next(chunks), 0
                size = chunk.numel()
            taken = min(size - used, end - begin)
            part = flat if taken == end else flat[begin : begin + taken]
            noise = chunk if taken == size else chunk[used : used + taken]
            part.add_(noise, alpha=scale) if add and direct else torch.mul(noise, scale, out=part)
            begin, used = begin + taken, used + taken
        if not direct:
            drawn = flat.view(tensor.shape).to(tensor.device)
            tensor.add_(drawn) if add else tensor.copy_(drawn)


class _Scratch(threading.local):
    """The float32 buffer of one thread, kept: fresh memory would cost a fifth of a draw in page faults."""

    def __init__(self) -> None:
        self._flat = np.empty(5 * _PAIRS, dtype=np.float32)
        with torch.inference_mode(False):  # a tensor made in inference mode could not be used outside it
            self._noise = torch.from_numpy(self._flat[: 2 * _PAIRS])
        self._words = self._flat.view("<i4")

    def uniforms(self, pairs: int, generator: Generator) -> np.ndarray:
        """Return rows: words scaled to a 2^-32, b 2^-64 and the angle, and two more to work in."""
        words, numbers = self._words[: 3 * pairs], self._flat[: 3 * pairs]
        generator.fill(words.data.cast("B"))
        if sys.byteorder == "big":
            words.byteswap(inplace=True)
        np.copyto(numbers, words, casting="unsafe")  # each becomes a number where it lies: half the cache
        rows = self._flat[: 5 * pairs].reshape(5, pairs)
        for row, scale in zip(rows, _WORD_SCALES, strict=False):
            np.multiply(row, scale, out=row)
        return rows

    def noise(self, count: int) -> Tensor:
        """Return the first `count` draws, which lie where a and b were."""
        return self._noise[:count]


_scratch = _Scratch()


def _single_chunks(count: int, generator: Generator) -> Iterator[Tensor]:
    """Yield `count` float32 draws of stddev 1 / sqrt(2), in a buffer that the next chunk overwrites."""
    for begin in range(0, count, 2 * _PAIRS):
        wanted = min(2 * _PAIRS, count - begin)
        # numpy's roots, logarithms and cosines take a third of the time of torch's on some processors.
        x, z, angle, error, cosine = _scratch.uniforms(-(-wanted // 2), generator)
        np.add(x, z, out=x)
        np.floor(x, out=error)  # -1 or 0
        np.subtract(x, error, out=z)  # z = x mod 1, rounded
        np.subtract(np.add(error, z, out=error), x, out=error)  # how much too large z is, exactly
        np.log(np.maximum(z, _SMALLEST, out=z), out=z)
        # z is at most 1 and its error below half of 1 - z, so this is never negative and the root never NaN.
        radius = np.sqrt(np.subtract(error, z, out=error), out=error)
        np.multiply(radius, np.cos(angle, out=cosine), out=x)
        np.multiply(radius, np.sin(angle, out=angle), out=z)
        yield _scratch.noise(wanted)


_ahead = DrawsAhead(lambda generator: next(_single_chunks(_AHEAD, generator)))


def _gaussian_chunks(count: int, stddev: float, generator: Generator) -> Iterator[Tensor]:
    """Yield float64 buffers that together hold `count` draws; each is overwritten by the next."""
    size = min(2 * CHUNK, count + count % 2)
    words = np.empty(size, dtype="<i8")
    uniform, out = (torch.empty(size, dtype=torch.float64, device="cpu") for _ in range(2))
    for begin in range(0, count, 2 * CHUNK):
        wanted = min(2 * CHUNK, count - begin)
        pairs = -(-wanted // 2)
        _signed_uniform(words[: 2 * pairs], uniform[: 2 * pairs], generator)
        radius, angle = uniform[:pairs], uniform[pairs : 2 * pairs].mul_(math.pi)
        # |word| 2^-63 is at most 1, so its logarithm is never positive and the root never NaN.
        radius.abs_().clamp_(min=HALF_STEP).log_().mul_(-2.0).sqrt_().mul_(stddev)
        torch.cos(angle, out=out[:pairs]).mul_(radius)
        torch.sin(angle, out=out[pairs : 2 * pairs]).mul_(radius)
        yield out[:wanted]


def _laplace_chunks(count: int, scale: float, generator: Generator) -> Iterator[Tensor]:
    size = min(2 * CHUNK, count)
    words = np.empty(size, dtype="<i8")
    uniform = torch.empty(size, dtype=torch.float64, device="cpu")
    for begin in range(0, count, 2 * CHUNK):
        wanted = min(2 * CHUNK, count - begin)
        signed = _signed_uniform(words[:wanted], uniform[:wanted], generator)
        magnitude = signed.abs().clamp_(min=HALF_STEP).log_().mul_(-scale)
        yield torch.copysign(magnitude, signed)


def _signed_uniform(words: np.ndarray, out: Tensor, generator: Generator) -> Tensor:
    """Fill `out` with uniforms of (-1, 1): 63 bits of magnitude, and a sign that is independent of it."""
    generator.fill(words.data.cast("B"))
    native = torch.from_numpy(words.astype(np.int64, copy=False))
    return out.copy_(native).mul_(TO_UNIT)
