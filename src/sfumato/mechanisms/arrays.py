# SPDX-License-Identifier: Apache-2.0
"""Gaussian and Laplace noise in float64 arrays, without torch: for statistics and small models.

The same words of the stream make the same draws as in `mechanisms.tensors`, up to rounding. How many words a
draw takes does not depend on them, and neither does any branch. For millions of draws `tensors` is several
times as fast. With a `FastGenerator` the Gaussian is torch's own.

Guarantee  That of `mechanisms.tensors` in float64.
Edge cases Noise is never infinite and never NaN. A scale of 0, NaN, infinite, negative, so large that the
           noise could overflow float64 or so small that it could vanish in it is refused. No draws are an
           empty array.
Source     Box and Muller 1958.
"""

import math

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import FastGenerator, Generator, resolve

__all__ = ["CHUNK", "HALF_STEP", "OVERFLOW", "TO_UNIT", "gaussian", "laplace"]

Floats = npt.NDArray[np.float64]

CHUNK = 1 << 14  # pairs: four float64 buffers of it (512 KiB) stay in a second-level cache
HALF_STEP = 2.0**-64  # stands for the uniform 0, whose logarithm is not finite
TO_UNIT = 2.0**-63  # from a signed 64-bit word to (-1, 1)
OVERFLOW = 64.0  # no draw is this many stddevs or scales from zero


def gaussian(count: int, *, stddev: float, generator: Generator | None = None) -> Floats:
    """Return `count` independent Gaussian draws.

    >>> gaussian(3, stddev=1.0).shape
    (3,)
    """
    _require_room(stddev=stddev)
    if isinstance(generator, FastGenerator):
        return _of_torch(count, stddev, generator)
    generator, out = resolve(generator), np.empty(count)
    for begin in range(0, count, 2 * CHUNK):
        wanted = min(2 * CHUNK, count - begin)
        pairs = -(-wanted // 2)
        uniform = _signed_uniform(2 * pairs, generator)
        # |word| 2^-63 is at most 1, so its logarithm is never positive and the root never NaN.
        radius = np.sqrt(-2.0 * np.log(np.maximum(np.abs(uniform[:pairs]), HALF_STEP))) * stddev
        angle = uniform[pairs:] * math.pi
        drawn = np.concatenate([np.cos(angle) * radius, np.sin(angle) * radius])
        out[begin : begin + wanted] = drawn[:wanted]
    return out


def laplace(count: int, *, scale: float, generator: Generator | None = None) -> Floats:
    """Return `count` independent Laplace draws.

    >>> laplace(3, scale=0.5).dtype
    dtype('float64')
    """
    _require_room(scale=scale)
    signed = _signed_uniform(count, resolve(generator))
    return np.copysign(np.log(np.maximum(np.abs(signed), HALF_STEP)) * -scale, signed)


def _require_room(**size: float) -> None:
    """Refuse noise that float64 cannot hold."""
    _check.positive(**size)
    ((name, value),) = size.items()
    limits = np.finfo(np.float64)
    if not limits.tiny <= value <= limits.max / OVERFLOW:
        wrong = "overflow" if value > 1 else "vanish in"
        raise InvalidParameterError(f"{name}={value!r} could {wrong} float64. Scale data and noise.")


def _signed_uniform(count: int, generator: Generator) -> Floats:
    """Return uniforms of (-1, 1): 63 bits of magnitude, and a sign that is independent of it."""
    words = np.empty(count, dtype="<i8")
    if count:
        generator.fill(words.data.cast("B"))
    return words.astype(np.float64) * TO_UNIT


def _of_torch(count: int, stddev: float, generator: FastGenerator) -> Floats:
    import torch

    from sfumato.mechanisms import tensors

    return tensors.gaussian((count,), stddev=stddev, generator=generator, dtype=torch.float64).numpy()
