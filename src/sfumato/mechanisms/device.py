# SPDX-License-Identifier: Apache-2.0
"""Gaussian noise drawn on a GPU, from a ChaCha20 stream.

Each call takes a fresh 256-bit key from the generator's own stream on the CPU. With a `SecureGenerator` it is
secret and never used again; with a seeded one it is repeatable. It travels as arguments of the launch, so
nothing is copied and no call waits for the device.

Under one key, tensor number t of the call has nonce t, and block n of its keystream counter n, of 64 bits
(words 12 and 13 of the state; RFC 8439 makes the second of them part of the nonce). So no block is made
twice: keys differ between calls, nonces between tensors, counters between blocks.

A captured CUDA graph replays its launches with the arguments of the capture: the same key, hence the same
noise at every replay, and the difference of two releases would be free of noise. So drawing during a capture
is refused, and so is drawing inside a function that torch compiles.

A seed gives the same noise on every GPU, up to rounding, but not the noise it gives on the CPU.

Guarantee  Noise for a CUDA tensor comes from the ChaCha20 keystream (RFC 8439, section 2.3), which a Triton
           kernel makes on the device: without the key its words cannot be distinguished from uniform ones.
           In float32, that of `mechanisms.tensors`: the same words make the same draw, up to rounding, and a
           block of sixteen makes five pairs. In float64 the radius is made in the same way and the angle has
           two words, a block makes four pairs, and a draw is within 2^-46 r of an ideal one, or the step of
           the radius, 2^-65 exp(r^2 / 2) / r, if that is more: beyond r = 5.7.
Source     RFC 8439; Bernstein 2008, "ChaCha, a variant of Salsa20"; Box and Muller 1958.
"""

# Triton has no type information and is absent where there is no GPU; its language is not Python's to check.
# pyright: basic, reportMissingImports=false, reportOptionalMemberAccess=false, reportIndexIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

import contextlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator

try:
    import triton
    import triton.language as tl
except ImportError:  # noise for the device is then drawn on the CPU
    triton = None

__all__ = ["available", "refuse_replay", "write_gaussian_"]

_LANES = 256  # blocks of ChaCha20 that one program makes, one on each lane


def available() -> bool:
    """Return whether noise can be drawn on the device: whether Triton is installed."""
    return triton is not None


def refuse_replay(tensor: Tensor) -> None:
    """Raise an error if noise for `tensor` would be recorded and repeated later."""
    with _on(tensor):
        captured = tensor.is_cuda and torch.cuda.is_current_stream_capturing()
    if captured or torch.compiler.is_compiling():
        raise InvalidParameterError(
            "noise cannot be drawn while a CUDA graph is captured or a function is compiled: each replay "
            "would repeat the same noise. Capture the gradients only, and add the noise outside the graph."
        )


def write_gaussian_(tensors: Sequence[Tensor], *, stddev: float, generator: Generator, add: bool) -> None:
    """Overwrite float32 or float64 tensors with Gaussian noise, or add it. One launch for each tensor."""
    for tensor in tensors:  # all of them before the first is changed
        refuse_replay(tensor)
    key = bytearray(32)
    generator.fill(memoryview(key))
    for nonce, tensor in enumerate(tensors):
        with _on(tensor):
            _write_(tensor, math.sqrt(2.0) * stddev, bytes(key), nonce, add=add)


