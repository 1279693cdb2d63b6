# SPDX-License-Identifier: Apache-2.0
"""Principal components of rows, from their noisy covariance.

Guarantee  The cost is that of the covariance (`covariance`): components are computed from it.
Neighbors  As there.
Positive   Noise can make a covariance that no data have. Its negative eigenvalues are taken as zero, so no
           component explains less than nothing; the shares of explained variance are of what is left.
Interval   None: an eigenvector has no error of its own when two eigenvalues are close. The explained
           variances of components that noise alone would show are of the size of `noise_level`, the largest
           eigenvalue that the noise is likely to have (semicircle law: 2 stddev sqrt(columns)).
Signs      The largest entry of every component is positive.
Source     Dwork, Talwar, Thakurta and Zhang 2014.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms import Generator
from sfumato.statistics.columns.columns import Bounds, Rows, rows_of
from sfumato.statistics.gaussian_vectors import for_each_column
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.questions.covariance import Scattered, named
from sfumato.statistics.release import Parts, Release

__all__ = ["Components", "PrincipalComponents", "principal_components"]

Floats = npt.NDArray[np.float64]

_FAILED = ("failed: too few rows for this budget",)
_NO_INTERVAL = ("no interval: compare the explained variances with noise_level.",)


@dataclass(frozen=True, kw_only=True)
class Components:
    """Directions of largest variance, and how much of it they explain."""

    mean: Floats  # [columns]
    components: Floats  # [components, columns], each of length 1
    explained_variance: Floats  # [components]
    explained_variance_ratio: Floats  # [components]
    noise_level: float  # the variance that noise alone may show

    def parts(self, columns: Sequence[str]) -> Parts:
        """Return all numbers, as a release keeps them: what each is, of which component and column."""
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

    >>> PrincipalComponents(columns=("a", "b"), components=1, clip_norm=1.0, rho=0.5, delta=1e-6).name
    '1 principal component(s) of a, b'
    """

    components: int

    def __post_init__(self) -> None:
        Scattered.__post_init__(self)
        _check.count(components=self.components)
        if self.components > len(self.columns):
            raise InvalidParameterError(
                f"there are {len(self.columns)} columns, so at most that many components, but "
                f"{self.components} were asked for."
            )

    @property
    def name(self) -> str:
        """What is asked."""
        return f"{self.components} principal component(s) of {named(self.columns)}"

    def answer(self, data: Rows, *, generator: Generator | None) -> Answer[Components | None]:
        """Return the components of the noisy covariance."""
        sums = self.noisy(data, generator)
        if not sums.enough:
            return Answer(value=None, notes=_FAILED)
        mean, covariance = sums.moments()
        noise = sums.covariance_stddevs() * np.outer(self.units, self.units)
        found = _components(covariance * np.outer(self.units, self.units), self.components)
        largest = float(noise.max())  # whose square may be beyond float64
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
    """Return the directions in which rows, clipped to `bounds` or `clip_norm`, vary most.

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
