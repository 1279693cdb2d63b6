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
def _lower_triangle(pair):
    """The place of a tile. Gram matrices are symmetric: j <= i is enough, and j < i is counted twice."""
    i = ((tl.sqrt(8.0 * pair + 1.0) - 1.0) / 2.0).to(tl.int32)
    i = tl.where((i + 1) * (i + 2) // 2 <= pair, i + 1, i)
    i = tl.where(i * (i + 1) // 2 > pair, i - 1, i)
    return i, pair - i * (i + 1) // 2


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
    i, j = _lower_triangle(pair)
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
def _read(
    image,
    p,
    c,
    places,
    channels,
    height,
    width,
    out_width,
    stride_h,
    stride_w,
    shift_h,
    shift_w,
):
    """What one tap of a convolution reads at some places: [places, channels]."""
    h = p // out_width * stride_h + shift_h
    w = p % out_width * stride_w + shift_w
    inside = (p < places) & (h >= 0) & (h < height) & (w >= 0) & (w < width)
    at = image + (h * width + w)[:, None] * channels + c[None, :]
    return tl.load(at, mask=inside[:, None] & (c[None, :] < channels), other=0.0)


@triton.jit
def _correlation_kernel(
    image,
    factors,
    out,
    channels,
    height,
    width,
    outputs,
    places,
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
    """One tile of the gradient of one tap, for one image, where the channels of a place lie together."""
    number = tl.program_id(0)
    which = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(channels, CHANNELS)
    down = tl.cdiv(outputs, OUTPUTS)
    tap = number // (across * down)
    o0 = (number // across % down) * OUTPUTS
    c = (number % across) * CHANNELS + tl.arange(0, CHANNELS)
    shift_h = tap // kernel_width * dilation_h - before_h
    shift_w = tap % kernel_width * dilation_w - before_w
    image += which * channels * height * width
    factors += which * outputs * places
    total = tl.zeros((OUTPUTS, CHANNELS), tl.float32)
    for first in range(0, places, PLACES):
        p = first + tl.arange(0, PLACES)
        left = _tile(factors, places, outputs, first, o0, PLACES, OUTPUTS)
        right = _read(
            image, p, c, places, channels, height, width, out_width, stride_h, stride_w, shift_h, shift_w
        )
        total = tl.dot(tl.trans(left), right, total, input_precision=PRECISION)
    tl.store(out + which * programs + number, tl.sum(total * total))


@triton.jit
def _planes_kernel(
    image,
    factors,
    out,
    channels,
    height,
    width,
    outputs,
    places,
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
    """One tile of the gradient of one tap, for one image, where each channel is a plane."""
    number = tl.program_id(0)
    which = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(channels, CHANNELS)
    down = tl.cdiv(outputs, OUTPUTS)
    tap = number // (across * down)
    o = (number // across % down) * OUTPUTS + tl.arange(0, OUTPUTS)
    c = (number % across) * CHANNELS + tl.arange(0, CHANNELS)
    shift_h = tap // kernel_width * dilation_h - before_h
    shift_w = tap % kernel_width * dilation_w - before_w
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


@triton.jit
def _correlation_ghost_kernel(
    image,
    factors,
    out,
    channels,
    height,
    width,
    outputs,
    places,
    out_width,
    kernel_width,
    stride_h,
    stride_w,
    dilation_h,
    dilation_w,
    before_h,
    before_w,
    pairs,
    taps,
    T: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of the Gram matrices of what the taps read and of the factors, for one image."""
    pair = tl.program_id(0)
    which = tl.program_id(1).to(tl.int64)
    i, j = _lower_triangle(pair)
    image += which * channels * height * width
    p = i * T + tl.arange(0, T)
    q = j * T + tl.arange(0, T)
    inputs = tl.zeros((T, T), tl.float32)
    chunks = tl.cdiv(channels, K)
    for number in range(0, taps * chunks):
        tap = number // chunks
        c = number % chunks * K + tl.arange(0, K)
        shift_h = tap // kernel_width * dilation_h - before_h
        shift_w = tap % kernel_width * dilation_w - before_w
        left = _read(
            image, p, c, places, channels, height, width, out_width, stride_h, stride_w, shift_h, shift_w
        )
        right = _read(
            image, q, c, places, channels, height, width, out_width, stride_h, stride_w, shift_h, shift_w
        )
        inputs = tl.dot(left, tl.trans(right), inputs, input_precision=PRECISION)
    gram = _gram(factors + which * outputs * places, places, outputs, i, j, T, K, PRECISION)
    share = tl.sum(inputs * gram)
    tl.store(out + which * pairs + pair, tl.where(i == j, share, 2.0 * share))


_NARROW = 16  # the least that a product of tiles takes


def correlation_norm(
    image: Tensor,
    factors: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    before: tuple[int, int],
    precision: str,
    ghost: bool,
) -> Tensor:
    """Return the squared norm of each image's gradient of a two-dimensional convolution.

    Tiles are the fastest of those that were tried on an H200. Tensor cores read numbers of 16 bits in any
    order, and others along the axis that is summed over: the places.
    """
    together = ghost or image.element_size() == 2
    layout = torch.channels_last if together else torch.contiguous_format
    image, factors = (tensor.contiguous(memory_format=layout) for tensor in (image, factors))
    images, channels, height, width = image.shape
    outputs, out_height, out_width = factors.shape[1:]
    places, taps = out_height * out_width, kernel[0] * kernel[1]
    sizes = (channels, height, width, outputs, places, out_width, kernel[1])
    shape = (*sizes, *stride, *dilation, *before)
    if ghost:
        side = 128 if places > 256 else 64 if places > 32 else 32
        tiles = triton.cdiv(places, side)
        out = _shares(image, tiles * (tiles + 1) // 2)
        options = {"T": side, "K": 64 if together and image.element_size() == 2 else 32}
        _correlation_ghost_kernel[(out.shape[1], images)](
            image, factors, out, *shape, out.shape[1], taps,
            **options, PRECISION=precision, num_warps=8 if side == 128 else 4, num_stages=3,
        )  # fmt: skip
        return out.sum(1)
    widest = 128 if together else 64
    rows, columns = (min(widest, max(_NARROW, triton.next_power_of_2(n))) for n in (outputs, channels))
    out = _shares(image, taps * triton.cdiv(outputs, rows) * triton.cdiv(channels, columns))
    program = _correlation_kernel if together else _planes_kernel
    program[(out.shape[1], images)](
        image, factors, out, *shape, out.shape[1],
        OUTPUTS=rows, CHANNELS=columns, PLACES=32, PRECISION=precision, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out.sum(1)


def _shares(image: Tensor, programs: int) -> Tensor:
    """Return a place for what each program finds, for each image."""
    return torch.empty((len(image), programs), dtype=torch.float32, device=image.device)
