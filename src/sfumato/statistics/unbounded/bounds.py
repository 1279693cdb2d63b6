# SPDX-License-Identifier: Apache-2.0
"""Private bounds of a column whose range is not known.

Guarantee  `AutomaticBounds` costs its event: that of one noisy histogram. Its bins are public: they grow by
           the factor `base` from `smallest` to `largest`, on both sides of zero.
Edge cases The value is the outer edges of the outermost bins whose noisy counts reach a threshold. The noise
           of all empty bins together reaches it with probability at most `false_alarm`. So bounds are at most
           `base` times too wide, and leave out values in bins with few rows, which are then clipped. If no
           bin reaches the threshold, the value is None ("failed"), which is private and charged. Values
           beyond `largest` count in the last bin, and are clipped to `largest`. There is no interval: bounds
           are a choice, not an estimate. `clipped_share` estimates how many values they leave out.
Source     Wilson, Zhang, Lam, Desfontaines, Simmons-Marengo, Gipson 2020, arXiv:1909.01917, Section 5.1.1.
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
from sfumato.statistics.arrays import Floats
from sfumato.statistics.columns.columns import Bounds, Column, column_of
from sfumato.statistics.intervals import whole_half_width
from sfumato.statistics.noise import Kind, WholeNoise, l2_of_counts
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.release import Parts, Release
from sfumato.statistics.terms import Terms

__all__ = ["AutomaticBounds", "bounds"]


_MOST_BINS = 10_000
_FARTHEST = 1e290  # times the smallest edge: computations up to there stay finite


@dataclass(frozen=True, kw_only=True, slots=True)
class AutomaticBounds(Terms):
    """Bounds between which most values lie.

    Args:
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        level: Not used: bounds have no interval.
        column: The name of the column, as releases show it.
        smallest: The smallest size that bins distinguish from zero, public.
        largest: The largest size of a value, public. Larger values are clipped to it.
        base: The factor by which bins grow, above 1. Bounds are at most that much too wide.
        false_alarm: The probability that an empty bin widens the bounds.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> AutomaticBounds(epsilon=0.5, smallest=1.0, largest=4.0).edges.tolist()
    [-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0]
    """

    smallest: float = 2.0**-20
    largest: float = 2.0**40
    base: float = 2.0
    false_alarm: float = 0.01

    def __post_init__(self) -> None:
        Terms.__post_init__(self)
        _check.positive(smallest=self.smallest, largest=self.largest)
        _check.probability(false_alarm=self.false_alarm)
        inputs.settle(self, "smallest", "largest", "base")
        if not (1 < self.base < math.inf and self.smallest < self.largest):
            raise InvalidParameterError(
                f"bins must grow: base={self.base!r} must be above 1, and smallest={self.smallest!r} below "
                f"largest={self.largest!r}."
            )
        if not self.largest / self.smallest <= _FARTHEST:
            raise InvalidParameterError(
                f"largest={self.largest!r} must be at most {_FARTHEST:g} times smallest={self.smallest!r}: "
                "edges between them would overflow float64."
            )
        if self._growths() > _MOST_BINS / 2 - 1:
            raise InvalidParameterError(
                f"these parameters give more than {_MOST_BINS} bins. Use a larger base, or a smaller range."
            )

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"bounds of {self.column}"

    @property
    def edges(self) -> Floats:
        """The edges of the bins."""
        sizes = np.append(self.smallest * self.base ** np.arange(self._growths()), self.largest)
        return np.concatenate([-sizes[::-1], [0.0], sizes])

    @property
    def threshold(self) -> int:
        """The smallest noisy count for which a bin counts as occupied."""
        bins = self.edges.size - 1
        # Noise is symmetric: half of the rest is beyond the two-sided quantile on each side.
        return whole_half_width(self._noise().law, level=1 - 2 * self.false_alarm / max(bins, 3)) + 1

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event, which an accountant prices.
        """
        return self._noise().event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[Bounds | None]:
        """Return the bounds, or None if no bin has enough rows.

        Args:
            data: The private column.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The bounds; the value is None if no bin has enough rows.
        """
        noisy = self._noise().add(data.histogram(self.edges), generator=generator)
        full = np.flatnonzero(noisy >= self.threshold)
        if full.size == 0:
            return Answer(value=None, notes=("failed: no bin has enough rows for this epsilon",))
        found = float(self.edges[full[0]]), float(self.edges[full[-1] + 1])
        return Answer(value=found, parts=Parts(labels={"bound": ("lower", "upper")}, numbers=found))

    def _growths(self) -> int:
        ratio = math.log(self.largest) - math.log(self.smallest)
        return max(1, math.ceil(ratio / math.log(self.base) - 1e-9))

    def _noise(self) -> WholeNoise:
        reach = self.contribution_bound * self.relation.diameter
        return WholeNoise(
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            kind=Kind.COUNTS,
            l1_sensitivity=reach,
            l2_sensitivity=l2_of_counts(self.contribution_bound, self.relation),
            coordinates=min(self.edges.size - 1, reach),
        )


def bounds(
    values: Any,
    *,
    epsilon: float,
    delta: float = 0.0,
    relation: Relation | str = Relation.ADD_REMOVE,
    smallest: float = 2.0**-20,
    largest: float = 2.0**40,
    base: float = 2.0,
    false_alarm: float = 0.01,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[Bounds | None]:
    """Release bounds between which most values lie, or None if there are too few rows.

    Args:
        values: Numbers in a list, array or series, or a column of a private table. Missing values are left
            out.
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        smallest: The smallest size that bins distinguish from zero, public.
        largest: The largest size of a value, public. Larger values are clipped to it.
        base: The factor by which bins grow, above 1. Bounds are at most that much too wide.
        false_alarm: The probability that an empty bin widens the bounds.
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

    >>> ages = [31.0, 45.0, 52.0, 28.0, 60.0, 39.0] * 100
    >>> bounds(ages, epsilon=1.0, false_alarm=1e-9).value
    (16.0, 64.0)
    """
    data = column_of(values)
    question = AutomaticBounds(
        smallest=smallest,
        largest=largest,
        base=base,
        false_alarm=false_alarm,
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=data.contribution_bound,
        column=data.name,
    )
    return Query(question, data).release(account=account, purpose=purpose, generator=generator)
