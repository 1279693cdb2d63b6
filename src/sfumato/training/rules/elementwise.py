# SPDX-License-Identifier: Apache-2.0
"""Bare parameters that meet a batch by broadcasting: scales, shifts, position and class tokens.

The parameter is copied once for each row (an expanded view, no memory), so the gradient of that copy is the
per-example gradient itself.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sfumato.training.tape import Batching, Op, Tape, Tracked, name_of, plain, rule, unsupported

__all__ = ["CopyOp"]


class CopyOp(Op):
    """A parameter that each row has a copy of: the output is [rows, *aligned shape]."""

    slots = ("value",)

    def __init__(self, parameter: Tracked, tape: Tape) -> None:
        super().__init__({"value": parameter.parameter_name}, tape)
        self.shape = parameter.shape

    def saved(self) -> Sequence[Tensor]:
        return ()

    def per_unit(self, slot: str) -> Tensor:
        per_unit = self.grouping.summed(self.grad)
        return per_unit.reshape(self.grouping.units, *self.shape)


def _copies(tape: Tape, parameter: Tracked, rank: int) -> Tensor | None:
    """Return a noted copy of the parameter for each row, with `rank` axes; None if it has a row axis."""
    shape = list(parameter.shape)
    if len(shape) == rank and rank and shape[0] == 1:
        shape = shape[1:]
    if len(shape) >= rank:
        return None
    shape = [1] * (rank - 1 - len(shape)) + shape
    value = plain(parameter).reshape(shape).expand(tape.grouping.rows, *shape)
    return tape.note(CopyOp(parameter, tape), value, Batching(0))


def _broadcasting(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def handler(tape: Tape, *args: Any, **options: Any) -> Tensor:
        first, second = args[:2]
        parameter, other = (first, second) if isinstance(first, Tracked) else (second, first)
        if not isinstance(other, Tensor) or isinstance(other, Tracked):
            raise unsupported(parameter.parameter_name, function)
        where = tape.batching(parameter.parameter_name, other)
        if tape.layout is None:
            return function(*(plain(a) for a in args), **options)
        if where != Batching(0) or (copies := _copies(tape, parameter, other.dim())) is None:
            raise unsupported(parameter.parameter_name, function)
        return function(*(copies if a is parameter else a for a in args), **options)

    return handler


for _function, _names in {
    torch.add: (Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__),
    torch.mul: (Tensor.mul, Tensor.__mul__, Tensor.__rmul__, Tensor.mul_, Tensor.__imul__),
    torch.sub: (Tensor.sub, Tensor.__sub__, Tensor.sub_, Tensor.__isub__),
    torch.div: (Tensor.div, Tensor.__truediv__, Tensor.div_, Tensor.__itruediv__),
}.items():
    for _name in (_function, *_names):
        rule(_name)(_broadcasting(_name))


@rule(Tensor.expand)
def _expand(tape: Tape, input: Tracked, *sizes: Any) -> Tensor:
    size = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    target = plain(input).expand(*size)
    where = tape.batching(input.parameter_name, target)
    if tape.layout is None:
        return target
    copies = _copies(tape, input, len(size))
    if where != Batching(0) or copies is None or name_of(input) is None:
        raise unsupported(input.parameter_name, Tensor.expand)
    return copies.expand(*size)


@rule(Tensor.detach)
def _detach(tape: Tape, input: Tracked) -> Tensor:
    return plain(input).detach()
