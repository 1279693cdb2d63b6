# SPDX-License-Identifier: Apache-2.0
"""Sums, means and variances of groups, with values clipped to bounds.

Guarantee  A sum is added up in whole steps of a grid (`group_statistics`), and a row moves it by at most the
           larger of the two bounds. A mean and a variance divide each row among two or three sums, whose
           parts are not negative and add up to one (`row_split`). So the norms of `spending.Reach` hold for
           each of them, times the size of one row.
Edge cases A mean or a variance of a group in which the noisy number of rows is below 1 is missing, which is
           part of the release. Intervals cover the noise only, each for its own number.
Failure    Parameters are public. They are checked when a statistic is constructed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator
from sfumato.queries.counts import Cell, Statistic, check_terms, noise_for
from sfumato.queries.spending import Noise, Reach, Spend
from sfumato.queries.totals import Bins, Found, Total
from sfumato.queries.totals import Kind as TotalKind
from sfumato.statistics.arrays import Floats
from sfumato.statistics.columns.columns import Bounds, Moments
from sfumato.statistics.groups.group_statistics import step_of
from sfumato.statistics.intervals import GaussianLaw, LaplaceLaw, Law, around, half_width
from sfumato.statistics.noise import Kind
from sfumato.statistics.query import Answer
from sfumato.statistics.questions.bounded_terms import GRID
from sfumato.statistics.questions.row_split import NoisyShares, Shares
from sfumato.statistics.questions.variances import stated_deviation, stated_variance
from sfumato.statistics.release import Covers, Interval

__all__ = ["Mean", "Sum", "Variance"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sum:
    """The sum of a column in each group, with values clipped to bounds."""

    column: str
    bounds: Bounds
    share: float = 1.0
    error: float | None = None

    def __post_init__(self) -> None:
        _check.text(column=self.column)
        _check.summable(bounds=self.bounds)
        object.__setattr__(self, "bounds", _as_floats(self.bounds))
        check_terms(self)

    @property
    def name(self) -> str:
        """What is asked."""
        return f"sum of {self.column}"

    def totals(self) -> tuple[Total, ...]:
        """Return the exact totals that are needed."""
        return (Total(TotalKind.GRID, self.column, self.bounds),)

    def bins(self) -> tuple[Bins, ...]:
        """Return no histogram."""
        return ()

    def noise(self, spend: Spend, reach: Reach) -> Noise:
        """Return the noise of all groups, in steps of the grid."""
        most = math.ceil(max(abs(bound) for bound in self.bounds) / step_of(self.bounds))
        return noise_for(spend, reach, l1=reach.l1 * most, l2=reach.l2_of_sums * most, kind=Kind.STEPS)

    def event(self, spend: Spend, reach: Reach) -> DpEvent:
        """Return the event that all groups together are charged with."""
        return self.noise(spend, reach).event()

    def answer(
        self, found: Found, spend: Spend, reach: Reach, *, level: float, generator: Generator | None
    ) -> list[Cell]:
        """Return the sums with noise."""
        noise, step = self.noise(spend, reach), step_of(self.bounds)
        noisy = noise.add(found.totals[self.totals()[0]], generator=generator) * step
        distance = half_width(noise.law, level=level) * step
        within = (-math.inf if self.bounds[0] < 0 else 0.0, math.inf if self.bounds[1] > 0 else 0.0)
        return [
            Cell(value=value, interval=around(value, distance, level=level, within=within))
            for value in noisy.tolist()
        ]

    def expected_error(self, spend: Spend, reach: Reach, *, level: float, size: int) -> tuple[float, str]:
        """Return the half width of the interval of a sum."""
        law = self.noise(spend, reach).law
        return half_width(law, level=level) * step_of(self.bounds), f"of {self.column}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mean:
    """The mean of a column in each group, with values clipped to bounds."""

    column: str
    bounds: Bounds
    share: float = 1.0
    error: float | None = None

    shares: ClassVar[Shares] = Shares(1)

    def __post_init__(self) -> None:
        _check.text(column=self.column)
        _check.bounds(bounds=self.bounds)
        object.__setattr__(self, "bounds", _as_floats(self.bounds))
        check_terms(self)
        _refuse_error(self)

    @property
    def name(self) -> str:
        """What is asked."""
        return f"mean of {self.column}"

    def totals(self) -> tuple[Total, ...]:
        """Return the exact totals that are needed."""
        return (Total(TotalKind.KNOWN, self.column), Total(TotalKind.STEPS, self.column, self.bounds))

    def bins(self) -> tuple[Bins, ...]:
        """Return no histogram."""
        return ()

    def event(self, spend: Spend, reach: Reach) -> DpEvent:
        """Return the event that all groups together are charged with."""
        return _share_noise(self.shares, spend, reach).event()

    def answer(
        self, found: Found, spend: Spend, reach: Reach, *, level: float, generator: Generator | None
    ) -> list[Cell]:
        """Return the means of noisy shares."""

        def stated(noisy: NoisyShares) -> Cell:
            return _stated_mean(noisy, self.shares, self.bounds, level)

        return _of_shares(self, self.shares, found, spend, reach, stated, generator)

    def expected_error(self, spend: Spend, reach: Reach, *, level: float, size: int) -> tuple[float, str]:
        """Return the half width of the interval of a mean in the middle of the bounds."""
        noisy = _assumed(self.shares, spend, reach, size)
        weights = (self.shares.places - 0.5) / size
        far = half_width(noisy.law, level=level, weights=weights.tolist())
        return far * (self.bounds[1] - self.bounds[0]), f"of {self.column}, in a group of {size} rows"


@dataclass(frozen=True, kw_only=True, slots=True)
class Variance:
    """The variance, or with `root` the standard deviation, of a column in each group."""

    column: str
    bounds: Bounds
    root: bool = False
    share: float = 1.0
    error: float | None = None

    shares: ClassVar[Shares] = Shares(2)

    def __post_init__(self) -> None:
        _check.text(column=self.column)
        _check.squarable(bounds=self.bounds)
        object.__setattr__(self, "bounds", _as_floats(self.bounds))
        check_terms(self)
        _refuse_error(self)

    @property
    def name(self) -> str:
        """What is asked."""
        return f"{'standard deviation' if self.root else 'variance'} of {self.column}"

    @property
    def _width(self) -> float:
        return self.bounds[1] - self.bounds[0]

    def totals(self) -> tuple[Total, ...]:
        """Return the exact totals that are needed."""
        return (
            Total(TotalKind.KNOWN, self.column),
            Total(TotalKind.STEPS, self.column, self.bounds),
            Total(TotalKind.SQUARES, self.column, self.bounds),
        )

    def bins(self) -> tuple[Bins, ...]:
        """Return no histogram."""
        return ()

    def event(self, spend: Spend, reach: Reach) -> DpEvent:
        """Return the event that all groups together are charged with."""
        return _share_noise(self.shares, spend, reach).event()

    def answer(
        self, found: Found, spend: Spend, reach: Reach, *, level: float, generator: Generator | None
    ) -> list[Cell]:
        """Return the variances of noisy shares, or their roots."""

        def stated(noisy: NoisyShares) -> Cell:
            answer = stated_variance(noisy, self.shares, width=self._width, level=level)
            return _cell(stated_deviation(answer) if self.root else answer)

        return _of_shares(self, self.shares, found, spend, reach, stated, generator)

    def expected_error(self, spend: Spend, reach: Reach, *, level: float, size: int) -> tuple[float, str]:
        """Return the half width of the interval, for values that are spread evenly over the bounds."""
        noisy = _assumed(self.shares, spend, reach, size)
        _, moves = noisy.variance(self.shares)
        far = half_width(noisy.law, level=level, weights=moves) * self._width**2
        if self.root:
            far /= 2 * self._width / math.sqrt(12)  # to first order
        return far, f"of {self.column}, in a group of {size} rows"


# --- parts ------------------------------------------------------------------------------------------------


def _refuse_error(statistic: Statistic) -> None:
    if statistic.error is not None:
        raise InvalidParameterError(
            f"the error of a {statistic.name} depends on the number of rows, which is private: pass "
            "share=... for it. Counts and sums take error=..."
        )


def _as_floats(bounds: Bounds) -> Bounds:
    return float(bounds[0]), float(bounds[1])


def _share_noise(shares: Shares, spend: Spend, reach: Reach) -> Noise:
    """Return the noise for shares: those of a row are not negative and add up to its parts."""
    return noise_for(
        spend, reach, l1=reach.l1 * shares.parts, l2=reach.l2_of_counts * shares.parts, kind=Kind.STEPS
    )


def _of_shares(
    statistic: Mean | Variance,
    shares: Shares,
    found: Found,
    spend: Spend,
    reach: Reach,
    stated: Callable[[NoisyShares], Cell],
    generator: Generator | None,
) -> list[Cell]:
    """Return what noisy shares state of each group."""
    columns = [found.totals[total].tolist() for total in statistic.totals()]
    squares = columns[2] if len(columns) > 2 else [0] * found.size
    exact = [
        shares.of(Moments(count=count, total=total, squares=squared))
        for count, total, squared in zip(columns[0], columns[1], squares, strict=True)
    ]
    noise = _share_noise(shares, spend, reach)
    flat = noise.add([part for parts in exact for part in parts], generator=generator) / shares.parts
    sums: list[Floats] = np.split(flat, found.size)
    law = _in_rows(noise.law, shares)
    return [stated(NoisyShares(sums=each, law=law)) for each in sums]


def _in_rows(law: Law, shares: Shares) -> Law:
    """Return the law of noise on shares, in rows."""
    if isinstance(law, LaplaceLaw):
        return LaplaceLaw(law.scale / shares.parts)
    return GaussianLaw(law.stddev / shares.parts)


def _assumed(shares: Shares, spend: Spend, reach: Reach, size: int) -> NoisyShares:
    """Return shares of so many rows that are spread evenly over the bounds."""
    law = _in_rows(_share_noise(shares, spend, reach).law, shares)
    return NoisyShares(sums=np.full(shares.degree + 1, size / (shares.degree + 1)), law=law)


def _stated_mean(noisy: NoisyShares, shares: Shares, bounds: Bounds, level: float) -> Cell:
    if noisy.size < 1:
        return Cell(value=None)
    width = bounds[1] - bounds[0]
    lower, upper = noisy.interval(shares.places, level=level)
    ends = [min(max(bounds[0] + width * end, bounds[0]), bounds[1]) for end in (lower - GRID, upper + GRID)]
    place = min(max(noisy.average(shares.places), 0.0), 1.0)
    interval = Interval(lower=ends[0], upper=ends[1], level=level, covers=(Covers.NOISE,))
    return Cell(value=bounds[0] + width * place, interval=interval)


def _cell(answer: Answer[float | None]) -> Cell:
    interval = answer.interval if isinstance(answer.interval, Interval) else None
    return Cell(value=answer.value, interval=interval)
