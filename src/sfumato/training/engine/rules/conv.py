# SPDX-License-Identifier: Apache-2.0
"""Convolutions and transposed convolutions of one, two and three dimensions.

The weight gradient of one unit is a `Correlation` of its input with its output gradient (of the output
gradient with the input, if transposed). Its norm is taken from that gradient, a few units at a time, or from
Gram matrices if these are cheaper: small planes with many channels. The weighted sum over units is the
ordinary weight gradient of the scaled output gradient, unless each unit's gradient was kept. If it was
not, norms err upwards by what rounding may take from a sum whose terms cancel.
"""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from sfumato.training.engine.rules.correlation import Correlation
from sfumato.training.engine.rules.linear import APART as _APART
from sfumato.training.engine.rules.linear import SLACK as _SLACK
from sfumato.training.engine.rules.linear import raised, widened
from sfumato.training.engine.tape.operation import Op, autocast, norm_dtype, squared_norm, weighted_sum
from sfumato.training.engine.tape.tape import Tape, name_of, plain, rule
from sfumato.training.fast import kernels
from sfumato.training.fast.precision import TF32_EPS, convolution_eps

__all__ = ["ConvOp"]

_AT_ONCE: Final = 64 << 20  # bytes of gradients and copies that a norm may use at a time
# Measured costs in units of one multiplication of an ordinary weight gradient.
_BATCHED: Final = 1.5  # a multiplication of one gradient for each image
_GRAM: Final = 2.5  # a multiplication of a Gram matrix
_NUMBER: Final = 20.0  # writing and reading one number of a gradient


