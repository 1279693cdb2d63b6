# SPDX-License-Identifier: Apache-2.0
"""Errors of the marginals of a synthetic table: how far shares of values, and of pairs of values, are off.

The error of a marginal is the total-variation distance between the shares of its bins in the synthetic table
and in the holdout: half the sum of absolute differences, from 0 to 1. `floor` is the mean error between two
halves of the holdout, which chance alone causes.

Guarantee  Private rows are not read. `holdout` must be public. Bins are declared, not read from a table.
Edge cases Numbers beyond the bounds are apart from all bins: below or above. So a column that was cut off,
           whose synthetic numbers can never be there, is in error by that share of the holdout. With a single
           column there is no pair, and these errors are empty.
Failure    A missing column and an empty table are refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.rows import Floats, Integers
from sfumato.generative.evaluation.table_columns import Columns, declared, seen_codes, seen_sizes
from sfumato.generative.tables.domain import Category, Field

__all__ = ["ColumnShares", "MarginalErrors", "column_shares", "cut_off", "marginal_errors"]

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


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnShares:
    """How often each value of a column occurs.

    Attributes:
        values: The categories or bins, in words; then "missing or other" if it may occur, and what lies below
            and above the bins of numbers if a row does.
        synthetic: The share of each in synthetic rows.
        holdout: The share of each in public rows; None without a holdout.
    """

    values: tuple[str, ...]
    synthetic: tuple[float, ...]
    holdout: tuple[float, ...] | None


def column_shares(synthetic: Any, columns: Columns, *, holdout: Any = None) -> dict[str, ColumnShares]:
    """Return how often each value of each column occurs.

    Args:
        synthetic: The synthetic table.
        columns: The declared columns, by name: `Number` or `Category`; or `generator.domain`.
        holdout: A real table that is public; or None.

    Returns:
        The shares, by column.

    Raises:
        InvalidParameterError: If a column is missing or a table is empty.

    >>> from sfumato.generative.tables.domain import Number
    >>> column_shares({"a": [1, 7, 9]}, {"a": Number(lower=0, upper=9, bins=2, whole=True, missing=False)})
    {'a': ColumnShares(values=('0 to 4', '5 to 9'), synthetic=(0.333..., 0.666...), holdout=None)}
    """
    domain = declared(columns)
    tables = [seen_codes(table, domain) for table in (synthetic, holdout) if table is not None]
    if not all(len(codes) for codes in tables):
        raise InvalidParameterError("shares of values need at least one row.")
    found: dict[str, ColumnShares] = {}
    for place, (name, field) in enumerate(domain.columns.items()):
        words = (*_in_words(field), *_beyond_in_words(field))
        shares = np.stack([_shares(codes[:, [place]], [len(words)]) for codes in tables])
        kept = (np.arange(len(words)) < field.size) | shares.any(axis=0)
        each = [tuple(share[kept].tolist()) for share in shares]
        found[name] = ColumnShares(
            values=tuple(word for word, keep in zip(words, kept, strict=True) if keep),
            synthetic=each[0],
            holdout=each[1] if len(each) > 1 else None,
        )
    return found


def cut_off(holdout: Any, columns: Columns) -> dict[str, float]:
    """Return the share of public numbers that lie beyond the bounds, which no synthetic number does.

    Args:
        holdout: A real table that is public.
        columns: The declared columns, by name: `Number` or `Category`; or `generator.domain`.

    Returns:
        The share of each column of numbers, by its name.

    Raises:
        InvalidParameterError: If a column is missing.

    >>> from sfumato.generative.tables.domain import Number
    >>> cut_off({"age": [20, 40, 90, 95]}, {"age": Number(lower=0, upper=64)})
    {'age': 0.5}
    """
    domain = declared(columns)
    beyond = seen_codes(holdout, domain) >= np.array(domain.sizes)
    shares = beyond.mean(axis=0).tolist() if len(beyond) else [0.0] * len(domain.sizes)
    named = zip(domain.columns.items(), shares, strict=True)
    return {name: share for (name, field), share in named if not isinstance(field, Category)}


def _beyond_in_words(field: Field) -> tuple[str, ...]:
    return () if isinstance(field, Category) else (f"below {field.lower:g}", f"above {field.upper:g}")


def _in_words(field: Field) -> tuple[str, ...]:
    if isinstance(field, Category):
        known = [str(value) for value in field.values]
    else:
        # the largest number of a bin of whole numbers, or of a bin of one number alone
        ends = [high - 1 if field.whole else _end(low, high) for low, high in pairwise(field.edges)]
        bins = zip(field.edges, ends, strict=False)
        known = [f"{low:g}" if low == high else f"{low:g} to {high:g}" for low, high in bins]
    return (*known, "missing or other") if field.missing else tuple(known)


def _end(low: float, high: float) -> float:
    return low if high == np.nextafter(low, np.inf) else high


def marginal_errors(synthetic: Any, holdout: Any, columns: Columns, *, seed: int = 0) -> MarginalErrors:
    """Return the errors of all marginals of one and of two columns.

    Args:
        synthetic: The synthetic table.
        holdout: A real table that is public.
        columns: The declared columns, by name: `Number` or `Category`; or `generator.domain`.
        seed: The seed of the halves of the holdout.

    Returns:
        The errors.

    Raises:
        InvalidParameterError: If a column is missing, a table is empty, or the holdout has a single row.

    >>> found = marginal_errors({"a": ["x", "x"]}, {"a": ["x", "y"]}, {"a": Category(values=["x", "y"])})
    >>> found.one_way
    {'a': 0.5}
    """
    domain = declared(columns)
    ours, theirs = seen_codes(synthetic, domain), seen_codes(holdout, domain)
    if len(ours) == 0 or len(theirs) < 2:
        raise InvalidParameterError("marginals need a synthetic row, and at least two holdout rows.")
    order = np.random.default_rng(seed).permutation(len(theirs))
    names, sizes = list(domain.names), list(seen_sizes(domain))
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
