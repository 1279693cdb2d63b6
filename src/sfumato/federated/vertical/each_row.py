# SPDX-License-Identifier: Apache-2.0
"""Compute something for each row, so that no row changes the result of another, not even its rounding.

Rows are computed in pieces of a fixed size (`torch.func.vmap`). Places without a row hold zeros. If a row
makes the computation fail, the rows of its piece are tried again in smaller groups, each at its own place in
a piece of the same size, with zeros at all other places. A row that fails without others is computed without
`vmap`, and has zeros if that fails, too.

Guarantee  The result of a row is a function of this row and of its place: every computation that it is taken
           from has the same shape, and nothing but zeros decides whether `vmap` is used. torch computes the
           rows of a piece apart from each other; on a CPU their bits are the same, whatever the others are.
Edge cases A computation that `vmap` cannot run (values decide what is computed) fails with zeros as well, and
           is then made for one row after another.
Failure    No row raises. On a GPU an index out of range stops the process, whoever has it.
"""

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from sfumato._failures import ordinary

__all__ = ["each_row"]

_PIECE: Final = 128  # rows; a row that fails costs at most 15 computations of a piece


def each_row(compute: Callable[..., Tensor], *values: Tensor, blank: Tensor) -> tuple[Tensor, Tensor]:
    """Compute something for each row on its own; zeros for a row that cannot be computed.

    Args:
        compute: A function of one row of each tensor.
        values: Tensors with one row a person.
        blank: What the result of one row looks like.

    Returns:
        The results, [rows, ...], and which rows could be computed, [rows] of bool.

    >>> each_row(lambda row: 2 * row, torch.tensor([1.0, 3.0]), blank=torch.zeros(()))
    (tensor([2., 6.]), tensor([True, True]))
    """
    count = len(values[0])
    found = blank.new_zeros((count, *blank.shape))
    usable = torch.zeros(count, dtype=torch.bool)
    together = _tried(compute, _piece(values, range(0), begin=0)) is not None
    for begin in range(0, count, _PIECE):
        waiting = [range(begin, min(begin + _PIECE, count))]
        while waiting:
            part = waiting.pop()
            results = _tried(compute, _piece(values, part, begin=begin)) if together else None
            if results is not None:
                found[part.start : part.stop] = results[part.start - begin : part.stop - begin]
                usable[part.start : part.stop] = True
            elif len(part) > 1:
                waiting += [part[: len(part) // 2], part[len(part) // 2 :]]
            else:
                usable[part[0]] = _alone(compute, values, part[0], found)
    return found, usable


def _piece(values: Sequence[Tensor], part: range, *, begin: int) -> list[Tensor]:
    """Return a piece that holds some rows at their places, and zeros elsewhere."""
    pieces = [value.new_zeros((_PIECE, *value.shape[1:])) for value in values]
    for piece, value in zip(pieces, values, strict=True):
        piece[part.start - begin : part.stop - begin] = value[part.start : part.stop]
    return pieces


def _tried(compute: Callable[..., Tensor], pieces: Sequence[Tensor]) -> Tensor | None:
    """Return the results of a piece; None if a row makes them fail. The message of an error may quote it."""
    try:
        return ordinary(lambda: torch.func.vmap(compute)(*pieces))
    except Exception:
        return None


def _alone(compute: Callable[..., Tensor], values: Sequence[Tensor], place: int, found: Tensor) -> bool:
    """Compute one row without `vmap`; return whether it could be computed."""
    try:
        found[place] = ordinary(lambda: compute(*(value[place] for value in values)))
    except Exception:
        return False
    return True