class ConvOp(Op):
    """A use of a weight [out, in / groups, *kernel] (in and out swapped if `transposed`) and of a bias."""

    slots = ("weight", "bias")

    def __init__(
        self,
        x: Tensor | None,  # [rows, ..., channels, *spatial]; None if the weight is frozen
        weight_shape: torch.Size,
        correlation: Correlation,
        names: dict[str, str | None],
        tape: Tape,
        *,
        transposed: bool,
    ) -> None:
        super().__init__(names, tape)
        self.x = x
        self.shape = weight_shape
        self.correlation = correlation
        self.transposed = transposed
        self._flat: Tensor | None = None  # [sections, units, numbers], if kept

    def saved(self) -> Sequence[Tensor]:
        return () if self.x is None else (self.x,)

    def images(self, x: Tensor) -> Tensor:
        """Return [rows, ..., channels, *spatial] as [images, channels, *spatial]."""
        return x.reshape(-1, *x.shape[-1 - len(self.correlation.kernel) :])

    def operands(self) -> tuple[Tensor, Tensor]:
        """Return the image and the coefficients of the correlation."""
        if self.x is None:
            raise RuntimeError("a frozen weight has no gradient")
        x, grad = _precise(self.images(self.x)), _precise(self.images(self.grad))
        return (grad, x) if self.transposed else (x, grad)

    def squared_norm(self, slot: str) -> Tensor:
        if slot == "bias":
            return super().squared_norm(slot)
        if self._per_unit() == 1 and self.correlation.is_fused(*self.operands()):
            norm, gram = self.correlation.fused_norms(*self.operands())
            return self._raised(norm, gram=gram)
        if self._ghost_is_cheaper():
            parts = [self.correlation.ghost_norms(*part, self._per_unit()) for part in self._parts(True)]
            return self._raised(torch.cat(parts), gram=True).clamp_(min=0)
        if self._flat is None and self.memory.take(self._gradient_bytes()):
            self._flat = self._summed(*self.operands())
        if self._flat is not None:
            return _squared_norm(self._flat)
        parts = [_squared_norm(self._summed(*part)) for part in self._parts(False)]
        return self._raised(torch.cat(parts), gram=False)

    def _raised(self, norm: Tensor, *, gram: bool) -> Tensor:
        """Add to squared norms what they may lack: roundings of the weighted sum, and of Gram matrices."""
        grad = self.operands()[1]
        eps = torch.finfo(norm_dtype(grad)).eps
        half = TF32_EPS / 2 if grad.element_size() == 2 else 0.0  # only what a weight multiplies is cut
        cut = kernels.operand_eps(grad) + convolution_eps(grad) + half
        return raised(norm, self._mass(), cut, (_APART * eps) ** 2 + (_SLACK * eps if gram else 0.0))

    def _mass(self) -> Tensor:
        """Return at least the sum of the sizes of all terms of each unit's gradient: [units].

        Rounding errors are of that size, also where the terms cancel; and the weighted sum, which adds them
        in another order, has errors of its own.
        """
        units = self.grouping.units
        x, g = (t.reshape(units, -1) for t in self.operands())
        return (prod(self.correlation.kernel) * squared_norm(x) * squared_norm(g)).sqrt()

    def per_unit(self, slot: str) -> Tensor:
        if slot == "bias":
            per_image = self.images(self.grad).flatten(2).sum(2)
            return per_image.unflatten(0, (self.grouping.units, -1)).sum(1)
        flat = self._summed(*self.operands()) if self._flat is None else self._flat
        return self.correlation.arranged(flat, self.shape)

    def weighted_sum(self, slot: str, weights: Tensor) -> Tensor:
        if slot == "bias":
            return super().weighted_sum(slot, weights)
        if self._flat is not None:
            sections = torch.stack([weighted_sum(section, weights) for section in self._flat])
            return self.correlation.arranged(sections, self.shape)
        return self._ordinary_gradient(weights.repeat_interleave(self._per_unit()))

    def _ordinary_gradient(self, weights: Tensor) -> Tensor:
        image, coefficients = (_summable(t) for t in self.operands())
        shape, padding = self.correlation, list(self.correlation.before)
        reach, places = shape.reach(tuple(coefficients.shape[2:])), coefficients.shape[2:]
        sizes = zip(image.shape[2:], padding, reach, shape.stride, strict=True)
        if not all(0 <= size + 2 * pad - r < s for size, pad, r, s in sizes):
            image, padding = shape.padded(image, reach), [0] * len(places)
        scaled = coefficients * weights.to(coefficients.dtype).reshape(-1, *[1] * (coefficients.dim() - 1))
        like = scaled.new_empty(self.shape)
        none = [0] * len(places)
        options = (list(shape.stride), padding, list(shape.dilation), False, none, shape.groups)
        wanted = [False, True, False]
        return torch.ops.aten.convolution_backward(scaled, image, like, None, *options, wanted)[1]

    def _per_unit(self) -> int:
        """Return how many images each unit has."""
        images = prod(self.grad.shape[: -1 - len(self.correlation.kernel)])
        return images // max(self.grouping.units, 1)

    def _summed(self, image: Tensor, coefficients: Tensor) -> Tensor:
        gradients, per_unit = self.correlation.gradients(image, coefficients), self._per_unit()
        return gradients if per_unit == 1 else gradients.unflatten(1, (-1, per_unit)).sum(2)

    def _gradient_bytes(self) -> int:
        return self.grouping.units * prod(self.shape) * self.grad.element_size()

    def _ghost_is_cheaper(self) -> bool:
        image, coefficients = self.operands()
        per_unit, kept = self._per_unit(), self.memory.admits(self._gradient_bytes())
        ordinary = per_unit * self.correlation.gradient_cost(image, coefficients)
        gradient = _BATCHED * ordinary + _NUMBER * prod(self.shape)
        ghost = _GRAM * self.correlation.ghost_cost(image, coefficients, per_unit)
        return self._flat is None and ghost < gradient - (ordinary if kept else 0)

    def _parts(self, ghost: bool) -> Iterator[tuple[Tensor, Tensor]]:
        """Split the units so that what their norms need fits in memory."""
        image, coefficients = self.operands()
        per_unit = self._per_unit()
        places = tuple(coefficients.shape[2:])
        if ghost:
            numbers = (per_unit * prod(self.correlation.reach(places))) ** 2 * self.correlation.groups
        else:
            numbers = per_unit * (
                prod(self.shape) + prod(image.shape[1:]) * prod(self.correlation.kernel[1:])
            )
        units = max(1, _AT_ONCE // max(1, numbers * self.grad.element_size()))
        yield from zip(image.split(units * per_unit), coefficients.split(units * per_unit), strict=True)


def _precise(x: Tensor) -> Tensor:
    """Return `x` in float32 on a CPU, whose batched products of half precision do not take all strides."""
    return x.float() if x.device.type == "cpu" and x.element_size() < 4 else x


def _summable(x: Tensor) -> Tensor:
    """Return `x` in float32 at least: a convolution rounds a sum over the batch to the type of its operands.

    Numbers of 16 bits are not cut by tf32, so that tensor cores are used for this, too.
    """
    return x.to(norm_dtype(x))


def _squared_norm(sections: Tensor) -> Tensor:
    """Return the squared norm of each unit: [sections, units, numbers] to [units]."""
    return torch.linalg.vector_norm(sections, dim=2, dtype=norm_dtype(sections)).square().sum(0)


def _each(value: Any, rank: int) -> tuple[int, ...]:
    """Return an option as one number for each spatial axis."""
    sizes = (value,) if isinstance(value, int) else tuple(value)
    return sizes * rank if len(sizes) == 1 else sizes


def _before(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    if padding == "valid":
        return (0,) * len(kernel)
    if padding == "same":  # of an odd number of zeros, the one more goes to the end
        return tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))
    return _each(padding, len(kernel))


