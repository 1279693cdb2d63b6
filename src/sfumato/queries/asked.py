# SPDX-License-Identifier: Apache-2.0
"""The statistics that a workload is made of, as one writes them: `count()`, `sum("amount", bounds=...)`.

Each returns a statement without data. What it costs, and of which rows, is settled by the workload.
"""

from sfumato.queries.counts import Count, CountDistinct, Statistic
from sfumato.queries.quantiles import CELLS, Quantile
from sfumato.queries.sums import Mean, Sum, Variance
from sfumato.statistics.columns.columns import Bounds

__all__ = [
    "count",
    "count_distinct",
    "mean",
    "median",
    "quantile",
    "standard_deviation",
    "sum",
    "variance",
]


def count(column: str | None = None, *, share: float = 1.0, error: float | None = None) -> Statistic:
    """Return the number of rows, or of rows with a value in a column.

    Args:
        column: The column, or None for all rows.
        share: The share of the budget, relative to the others.
        error: The half width of the interval that is wanted, in rows. It settles the cost in place of a
            share.

    Returns:
        The statistic.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> count().name, count("age", error=20).name
    ('number of rows', 'number of values of age')
    """
    return Count(column=column, share=share, error=error)


def count_distinct(column: str, *, share: float = 1.0, error: float | None = None) -> Statistic:
    """Return the number of different values of a column. For the unit's column it counts units.

    Args:
        column: The column.
        share: The share of the budget, relative to the others.
        error: The half width of the interval that is wanted. It settles the cost in place of a share.

    Returns:
        The statistic.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> count_distinct("person").name
    'number of different values of person'
    """
    return CountDistinct(column=column, share=share, error=error)


def sum(column: str, *, bounds: Bounds, share: float = 1.0, error: float | None = None) -> Statistic:
    """Return the sum of a column.

    Args:
        column: The column of numbers.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        share: The share of the budget, relative to the others.
        error: The half width of the interval that is wanted. It settles the cost in place of a share.

    Returns:
        The statistic.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> sum("amount", bounds=(0, 100)).name
    'sum of amount'
    """
    return Sum(column=column, bounds=bounds, share=share, error=error)


def mean(column: str, *, bounds: Bounds, share: float = 1.0) -> Statistic:
    """Return the mean of a column.

    Args:
        column: The column of numbers.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        share: The share of the budget, relative to the others.

    Returns:
        The statistic.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> mean("age", bounds=(0, 100)).name
    'mean of age'
    """
    return Mean(column=column, bounds=bounds, share=share)


def variance(column: str, *, bounds: Bounds, share: float = 1.0) -> Statistic:
    """Return the variance of a column, with the number of rows as divisor.

    Args:
        column: The column of numbers.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        share: The share of the budget, relative to the others.

    Returns:
        The statistic.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> variance("age", bounds=(0, 100)).name
    'variance of age'
    """
    return Variance(column=column, bounds=bounds, share=share)


def standard_deviation(column: str, *, bounds: Bounds, share: float = 1.0) -> Statistic:
    """Return the standard deviation of a column, with the number of rows as divisor.

    Args:
        column: The column of numbers.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        share: The share of the budget, relative to the others.

    Returns:
        The statistic.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> standard_deviation("age", bounds=(0, 100)).name
    'standard deviation of age'
    """
    return Variance(column=column, bounds=bounds, share=share, root=True)


def median(
    column: str, *, bounds: Bounds, interval: bool = False, resolution: int = CELLS, share: float = 1.0
) -> Statistic:
    """Return the median of a column.

    Args:
        column: The column of numbers.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        interval: Whether to release an interval, too, which most of the share pays for.
        resolution: The number of cells over the bounds, up to 2^16. The number is drawn from anywhere in a
            cell; smaller cells take longer.
        share: The share of the budget, relative to the others.

    Returns:
        The statistic.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> median("age", bounds=(0, 100)).name
    'median of age'
    """
    return quantile(column, 0.5, bounds=bounds, interval=interval, resolution=resolution, share=share)


def quantile(
    column: str,
    q: float,
    *,
    bounds: Bounds,
    interval: bool = False,
    resolution: int = CELLS,
    share: float = 1.0,
) -> Statistic:
    """Return the value below which a share `q` of the rows lies.

    Args:
        column: The column of numbers.
        q: The quantile, between 0 and 1. For 1 every value above all rows is as good as any other, up to the
            upper bound, and for 0 below all rows: take 0.99 or 0.01 to stay near them.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        interval: Whether to release an interval, too, which most of the share pays for.
        resolution: The number of cells over the bounds, up to 2^16. The number is drawn from anywhere in a
            cell; smaller cells take longer.
        share: The share of the budget, relative to the others.

    Returns:
        The statistic.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> quantile("age", 0.9, bounds=(0, 100)).name
    'quantile 0.9 of age'
    """
    return Quantile(column=column, q=q, bounds=bounds, interval=interval, resolution=resolution, share=share)
