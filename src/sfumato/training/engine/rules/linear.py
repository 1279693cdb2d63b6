# SPDX-License-Identifier: Apache-2.0
"""Linear maps: y = x W^T + b, for single vectors and for sequences of them.

A unit with inputs x_t and output gradients g_t has the weight gradient sum_t g_t x_t^T. Its squared norm is

- |g|^2 |x|^2, if there is one vector (t = 1);
- sum_{s,t} <x_s, x_t> <g_s, g_t>, from the two Gram matrices: the ghost norm (Li et al. 2022,
  arXiv:2110.05679);
- or that of the gradient itself, if computing it is cheaper.

The weighted sum over units is one matrix product (book-keeping: Bu et al. 2023, arXiv:2210.00038).

Guarantee  No norm is too small, which would break the bound of clipping. If terms cancel (x_1 = -x_2), a norm
           from Gram matrices keeps an error of the size of the terms, and may even be negative. So every norm
           errs upwards: by a bound on its error, relative to the mass sum_t |x_t| |g_t| that does not cancel.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.training.engine.tape.operation import (
    Op,
    Pass,
    autocast,
    norm_dtype,
    product,
    squared_norm,
    weighable,
    weighted_sum,
)
from sfumato.training.engine.tape.tape import NoRuleError, Tape, name_of, plain, rule
from sfumato.training.fast import kernels
from sfumato.training.fast.precision import TF32_EPS

__all__ = [
    "APART",
    "SLACK",
    "LinearOp",
    "linear",
    "mass",
    "precise_bmm",
    "raised",
    "single",
    "slack",
    "widened",
]

_VIEW: Final = torch.ops.aten._unsafe_view.default
_HALF: Final = 0.5  # of a symmetric matrix is all that the fused kernel computes
SLACK: Final = 16.0  # roundings that a sum of products of Gram matrices gathers; up to 3 were measured
APART: Final = 1e3  # roundings by which a gradient and a sum that is computed otherwise may differ


class LinearOp(Op):
    """A use of a weight [out, in] (or [in, out] if `transposed`) and of a bias [out]."""

    slots = ("weight", "bias")

    def __init__(
        self, x: Tensor, names: Mapping[str, str | None], tape: Pass, *, transposed: bool = False
    ) -> None:
        super().__init__(names, tape)
        self.x = x  # [rows, ..., in]
        self.transposed = transposed

    @staticmethod
    def merged(uses: "Sequence[LinearOp]") -> "LinearOp":
        """Return several uses of the same parameters as one, which has the inputs of all of them."""
        pairs = [op.operands() for op in uses]
        x, grad = (torch.cat(parts, 1) for parts in zip(*pairs, strict=True))
        both = LinearOp(x, dict(uses[0].names), uses[0], transposed=uses[0].transposed)
        both.grad = grad
        return both

    def saved(self) -> Sequence[Tensor]:
        return (self.x,)

    def squared_norm(self, slot: str) -> Tensor:
        if slot == "bias":
            return self._output_norm if self.is_vector else super().squared_norm(slot)
        if self.is_vector:
            return _not_vanished(self._output_norm, self.grad) * _not_vanished(squared_norm(self.x), self.x)
        x, g = self.operands()  # [units, t, in], [units, t, out]
        if self.memory.admits(x.shape[0] * x.shape[2] * g.shape[2] * g.element_size()):
            return super().squared_norm(slot)
        # The gradient is not kept, and the sum rounds its terms otherwise: they may cancel otherwise.
        if ghost_is_cheaper(x, g):
            return ghost_norm(x, g, _cut(g), APART * _eps(g))
        return raised(super().squared_norm(slot), mass(x, g), _cut(g), (APART * _eps(g)) ** 2)

    def per_unit(self, slot: str) -> Tensor:
        x, g = self.operands()
        if slot == "bias":
            return g.sum(1)
        left, right = (x, g) if self.transposed else (g, x)
        return torch.bmm(left.transpose(1, 2), right)

    def weighted_sum(self, slot: str, weights: Tensor) -> Tensor:
        if slot == "bias" and self.is_vector:
            return weighted_sum(self.grad, weights)
        if slot == "bias" or self.is_kept(slot):
            return super().weighted_sum(slot, weights)
        x, g = self._scaled(weights)
        left, right = (x, g) if self.transposed else (g, x)
        return product(left.T, right)

    def _scaled(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and output gradients as matrices, the narrower of them times the weights."""
        x, g = (weighable(t) for t in ((self.x, self.grad) if self.is_vector else self.operands()))
        column = weights.to(g.dtype).reshape(-1, *[1] * (g.dim() - 1))
        x, g = (x * column, g) if x.shape[-1] < g.shape[-1] else (x, g * column)
        return (x, g) if self.is_vector else (x.flatten(0, 1), g.flatten(0, 1))

    @property
    def is_vector(self) -> bool:
        """Whether each unit has one input vector, so that its gradient has rank one."""
        return self.x.dim() == 2 and self.grouping.per_unit == 1

    @cached_property
    def _output_norm(self) -> Tensor:
        return squared_norm(self.grad)

    def operands(self) -> tuple[Tensor, Tensor]:
        """Return the inputs and the output gradients of each unit, as [units, t, features]."""
        units = self.grouping.units
        return (
            self.x.reshape(units, -1, self.x.shape[-1]),
            self.grad.reshape(units, -1, self.grad.shape[-1]),
        )

    def inner(self, slot: str, other: Op, other_slot: str) -> Tensor:
        if slot == "weight" and isinstance(other, LinearOp) and self.transposed == other.transposed:
            (x, g), (y, h) = self.operands(), other.operands()
            if g.shape[1] * h.shape[1] * (x.shape[2] + g.shape[2]) < g.shape[1] * x.shape[2] * g.shape[2]:
                return cross_norm(x, g, y, h)
        return super().inner(slot, other, other_slot)


