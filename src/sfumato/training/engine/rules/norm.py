# SPDX-License-Identifier: Apache-2.0
"""Normalization within one row: layer, group, instance and root-mean-square norms.

With y = w * h + b and a normalized input h, a unit's gradients are the sums of g * h and of g over its
positions: as small as w, so that they are always kept. h is not stored: it is computed again from the input,
and from the mean and the deviation that the forward pass computed anyway. Batch norm has a rule only if
it uses fixed statistics; otherwise it mixes rows and is refused.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.errors import NotPrivateError
from sfumato.training.engine.rules.linear import widened
from sfumato.training.engine.tape.operation import Op, norm_dtype
from sfumato.training.engine.tape.tape import NoRuleError, Tape, name_of, plain, rule
from sfumato.training.fast import kernels

__all__ = ["ChannelNormOp", "FeatureNormOp", "GroupNormOp"]


class _AffineOp(Op):
    """A scale and a shift of a normalized input; their gradients are small, and kept whatever the limit."""

    slots = ("weight", "bias")

    def __init__(self, x: Tensor, names: dict[str, str | None], tape: Tape) -> None:
        super().__init__(names, tape)
        self.x = x

    def saved(self) -> Sequence[Tensor]:
        return (self.x,)

    def gradient(self, slot: str) -> Tensor:
        if slot not in self._kept:
            self._kept[slot] = self.per_unit(slot)
        return self._kept[slot]

    def release(self) -> None:
        super().release()
        self.x = self.x.new_empty(0)


class FeatureNormOp(_AffineOp):
    """A norm over the last axes: [rows, ..., *features], by `normalize` from the input.

    `statistics` are the mean and the inverse deviation of each vector, rows first, if the forward pass
    has them.
    """

    statistics: tuple[Tensor, Tensor] | None = None

    def __init__(
        self,
        x: Tensor,
        names: dict[str, str | None],
        tape: Tape,
        axes: int,
        normalize: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(x, names, tape)
        self.axes = axes
        self.normalize = normalize

    def release(self) -> None:
        if self.statistics is not None and kernels.available(self.x, self.grad):
            features = self.x.shape[self.x.dim() - self.axes :]
            x, grad = (t.reshape(-1, features.numel()) for t in (self.x, self.grad))
            mean, rstd = (t.reshape(-1) for t in self.statistics)
            found = kernels.feature_norm_gradients(x, grad, mean, rstd, self.grouping.units)
            shape = (self.grouping.units, *features)
            self._kept = {
                slot: g.reshape(shape)
                for slot, g in zip(self.slots, found, strict=True)
                if slot in self.names
            }
        super().release()

    def per_unit(self, slot: str) -> Tensor:
        grad = self.grad.to(norm_dtype(self.grad))
        if slot == "weight":
            grad = self.normalize(self.x.to(grad.dtype)).mul_(grad)
        features = grad.shape[grad.dim() - self.axes :]
        return grad.reshape(self.grouping.units, -1, *features).sum(1)


class ChannelNormOp(_AffineOp):
    """A norm with one scale and one shift for each channel: [rows, ..., channels, *spatial]."""

    def __init__(
        self,
        x: Tensor,
        names: dict[str, str | None],
        tape: Tape,
        axes: int,
        normalize: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(x, names, tape)
        self.axes = axes
        self.normalize = normalize

    def images(self, x: Tensor) -> Tensor:
        """Return [rows, ..., channels, *spatial] as [images, channels, *spatial]."""
        return x.reshape(-1, *x.shape[x.dim() - self.axes - 1 :]).to(norm_dtype(x))

    def per_unit(self, slot: str) -> Tensor:
        grad = self.images(self.grad)
        if slot == "weight":
            grad = self.normalize(self.images(self.x)).mul_(grad)
        return self.summed(grad.flatten(2).sum(2) if self.axes else grad)

    def summed(self, per_image: Tensor) -> Tensor:
        """Add up the images of each unit."""
        return per_image.reshape(self.grouping.units, -1, per_image.shape[1]).sum(1)


class GroupNormOp(ChannelNormOp):
    """A group norm whose means and deviations, [images, groups], were kept by the forward pass.

    All images side by side, as the channels of a single one, have the images' own gradients as gradient: the
    kernel of the ordinary backward pass computes them in one go, the scale's and the shift's together.
    """

    def __init__(
        self, x: Tensor, mean: Tensor, rstd: Tensor, names: dict[str, str | None], tape: Tape, axes: int
    ) -> None:
        super().__init__(x, names, tape, axes, lambda image: image)
        self.mean = mean
        self.rstd = rstd

    def per_unit(self, slot: str) -> Tensor:
        x, grad = self.images(self.x), self.images(self.grad)
        count, positions = x.shape[0] * x.shape[1], prod(x.shape[2:])
        # The kernel takes numbers to lie side by side. The gradient of a sum over places is one number for
        # all of them: what is read in place of the others would be of other rows, or lie beyond the end.
        side_by_side = (t.to(x.dtype).reshape(1, count, positions).contiguous() for t in (grad, x))
        statistics = (t.to(x.dtype).reshape(1, -1) for t in (self.mean, self.rstd))
        sizes = (1, count, positions, self.mean.numel())
        ones = x.new_ones(count)  # it has no part in these gradients, but the kernel asks for its shape
        wanted = [False, "weight" in self.names, "bias" in self.names]
        found = torch.ops.aten.native_group_norm_backward(*side_by_side, *statistics, ones, *sizes, wanted)
        for name, per_image in zip(("weight", "bias"), found[1:], strict=True):
            if name in self.names:
                self._kept[name] = self.summed(per_image.reshape(x.shape[:2]))
        return self._kept[slot]


def _start(weight: Any, bias: Any) -> tuple[dict[str, str | None], str]:
    names = {"weight": name_of(weight), "bias": name_of(bias)}
    name = names["weight"] or names["bias"]
    if name is None:
        raise NoRuleError
    return names, name


def _full(x: Tensor) -> Tensor:
    """Return `x` as autocast would give it to a norm: in float32, on the devices where it does so."""
    lowered = x.device.type == "cuda" and torch.is_autocast_enabled("cuda") and x.dtype != torch.float64
    return x.float() if lowered else x


@rule(F.layer_norm)
def _layer_norm(
    tape: Tape,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    names, _ = _start(weight, bias)
    x = _full(tape.rows(input))
    y, mean, rstd = torch.native_layer_norm(x, normalized_shape, plain(weight), plain(bias), eps)
    statistics = (mean.detach(), rstd.detach())

    def normalize(x: Tensor) -> Tensor:
        shift, scale = (t.to(x.dtype) for t in statistics)
        return torch.addcmul(-shift * scale, x, scale)

    op = FeatureNormOp(x.detach(), names, tape, len(normalized_shape), normalize)
    op.statistics = statistics
    return tape.note(op, y, at_once=x.requires_grad)


@rule(F.rms_norm)
def _rms_norm(
    tape: Tape,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    names, _ = _start(weight, None)
    axes, x = len(normalized_shape), tape.rows(input)
    y = F.rms_norm(x, list(normalized_shape), plain(weight), eps)

    def normalize(x: Tensor) -> Tensor:
        return F.rms_norm(x, list(normalized_shape), None, eps)

    return tape.note(FeatureNormOp(x.detach(), names, tape, axes, normalize), y, at_once=x.requires_grad)


@rule(F.group_norm)
def _group_norm(
    tape: Tape,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    names, _ = _start(weight, bias)
    rows = tape.rows(input)
    x = _full(rows.flatten(0, 1)).contiguous()
    sizes = (x.shape[0], x.shape[1], prod(x.shape[2:]), num_groups)
    y, mean, rstd = torch.native_group_norm(x, plain(weight), plain(bias), *sizes, eps)
    op = GroupNormOp(x.detach(), mean.detach(), rstd.detach(), names, tape, x.dim() - 2)
    return widened(tape.note(op, y, at_once=x.requires_grad), rows.shape)


def _channel_norm(
    tape: Tape, input: Tensor, names: dict[str, str | None], normalize: Callable[..., Tensor], affine: Any
) -> Tensor:
    rows = tape.rows(input)
    x = rows.flatten(0, 1)
    y = normalize(x, *(plain(p) for p in affine))
    op = ChannelNormOp(x.detach(), names, tape, x.dim() - 2, normalize)
    return widened(tape.note(op, y, at_once=x.requires_grad), rows.shape)


@rule(F.instance_norm)
def _instance_norm(
    tape: Tape,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    names, name = _start(weight, bias)
    if use_input_stats and running_mean is not None:
        raise _mixes(name, "an instance norm that gathers running statistics")
    mean, var = plain(running_mean), plain(running_var)

    def normalize(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return F.instance_norm(x, mean, var, weight, bias, use_input_stats, momentum, eps)

    return _channel_norm(tape, input, names, normalize, (weight, bias))


@rule(F.batch_norm)
def _batch_norm(
    tape: Tape,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    names, name = _start(weight, bias)
    if training:
        raise _mixes(name, "a batch norm that averages over the batch")
    mean, var = plain(running_mean), plain(running_var)

    def normalize(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return F.batch_norm(x, mean, var, weight, bias, False, momentum, eps)

    return _channel_norm(tape, input, names, normalize, (weight, bias))


def _mixes(name: str, what: str) -> NotPrivateError:
    return NotPrivateError(
        f"parameter {name!r} belongs to {what}: it mixes the examples of a batch, so that no example has a "
        "gradient of its own. Replace it with sf.training.fix(model), or call .eval() on it to use fixed "
        "statistics."
    )
