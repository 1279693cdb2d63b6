# SPDX-License-Identifier: Apache-2.0
"""Euclidean distances to the nearest of other rows, by exact search.

`nearest` compares rows in floating point. `on_grid` rounds values between public bounds to whole numbers of
fine steps; distances between such rows are sums of whole numbers below 2^53, which float64 adds without
rounding, in any order.

Guarantee  On the grid the distance of a row depends on that row and on the rows it is compared with, and on
           no other row: not even by the rounding of sums, which for plain floats can change with the
           size of a block. This is what lets a count of near rows have sensitivity 1.
Edge cases A value beyond the bounds is moved to them. A row with a value that is not finite is infinitely far
           from all others.
"""

import numpy as np

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.labeled_rows import Floats, Integers

__all__ = ["STEPS", "nearest", "nearest_on_grid", "on_grid"]

STEPS = 2**12  # between the bounds; 2^29 columns of squares of them still add up below 2^53
_BLOCK = 2**22  # distances held at once


def nearest(rows: Floats, others: Floats, *, neighbors: int = 1, same: bool = False) -> tuple[Floats, Integers]:
    """Return the distances to the nearest other rows, nearest first, and which they are.

    Args:
        rows: The rows, finite, [rows, columns].
        others: The rows to compare with, finite, [others, columns].
        neighbors: The number of neighbors of each row.
        same: Whether `others` are the same rows, so that each leaves out itself.

    Returns:
        Distances and places, both [rows, neighbors].

    Raises:
        InvalidParameterError: If there are fewer other rows than neighbors.

    >>> nearest(np.array([[0.0], [1.0], [5.0]]), np.array([[0.0], [1.0], [5.0]]), same=True)[0].ravel()
    array([1., 1., 4.])
    """
    _check.count(neighbors=neighbors)
    if neighbors > len(others) - same:
        raise InvalidParameterError(f"neighbors={neighbors}, but a row has {len(others) - same} other rows.")
    middle = others.mean(axis=0, dtype=np.float64)  # expanded squares lose digits far from the origin
    here, there = rows - middle, others - middle
    squares = (there**2).sum(axis=1)
    found: list[Integers] = []
    for start, part in _blocks(here, len(others)):
        apart = squares - 2 * part @ there.T  # less |part|^2, the same for the whole row
        if same:
            apart[np.arange(len(part)), start + np.arange(len(part))] = np.inf
        chosen = np.argpartition(apart, neighbors - 1, axis=1)[:, :neighbors]
        order = np.take_along_axis(apart, chosen, axis=1).argsort(axis=1, kind="stable")
        found.append(np.take_along_axis(chosen, order, axis=1))
    places = np.concatenate(found)
    away = [np.linalg.norm(here - there[places[:, k]], axis=1) for k in range(neighbors)]
    return np.stack(away, axis=1), places


def on_grid(rows: Floats, *, bounds: tuple[float, float] = (0.0, 1.0)) -> Floats:
    """Return rows as whole numbers of steps between bounds; NaN in all of a row that is not finite.

    Args:
        rows: The rows, [rows, columns], with any values.
        bounds: The lower and upper bound of all values, public.

    Returns:
        Float64 [rows, columns] of whole numbers from 0 to `STEPS`.

    Raises:
        InvalidParameterError: If the bounds are not in order.

    >>> on_grid(np.array([[0.0, 0.5, 7.0], [0.0, np.inf, 0.0]]))
    array([[   0., 2048., 4096.],
           [  nan,   nan,   nan]])
    """
    _check.bounds(bounds=bounds)
    low, high = bounds
    known = np.isfinite(rows).all(axis=1)
    inside = np.clip(np.where(known[:, None], rows, low).astype(np.float64), low, high)
    steps = np.rint((inside - low) / (high - low) * STEPS)
    steps[~known] = np.nan
    return steps


def nearest_on_grid(rows: Floats, others: Floats, *, same: bool = False) -> Floats:
    """Return the distance of each row on the grid to the nearest other row, squared, in steps, exactly.

    Args:
        rows: What `on_grid` returns.
        others: The rows to compare with, on the grid too, all known.
        same: Whether `others` are the same rows, so that each leaves out itself.

    Returns:
        Whole numbers [rows]; infinite for a row that is not finite, or that has no other row.

    >>> nearest_on_grid(np.array([[3.0], [np.nan]]), np.array([[0.0], [7.0]]))
    array([ 9., inf])
    """
    squares = (others**2).sum(axis=1)
    found = np.full(len(rows), np.inf)
    for start, part in _blocks(rows, len(others)):
        known = ~np.isnan(part).any(axis=1)
        part = np.where(known[:, None], part, 0.0)
        apart = (part**2).sum(axis=1)[:, None] + squares - 2 * part @ others.T
        if same:
            apart[np.arange(len(part)), start + np.arange(len(part))] = np.inf
        least = apart.min(axis=1, initial=np.inf)
        found[start : start + len(part)] = np.where(known, least, np.inf)
    return found


def _blocks(rows: Floats, others: int) -> "list[tuple[int, Floats]]":
    size = max(1, _BLOCK // max(others, 1))
    return [(start, rows[start : start + size]) for start in range(0, len(rows), size)]
