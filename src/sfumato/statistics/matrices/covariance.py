# SPDX-License-Identifier: Apache-2.0
"""Private covariance and correlation of columns.

Guarantee  Both are computed from one noisy matrix of sums, and cost only its noise (`noisy_products`).
Neighbors  Add-or-remove; replace-one with a `public_size`, which is then the divisor.
Edge cases There is one interval for each entry, row by row. For a covariance it covers the noise, to first
           order; for a correlation it covers the noise, by simulation of its public distribution. Neither
           covers the clipping. If there are too few rows for the budget, the value is None ("failed"), which
           is private and charged. Noise can make a matrix that no data have, with negative eigenvalues; the
           matrix is not changed. `positive` removes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from sfumato import _check
from sfumato.accounting.guarantee import Relation
from sfumato.ledger.account import Account
from sfumato.mechanisms import Generator
from sfumato.statistics.arrays import Floats
from sfumato.statistics.columns.columns import Bounds, Rows, rows_of
from sfumato.statistics.gaussian_vectors import (
    for_each_column,
)
from sfumato.statistics.matrices.noisy_products import Scattered
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.release import Covers, Interval, Parts, Release

__all__ = ["Correlation", "Covariance", "correlation", "covariance", "matrix_parts", "named", "positive"]


_CLEAR = 4.0  # standard deviations of noise by which a variance must exceed zero
_SIMULATIONS = 1000
_FAILED = ("failed: too few rows for this budget",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Covariance(Scattered):
    """The covariance matrix of columns.

    Args:
        delta: The delta of the guarantee, above 0.
        epsilon: The privacy budget of this release at `delta`. Pass `epsilon` or `rho`, not both.
        rho: The privacy budget as zero-concentrated differential privacy. Pass `epsilon` or `rho`, not both.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        public_size: The number of rows, if it is public. None means that it is private.
        columns: The names of the columns.
        bounds: Lower and upper bound of each column, public. Values outside are clipped to them. Pass
            `bounds` or `clip_norm`.
        clip_norm: The largest Euclidean norm of a row, public. Longer rows are scaled down. Pass `bounds` or
            `clip_norm`.
        level: The confidence level of the interval, between 0 and 1.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> Covariance(columns=("a", "b"), clip_norm=1.0, rho=0.5, delta=1e-6).name
    'covariance of a, b'
    """

    level: float = 0.95

    def __post_init__(self) -> None:
        Scattered.__post_init__(self)
        _check.probability(level=self.level)

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"covariance of {named(self.columns)}"

    def answer(self, data: Rows, *, generator: Generator | None) -> Answer[Floats | None]:
        """Return the matrix with noise.

        Args:
            data: The private rows.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The matrix and one interval for each entry; the value is None if there are too few rows.
        """
        sums = self.noisy(data, generator)
        if not sums.enough:
            return Answer(value=None, notes=_FAILED)
        scale = np.outer(self.units, self.units)
        value = sums.moments()[1] * scale
        reach = -float(ndtri((1 - self.level) / 2)) * sums.covariance_stddevs() * scale
        return Answer(
            value=value,
            interval=_intervals(value - reach, value + reach, self.level),
            parts=matrix_parts(self.columns, value),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Correlation(Scattered):
    """The correlation matrix of columns.

    Args:
        delta: The delta of the guarantee, above 0.
        epsilon: The privacy budget of this release at `delta`. Pass `epsilon` or `rho`, not both.
        rho: The privacy budget as zero-concentrated differential privacy. Pass `epsilon` or `rho`, not both.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        public_size: The number of rows, if it is public. None means that it is private.
        columns: The names of the columns.
        bounds: Lower and upper bound of each column, public. Values outside are clipped to them. Pass
            `bounds` or `clip_norm`.
        clip_norm: The largest Euclidean norm of a row, public. Longer rows are scaled down. Pass `bounds` or
            `clip_norm`.
        level: The confidence level of the interval, between 0 and 1.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> Correlation(columns=("a", "b"), clip_norm=1.0, rho=0.5, delta=1e-6).name
    'correlation of a, b'
    """

    level: float = 0.95

    def __post_init__(self) -> None:
        Scattered.__post_init__(self)
        _check.probability(level=self.level)

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"correlation of {named(self.columns)}"

    def answer(self, data: Rows, *, generator: Generator | None) -> Answer[Floats | None]:
        """Return the matrix with noise, or None if a variance cannot be distinguished from zero.

        Args:
            data: The private rows.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The matrix and one interval for each entry; the value is None if there are too few rows.
        """
        sums = self.noisy(data, generator)
        if not sums.enough:
            return Answer(value=None, notes=_FAILED)
        covariance = sums.moments()[1]
        if not (np.diag(covariance) > _CLEAR * np.diag(sums.covariance_stddevs())).all():
            return Answer(value=None, notes=_FAILED)
        value = _correlations(covariance)
        spread = _correlations(sums.moments(sums.simulated(_SIMULATIONS))[1]).std(axis=0)
        reach = -float(ndtri((1 - self.level) / 2)) * spread
        lower, upper = np.clip(value - reach, -1, 1), np.clip(value + reach, -1, 1)
        return Answer(
            value=value,
            interval=_intervals(lower, upper, self.level),
            parts=matrix_parts(self.columns, value),
        )


def _correlations(covariance: Floats) -> Floats:
    variances = np.maximum(np.diagonal(covariance, axis1=-2, axis2=-1), 1e-300)
    deviations = np.sqrt(variances)
    ratio = np.clip(covariance / deviations[..., :, None] / deviations[..., None, :], -1.0, 1.0)
    ratio[..., np.arange(ratio.shape[-1]), np.arange(ratio.shape[-1])] = 1.0
    return ratio


def positive(matrix: Floats) -> Floats:
    """Return the nearest matrix without negative eigenvalues, which is also closer to that of the data.

    >>> positive(np.array([[1.0, 0.0], [0.0, -0.5]])).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, 0.0)) @ vectors.T