def _on(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def _write_(tensor: Tensor, scale: float, key: bytes, nonce: int, *, add: bool) -> None:
    if tensor.is_contiguous() and tensor.dtype == torch.float32:
        _launch(tensor, scale, key, nonce, add=add)
        return
    # Triton passes numbers as float32, which would round a float64 scale: torch multiplies here.
    noise = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    _launch(noise, 1.0, key, nonce, add=False)
    tensor.add_(noise, alpha=scale) if add else torch.mul(noise, scale, out=tensor)


def _launch(out: Tensor, scale: float, key: bytes, nonce: int, *, add: bool) -> None:
    # Words are passed as signed ones of 32 bits: Triton would pick another type for a larger number.
    words = (int.from_bytes(key[i : i + 4], "little", signed=True) for i in range(0, 32, 4))
    double, count = out.dtype == torch.float64, out.numel()
    programs = triton.cdiv(count, _LANES * (8 if double else 10))
    if programs:
        _kernel[(programs,)](
            out, *words, nonce, count, scale, LANES=_LANES, ADD=add, DOUBLE=double, num_warps=_LANES // 32
        )


if triton is not None:
    # Nothing about these is worth another compilation, and a key must not be compiled into a kernel.
    _VARYING = [*(f"k{i}" for i in range(8)), "nonce", "count", "scale"]

    @triton.jit
    def _rotate(x, bits: tl.constexpr):
        return (x << bits) | (x >> (32 - bits))

    @triton.jit
    def _quarter(a, b, c, d):
        """RFC 8439, section 2.1."""
        a += b
        d = _rotate(d ^ a, 16)
        c += d
        b = _rotate(b ^ c, 12)
        a += b
        d = _rotate(d ^ a, 8)
        c += d
        b = _rotate(b ^ c, 7)
        return a, b, c, d

    @triton.jit
    def _spread(word, like):
        return like * 0 + word.to(tl.uint32, bitcast=True)

    @triton.jit
    def _chacha(block, k0, k1, k2, k3, k4, k5, k6, k7, nonce):
        """RFC 8439, section 2.3, for the 64-bit counters in `block`: sixteen words of each."""
        low = block.to(tl.uint32)
        high = (block >> 32).to(tl.uint32)
        zero = low * 0
        i0, i1, i2, i3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
        i4, i5, i6, i7 = _spread(k0, low), _spread(k1, low), _spread(k2, low), _spread(k3, low)
        i8, i9, i10, i11 = _spread(k4, low), _spread(k5, low), _spread(k6, low), _spread(k7, low)
        i14 = _spread(nonce, low)
        x0, x1, x2, x3, x4, x5, x6, x7 = i0, i1, i2, i3, i4, i5, i6, i7
        x8, x9, x10, x11, x12, x13, x14, x15 = i8, i9, i10, i11, low, high, i14, zero
        for _ in range(10):
            x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
            x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
            x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
            x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
            x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
            x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
            x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
            x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
        return (
            x0 + i0,
            x1 + i1,
            x2 + i2,
            x3 + i3,
            x4 + i4,
            x5 + i5,
            x6 + i6,
            x7 + i7,
            x8 + i8,
            x9 + i9,
            x10 + i10,
            x11 + i11,
            x12 + low,
            x13 + high,
            x14 + i14,
            x15,
        )

    @triton.jit
    def _signed(word, DOUBLE: tl.constexpr):
        number = word.to(tl.int32, bitcast=True)
        if DOUBLE:
            return number.to(tl.float64)
        else:
            return number.to(tl.float32)

    @triton.jit
    def _radius(a, b, DOUBLE: tl.constexpr):
        """sqrt(-log u) for u = x mod 1, as in `mechanisms.tensors`."""
        x = _signed(a, DOUBLE) * 2.3283064365386963e-10 + _signed(b, DOUBLE) * 5.421010862427522e-20
        whole = tl.where(x < 0, -1.0, 0.0).to(x.dtype)
        z = x - whole
        error = (z + whole) - x
        z = tl.maximum(z, 2.710505431213761e-20)  # 2^-65, as above 2^-32 and 2^-64
        return tl.sqrt(error - tl.log(z))

    @triton.jit
    def _store(out, at, noise, count, ADD: tl.constexpr):
        mask = at < count
        if ADD:
            noise += tl.load(out + at, mask=mask)
        tl.store(out + at, noise, mask=mask)

    @triton.jit
    def _pair(
        out, at, a, b, turn, scale, count, LANES: tl.constexpr, ADD: tl.constexpr, DOUBLE: tl.constexpr
    ):
        radius = _radius(a, b, DOUBLE) * scale
        angle = turn * 1.4629180792671596e-09  # pi 2^-31
        _store(out, at, radius * tl.cos(angle), count, ADD)
        _store(out, at + LANES, radius * tl.sin(angle), count, ADD)

    @triton.jit
    def _turn(c, d):
        """An angle of 64 bits, in units of pi 2^-31."""
        return _signed(c, True) + _signed(d, True) * 2.3283064365386963e-10

    @triton.jit(do_not_specialize=_VARYING)
    def _kernel(
        out, k0, k1, k2, k3, k4, k5, k6, k7, nonce, count, scale,
        LANES: tl.constexpr, ADD: tl.constexpr, DOUBLE: tl.constexpr,
    ):  # fmt: skip
        program = tl.program_id(0).to(tl.int64)
        lane = tl.arange(0, LANES)
        x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = _chacha(
            program * LANES + lane, k0, k1, k2, k3, k4, k5, k6, k7, nonce
        )
        step: tl.constexpr = 2 * LANES
        if DOUBLE:
            at = program * (4 * step) + lane
            _pair(out, at, x0, x1, _turn(x2, x3), scale, count, LANES, ADD, True)
            _pair(out, at + step, x4, x5, _turn(x6, x7), scale, count, LANES, ADD, True)
            _pair(out, at + 2 * step, x8, x9, _turn(x10, x11), scale, count, LANES, ADD, True)
            _pair(out, at + 3 * step, x12, x13, _turn(x14, x15), scale, count, LANES, ADD, True)
        else:
            at = program * (5 * step) + lane
            _pair(out, at, x0, x1, _signed(x2, False), scale, count, LANES, ADD, False)
            _pair(out, at + step, x3, x4, _signed(x5, False), scale, count, LANES, ADD, False)
            _pair(out, at + 2 * step, x6, x7, _signed(x8, False), scale, count, LANES, ADD, False)
            _pair(out, at + 3 * step, x9, x10, _signed(x11, False), scale, count, LANES, ADD, False)
            _pair(out, at + 4 * step, x12, x13, _signed(x14, False), scale, count, LANES, ADD, False)
