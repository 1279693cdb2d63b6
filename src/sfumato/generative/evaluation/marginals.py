# SPDX-License-Identifier: Apache-2.0
"""Errors of the marginals of a synthetic table: how far shares of values, and of pairs of values, are off.

The error of a marginal is the total-variation distance between the shares of its bins in the synthetic table
and in the holdout: half the sum of absolute differences, from 0 to 1. `floor` is the mean error between two
halves of the holdout, which chance alone causes.

Guarantee  Private rows are not read. `holdout` must be public. Bins are declared, not read from a table.
Edge cases Values outside of the declared bins count in a bin of their own, on both sides. With a single
           column there is no pair, and these errors are empty.
Failure    A missing column and an empty table are refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.rows import Floats, Integers
from sfumato.generative.evaluation.table_columns import Column, bins_of

__all__ = ["MarginalErrors", "marginal_errors"]

_Errors = dict[tuple[str, ...], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class MarginalErrors:
    """The errors of all marginals of one and of two columns.

    Attributes:
        one_way: The error of each column, by its name.
        two_way: The error of each pair of columns, by their names.
        floor_one_way: The mean error of columns between two halves of the holdout.
        floor_two_way: The mean error of pairs between two halves of the holdout; None without a pair.
    """

    one_way: Mapping[str, float]
    two_way: Mapping[tuple[str, str], float]
    floor_one_way: float
    floor_two_way: float | None

    @property
    def mean_one_way(self) -> float:
        """The mean error of columns."""
        return float(np.mean(list(self.one_way.values())))

    @property
    def worst_one_way(self) -> float:
        """The largest error of a column."""
        return max(self.one_way.values())

    @property
    def mean_two_way(self) -> float | None:
        """The mean error of pairs; None without a pair."""
        return float(np.mean(list(self.two_way.values()))) if self.two_way else None

    @property
    def worst_two_way(self) -> float | None:
        """The largest error of a pair; None without a pair."""
        return max(self.two_way.values(), default=None)

    def __str__(self) -> str:
        lines = [
            _line("columns", self.mean_one_way, max(self.one_way.items(), key=_error), self.floor_one_way)
        ]
        if self.mean_two_way is not None and self.floor_two_way is not None:
            pair, error = max(self.two_way.items(), key=_error)
            lines.append(_line("pairs", self.mean_two_way, (" x ".join(pair), error), self.floor_two_way))
        return "\n".join(lines)


def marginal_errors(
    synthetic: Any, holdout: Any, columns: Mapping[str, Column], *, seed: int = 0
) -> MarginalErrors:
    """Return the errors of all marginals of one and of two columns.

    Args:
        synthetic: The synthetic table.
        holdout: A real table that is public.
        columns: The declared columns, by name: `Edges` or `Categories`.
        seed: The seed of the halves of the holdout.

    Returns:
        The errors.

    Raises:
        InvalidParameterError: If a column is missing, a table is empty, or the holdout has a single row.

    >>> from sfumato.generative.evaluation.table_columns import Categories
    >>> found = marginal_errors({"a": ["x", "x"]}, {"a": ["x", "y"]}, {"a": Categories(("x", "y"))})
    >>> found.one_way
    {'a': 0.5}
    """
    ours, theirs = bins_of(synthetic, columns), bins_of(holdout, columns)
    if len(ours) == 0 or len(theirs) < 2:
        raise InvalidParameterError("marginals need a synthetic row, and at least two holdout rows.")
    order = np.random.default_rng(seed).permutation(len(theirs))
    names, sizes = list(columns), [column.size for column in columns.values()]
    found = [_errors(ours, theirs, names, sizes, ways) for ways in (1, 2)]
    floors = [_errors(theirs[order[::2]], theirs[order[1::2]], names, sizes, ways) for ways in (1, 2)]
    return MarginalErrors(
        one_way={name: error for (name,), error in found[0].items()},
        two_way={(first, second): error for (first, second), error in found[1].items()},
        floor_one_way=float(np.mean(list(floors[0].values()))),
        floor_two_way=float(np.mean(list(floors[1].values()))) if floors[1] else None,
    )


def _errors(first: Integers, second: Integers, names: list[str], sizes: list[int], ways: int) -> _Errors:
    """Return the error of each group of `ways` columns."""
    found: _Errors = {}
    for chosen in combinations(range(len(names)), ways):
        shape = [sizes[place] for place in chosen]
        shares = [_shares(rows[:, chosen], shape) for rows in (first, second)]
        found[tuple(names[place] for place in chosen)] = float(np.abs(shares[0] - shares[1]).sum() / 2)
    return found


def _shares(rows: Integers, shape: list[int]) -> Floats:
    cells = np.ravel_multi_index(tuple(rows.T), shape)
    return np.bincount(cells, minlength=int(np.prod(shape))) / len(rows)


def _error(named: tuple[Any, float]) -> float:
    return named[1]


def _line(kind: str, mean: float, worst: tuple[str, float], floor: float) -> str:
    return (
        f"Total-variation error of {kind}: mean {mean:.3f}, worst {worst[1]:.3f} ({worst[0]}); mean between "
        f"halves of the holdout {floor:.3f}."
    )