def ghost_is_cheaper(x: Tensor, g: Tensor) -> bool:
    """Whether two Gram matrices take fewer multiplications than one gradient for each unit."""
    steps, n_in, n_out = g.shape[1], x.shape[2], g.shape[2]
    gram = steps * (n_in + n_out) * (_HALF if kernels.available(x, g) else 1)
    return gram < n_in * n_out


def ghost_norm(x: Tensor, g: Tensor, cut: float = 0.0, apart: float = 0.0) -> Tensor:
    """Return sum_{s,t} <x_s, x_t> <g_s, g_t> for each unit.

    It errs upwards, by the rounding that its terms may have gathered, and as `raised` states.
    """
    fused = kernels.available(x, g)
    norm, total = kernels.ghost_norm(x, g) if fused else (_gram_product(x, g, x, g), mass(x, g))
    return raised(norm, total, cut, SLACK * _eps(g) + apart**2)


def cross_norm(x: Tensor, g: Tensor, y: Tensor, h: Tensor) -> Tensor:
    """Return sum_{s,t} <x_s, y_t> <g_s, h_t> for each unit: the inner product of two weight gradients.

    It errs upwards, as `slack` states.
    """
    return _gram_product(x, g, y, h) + slack(g) * mass(x, g) * mass(y, h)


def slack(g: Tensor) -> float:
    """Return what an inner product of two uses errs upwards by, relative to their masses.

    It is the rounding that its terms may have gathered, and what kept gradients may have been cut by.
    """
    return SLACK * _eps(g) + kernels.operand_eps(g)


def _gram_product(x: Tensor, g: Tensor, y: Tensor, h: Tensor) -> Tensor:
    x, g, y, h = (t.to(norm_dtype(g)) for t in (x, g, y, h))
    with torch.autocast(g.device.type, enabled=False):  # coarser products would be off by more than that
        inputs = precise_bmm(x, y.transpose(1, 2)).flatten(1)
        outputs = precise_bmm(g, h.transpose(1, 2)).flatten(1)
    return torch.linalg.vecdot(inputs, outputs)