def _images(tape: Tape, input: Tensor, rank: int) -> tuple[Tensor, torch.Size]:
    """Return an input as [images, channels, *spatial], and the axes before the channels: rows first."""
    x = tape.rows(input)
    leading = x.shape[: x.dim() - rank - 1]
    return autocast(x if len(leading) == 1 else x.flatten(0, len(leading) - 1)), leading


def _noted(
    tape: Tape, x: Tensor, y: Tensor, weight: Tensor, bias: Any, correlation: Correlation, transposed: bool
) -> Tensor:
    names = {"weight": name_of(weight), "bias": name_of(bias)}
    kept = x.detach() if names["weight"] is not None else None
    return tape.note(ConvOp(kept, weight.shape, correlation, names, tape, transposed=transposed), y)


def _convolution(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def handler(
        tape: Tape,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        kernel = tuple(weight.shape[2:])
        x, leading = _images(tape, input, len(kernel))
        y = function(x, plain(weight), plain(bias), stride, padding, dilation, groups)
        strides, dilations = _each(stride, len(kernel)), _each(dilation, len(kernel))
        shape = Correlation(kernel, strides, dilations, _before(padding, kernel, dilations), groups)
        y = _noted(tape, x, y, weight, bias, shape, transposed=False)
        return widened(y, torch.Size((*leading, *y.shape[1:])))

    return handler


def _transposed_convolution(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def handler(
        tape: Tape,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Tensor:
        kernel = tuple(weight.shape[2:])
        x, leading = _images(tape, input, len(kernel))
        y = function(x, plain(weight), plain(bias), stride, padding, output_padding, groups, dilation)
        strides, dilations, before = (_each(option, len(kernel)) for option in (stride, dilation, padding))
        shape = Correlation(kernel, strides, dilations, before, groups)
        y = _noted(tape, x, y, weight, bias, shape, transposed=True)
        return widened(y, torch.Size((*leading, *y.shape[1:])))

    return handler


for _function in (torch.conv1d, torch.conv2d, torch.conv3d):
    rule(_function)(_convolution(_function))
for _function in (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d):
    rule(_function)(_transposed_convolution(_function))
