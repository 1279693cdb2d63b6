# SPDX-License-Identifier: Apache-2.0
"""One noisy matrix of sums of products, from which covariances and components are computed.

Guarantee  Each row v = (z, a) is a scaled row z of the table and a constant a. The sum of v v^T contains the
           number of rows, all sums and all sums of products. Its upper triangle gets Gaussian noise once,
           calibrated to the change that one unit can cause (`product_sums`). Everything else is computed from
           the noisy matrix.
Neighbors  Add-or-remove; replace-one with a `public_size`, which is then the divisor.
Edge cases Rows are clipped either to public `bounds` of each column, which scale it to [-1, 1] around their
           middle, or to a public `clip_norm` of whole rows around zero. Infinities are clipped like other
           values; a row with a missing value is left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import Generator
from sfumato.statistics.arrays import Floats
from sfumato.statistics.columns.columns import Bounds, Rows
from sfumato.statistics.gaussian_vectors import (
    Concentrated,
    VectorGaussian,
    in_ball,
    whole_rows,
)
from sfumato.statistics.matrices.product_sums import GRAIN, Scatter, added_up

__all__ = ["NoisySums", "Scattered"]

_CONSTANT = 0.5  # appended to rows of length 1: sums and counts need less precision than products
_FEWEST = 10.0  # smallest number of rows, also in standard deviations of the noisy count
_FAR = 1e150


@dataclass(frozen=True, kw_only=True, slots=True)
class Scattered(Concentrated):
    """The parameters of questions about products of columns, with rows clipped to `bounds` or `clip_norm`."""

    columns: tuple[str, ...]
    bounds: tuple[Bounds, ...] | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        Concentrated.__post_init__(self)
        if not self.columns:
            raise InvalidParameterError("pass the name of at least one column.")
        if (self.bounds is None) == (self.clip_norm is None):
            raise InvalidParameterError(
                "pass either bounds=... for each column, or clip_norm=... for whole rows."
            )
        if self.clip_norm is not None:
            _check.scale(clip_norm=self.clip_norm)
        for pair in self.bounds or ():
            _check.squarable(bounds=pair)
        if self.bounds is not None and len(self.bounds) != len(self.columns):
            raise InvalidParameterError(
                f"{len(self.bounds)} bounds were given for {len(self.columns)} columns. "
                "Pass one pair for each."
            )

    @property
    def constant(self) -> float:
        """The constant that is appended to every row."""
        return _CONSTANT if self.bounds is None else 1.0

    @property
    def scatter(self) -> Scatter:
        """The layout of the noisy sums."""
        size = len(self.columns) + 1
        return Scatter(dimension=size, squared_length=1 + self.constant**2, box=self.bounds is not None)

    @property
    def noise_on_sums(self) -> VectorGaussian:
        """The noise on the weighted triangle."""
        reach = self.scatter.reach(rows=self.contribution_bound, relation=self.relation)
        return self.noise(1.0, reach)

    @property
    def origin(self) -> Floats:
        """The point that is subtracted from rows."""
        if self.bounds is None:
            return np.zeros(len(self.columns))
        return np.array([lower / 2 + upper / 2 for lower, upper in self.bounds])

    @property
    def units(self) -> Floats:
        """The size of one unit of each scaled column."""
        if self.bounds is None:
            return np.full(len(self.columns), cast(float, self.clip_norm))  # one of the two is given
        return np.array([upper / 2 - lower / 2 for lower, upper in self.bounds])

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event.
        """
        return self.noise_on_sums.event()

    def noisy(self, data: Rows, generator: Generator | None) -> "NoisySums":
        """Add up all rows, once, with noise.

        Args:
            data: The private rows.
            generator: The source of randomness. Default: secure.

        Returns:
            The noisy sums of products.
        """
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
                with np.errstate(
                    over="ignore"
                ):  # values that overflow are clipped; a warning would reveal them
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
        """The number of rows, public or noisy."""
        known = self.terms.public_size
        return float(known) if known is not None else float(self.matrix[-1, -1]) / self.terms.constant**2

    @property
    def enough(self) -> bool:
        """Whether the number of rows is large enough as a divisor."""
        if self.terms.public_size is not None:
            return True
        return self.size > _FEWEST * max(1.0, float(self.stddevs[-1, -1]) / self.terms.constant**2)

    def moments(self, matrix: Floats | None = None) -> tuple[Floats, Floats]:
        """Return the mean and the covariance of scaled columns, from this matrix or another."""
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
        squared[np.diag_indices(len(mean))] += (
            2 * (mean * sums) ** 2
        )  # both sums are the same one, so their errors add up
        return np.sqrt(squared) / self.size

    def simulated(self, simulations: int) -> Floats:
        """Return this matrix with simulated noise. The distribution of the noise is public."""
        drawn = np.random.default_rng(0).normal(size=(simulations, *self.stddevs.shape))
        drawn = np.triu(drawn) + np.triu(drawn, 1).transpose(0, 2, 1)
        return self.matrix + drawn * self.stddevs
