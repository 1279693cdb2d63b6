# SPDX-License-Identifier: Apache-2.0
"""The Triton code of the kernels (`kernels` documents them). It is imported only if Triton is installed."""

# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false
# Triton's language is typed for its compiler, not for Python.

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["correlation_norm", "feature_norm_gradients", "ghost_norm"]


@triton.jit
def _tile(source, steps, width, row0, column0, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = row0 + tl.arange(0, ROWS)
    columns = column0 + tl.arange(0, COLUMNS)
    inside = (rows[:, None] < steps) & (columns[None, :] < width)
    return tl.load(source + rows[:, None] * width + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _gram(source, steps, width, i, j, T: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    """One tile of source @ source.T."""
    total = tl.zeros((T, T), tl.float32)
    for k in range(0, width, K):
        left = _tile(source, steps, width, i * T, k, T, K)
        right = _tile(source, steps, width, j * T, k, T, K)
        total = tl.dot(left, tl.trans(right), total, input_precision=PRECISION)
    return total


@triton.jit
def _ghost_kernel(
    x,
    g,
    out,
    masses,
    steps,
    n_in,
    n_out,
    pairs,
    tiles,
    T: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    pair = tl.program_id(0)
    unit = tl.program_id(1).to(tl.int64)
    # The Gram matrices are symmetric: tiles (i, j) with j <= i are enough, those with j < i counted twice.
    i = ((tl.sqrt(8.0 * pair + 1.0) - 1.0) / 2.0).to(tl.int32)
    i = tl.where((i + 1) * (i + 2) // 2 <= pair, i + 1, i)
    i = tl.where(i * (i + 1) // 2 > pair, i - 1, i)
    j = pair - i * (i + 1) // 2
    inputs = _gram(x + unit * steps * n_in, steps, n_in, i, j, T, K, PRECISION)
    outputs = _gram(g + unit * steps * n_out, steps, n_out, i, j, T, K, PRECISION)
    share = tl.sum(inputs * outputs)
    tl.store(out + unit * pairs + pair, tl.where(i == j, share, 2.0 * share))
    if i == j:  # the diagonals are the squared lengths of the vectors
        diagonal = tl.arange(0, T)[:, None] == tl.arange(0, T)[None, :]
        mass = tl.sum(tl.where(diagonal, tl.sqrt(tl.maximum(inputs * outputs, 0.0)), 0.0))
        tl.store(masses + unit * tiles + i, mass)


def ghost_norm(x: Tensor, g: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """Return the squared norm of each unit's gradient of a linear map, and its mass."""
    units, steps, n_in = x.shape
    tile = 128 if steps > 256 else 64 if steps > 32 else 32
    tiles = triton.cdiv(steps, tile)
    pairs = tiles * (tiles + 1) // 2
    out = torch.empty((units, pairs), dtype=torch.float32, device=x.device)
    masses = torch.empty((units, tiles), dtype=torch.float32, device=x.device)
    depth = 64 if x.element_size() == 2 else 32
    _ghost_kernel[(pairs, units)](
        x,
        g,
        out,
        masses,
        steps,
        n_in,
        g.shape[2],
        pairs,
        tiles,
        T=tile,
        K=depth,
        PRECISION=precision,
        num_warps=8 if tile == 128 else 4,
        num_stages=3,
    )
    return out.sum(1), masses.sum(1)


@triton.jit
def _feature_kernel(
    x,
    grad,
    mean,
    rstd,
    weight_out,
    bias_out,
    per_unit,
    per_part,
    parts,
    width,
    CENTERED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    unit = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    weight_sum = tl.zeros((COLUMNS,), tl.float32)
    bias_sum = tl.zeros((COLUMNS,), tl.float32)
    end = tl.minimum((part + 1) * per_part, per_unit)
    for first in range(part * per_part, end, ROWS):
        rows = first + tl.arange(0, ROWS)
        vectors = unit * per_unit + rows
        inside = (rows[:, None] < end) & (columns[None, :] < width)
        places = vectors[:, None] * width + columns[None, :]
        values = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
        grads = tl.load(grad + places, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(rstd + vectors, mask=rows < end, other=0.0).to(tl.float32)
        if CENTERED:
            values -= tl.load(mean + vectors, mask=rows < end, other=0.0).to(tl.float32)[:, None]
        weight_sum += tl.sum(grads * values * scale[:, None], 0)
        bias_sum += tl.sum(grads, 0)
    place = (unit * parts + part) * width + columns
    tl.store(weight_out + place, weight_sum, mask=columns < width)
    tl.store(bias_out + place, bias_sum, mask=columns < width)


def feature_norm_gradients(
    x: Tensor, grad: Tensor, mean: Tensor | None, rstd: Tensor, units: int
) -> tuple[Tensor, Tensor]:
    """Return each unit's gradients of the scale and the shift of a norm over features."""
    vectors, width = x.shape
    per_unit = vectors // units
    columns = min(128, triton.next_power_of_2(width))
    blocks = triton.cdiv(width, columns)
    parts = max(1, min(triton.cdiv(per_unit, 64), 1024 // max(1, units * blocks)))
    per_part = triton.cdiv(per_unit, parts)
    shape = (units, parts, width)
    weight_out, bias_out = (torch.empty(shape, dtype=torch.float32, device=x.device) for _ in range(2))
    _feature_kernel[(units, parts, blocks)](
        x,
        grad,
        rstd if mean is None else mean,
        rstd,
        weight_out,
        bias_out,
        per_unit,
        per_part,
        parts,
        width,
        CENTERED=mean is not None,
        ROWS=16,
        COLUMNS=columns,
        num_warps=4,
    )
    return weight_out.sum(1), bias_out.sum(1)


@triton.jit
def _correlation_kernel(
    image,
    factors,
    out,
    channels,
    height,
    width,
    outputs,
    out_height,
    out_width,
    kernel_width,
    stride_h,
    stride_w,
    dilation_h,
    dilation_w,
    before_h,
    before_w,
    programs,
    OUTPUTS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PLACES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    number = tl.program_id(0)
    which = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(channels, CHANNELS)
    down = tl.cdiv(outputs, OUTPUTS)
    tap = number // (across * down)
    o = (number // across % down) * OUTPUTS + tl.arange(0, OUTPUTS)
    c = (number % across) * CHANNELS + tl.arange(0, CHANNELS)
    shift_h = tap // kernel_width * dilation_h - before_h
    shift_w = tap % kernel_width * dilation_w - before_w
    places = out_height * out_width
    image += which * channels * height * width
    factors += which * outputs * places
    total = tl.zeros((OUTPUTS, CHANNELS), tl.float32)
    for first in range(0, places, PLACES):
        p = first + tl.arange(0, PLACES)
        h = p // out_width * stride_h + shift_h
        w = p % out_width * stride_w + shift_w
        inside = (p < places) & (h >= 0) & (h < height) & (w >= 0) & (w < width)
        left = tl.load(
            factors + o[:, None] * places + p[None, :],
            mask=(o[:, None] < outputs) & (p[None, :] < places),
            other=0.0,
        )
        right = tl.load(
            image + c[None, :] * (height * width) + (h * width + w)[:, None],
            mask=(c[None, :] < channels) & inside[:, None],
            other=0.0,
        )
        total = tl.dot(left, right, total, input_precision=PRECISION)
    tl.store(out + which * programs + number, tl.sum(total * total))


def correlation_norm(
    image: Tensor,
    factors: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    before: tuple[int, int],
    precision: str,
) -> Tensor:
    """Return the squared norm of each image's gradient of a two-dimensional convolution."""
    images, channels, height, width = image.shape
    outputs, out_height, out_width = factors.shape[1:]
    tile_o, tile_c = (min(64, max(16, triton.next_power_of_2(n))) for n in (outputs, channels))
    programs = kernel[0] * kernel[1] * triton.cdiv(outputs, tile_o) * triton.cdiv(channels, tile_c)
    out = torch.empty((images, programs), dtype=torch.float32, device=image.device)
    sizes = (channels, height, width, outputs, out_height, out_width, kernel[1])
    _correlation_kernel[(programs, images)](
        image,
        factors,
        out,
        *sizes,
        *stride,
        *dilation,
        *before,
        programs,
        OUTPUTS=tile_o,
        CHANNELS=tile_c,
        PLACES=32 if image.element_size() == 4 else 64,
        PRECISION=precision,
        num_warps=4,
        num_stages=3,
    )
    return out.sum(1)
