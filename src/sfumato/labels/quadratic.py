# SPDX-License-Identifier: Apache-2.0
"""Small quadratic programs on the simplex, solved exactly by active sets.

Promise    `minimize_on_simplex` returns c >= 0 with sum 1 at which c'Qc/2 - b'c is least, up to rounding,
           for a positive semidefinite Q. Each step lowers the value; at the limit of steps, the best found
           is returned.
Source     Nocedal, Wright 2006, Numerical Optimization, Algorithm 16.3.
"""

from typing import Final

import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError

__all__ = ["minimize_on_simplex"]

_RIDGE: Final = 1e-12  # relative to Q: equal columns make it singular
_OPTIMAL: Final = 1e-11  # relative to Q: slopes that differ by less are equal


def minimize_on_simplex(
    quadratic: Tensor, linear: Tensor, *, start: Tensor | None = None, most_solves: int = 100
) -> Tensor:
    """Minimize c'Qc/2 - b'c over the simplex {c >= 0, sum c = 1}.

    >>> minimize_on_simplex(torch.eye(3).double(), torch.tensor([2.0, 1.5, 0.0]).double())
    tensor([0.7500, 0.2500, 0.0000], dtype=torch.float64)
    """
    _check.count(most_solves=most_solves)
    size = len(linear)
    if not size or linear.shape != (size,) or quadratic.shape != (size, size):
        raise InvalidParameterError(
            f"Q must be square, and b as long: they are {list(quadratic.shape)} and {list(linear.shape)}."
        )
    scale = float(quadratic.diagonal().abs().amax()) or 1.0
    quadratic, linear = quadratic / scale, linear / scale
    shares = _first(quadratic, linear) if start is None else start.clone()
    free = shares > 0
    for _ in range(most_solves):
        wanted = _on_face(quadratic, linear, free)
        shares, blocked = _moved(shares, wanted)
        if bool(blocked.any()):
            free = free & ~blocked
            continue
        slopes = quadratic @ shares - linear
        lowest = int(slopes.argmin())
        if bool(free[lowest]) or float(slopes[lowest]) >= float(slopes @ shares) - _OPTIMAL:
            break
        free[lowest] = True
    return shares


def _first(quadratic: Tensor, linear: Tensor) -> Tensor:
    shares = torch.zeros_like(linear)
    shares[(quadratic.diagonal() / 2 - linear).argmin()] = 1.0
    return shares


def _on_face(quadratic: Tensor, linear: Tensor, free: Tensor) -> Tensor:
    """Minimize over the plane sum c = 1 in the free coordinates; the others are zero."""
    places = free.nonzero().flatten()
    count = len(places)
    system = torch.ones(count + 1, count + 1, dtype=quadratic.dtype)
    system[:count, :count] = quadratic[places][:, places]
    system[:count, :count].diagonal().add_(_RIDGE)
    system[count, count] = 0.0
    right = torch.cat([linear[places], linear.new_ones(1)])
    return torch.zeros_like(linear).index_put((places,), torch.linalg.solve(system, right)[:count])


def _moved(shares: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Go as far toward what is wanted as no share gets negative; return who stands in the way."""
    negative = wanted < 0
    if not bool(negative.any()):
        return wanted, negative
    reach = torch.where(negative, shares / (shares - wanted), torch.inf)
    blocked = reach <= reach.amin()
    moved = torch.lerp(shares, wanted, reach.amin()).masked_fill(blocked, 0.0).clamp(min=0)
    return moved / moved.sum(), blocked
