# SPDX-License-Identifier: Apache-2.0
"""Exact solutions of small quadratic programs on the simplex.

`minimize_on_simplex` first solves faces without regard to signs: all coordinates that are negative in a
face, or that would lower the value outside of it, change sides. If Q is well conditioned, a few faces
suffice. If they do not, it starts again and moves from face to face without ever raising the value: all
coordinates that would lower it are freed at once, and those that would become negative are held again.

Edge cases For a positive semidefinite Q the result is the minimum up to rounding. At the limit of solves it
           is no worse than the start.
Source     Judice, Pires 1994, "A block principal pivoting algorithm for large-scale strictly monotone linear
           complementarity problems"; Nocedal, Wright 2006, Numerical Optimization, Algorithm 16.3.
"""

from typing import Final

import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError

__all__ = ["minimize_on_simplex"]

_RIDGE: Final = 1e-12  # relative to Q: equal columns make it singular
_OPTIMAL: Final = 1e-11  # relative to Q: slopes that differ by less are equal
_NEGATIVE: Final = 1e-13  # shares below zero by less are zero
_PIVOTS: Final = 12


def minimize_on_simplex(
    quadratic: Tensor,
    linear: Tensor,
    *,
    start: Tensor | None = None,
    free: Tensor | None = None,
    most_solves: int = 200,
) -> Tensor:
    """Minimize c'Qc/2 - b'c over the simplex {c >= 0, sum c = 1}.

    Args:
        quadratic: Q, square and positive semidefinite.
        linear: b.
        start: The point to start from, or None for the best vertex.
        free: The coordinates of the first face, at least one, or None for those of the start.
        most_solves: The largest number of linear systems to solve.

    Returns:
        The minimizer c.

    Raises:
        InvalidParameterError: If the shapes of Q and b do not match.

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
    shares = _first(quadratic, linear) if start is None else start
    pivots = min(_PIVOTS, most_solves)
    found = _pivoted(quadratic, linear, shares > 0 if free is None else free, pivots)
    return _descended(quadratic, linear, shares, most_solves - pivots) if found is None else found


def _pivoted(quadratic: Tensor, linear: Tensor, free: Tensor, solves: int) -> Tensor | None:
    """Return the minimum, or None if exchanging all wrong coordinates of each face did not find it."""
    for _ in range(solves):
        shares = _on_face(quadratic, linear, free)
        wrong = torch.where(free, shares < -_NEGATIVE, _below(quadratic, linear, shares))
        if not bool(wrong.any()):
            shares = shares.clamp(min=0)
            return shares / shares.sum()
        free = free ^ wrong
    return None


def _descended(quadratic: Tensor, linear: Tensor, shares: Tensor, solves: int) -> Tensor:
    """Return the minimum or, at the limit of solves, a better point than the start."""
    free, before = shares > 0, None
    for _ in range(solves):
        shares, blocked = _moved(shares, _on_face(quadratic, linear, free))
        if bool(blocked.any()):
            free = free & ~blocked
            continue
        below = _below(quadratic, linear, shares) & ~free
        if not bool(below.any()):
            break
        if before is not None and torch.equal(free, before):  # all were blocked again: free one alone
            below = torch.arange(len(linear), device=linear.device) == (quadratic @ shares - linear).argmin()
        before, free = free, free | below
    return shares


def _below(quadratic: Tensor, linear: Tensor, shares: Tensor) -> Tensor:
    """Mark the coordinates toward which the value falls."""
    slopes = quadratic @ shares - linear
    return slopes < float(slopes @ shares) - _OPTIMAL


def _first(quadratic: Tensor, linear: Tensor) -> Tensor:
    shares = torch.zeros_like(linear)
    shares[(quadratic.diagonal() / 2 - linear).argmin()] = 1.0
    return shares


def _on_face(quadratic: Tensor, linear: Tensor, free: Tensor) -> Tensor:
    """Minimize over the plane sum c = 1 in the free coordinates; the others are zero."""
    places = free.nonzero().flatten()
    count = len(places)
    system = quadratic.new_ones(count + 1, count + 1)
    system[:count, :count] = quadratic[places][:, places]
    system[:count, :count].diagonal().add_(_RIDGE)
    system[count, count] = 0.0
    right = torch.cat([linear[places], linear.new_ones(1)])
    return torch.zeros_like(linear).index_put((places,), torch.linalg.solve(system, right)[:count])


def _moved(shares: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Move toward the wanted point until a share would become negative; return which shares block."""
    negative = wanted < 0
    if not bool(negative.any()):
        return wanted, negative
    reach = torch.where(negative, shares / (shares - wanted), torch.inf)
    blocked = reach <= reach.amin()
    moved = torch.lerp(shares, wanted, reach.amin()).masked_fill(blocked, 0.0).clamp(min=0)
    return moved / moved.sum(), blocked
