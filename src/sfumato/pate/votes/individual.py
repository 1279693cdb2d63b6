# SPDX-License-Identifier: Apache-2.0
"""Individual budgets: units that allow more may count more.

Units are in privacy groups, each with an epsilon of its own. Three ways to let a group with a larger epsilon
count more:

- **Weighting**: each group has teachers of its own, whose votes have a weight. All weights add up to the
  number of teachers.
- **Upsampling**: a unit is learned by several teachers, more of them in a group with a larger epsilon.
- **Vanishing**: each group has teachers of its own, and those of a smaller epsilon vote on fewer queries.

Guarantee  A unit moves at most as many votes as teachers learn from it (`copies`), each of the weight of its
           group, in the queries on which its group votes. The guarantee of a group is the price of its event.
Neighbors  One unit added, removed or zeroed out. The group of a unit is part of the unit: whoever is removed
           takes it along. Replace-one is refused (`labeling`): a unit of group g that is replaced by one of
           group h moves the votes of both groups.
Unit       All rows of a unit are in one group: the one with the smallest epsilon that any of them has.
Source     Boenisch et al. 2023, arXiv:2202.10517 (upsampling, weighting, vanishing). Corrections of the form
           that R4 gives: docs/errata.md, R4-5 and R4-6. For Gaussian noise the weights are computed from the
           noise that each epsilon needs, instead of being proportional to epsilon, so that all groups use up
           their budgets at the same number of queries.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.gaussian import stddev_for
from sfumato.errors import InvalidParameterError
from sfumato.pate.votes.aggregators import Aggregator

__all__ = ["IndividualBudgets", "Individualization"]

_MOST_COPIES = 20  # of a unit: more teachers that share it would no longer differ


class Individualization(enum.Enum):
    """How groups with a larger epsilon count more.

    Attributes:
        WEIGHTING: Their teachers' votes weigh more.
        UPSAMPLING: More teachers learn from their units.
        VANISHING: Their teachers vote on more queries.
    """

    WEIGHTING = "weighting"
    UPSAMPLING = "upsampling"
    VANISHING = "vanishing"


@dataclass(frozen=True, kw_only=True, slots=True)
class IndividualBudgets:
    """The epsilons of privacy groups, and how they are used.

    Args:
        epsilons: The epsilon of each group, in rising order. All of them are public.
        shares: About which share of the units is in each group. It decides how many teachers a group gets, so
            it must be public: rounded, or known from elsewhere.
        delta: The delta of all guarantees.
        method: Weighting, upsampling or vanishing; also as text.

    Raises:
        InvalidParameterError: If a parameter is out of range, or the lists do not match.

    >>> budgets = IndividualBudgets(epsilons=(1.0, 2.0, 3.0), shares=(0.34, 0.43, 0.23), delta=1e-5)
    >>> budgets.teachers(250)
    (85, 107, 58)
    >>> [round(float(w), 2) for w in budgets.weights(250)]
    [0.57, 1.06, 1.52]
    """

    epsilons: Sequence[float]
    shares: Sequence[float]
    delta: float
    method: Individualization | str = Individualization.WEIGHTING

    def __post_init__(self) -> None:
        epsilons, shares = tuple(map(float, self.epsilons)), tuple(map(float, self.shares))
        if len(epsilons) != len(shares) or len(epsilons) < 2:
            raise InvalidParameterError(
                "epsilons and shares must have one entry for each of two or more groups."
            )
        for epsilon, share in zip(epsilons, shares, strict=True):
            _check.positive(epsilon=epsilon, share=share)
        if list(epsilons) != sorted(set(epsilons)):
            raise InvalidParameterError("epsilons must rise from group to group, the strictest group first.")
        _check.delta(delta=self.delta)
        names = [each.value for each in Individualization]
        if not isinstance(self.method, Individualization) and self.method not in names:
            raise InvalidParameterError(f"unknown method {self.method!r}. Use one of: {', '.join(names)}.")
        object.__setattr__(self, "epsilons", epsilons)
        object.__setattr__(self, "shares", shares)
        object.__setattr__(self, "method", Individualization(self.method))

    def teachers(self, count: int) -> tuple[int, ...]:
        """Return how many teachers each group has; one number, if all groups share them.

        Args:
            count: The number of teachers.

        Returns:
            The number for each group, at least 1.

        Raises:
            InvalidParameterError: If there are fewer teachers than groups.
        """
        _check.count(count=count)
        if self.method is Individualization.UPSAMPLING:
            return (count,)
        if count < len(self.shares):
            raise InvalidParameterError(
                f"{count} teachers cannot be divided among {len(self.shares)} groups."
            )
        ends = np.cumsum(self.shares) / math.fsum(self.shares) * (count - len(self.shares))
        cuts = np.round(ends).astype(int)
        return tuple(int(n) + 1 for n in np.diff(cuts, prepend=0))

    def copies(self) -> tuple[int, ...]:
        """Return how many teachers learn from a unit of each group.

        The noise that an epsilon needs is taken to the nearest whole ratio, as 1 : 2 : 3.

        Returns:
            The number for each group: 1, unless units are upsampled.
        """
        if self.method is not Individualization.UPSAMPLING:
            return (1,) * len(self.epsilons)
        least = self._strength(self.epsilons[0])
        return tuple(min(_MOST_COPIES, round(self._strength(each) / least)) for each in self.epsilons)

    def weights(self, count: int) -> npt.NDArray[np.float64]:
        """Return the weight of the vote of a teacher of each group.

        Args:
            count: The number of teachers.

        Returns:
            The weights: 1, unless votes are weighted. All weights together are the number of teachers.
        """
        if self.method is not Individualization.WEIGHTING:
            return np.ones(len(self.epsilons))
        strength = np.array([self._strength(epsilon) for epsilon in self.epsilons])
        return strength * count / float(np.dot(strength, self.teachers(count)))

    def attendance(self, queries: int) -> tuple[int, ...]:
        """Return on how many of the queries the teachers of each group vote.

        Args:
            queries: The number of queries.

        Returns:
            The number for each group: all, unless strict groups vanish.
        """
        if self.method is not Individualization.VANISHING:
            return (queries,) * len(self.epsilons)
        squares = [(self._strength(e) / self._strength(self.epsilons[-1])) ** 2 for e in self.epsilons]
        return tuple(min(queries, math.floor(queries * square * (1 + 1e-12))) for square in squares)

    def events(self, aggregator: Aggregator, *, queries: int, teachers: int) -> tuple[DpEvent | None, ...]:
        """Return the event of a labeling job for each group; None if its teachers never vote.

        Args:
            aggregator: The aggregator.
            queries: The number of queries.
            teachers: The number of teachers.

        Returns:
            The events.
        """
        reach = self.weights(teachers) * np.array(self.copies())
        return tuple(
            aggregator.event(attended, weight=float(moved)) if attended else None
            for moved, attended in zip(reach, self.attendance(queries), strict=True)
        )

    def ballots(self, queries: int, teachers: int) -> npt.NDArray[np.float64]:
        """Return the weight of each teacher's vote on each query, [teachers, queries].

        A group that does not vote on all queries leaves out the last ones. The order of queries does not
        depend on private data, so it is public which ones these are.

        Args:
            queries: The number of queries.
            teachers: The number of teachers.

        Returns:
            The weights.
        """
        if self.method is Individualization.UPSAMPLING:
            return np.ones((teachers, queries))
        groups = np.repeat(np.arange(len(self.epsilons)), self.teachers(teachers))
        voting = np.arange(queries)[None, :] < np.array(self.attendance(queries))[groups][:, None]
        return voting * self.weights(teachers)[groups][:, None]

    def _strength(self, epsilon: float) -> float:
        """Return how much noise of fixed size may be divided by: 1 over the noise that epsilon needs."""
        return 1 / stddev_for(epsilon, self.delta, 1.0)