def named(columns: Sequence[str]) -> str:
    """Return the names of up to four columns, or the number of columns."""
    return ", ".join(columns) if len(columns) <= 4 else f"{len(columns)} columns"


def matrix_parts(columns: Sequence[str], matrix: Floats) -> Parts:
    """Return the numbers of a matrix of columns, row by row, as a release exports them.

    >>> matrix_parts(("a", "b"), np.eye(2)).labels
    {'row': ('a', 'a', 'b', 'b'), 'column': ('a', 'b', 'a', 'b')}
    """
    rows = tuple(name for name in columns for _ in columns)
    labels = {"row": rows, "column": tuple(columns) * len(columns)}
    return Parts(labels=labels, numbers=tuple(matrix.ravel().tolist()))


def _intervals(lower: Floats, upper: Floats, level: float) -> tuple[Interval, ...]:
    return tuple(
        Interval(lower=float(low), upper=float(high), level=level, covers=(Covers.NOISE,))
        for low, high in zip(lower.ravel(), upper.ravel(), strict=True)
    )


def covariance(
    values: Any,
    *,
    delta: float,
    bounds: Bounds | Sequence[Bounds] | None = None,
    clip_norm: float | None = None,
    epsilon: float | None = None,
    rho: float | None = None,
    relation: str | Relation = Relation.ADD_REMOVE,
    public_size: int | None = None,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[Floats | None]:
    """Release the covariance matrix, [columns, columns], with the number of rows as divisor.

    Args:
        values: Rows of numbers, [rows, columns], in an array, or `table.rows(...)`. Rows with a missing value
            are left out.
        delta: The delta of the guarantee, above 0.
        bounds: One pair of public bounds for all columns, or one pair for each. Values outside are clipped to
            them.
        clip_norm: The largest Euclidean norm of a row, public. Longer rows are scaled down. Pass `bounds` or
            `clip_norm`.
        epsilon: The privacy budget of this release at `delta`. Pass `epsilon` or `rho`, not both.
        rho: The privacy budget as zero-concentrated differential privacy. Pass `epsilon` or `rho`, not both.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        public_size: The number of rows, if it is public. None means that it is private.
        level: The confidence level of the interval, between 0 and 1.
        account: The account to charge before any data is read. None means that no account is charged.
        purpose: The purpose that the account records. None means the name of the statistic.
        generator: The source of randomness. None means secure randomness from the operating system.

    Returns:
        The release, with its value, its confidence interval and its guarantee. The value is None if there are
        too few rows.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `values` are not numbers. Nothing is
            charged.
        BudgetExceededError: If the account has too little budget left. Nothing is computed.
        QueryFailedError: If the engine of a table fails. The cost stays charged.

    >>> rows = np.random.default_rng(0).uniform(-1, 1, size=(10_000, 2))
    >>> release = covariance(rows, bounds=(-1, 1), epsilon=1.0, delta=1e-6)
    >>> bool(abs(release.value - np.cov(rows.T)).max() < 0.05)
    True
    """
    rows = rows_of(values)
    question = Covariance(
        columns=rows.names,
        bounds=None if bounds is None else for_each_column(bounds, rows),
        clip_norm=clip_norm,
        epsilon=epsilon,
        rho=rho,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=rows.contribution_bound,
        public_size=public_size,
        level=level,
    )
    return Query(question, rows).release(account=account, purpose=purpose, generator=generator)


def correlation(
    values: Any,
    *,
    delta: float,
    bounds: Bounds | Sequence[Bounds] | None = None,
    clip_norm: float | None = None,
    epsilon: float | None = None,
    rho: float | None = None,
    relation: str | Relation = Relation.ADD_REMOVE,
    public_size: int | None = None,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[Floats | None]:
    """Release the correlation matrix, [columns, columns].

    Args:
        values: Rows of numbers, [rows, columns], in an array, or `table.rows(...)`. Rows with a missing value
            are left out.
        delta: The delta of the guarantee, above 0.
        bounds: One pair of public bounds for all columns, or one pair for each. Values outside are clipped to
            them.
        clip_norm: The largest Euclidean norm of a row, public. Longer rows are scaled down. Pass `bounds` or
            `clip_norm`.
        epsilon: The privacy budget of this release at `delta`. Pass `epsilon` or `rho`, not both.
        rho: The privacy budget as zero-concentrated differential privacy. Pass `epsilon` or `rho`, not both.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        public_size: The number of rows, if it is public. None means that it is private.
        level: The confidence level of the interval, between 0 and 1.
        account: The account to charge before any data is read. None means that no account is charged.
        purpose: The purpose that the account records. None means the name of the statistic.
        generator: The source of randomness. None means secure randomness from the operating system.

    Returns:
        The release, with its value, its confidence interval and its guarantee. The value is None if there are
        too few rows.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `values` are not numbers. Nothing is
            charged.
        BudgetExceededError: If the account has too little budget left. Nothing is computed.
        QueryFailedError: If the engine of a table fails. The cost stays charged.

    >>> first = np.random.default_rng(0).uniform(-1, 1, size=10_000)
    >>> release = correlation(np.column_stack([first, first]), bounds=(-1, 1), epsilon=1.0, delta=1e-6)
    >>> bool(release.value[0, 1] > 0.9)
    True
    """
    rows = rows_of(values)
    question = Correlation(
        columns=rows.names,
        bounds=None if bounds is None else for_each_column(bounds, rows),
        clip_norm=clip_norm,
        epsilon=epsilon,
        rho=rho,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=rows.contribution_bound,
        public_size=public_size,
        level=level,
    )
    return Query(question, rows).release(account=account, purpose=purpose, generator=generator)