def precise_bmm(left: Tensor, right: Tensor) -> Tensor:
    """Multiply in float32 also where tensor cores would cut the operands: in three products."""
    if not kernels.operand_eps(left):
        return torch.bmm(left, right)
    (a, b), (c, d) = _parted(left), _parted(right)
    return torch.bmm(a, c) + torch.bmm(a, d) + torch.bmm(b, c)


def _parted(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first 10 bits of each number behind its leading one, and the rest."""
    kept = (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return kept, x - kept


def raised(norm: Tensor, mass: Tensor, cut: float, share: float) -> Tensor:
    """Return squared norms raised by a share of the squared mass; then norms by `cut`, a share of the mass.

    Operands may all be cut in the direction of the sum, so what it gains is added to the norm: the root of
    two squares is less, by up to sqrt(2). A `share` is many times a rounding, and needs no more.
    """
    norm = torch.addcmul(norm, mass, mass, value=share)
    return norm if not cut else (norm.clamp(min=0).sqrt() + cut * mass).square()


def _cut(g: Tensor) -> float:
    """Return how far the weighted sum rounds its terms, relative to them, apart from those of the norm."""
    if g.element_size() == 2:  # times a weight, it is rounded; float16 is not, but tf32 may cut it
        return max(torch.finfo(g.dtype).eps, TF32_EPS) / 2
    return kernels.operand_eps(g)


def mass(x: Tensor, g: Tensor) -> Tensor:
    """Return sum_t |x_t| |g_t| for each unit: what its gradient would weigh if nothing cancelled."""
    dtype = norm_dtype(g)
    x, g = (torch.linalg.vector_norm(t, dim=2, dtype=dtype) for t in (x, g))
    return torch.linalg.vecdot(x, g)


def _eps(x: Tensor) -> float:
    return torch.finfo(norm_dtype(x)).eps


def _not_vanished(norms: Tensor, x: Tensor) -> Tensor:
    """Add to squared norms of vectors what underflow may have taken: a large factor may bring it back."""
    return norms + x.shape[1] * torch.finfo(norms.dtype).tiny


def single(x: Tensor) -> Tensor:
    """Return [rows, 1, ...] as [rows, ...]: products of matrices are faster than batches of them."""
    return x.squeeze(1) if x.dim() > 2 and x.shape[1] == 1 else x


def widened(y: Tensor, shape: torch.Size) -> Tensor:
    """Return a fresh output in another shape; not as a view, which in-place operations would be slow on."""
    return y if y.shape == shape else _VIEW(y, shape)


def linear(tape: Tape, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b for x [rows, ..., in], noted for those of the two that are trainable."""
    x = autocast(x)
    y = F.linear(x, plain(weight), plain(bias))
    names = {"weight": name_of(weight), "bias": name_of(bias)}
    return tape.note(LinearOp(x.detach(), names, tape), y)


@rule(F.linear)
def _linear(tape: Tape, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    x = tape.rows(input)
    y = linear(tape, single(x), weight, bias)
    return widened(y, torch.Size((*x.shape[:-1], y.shape[-1])))


@rule(torch.addmm)
def _addmm(
    tape: Tape, input: Any, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    if alpha != 1 or beta != 1 or input.dim() != 1 or name_of(mat2) is None:
        raise NoRuleError
    rows = tape.rows(mat1)
    x = autocast(single(rows))
    y = torch.addmm(plain(input), x.reshape(-1, x.shape[-1]), plain(mat2))
    names = {"weight": name_of(mat2), "bias": name_of(input)}
    y = tape.note(LinearOp(x.detach(), names, tape, transposed=True), y)
    return widened(y, torch.Size((*rows.shape[:-1], y.shape[-1])))


@rule(torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__)
def _matmul(tape: Tape, input: Tensor, other: Tensor) -> Tensor:
    if name_of(other) is None or other.dim() != 2:
        raise NoRuleError
    rows = tape.rows(input)
    x = autocast(single(rows))
    y = torch.matmul(x, plain(other))
    y = tape.note(LinearOp(x.detach(), {"weight": name_of(other)}, tape, transposed=True), y)
    return widened(y, torch.Size((*rows.shape[:-1], y.shape[-1])))
