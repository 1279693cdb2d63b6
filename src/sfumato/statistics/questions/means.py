# SPDX-License-Identifier: Apache-2.0
"""Private mean, variance and standard deviation of a column with public bounds.

Guarantee  `Mean`, `Variance`, `StandardDeviation` and `ClippedShare` cost their event for one unit of at most
           `contribution_bound` rows.
Shares     Epsilon is not split between a count, a sum and a sum of squares: each row is shared out among two
           or three sums (`shares`), and all of them get noise for the whole epsilon.
Neighbors  Replacing a row moves the sums by 2 added up, and by sqrt(2) in Euclidean norm. `public_size`
           declares how many rows there are: then the centered sum alone is noised and divided by it, and a
           row with a missing value counts as the middle of the bounds. Leave it out where values are missing,
           for a variance above all.
Interval   Of a mean: every value that the noise does not refute, which is exact although the count is noisy,
           too. `population=True` adds the error of sampling, from the noisy variance. Of a variance: to first
           order in the noise. What was clipped is not covered: nothing is known of values out of bounds.
           `clipped_share` buys how many there are. Values are rounded to 2^-20 of half the bounds' width,
           which intervals include.
Edges      Nulls and NaN are left out, infinities clipped. A noisy count below 1 gives the answer "failed"
           (None), which is private and paid for. A variance divides by the count, not the count less one; one
           that noise made negative is 0.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms import inputs
from sfumato.mechanisms.random import Generator
from sfumato.statistics.columns.columns import STEPS, Bounds, Column, column_of
from sfumato.statistics.intervals import around, half_width
from sfumato.statistics.noise import Kind, WholeNoise, l2_of_counts
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.questions.row_split import NoisyShares, Shares
from sfumato.statistics.release import Covers, Interval, Release
from sfumato.statistics.terms import Terms

__all__ = [
    "ClippedShare",
    "Mean",
    "StandardDeviation",
    "Variance",
    "clipped_share",
    "mean",
    "standard_deviation",
    "variance",
]

_GRID = 1 / (4 * STEPS)  # of the width of the bounds: the most that rounding moves a value
_FAILED: tuple[str, ...] = ("failed: too few rows for this epsilon",)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bounded(Terms):
    """A question of values between public bounds, whose number may be public, too."""

    bounds: Bounds
    public_size: int | None = None

    def __post_init__(self) -> None:
        Terms.__post_init__(self)
        inputs.settle_bounds(self, self.bounds)
        if self.public_size is not None:
            _check.count(public_size=self.public_size)

    @property
    def _width(self) -> float:
        return self.bounds[1] - self.bounds[0]

    def _interval(self, lower: float, upper: float, covers: tuple[Covers, ...]) -> Interval:
        """Return an interval of shares of the width as one of values, the grid included."""
        ends = [self.bounds[0] + self._width * u for u in (lower - _GRID, upper + _GRID)]
        ends = np.clip(ends, *self.bounds).tolist()
        return Interval(lower=ends[0], upper=ends[1], level=self.level, covers=covers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mean(_Bounded):
    """What is the mean of the values, clipped to `bounds`?

    >>> Mean(bounds=(0, 100), epsilon=0.5).event()
    DiscreteLaplaceDpEvent(noise_parameter=2.38...e-07, sensitivity=2097152)
    """

    population: bool = False

    def __post_init__(self) -> None:
        _Bounded.__post_init__(self)
        if self.population and self.contribution_bound > 1:
            raise InvalidParameterError(
                "population=True takes rows as independent draws, but one unit may have several rows here, "
                f"contribution_bound={self.contribution_bound}. Leave it out, or use contribution_bound=1."
            )

    @property
    def name(self) -> str:
        """What is asked."""
        return f"mean of {self.column}"

    @property
    def _centered(self) -> bool:
        return self.public_size is not None and not self.population

    def event(self) -> DpEvent:
        """Return what asking costs."""
        return (self._noise_of_sum() if self._centered else self._shares().noise(self)).event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[float | None]:
        """Return the mean with noise, or None where too few rows are left by it."""
        moments = data.moments(self.bounds, squares=self.population)
        if self._centered:
            return self._divided(moments.total, generator)
        shares = self._shares()
        noisy = NoisyShares.of(
            shares.of(moments), shares.noise(self), shares.parts, self.public_size, generator
        )
        if noisy.size < 1:
            return Answer(value=None, notes=_FAILED)
        stddev = noisy.sampling_stddev(shares, level=self.level) if self.population else 0.0
        covers = (Covers.NOISE, Covers.SAMPLING) if self.population else (Covers.NOISE,)
        lower, upper = noisy.interval(shares.places, level=self.level, stddev=stddev)
        place = min(max(noisy.average(shares.places), 0.0), 1.0)
        return Answer(
            value=self.bounds[0] + self._width * place, interval=self._interval(lower, upper, covers)
        )

    def _shares(self) -> Shares:
        return Shares(2 if self.population else 1)

    def _divided(self, total: int, generator: Generator | None) -> Answer[float | None]:
        """Return the mean of a public number of rows from the noisy sum around the middle."""
        noise, size = self._noise_of_sum(), self.public_size or 1
        noisy = float(noise.add([total], generator=generator)[0])
        unit = 2 * STEPS * size
        place, distance = 0.5 + noisy / unit, half_width(noise.law, level=self.level) / unit
        value = self.bounds[0] + self._width * min(max(place, 0.0), 1.0)
        return Answer(
            value=value, interval=self._interval(place - distance, place + distance, (Covers.NOISE,))
        )

    def _noise_of_sum(self) -> WholeNoise:
        reach = self.contribution_bound * STEPS * self.relation.diameter
        return WholeNoise(
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            kind=Kind.STEPS,
            l1_sensitivity=reach,
            l2_sensitivity=float(reach),
            coordinates=1,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Variance(_Bounded):
    """What is the variance of the values, clipped to `bounds`?

    >>> Variance(bounds=(0, 100), epsilon=0.5).name
    'variance of values'
    """

    def __post_init__(self) -> None:
        _Bounded.__post_init__(self)
        _check.squarable(bounds=self.bounds)

    @property
    def name(self) -> str:
        """What is asked."""
        return f"variance of {self.column}"

    def event(self) -> DpEvent:
        """Return what asking costs."""
        return Shares(2).noise(self).event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[float | None]:
        """Return the variance with noise, or None where too few rows are left by it."""
        shares = Shares(2)
        exact = shares.of(data.moments(self.bounds))
        noisy = NoisyShares.of(exact, shares.noise(self), shares.parts, self.public_size, generator)
        if noisy.size < 1:
            return Answer(value=None, notes=_FAILED)
        found, moves = noisy.variance(shares)
        distance = half_width(noisy.law, level=self.level, weights=moves)
        square, most = self._width**2, self._width**2 / 4
        # A value of 1 width moves its square by 2 widths for each width that rounding moves it.
        around_found = around(
            found * square, (distance + 2 * _GRID) * square, level=self.level, within=(0.0, most)
        )
        return Answer(value=min(max(found * square, 0.0), most), interval=around_found)


@dataclass(frozen=True, kw_only=True, slots=True)
class StandardDeviation(_Bounded):
    """What is the standard deviation of the values, clipped to `bounds`? The root of the noisy variance.

    >>> StandardDeviation(bounds=(0, 100), epsilon=0.5).name
    'standard deviation of values'
    """

    def __post_init__(self) -> None:
        _Bounded.__post_init__(self)
        _check.squarable(bounds=self.bounds)

    @property
    def name(self) -> str:
        """What is asked."""
        return f"standard deviation of {self.column}"

    def event(self) -> DpEvent:
        """Return what asking costs."""
        return self._variance().event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[float | None]:
        """Return the standard deviation with noise, or None where too few rows are left by it."""
        found = self._variance().answer(data, generator=generator)
        if found.value is None or not isinstance(found.interval, Interval):
            return found
        lower, upper = math.sqrt(found.interval.lower), math.sqrt(found.interval.upper)
        interval = Interval(lower=lower, upper=upper, level=self.level, covers=found.interval.covers)
        return Answer(value=math.sqrt(found.value), interval=interval, notes=found.notes)

    def _variance(self) -> Variance:
        return Variance(
            bounds=self.bounds,
            public_size=self.public_size,
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            contribution_bound=self.contribution_bound,
            level=self.level,
            column=self.column,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClippedShare(_Bounded):
    """Which share of the rows lies outside `bounds`, so that clipping would change it?

    >>> ClippedShare(bounds=(0, 100), epsilon=0.5).event()
    DiscreteLaplaceDpEvent(noise_parameter=0.5, sensitivity=1)
    """

    @property
    def name(self) -> str:
        """What is asked."""
        return f"share of {self.column} out of bounds"

    def event(self) -> DpEvent:
        """Return what asking costs."""
        return self._noise().event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[float | None]:
        """Return the share with noise, or None where too few rows are left by it."""
        lower, upper = self.bounds
        inside = (lower, math.nextafter(upper, math.inf))  # the upper bound itself is not clipped
        edges = np.array([math.nextafter(lower, -math.inf), *inside, math.nextafter(inside[1], math.inf)])
        below, within, above = (int(part) for part in data.histogram(edges))
        noisy = NoisyShares.of([within, below + above], self._noise(), 1, self.public_size, generator)
        if noisy.size < 1:
            return Answer(value=None, notes=_FAILED)
        places = np.array([0.0, 1.0])
        ends = noisy.interval(places, level=self.level)
        interval = Interval(lower=ends[0], upper=ends[1], level=self.level, covers=(Covers.NOISE,))
        return Answer(value=min(max(noisy.average(places), 0.0), 1.0), interval=interval)

    def _noise(self) -> WholeNoise:
        return WholeNoise(
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            kind=Kind.COUNTS,
            l1_sensitivity=self.contribution_bound * self.relation.diameter,
            l2_sensitivity=l2_of_counts(self.contribution_bound, self.relation),
            coordinates=min(2, self.contribution_bound * self.relation.diameter),
        )


def mean(
    values: Any,
    *,
    bounds: Bounds,
    epsilon: float,
    delta: float = 0.0,
    relation: Relation | str = Relation.ADD_REMOVE,
    public_size: int | None = None,
    population: bool = False,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[float | None]:
    """Release the mean of values clipped to `bounds`, with Laplace noise; Gaussian if delta is given.

    `population=True` takes the rows as independent draws: the interval then covers the mean of what they were
    drawn from (clipped).

    >>> ages = [31, 45, 52, 28, 60, 39] * 200
    >>> release = mean(ages, bounds=(18, 100), epsilon=1.0)
    >>> abs(release.value - 42.5) < 10, release.interval.covers
    (True, (<Covers.NOISE: 'noise'>,))
    """
    data = column_of(values)
    question = Mean(
        bounds=bounds,
        public_size=public_size,
        population=population,
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=data.contribution_bound,
        level=level,
        column=data.name,
    )
    return Query(question, data).release(account=account, purpose=purpose, generator=generator)


def variance(
    values: Any,
    *,
    bounds: Bounds,
    epsilon: float,
    delta: float = 0.0,
    relation: Relation | str = Relation.ADD_REMOVE,
    public_size: int | None = None,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[float | None]:
    """Release the variance of values clipped to `bounds` (divided by their number).

    >>> release = variance([1.0, 3.0] * 2000, bounds=(0, 4), epsilon=1.0)
    >>> abs(release.value - 1.0) < 0.5
    True
    """
    data = column_of(values)
    question = Variance(
        bounds=bounds,
        public_size=public_size,
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=data.contribution_bound,
        level=level,
        column=data.name,
    )
    return Query(question, data).release(account=account, purpose=purpose, generator=generator)


def standard_deviation(
    values: Any,
    *,
    bounds: Bounds,
    epsilon: float,
    delta: float = 0.0,
    relation: Relation | str = Relation.ADD_REMOVE,
    public_size: int | None = None,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[float | None]:
    """Release the standard deviation of values clipped to `bounds`.

    >>> release = standard_deviation([1.0, 3.0] * 2000, bounds=(0, 4), epsilon=1.0)
    >>> abs(release.value - 1.0) < 0.5
    True
    """
    data = column_of(values)
    question = StandardDeviation(
        bounds=bounds,
        public_size=public_size,
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=data.contribution_bound,
        level=level,
        column=data.name,
    )
    return Query(question, data).release(account=account, purpose=purpose, generator=generator)


def clipped_share(
    values: Any,
    *,
    bounds: Bounds,
    epsilon: float,
    delta: float = 0.0,
    relation: Relation | str = Relation.ADD_REMOVE,
    public_size: int | None = None,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[float | None]:
    """Release which share of the values lies outside `bounds`: what intervals of clipped values leave out.

    >>> release = clipped_share([1.0, 2.0, 3.0, 99.0] * 1000, bounds=(0, 4), epsilon=1.0)
    >>> abs(release.value - 0.25) < 0.1
    True
    """
    data = column_of(values)
    question = ClippedShare(
        bounds=bounds,
        public_size=public_size,
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=data.contribution_bound,
        level=level,
        column=data.name,
    )
    return Query(question, data).release(account=account, purpose=purpose, generator=generator)
