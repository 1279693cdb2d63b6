# SPDX-License-Identifier: Apache-2.0
"""Errors of the marginals of a synthetic table: how far shares of values, and of pairs of values, are off.

The error of a marginal is the total-variation distance between the shares of its bins in the synthetic table
and in the holdout: half the sum of absolute differences, from 0 to 1. An error alone says little: two samples
of the same people differ too, the more the fewer rows there are and the more bins. So two yardsticks stand
beside the mean errors:

`floor`          The mean error that as many real rows as there are synthetic ones would have by chance. An
                 error of this size cannot be told from that of a perfect generator.
`no_dependence`  The mean error of pairs if the columns of each row are drawn one by one from the holdout:
                 each column is right, and nothing relates them. An error of this size shows that the
                 relations between columns are lost.

The holdout is too small to be split into samples of n synthetic and m public rows, so the floor is
extrapolated from splits into halves and into quarters, which give the mean error f at two values of v = 1/n +
1/m. Two samples that share hardly a bin differ by almost 1, whatever v is; otherwise f grows with the square
root of v. The curve 1/f^2 = a/v + b does both, and is read off at the v of the comparison. In simulations it
was right to about a tenth with 1500 public rows, and to a quarter with 200; too small, if most bins hold one
row or none.

Guarantee  Private rows are not read. `holdout` must be public. Bins are declared, not read from a table.
Edge cases Numbers beyond the bounds are apart from all bins: below or above. So a column that was cut off,
           whose synthetic numbers can never be there, is in error by that share of the holdout. With a single
           column there is no pair, and these errors are empty. With fewer than 8 public rows b is 0.
Failure    A missing column and an empty table are refused by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.rows import Floats, Integers
from sfumato.generative.evaluation.table_columns import Columns, declared, seen_codes, seen_sizes
from sfumato.generative.tables.domain import Category, Field

__all__ = ["ColumnShares", "MarginalErrors", "column_shares", "cut_off", "marginal_errors"]

_REPEATS = 4  # of random splits, and of rows without dependence
_Errors = dict[tuple[str, ...], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class MarginalErrors:
    """The errors of all marginals of one and of two columns.

    Attributes:
        one_way: The error of each column, by its name.
        two_way: The error of each pair of columns, by their names.
        floor_one_way: The mean error of columns that as many real rows would have by chance.
        floor_two_way: The mean error of pairs that as many real rows would have by chance; None without a
            pair.
        no_dependence_two_way: The mean error of pairs of rows whose columns are drawn one by one from the
            holdout; None without a pair.
    """

    one_way: Mapping[str, float]
    two_way: Mapping[tuple[str, str], float]
    floor_one_way: float
    floor_two_way: float | None
    no_dependence_two_way: float | None

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
            lines.append(
                "Public values without any dependence between columns have a mean error of pairs of "
                f"{self.no_dependence_two_way:.3f}: an error near it means that relations are lost."
            )
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
        seed: The seed of the splits of the holdout, and of rows without dependence.

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
    randomness = np.random.default_rng(seed)
    names, sizes = list(domain.names), list(seen_sizes(domain))
    found = [_errors(ours, theirs, names, sizes, ways) for ways in (1, 2)]

    def mean(first: Integers, second: Integers, ways: int) -> float:
        return float(np.mean(list(_errors(first, second, names, sizes, ways).values())))

    paired = len(names) > 1
    alone = [
        mean(_unrelated(theirs, len(ours), randomness), theirs, 2) for _ in range(_REPEATS if paired else 0)
    ]
    return MarginalErrors(
        one_way={name: error for (name,), error in found[0].items()},
        two_way={(first, second): error for (first, second), error in found[1].items()},
        floor_one_way=_floor(theirs, len(ours), partial(mean, ways=1), randomness),
        floor_two_way=_floor(theirs, len(ours), partial(mean, ways=2), randomness) if paired else None,
        no_dependence_two_way=float(np.mean(alone)) if paired else None,
    )


def _floor(
    public: Integers, rows: int, mean: Callable[[Integers, Integers], float], randomness: np.random.Generator
) -> float:
    """Return the mean error that `rows` real rows would have against the public ones by chance."""
    halves, quarters = len(public) // 2, len(public) // 4
    wide, narrow = list[float](), list[float]()
    for _ in range(_REPEATS):
        order = public[randomness.permutation(len(public))]
        wide.append(mean(order[:halves], order[halves : 2 * halves]))
        for start in (0, 2 * quarters) if quarters > 1 else ():
            narrow.append(
                mean(order[start : start + quarters], order[start + quarters : start + 2 * quarters])
            )
    asked = 1 / rows + 1 / len(public)
    return _at(
        asked, (2 / halves, float(np.mean(wide))), (2 / quarters, float(np.mean(narrow))) if narrow else None
    )


def _at(asked: float, first: tuple[float, float], second: tuple[float, float] | None) -> float:
    """Return the error at `asked` of the curve 1/f^2 = a/v + b, b >= 0, through one or two points (v, f)."""
    v, f = first
    if f == 0:
        return 0.0
    a, b = v / f**2, 0.0
    if second is not None:
        w, g = second
        a = (1 / f**2 - 1 / g**2) / (1 / v - 1 / w)
        b = 1 / f**2 - a / v
        if b < 0 or a <= 0:  # chance: the curve has no such shape
            a, b = v / f**2, 0.0
    return float(min(1.0, (a / asked + b) ** -0.5))


def _unrelated(public: Integers, rows: int, randomness: np.random.Generator) -> Integers:
    """Return rows whose columns are drawn one by one from public rows.

    They are drawn from a sample of the public rows with replacement. So without any dependence the error is
    that of real rows: the columns would otherwise be nearer to the public ones than those of a sample.
    """
    places = randomness.integers(len(public), size=len(public))
    drawn = [public[randomness.choice(places, size=rows), column] for column in range(public.shape[1])]
    return np.stack(drawn, axis=1)


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
        f"Total-variation error of {kind}: mean {mean:.3f}, worst {worst[1]:.3f} ({worst[0]}). As many real "
        f"rows would have a mean of {floor:.3f} by chance."
    )
