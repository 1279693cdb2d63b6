# SPDX-License-Identifier: Apache-2.0
"""Private mean of a column with public bounds.

Guarantee  `Mean` costs its event for one unit of at most `contribution_bound` rows. Epsilon is not split
           between a count and a sum: each row is divided among two sums (three for `population=True`), and
           all of them get noise for the whole epsilon (`row_split`).
Neighbors  Replacing a row changes the sums by 2 in L1 norm, and by sqrt(2) in L2 norm. If `public_size`
           declares the number of rows, only the centered sum gets noise and is divided by it, and a row with
           a missing value counts as the middle of the bounds. Do not pass it if values may be missing.
Edge cases The interval contains every value that the noise does not refute, which is exact although the count
           is noisy, too. `population=True` adds the sampling error, from the noisy variance. Clipping is not
           covered, as nothing is known about values outside the bounds; `clipped_share` estimates how many
           there are. Intervals include the rounding to the grid. Nulls and NaN are left out, infinities are
           clipped. If the noisy count is below 1, the value is None ("failed"), which is private and charged.
"""

from dataclasses import dataclass
from typing import Any

from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator
from sfumato.statistics.columns.columns import STEPS, Bounds, Column, column_of
from sfumato.statistics.intervals import half_width
from sfumato.statistics.noise import Kind, WholeNoise
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.questions.bounded_terms import FAILED, BoundedTerms
from sfumato.statistics.questions.row_split import NoisyShares, Shares
from sfumato.statistics.release import Covers, Release

__all__ = ["Mean", "mean"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mean(BoundedTerms):
    """The mean of the values, clipped to `bounds`.

    Args:
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        level: The confidence level of the interval, between 0 and 1.
        column: The name of the column, as releases show it.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        public_size: The number of rows, if it is public. None means that it is private.
        population: Whether the interval also covers the sampling error, with rows as independent draws from a
            population.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `population` is used with a contribution
            bound above 1.

    >>> Mean(bounds=(0, 100), epsilon=0.5).event()
    DiscreteLaplaceDpEvent(noise_parameter=2.38...e-07, sensitivity=2097152)
    """

    population: bool = False

    def __post_init__(self) -> None:
        BoundedTerms.__post_init__(self)
        if self.population and self.contribution_bound > 1:
            raise InvalidParameterError(
                "population=True treats rows as independent draws, but one unit may have several rows here, "
                f"contribution_bound={self.contribution_bound}. Remove it, or use contribution_bound=1."
            )

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"mean of {self.column}"

    @property
    def _centered(self) -> bool:
        return self.public_size is not None and not self.population

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event, which an accountant prices.
        """
        return (self._noise_of_sum() if self._centered else self._shares().noise(self)).event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[float | None]:
        """Return the mean with noise, or None if the noisy number of rows is below 1.

        Args:
            data: The private column.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The noisy mean and its interval; the value is None if there are too few rows.
        """
        moments = data.moments(self.bounds, squares=self.population)
        if self._centered:
            return self._divided(moments.total, generator)
        shares = self._shares()
        noisy = NoisyShares.of(
            shares.of(moments), shares.noise(self), shares.parts, self.public_size, generator
        )
        if noisy.size < 1:
            return Answer(value=None, notes=FAILED)
        stddev = noisy.sampling_stddev(shares, level=self.level) if self.population else 0.0
        covers = (Covers.NOISE, Covers.SAMPLING) if self.population else (Covers.NOISE,)
        lower, upper = noisy.interval(shares.places, level=self.level, stddev=stddev)
        place = min(max(noisy.average(shares.places), 0.0), 1.0)
        return Answer(value=self.bounds[0] + self.width * place, interval=self.interval(lower, upper, covers))

    def _shares(self) -> Shares:
        return Shares(2 if self.population else 1)

    def _divided(self, total: int, generator: Generator | None) -> Answer[float | None]:
        """Return the mean of a public number of rows from the noisy sum around the middle."""
        noise, size = self._noise_of_sum(), self.public_size or 1
        noisy = float(noise.add([total], generator=generator)[0])
        unit = 2 * STEPS * size
        place, distance = 0.5 + noisy / unit, half_width(noise.law, level=self.level) / unit
        value = self.bounds[0] + self.width * min(max(place, 0.0), 1.0)
        return Answer(
            value=value, interval=self.interval(place - distance, place + distance, (Covers.NOISE,))
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
    """Release the mean of values clipped to `bounds`, with Laplace noise; Gaussian if delta is above 0.

    Args:
        values: Numbers in a list, array or series, or a column of a private table. Missing values are left
            out.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        public_size: The number of rows, if it is public. None means that it is private.
        population: Whether the interval also covers the sampling error, with rows as independent draws from a
            population.
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
