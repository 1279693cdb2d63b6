# SPDX-License-Identifier: Apache-2.0
"""Euclidean distances to the nearest of other rows, by exact search.

`nearest` compares rows in floating point. `on_grid` rounds values between public bounds to whole numbers of
fine steps; distances between such rows are sums of whole numbers below 2^53, which float64 adds without
rounding, in any order. `holdout_distances` says how near synthetic rows are to public ones. It reads no
private row, so it says nothing about private rows: only whether synthetic rows repeat public ones.

Guarantee  On the grid the distance of a row depends on that row and on the rows it is compared with, and on
           no other row: not even by the rounding of sums, which for plain floats can change with the size of
           a block. This is what lets a count of near rows have sensitivity 1.
Edge cases A value beyond the bounds is moved to them. A row with a value that is not finite is infinitely
           far from all others.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.rows import Floats, Integers
from sfumato.generative.evaluation.table_columns import Columns, features_of, numbers_of

__all__ = [
    "STEPS",
    "HoldoutDistances",
    "grid_rows",
    "holdout_distances",
    "nearest",
    "nearest_on_grid",
    "on_grid",
    "public_rows",
]

STEPS = 2**12  # between the bounds; 2^29 columns of squares of them still add up below 2^53
_BLOCK = 2**22  # distances held at once
_QUANTILES = (0.01, 0.1, 0.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class HoldoutDistances:
    """How near synthetic rows are to public rows. Private rows play no part.

    Attributes:
        quantiles: The quantiles that are given.
        synthetic: Those of the distances from synthetic rows to the nearest holdout row.
        holdout: Those of the distances from holdout rows to the nearest other holdout row.
        copies_share: The share of synthetic rows that are as near to a holdout row as the nearest 1% of
            holdout rows are to one another.
    """

    quantiles: tuple[float, ...]
    synthetic: tuple[float, ...]
    holdout: tuple[float, ...]
    copies_share: float

    def __str__(self) -> str:
        return (
            f"{self.copies_share:.1%} of the synthetic rows are as near to a public row as the nearest 1% of "
            f"public rows are to one another. The median distance to a public row is "
            f"{self.synthetic[-1]:.4g}, and between public rows {self.holdout[-1]:.4g}."
        )


def nearest(
    rows: Floats, others: Floats, *, neighbors: int = 1, same: bool = False
) -> tuple[Floats, Integers]:
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
    known = np.asarray(np.isfinite(rows).all(axis=1))
    inside = np.clip(np.where(known[:, np.newaxis], rows, low).astype(np.float64), low, high)
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
        known = np.asarray(~np.isnan(part).any(axis=1))
        part = np.where(known[:, np.newaxis], part, 0.0)
        apart = (part**2).sum(axis=1)[:, None] + squares - 2 * part @ others.T
        if same:
            apart[np.arange(len(part)), start + np.arange(len(part))] = np.inf
        least = apart.min(axis=1, initial=np.inf)
        found[start : start + len(part)] = np.where(known, least, np.inf)
    return found


def grid_rows(rows: Any, bounds: tuple[float, float], columns: Columns | None) -> Floats:
    """Return an array or a table on the grid.

    Args:
        rows: An array [rows, ...], or a table.
        bounds: The lower and upper bound of all values of an array.
        columns: The declared columns of a table; None for an array.

    Returns:
        What `on_grid` returns. A cell of any kind that is no number makes its row unknown.

    Raises:
        InvalidParameterError: If the array has no columns, or a declared column is missing.
    """
    if columns is not None:
        return on_grid(features_of(rows, columns), bounds=(0.0, 1.0))
    found = numbers_of(rows)
    if found.ndim < 2:
        raise InvalidParameterError("rows must be an array of at least two dimensions, [rows, ...].")
    size = int(np.prod(found.shape[1:], dtype=np.int64))  # -1 would fail without a row
    return on_grid(found.reshape(len(found), size), bounds=bounds)


def public_rows(
    synthetic: Any, holdout: Any, bounds: tuple[float, float], columns: Columns | None
) -> tuple[Floats, Floats]:
    """Return synthetic rows that are finite, and public rows, on the grid.

    Args:
        synthetic: The synthetic rows: an array [rows, ...], or a table.
        holdout: Real rows that are public, of the same kind.
        bounds: The lower and upper bound of all values of an array.
        columns: The declared columns of tables; None for arrays.

    Returns:
        Both, on the grid.

    Raises:
        InvalidParameterError: If rows differ in shape, a holdout row or every synthetic row is not finite.
    """
    ours, theirs = grid_rows(synthetic, bounds, columns), grid_rows(holdout, bounds, columns)
    ours = ours[~np.isnan(ours).any(axis=1)]
    if len(ours) == 0 or len(theirs) == 0 or np.isnan(theirs).any():
        raise InvalidParameterError("a finite synthetic row is needed, and holdout rows that are all finite.")
    if ours.shape[1] != theirs.shape[1]:
        raise InvalidParameterError("a synthetic row has another shape than a holdout row.")
    return ours, theirs


def holdout_distances(
    synthetic: Any,
    holdout: Any,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    columns: Columns | None = None,
) -> HoldoutDistances:
    """Return how near synthetic rows are to public rows.

    Args:
        synthetic: The synthetic rows: an array [rows, ...], or a table.
        holdout: Real rows that are public, of the same kind.
        bounds: The lower and upper bound of all values.
        columns: The declared columns of tables; None for arrays.

    Returns:
        Quantiles of the distances.

    Raises:
        InvalidParameterError: If rows differ in shape, no synthetic row is finite, or there are fewer than
            two holdout rows.
    """
    ours, theirs = public_rows(synthetic, holdout, bounds, columns)
    if len(theirs) < 2:
        raise InvalidParameterError("distances between holdout rows need at least two of them.")
    unit = (bounds[1] - bounds[0]) / STEPS
    away = np.sqrt(nearest_on_grid(ours, theirs)) * unit
    apart = np.sqrt(nearest_on_grid(theirs, theirs, same=True)) * unit
    return HoldoutDistances(
        quantiles=_QUANTILES,
        synthetic=tuple(np.quantile(away, _QUANTILES).tolist()),
        holdout=tuple(np.quantile(apart, _QUANTILES).tolist()),
        copies_share=float((away <= np.quantile(apart, _QUANTILES[0])).mean()),
    )


def _blocks(rows: Floats, others: int) -> "list[tuple[int, Floats]]":
    size = max(1, _BLOCK // max(others, 1))
    return [(start, rows[start : start + size]) for start in range(0, len(rows), size)]
