# SPDX-License-Identifier: Apache-2.0
"""Private principal components of rows, from their noisy covariance.

Guarantee  The cost is that of one noisy matrix of sums (`noisy_products`): components are computed from it.
Neighbors  Add-or-remove; replace-one with a `public_size`, which is then the divisor.
Edge cases Noise can make a covariance that no data have. Negative eigenvalues are set to zero, so no
           component has a negative explained variance; the ratios of explained variance refer to the rest.
           There is no interval: an eigenvector has no error of its own if two eigenvalues are close.
           Components of noise alone have explained variances of the size of `noise_level`, the largest
           eigenvalue that the noise is likely to have (semicircle law: 2 stddev sqrt(columns)). The largest
           entry of every component is positive.
Source     Dwork, Talwar, Thakurta and Zhang 2014.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato import _check
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms import Generator
from sfumato.statistics.arrays import Floats
from sfumato.statistics.columns.columns import Bounds, Rows, rows_of
from sfumato.statistics.gaussian_vectors import for_each_column
from sfumato.statistics.matrices.covariance import named
from sfumato.statistics.matrices.noisy_products import Scattered
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.release import Parts, Release

__all__ = ["Components", "PrincipalComponents", "principal_components"]


_FAILED = ("failed: too few rows for this budget",)
_NO_INTERVAL = ("no interval: compare the explained variances with noise_level.",)


@dataclass(frozen=True, kw_only=True)
class Components:
    """Directions of largest variance, and how much of it they explain.

    Attributes:
        mean: The mean, [columns].
        components: The directions, [components, columns], each of length 1.
        explained_variance: The variance along each direction, [components].
        explained_variance_ratio: Its share of the total variance, [components].
        noise_level: The variance that noise alone may show. Compare the explained variances with it.
    """

    mean: Floats
    components: Floats
    explained_variance: Floats
    explained_variance_ratio: Floats
    noise_level: float

    def parts(self, columns: Sequence[str]) -> Parts:
        """Return all numbers with their labels, as a release exports them.

        Args:
            columns: The names of the columns.

        Returns:
            The labels (part, component and column) and the numbers.
        """
        counted = range(1, len(self.components) + 1)
        rows = [
            *(("mean", None, name) for name in columns),
            *(("component", i, name) for i in counted for name in columns),
            *(("explained variance", i, None) for i in counted),
            *(("explained variance ratio", i, None) for i in counted),
            ("noise level", None, None),
        ]
        what, component, column = zip(*rows, strict=True)
        arrays = (self.mean, self.components, self.explained_variance, self.explained_variance_ratio)
        numbers = [*(number for array in arrays for number in array.ravel().tolist()), self.noise_level]
        return Parts(labels={"part": what, "component": component, "column": column}, numbers=tuple(numbers))


@dataclass(frozen=True, kw_only=True, slots=True)
class PrincipalComponents(Scattered):
    """The leading principal components of columns.

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
        components: The number of components, at most that of columns.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> PrincipalComponents(columns=("a", "b"), components=1, clip_norm=1.0, rho=0.5, delta=1e-6).name
    '1 principal component(s) of a, b'
    """

    components: int

    def __post_init__(self) -> None:
        Scattered.__post_init__(self)
        _check.count(components=self.components)
        if self.components > len(self.columns):
            raise InvalidParameterError(
                f"components={self.components} is above the number of columns, {len(self.columns)}. Pass a "
                "smaller number."
            )

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"{self.components} principal component(s) of {named(self.columns)}"

    def answer(self, data: Rows, *, generator: Generator | None) -> Answer[Components | None]:
        """Return the components of the noisy covariance.

        Args:
            data: The private rows.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The components, without an interval; the value is None if there are too few rows.
        """
        sums = self.noisy(data, generator)
        if not sums.enough:
            return Answer(value=None, notes=_FAILED)
        mean, covariance = sums.moments()
        noise = sums.covariance_stddevs() * np.outer(self.units, self.units)
        found = _components(covariance * np.outer(self.units, self.units), self.components)
        largest = float(noise.max())  # its square may be beyond float64
        level = 2 * largest * math.sqrt(float(((noise / largest) ** 2).sum() / len(noise)))
        value = _with(found, self.origin + mean * self.units, level)
        return Answer(value=value, notes=_NO_INTERVAL, parts=value.parts(self.columns))


def _components(covariance: Floats, wanted: int) -> tuple[Floats, Floats, Floats]:
    values, vectors = np.linalg.eigh(covariance)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1].T
    largest = np.abs(vectors).argmax(axis=1)
    vectors = vectors * np.sign(vectors[np.arange(len(vectors)), largest])[:, None]
    total = values.sum()
    shares = values / total if total > 0 else values
    return vectors[:wanted], values[:wanted], shares[:wanted]


def _with(found: tuple[Floats, Floats, Floats], mean: Floats, noise_level: float) -> Components:
    vectors, values, shares = found
    return Components(
        mean=mean,
        components=vectors,
        explained_variance=values,
        explained_variance_ratio=shares,
        noise_level=noise_level,
    )


def principal_components(
    values: Any,
    *,
    components: int,
    delta: float,
    bounds: Bounds | Sequence[Bounds] | None = None,
    clip_norm: float | None = None,
    epsilon: float | None = None,
    rho: float | None = None,
    relation: str | Relation = Relation.ADD_REMOVE,
    public_size: int | None = None,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[Components | None]:
    """Release the directions in which rows, clipped to `bounds` or `clip_norm`, vary most.

    Args:
        values: Rows of numbers, [rows, columns], in an array, or `table.rows(...)`. Rows with a missing value
            are left out.
        components: The number of components, at most that of columns.
        delta: The delta of the guarantee, above 0.
        bounds: One pair of public bounds for all columns, or one pair for each. Values outside are clipped to
            them.
        clip_norm: The largest Euclidean norm of a row, public. Longer rows are scaled down. Pass `bounds` or
            `clip_norm`.
        epsilon: The privacy budget of this release at `delta`. Pass `epsilon` or `rho`, not both.
        rho: The privacy budget as zero-concentrated differential privacy. Pass `epsilon` or `rho`, not both.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        public_size: The number of rows, if it is public. None means that it is private.
        account: The account to charge before any data is read. None means that no account is charged.
        purpose: The purpose that the account records. None means the name of the statistic.
        generator: The source of randomness. None means secure randomness from the operating system.

    Returns:
        The release, with its value and its guarantee. The value is None if there are too few rows.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `values` are not numbers. Nothing is
            charged.
        BudgetExceededError: If the account has too little budget left. Nothing is computed.
        QueryFailedError: If the engine of a table fails. The cost stays charged.

    >>> first = np.random.default_rng(0).uniform(-1, 1, size=10_000)
    >>> rows = np.column_stack([first, first])
    >>> release = principal_components(rows, components=1, bounds=(-1, 1), epsilon=1.0, delta=1e-6)
    >>> bool(abs(release.value.components @ np.array([1, 1]) - 2**0.5).max() < 0.01)
    True
    """
    rows = rows_of(values)
    question = PrincipalComponents(
        columns=rows.names,
        components=components,
        bounds=None if bounds is None else for_each_column(bounds, rows),
        clip_norm=clip_norm,
        epsilon=epsilon,
        rho=rho,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=rows.contribution_bound,
        public_size=public_size,
    )
    return Query(question, rows).release(account=account, purpose=purpose, generator=generator)
