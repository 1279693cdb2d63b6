# SPDX-License-Identifier: Apache-2.0
"""Correlations: the weight gradient of a convolution, for each image on its own.

With an image x [C, positions] and coefficients g [O, places], the gradient of a kernel is

    dW[o, c, k] = sum_p g[o, p] x[c, p * stride + k * dilation - before].

It is never computed by unfolding all of the image. `gradients` unfolds every spatial axis but the first,
where the entries that one tap reads lie in one block of the copy: one batched product for each tap of the
first axis. `ghost_norms` needs no gradients: the Gram matrix of the unfolded image is a sum of shifted
blocks of the Gram matrix of the image itself (the ghost norm of Bu et al. 2022, arXiv:2205.10683, without the
unfolding).
"""

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.training.engine.rules.linear import precise_bmm
from sfumato.training.engine.tape.operation import norm_dtype
from sfumato.training.fast import kernels

__all__ = ["Correlation"]

_NARROWEST: Final = 3  # channels: with fewer, most of a tile of the fused kernel is empty
_UNFOLDED: Final = 64 << 20  # bytes of unfolded images at a time


@dataclass(frozen=True, slots=True)
class Correlation:
    """The shape of one: kernel, stride, dilation and zeros before each spatial axis, and channel groups."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    groups: int = 1

    def reach(self, places: tuple[int, ...]) -> tuple[int, ...]:
        """Return how many positions of each axis, zeros included, are read for so many places."""
        axes = zip(places, self.stride, self.kernel, self.dilation, strict=True)
        return tuple((p - 1) * s + (k - 1) * d + 1 for p, s, k, d in axes)

    def padded(self, image: Tensor, reach: tuple[int, ...]) -> Tensor:
        """Return the image with its zeros, as long as `reach` on each axis."""
        ends = [r - b - size for r, b, size in zip(reach, self.before, image.shape[2:], strict=True)]
        if not any(self.before) and not any(ends):
            return image
        pads = [pad for axis in zip(self.before, ends, strict=True) for pad in reversed(axis)]
        return F.pad(image, pads[::-1])  # a negative end cuts off what nothing reads

    def gradients(self, image: Tensor, coefficients: Tensor) -> Tensor:
        """Return each image's gradient, in an order that `arranged` undoes: [sections, images, numbers]."""
        images, outputs = coefficients.shape[:2]
        sections = self.kernel[0] // self._together()
        numbers = image.shape[1] // self.groups * prod(self.kernel) * outputs
        found = coefficients.new_empty(sections, images, numbers // sections)
        per_image = image.element_size() * prod(image.shape[1:]) * prod(self.kernel[1:])
        at_once = max(1, _UNFOLDED // max(1, per_image))
        for first in range(0, images, at_once):
            part = slice(first, first + at_once)
            self._multiply(image[part], coefficients[part], found[:, part])
        return found

    def _multiply(self, image: Tensor, coefficients: Tensor, found: Tensor) -> None:
        blocks = self._blocks(image, coefficients)  # [batch, entries, phases, features]
        places, line, taps = prod(coefficients.shape[2:]), prod(coefficients.shape[3:]), self._together()
        factors = coefficients.reshape(len(blocks), -1, places)
        for section, into in enumerate(found):
            start, phase = divmod(section * taps * self.dilation[0], self.stride[0])
            read = blocks[:, start * line : start * line + places, phase : phase + taps].flatten(2)
            torch.bmm(factors, read, out=into.view(len(blocks), factors.shape[1], -1))

    def _together(self) -> int:
        """Return how many taps of the first axis make one section: those that start at the same entry."""
        even = self.dilation[0] == 1 and self.kernel[0] % self.stride[0] == 0
        return self.stride[0] if even else 1

    def _blocks(self, image: Tensor, coefficients: Tensor) -> Tensor:
        """Unfold all axes but the first, and split that into as many phases as the stride has."""
        places = coefficients.shape[2:]
        span = (self.kernel[0] - 1) * self.dilation[0]
        phases, entries = min(self.stride[0], span + 1), span // self.stride[0] + places[0]
        reach = ((entries - 1) * self.stride[0] + phases, *self.reach(places)[1:])
        image = self.padded(image, reach)
        depth = image.shape[1] // self.groups
        if depth > 1:
            image = image.movedim(1, -1).contiguous().movedim(-1, 1)  # so that channels are copied in one go
        n, channels, *axes = image.stride()
        steps = [(d * a, s * a) for d, s, a in zip(self.dilation[1:], self.stride[1:], axes[1:], strict=True)]
        sizes = (len(image), self.groups, entries, *places[1:], phases, *self.kernel[1:], depth)
        entry = (self.stride[0] * axes[0], *(step for _, step in steps))
        feature = (axes[0], *(step for step, _ in steps), channels)
        view = image.as_strided(sizes, (n, depth * channels, *entry, *feature))
        return view.reshape(len(image) * self.groups, entries * prod(places[1:]), phases, -1)

    def arranged(self, gradients: Tensor, shape: torch.Size) -> Tensor:
        """Bring the numbers of [sections, ..., numbers] into the order of the weight: [..., *shape]."""
        sections, *lead, _ = gradients.shape
        taps = self._together()
        sizes = (self.groups, shape[0] // self.groups, taps, *self.kernel[1:], shape[1])
        parts = gradients.reshape(sections, *lead, *sizes).movedim(-1, len(lead) + 3)
        return parts.movedim(0, len(lead) + 3).reshape(*lead, *shape)

    def is_fused(self, image: Tensor, coefficients: Tensor) -> bool:
        """Whether `fused_norms` is the way: on a GPU, where taps overlap and channels fill its tiles."""
        overlapping = (
            any(s < k for s, k in zip(self.stride, self.kernel, strict=True)) or prod(self.kernel) == 1
        )
        wide = min(image.shape[1], coefficients.shape[1]) >= _NARROWEST
        return (
            len(self.kernel) == 2
            and self.groups == 1
            and overlapping
            and wide
            and kernels.available(image, coefficients)
        )

    def fused_norms(self, image: Tensor, coefficients: Tensor) -> tuple[Tensor, bool]:
        """Return the squared norm of each image's gradient, and whether it is from Gram matrices."""
        found = kernels.correlation_norm(
            image,
            coefficients,
            kernel=self.kernel,
            stride=self.stride,
            dilation=self.dilation,
            before=self.before,
        )
        return found, kernels.ghost_takes_less(image, coefficients, self.kernel)

    def ghost_norms(self, image: Tensor, coefficients: Tensor, per_unit: int) -> Tensor:
        """Return the squared norm of each unit's gradient, a unit being `per_unit` consecutive images."""
        places = tuple(coefficients.shape[2:])
        image = self.padded(image, self.reach(places))
        inputs = self._gram(image, per_unit)  # [units * groups, per_unit, *positions, per_unit, *positions]
        outputs = self._gram(coefficients, per_unit).flatten(1)
        total = self._shifted_sum(inputs, places).reshape(outputs.shape)
        return torch.linalg.vecdot(total, outputs).unflatten(0, (-1, self.groups)).sum(1)

    def _gram(self, x: Tensor, per_unit: int) -> Tensor:
        positions = x.shape[2:]
        x = x.reshape(-1, per_unit, self.groups, x.shape[1] // self.groups, prod(positions))
        if per_unit == 1:
            flat = x.flatten(0, 2)
        else:
            flat = x.permute(0, 2, 3, 1, 4).reshape(-1, x.shape[3], per_unit * x.shape[4])
        flat = flat.to(
            norm_dtype(flat)
        )  # entries that are cut would be off by more than the error is taken for
        with torch.autocast(flat.device.type, enabled=False):
            gram = precise_bmm(flat.transpose(1, 2), flat)
        return gram.unflatten(2, (per_unit, *positions)).unflatten(1, (per_unit, *positions))

    def _shifted_sum(self, gram: Tensor, places: tuple[int, ...]) -> Tensor:
        total: Tensor | None = None
        for taps in product(*map(range, self.kernel)):
            axes = zip(taps, self.dilation, self.stride, places, strict=True)
            window = [slice(k * d, k * d + (p - 1) * s + 1, s) for k, d, s, p in axes]
            block = gram[:, :, *window, :, *window]
            if total is None:
                total = block.clone() if prod(self.kernel) > 1 else block
            else:
                total += block
        return gram if total is None else total

    def gradient_cost(self, image: Tensor, coefficients: Tensor) -> int:
        """Return the multiplications of one image's gradient."""
        depth = image.shape[1] // self.groups
        return prod(coefficients.shape[1:]) * depth * prod(self.kernel)

    def ghost_cost(self, image: Tensor, coefficients: Tensor, per_unit: int) -> int:
        """Return the multiplications and additions of one unit's ghost norm."""
        places = tuple(coefficients.shape[2:])
        inputs, outputs = per_unit * prod(self.reach(places)), per_unit * prod(places)
        grams = inputs**2 * image.shape[1] + outputs**2 * coefficients.shape[1]
        return grams + outputs**2 * prod(self.kernel) * self.groups
