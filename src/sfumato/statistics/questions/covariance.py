# SPDX-License-Identifier: Apache-2.0
"""Covariance and correlation of columns, from one noisy matrix of sums.

Guarantee  Each row v = (z, a) is a scaled row z of the table and a constant a. The sum of v v^T holds the
           number of rows, all sums and all sums of products; its upper triangle gets Gaussian noise once, for
           how far one unit moves it (`product_sums`). Everything else is computed from that.
Clipping   Either to public `bounds` of each column, which scale it to [-1, 1] around their middle; or to a
           public `clip_norm` of whole rows around zero. Infinities are clipped like other values, a row with
           a missing one is left out.
Neighbors  Add-or-remove; replace-one with a `public_size`, which is then divided by.
Interval   Of a covariance: the noise, to first order, for each entry, row by row. Of a correlation: the
           noise, from simulating its public law, for each entry. Neither covers what was clipped.
Edges      Too few rows for the budget give "failed" (None): private, and paid for. Noise can make a matrix
           that no data have, with negative eigenvalues; it is not changed. `positive` takes them away.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms import Generator
from sfumato.statistics.columns.columns import Bounds, Rows, rows_of
from sfumato.statistics.gaussian_vectors import (
    Concentrated,
    VectorGaussian,
    for_each_column,
    in_ball,
    whole_rows,
)
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.questions.product_sums import GRAIN, Scatter, added_up
from sfumato.statistics.release import Covers, Interval, Parts, Release

__all__ = ["Correlation", "Covariance", "Scattered", "correlation", "covariance", "positive"]

Floats = npt.NDArray[np.float64]

_CONSTANT = 0.5  # beside rows of length 1: sums and counts need less precision than products
_FEWEST = 10.0  # noisy rows, and noises of the count, that an answer needs
_CLEAR = 4.0  # noises that a variance must be above zero, to be divided by
_SIMULATIONS = 1000
_FAILED = ("failed: too few rows for this budget",)
_FAR = 1e150


@dataclass(frozen=True, kw_only=True, slots=True)
class Scattered(Concentrated):
    """Questions about products of columns, of rows clipped to `bounds` or to `clip_norm`."""

    columns: tuple[str, ...]
    bounds: tuple[Bounds, ...] | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        Concentrated.__post_init__(self)
        if not self.columns:
            raise InvalidParameterError("name at least one column.")
        if (self.bounds is None) == (self.clip_norm is None):
            raise InvalidParameterError(
                "say how rows are clipped, once: bounds=... for each column, or clip_norm=... for whole rows."
            )
        if self.clip_norm is not None:
            _check.scale(clip_norm=self.clip_norm)
        for pair in self.bounds or ():
            _check.squarable(bounds=pair)
        if self.bounds is not None and len(self.bounds) != len(self.columns):
            raise InvalidParameterError(
                f"{len(self.bounds)} bounds were given for {len(self.columns)} columns."
            )

    @property
    def constant(self) -> float:
        """Return what every row has beside its values."""
        return _CONSTANT if self.bounds is None else 1.0

    @property
    def scatter(self) -> Scatter:
        """Return the layout of the noisy sums."""
        size = len(self.columns) + 1
        return Scatter(dimension=size, squared_length=1 + self.constant**2, box=self.bounds is not None)

    @property
    def noise_on_sums(self) -> VectorGaussian:
        """Return the noise on the weighted triangle."""
        reach = self.scatter.reach(rows=self.contribution_bound, relation=self.relation)
        return self.noise(1.0, reach)

    @property
    def origin(self) -> Floats:
        """Return the point that rows are taken relative to."""
        if self.bounds is None:
            return np.zeros(len(self.columns))
        return np.array([lower / 2 + upper / 2 for lower, upper in self.bounds])

    @property
    def units(self) -> Floats:
        """Return what one unit of each scaled column is."""
        if self.bounds is None:
            return np.full(len(self.columns), cast(float, self.clip_norm))  # one of the two is given
        return np.array([upper / 2 - lower / 2 for lower, upper in self.bounds])

    def event(self) -> DpEvent:
        """Return what asking costs."""
        return self.noise_on_sums.event()

    def noisy(self, data: Rows, generator: Generator | None) -> "NoisySums":
        """Add up all rows, once, with noise."""
        total = added_up(self._scaled(data), len(self.columns) + 1)
        noise, scatter = self.noise_on_sums, self.scatter
        matrix = scatter.matrix(noise.add(scatter.triangle(total), generator=generator))
        stddevs = scatter.matrix(np.full(scatter.weights.size, noise.stddev))
        return NoisySums(matrix=matrix, stddevs=stddevs, terms=self)

    def _scaled(self, data: Rows) -> Iterator[Floats]:
        for rows in data.batches():
            if self.bounds is None:
                scaled = in_ball(rows, self.origin, float(self.units[0]))
            else:
                with np.errstate(over="ignore"):  # what overflows is clipped; a warning would tell of it
                    scaled = np.clip((np.clip(rows, -_FAR, _FAR) - self.origin) / self.units, -1.0, 1.0)
            whole = whole_rows(scaled, steps=GRAIN)
            yield np.column_stack([whole, np.full(len(whole), self.constant * GRAIN)])


@dataclass(frozen=True, kw_only=True)
class NoisySums:
    """A released matrix of sums, in units, and the noise on each entry."""

    matrix: Floats  # [columns + 1, columns + 1]; the last row is the sums times the constant
    stddevs: Floats
    terms: Scattered

    @property
    def size(self) -> float:
        """Return the number of rows, public or noisy."""
        known = self.terms.public_size
        return float(known) if known is not None else float(self.matrix[-1, -1]) / self.terms.constant**2

    @property
    def enough(self) -> bool:
        """Whether there are enough rows to divide by."""
        if self.terms.public_size is not None:
            return True
        return self.size > _FEWEST * max(1.0, float(self.stddevs[-1, -1]) / self.terms.constant**2)

    def moments(self, matrix: Floats | None = None) -> tuple[Floats, Floats]:
        """Return the mean and the covariance of scaled columns; of this matrix, or of another."""
        matrix = self.matrix if matrix is None else matrix
        constant, known = self.terms.constant, self.terms.public_size
        size = matrix[..., -1, -1] / constant**2 if known is None else np.asarray(float(known))
        mean = matrix[..., :-1, -1] / constant / size[..., None]
        second = matrix[..., :-1, :-1] / size[..., None, None]
        return mean, second - mean[..., :, None] * mean[..., None, :]

    def covariance_stddevs(self) -> Floats:
        """Return the noise of each covariance, to first order in the noise of the sums."""
        mean, covariance = self.moments()
        sums = self.stddevs[:-1, -1] / self.terms.constant
        count = 0.0 if self.terms.public_size is not None else self.stddevs[-1, -1] / self.terms.constant**2
        squared = self.stddevs[:-1, :-1] ** 2 + (mean[:, None] * sums[None, :]) ** 2
        squared += (mean[None, :] * sums[:, None]) ** 2 + (np.outer(mean, mean) - covariance) ** 2 * count**2
        squared[np.diag_indices(len(mean))] += 2 * (mean * sums) ** 2  # both sums are one: they add up
        return np.sqrt(squared) / self.size

    def simulated(self, simulations: int) -> Floats:
        """Return matrices of sums as noise might have moved this one: public, as its law is."""
        drawn = np.random.default_rng(0).normal(size=(simulations, *self.stddevs.shape))
        drawn = np.triu(drawn) + np.triu(drawn, 1).transpose(0, 2, 1)
        return self.matrix + drawn * self.stddevs


@dataclass(frozen=True, kw_only=True, slots=True)
class Covariance(Scattered):
    """The covariance matrix of columns.

    >>> Covariance(columns=("a", "b"), clip_norm=1.0, rho=0.5, delta=1e-6).name
    'covariance of a, b'
    """

    level: float = 0.95

    def __post_init__(self) -> None:
        Scattered.__post_init__(self)
        _check.probability(level=self.level)

    @property
    def name(self) -> str:
        """What is asked."""
        return f"covariance of {named(self.columns)}"

    def answer(self, data: Rows, *, generator: Generator | None) -> Answer[Floats | None]:
        """Return the matrix with noise."""
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

    >>> Correlation(columns=("a", "b"), clip_norm=1.0, rho=0.5, delta=1e-6).name
    'correlation of a, b'
    """

    level: float = 0.95

    def __post_init__(self) -> None:
        Scattered.__post_init__(self)
        _check.probability(level=self.level)

    @property
    def name(self) -> str:
        """What is asked."""
        return f"correlation of {named(self.columns)}"

    def answer(self, data: Rows, *, generator: Generator | None) -> Answer[Floats | None]:
        """Return the matrix with noise; a variance that noise left without a sign fails."""
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
    """Return the nearest matrix without negative eigenvalues: the data's own has none, so it is nearer still.

    >>> positive(np.array([[1.0, 0.0], [0.0, -0.5]])).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, 0.0)) @ vectors.T


def named(columns: Sequence[str]) -> str:
    """Return the names of a few columns, or how many there are."""
    return ", ".join(columns) if len(columns) <= 4 else f"{len(columns)} columns"


def matrix_parts(columns: Sequence[str], matrix: Floats) -> Parts:
    """Return the numbers of a matrix of columns, row by row, as a release keeps them.

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
    """Return the covariance matrix, [columns, columns], divided by the number of rows.

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
    """Return the correlation matrix, [columns, columns].

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
