# SPDX-License-Identifier: Apache-2.0
"""A labeling job whose price does not depend on the votes: one release, for all groups of units.

Guarantee  The answers have the price of `event` for every unit, and that of `events` for the units of each
           privacy group. Both are fixed before a vote is counted.
Neighbors  As `relation` states. With individual budgets add-remove or zero-out: a replaced unit may be in
           another group than the one that takes its place, and would move the votes of both groups.
Not here   Jobs that answer more if teachers agree (`stability`), and how teachers are trained (`teachers`).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.calibrate import calibrate_count
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.accounting.price import price
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import CalibrationError, InvalidParameterError
from sfumato.mechanisms.random import Generator
from sfumato.pate.votes.aggregators import Aggregator, Answers, Counts
from sfumato.pate.votes.individual import IndividualBudgets

__all__ = ["Labeling", "affordable_queries"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Labeling:
    """The answers of so many teachers to so many queries.

    Args:
        aggregator: How votes become answers.
        queries: How many queries are asked.
        teachers: How many teachers vote.
        delta: The delta of the guarantee.
        individual: The epsilons of privacy groups. None: one budget for all units.
        relation: Which data sets are neighbors. With `individual`: add-remove or zero-out.

    Raises:
        InvalidParameterError: If a parameter is out of range, or units with individual budgets are replaced.

    >>> from sfumato.pate.votes.aggregators import GNMax
    >>> job = Labeling(aggregator=GNMax(stddev=40.0), queries=100, teachers=250, delta=1e-5)
    >>> print(job.guarantee("patient"))
    (1.357, 1e-05)-differential privacy for one patient, add-remove neighbors
    """

    aggregator: Aggregator
    queries: int
    teachers: int
    delta: float
    individual: IndividualBudgets | None = None
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        _check.count(queries=self.queries, teachers=self.teachers)
        _check.delta(delta=self.delta)
        object.__setattr__(self, "relation", Relation.parse(self.relation))
        if self.individual is not None and self.individual.delta != self.delta:
            raise InvalidParameterError("all groups have one delta: pass the same to both.")
        if self.individual is not None:
            require_fixed_groups(self.relation)

    @property
    def groups(self) -> tuple[int, ...]:
        """How many teachers each group has; one number if there is one group, or groups share teachers."""
        return (self.teachers,) if self.individual is None else self.individual.teachers(self.teachers)

    def events(self) -> tuple[DpEvent, ...]:
        """Return the event of the job for the units of each group.

        Returns:
            The events: one, if there are no groups.
        """
        if self.individual is None:
            return (self.aggregator.event(self.queries),)
        found = self.individual.events(self.aggregator, queries=self.queries, teachers=self.teachers)
        return tuple(dp.NoOpDpEvent() if event is None else event for event in found)

    def event(self) -> DpEvent:
        """Return the event for those units that the job reveals most about; it holds for all.

        Returns:
            The event.
        """
        return max(self.events(), key=self._epsilon)

    def _epsilon(self, event: DpEvent) -> float:
        if isinstance(event, dp.NoOpDpEvent):
            return 0.0
        return price(event, delta=self.delta, relation=self.relation).epsilon

    def guarantee(self, privacy_unit: str = "example") -> Guarantee:
        """Return the guarantee of the job, which holds for all units.

        Args:
            privacy_unit: Who is protected.

        Returns:
            The guarantee.
        """
        return self._guarantee(self.event(), privacy_unit)

    def guarantees(self, privacy_unit: str = "example") -> tuple[Guarantee, ...]:
        """Return the guarantee of each group.

        Args:
            privacy_unit: Who is protected.

        Returns:
            One guarantee for each group, in the order of their epsilons.
        """
        return tuple(self._guarantee(event, privacy_unit) for event in self.events())

    def _guarantee(self, event: DpEvent, unit: str) -> Guarantee:
        return Guarantee(
            epsilon=self._epsilon(event), delta=self.delta, relation=self.relation, privacy_unit=unit
        )

    def ballots(self) -> npt.NDArray[np.float64] | None:
        """Return the weight of each teacher on each query, or None if every vote counts once.

        Returns:
            The weights, [teachers, queries].
        """
        return None if self.individual is None else self.individual.ballots(self.queries, self.teachers)

    def answer(self, counts: Counts, *, generator: Generator | None = None) -> Answers:
        """Answer all queries.

        Args:
            counts: The votes for each class, [queries, classes]. They are private.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The class of each query, or `NO_ANSWER`.

        Raises:
            InvalidParameterError: If there is not one row for each query.
        """
        if len(counts) != self.queries:
            raise InvalidParameterError(f"counts must have one row for each of {self.queries} queries.")
        return self.aggregator.answer(counts, generator=generator)


def require_fixed_groups(relation: Relation) -> None:
    """Raise if neighbors may differ in the group of a unit: the guarantee of a group would not hold."""
    if relation is Relation.REPLACE_ONE:
        raise InvalidParameterError(
            "individual budgets are for units that are added, removed or zeroed out: a replaced unit may be "
            "in another group, whose votes then move too. Use relation='add-remove' (an account has its own "
            "relation: open one with that), or one epsilon for all."
        )


def affordable_queries(
    aggregator: Aggregator,
    *,
    epsilon: float,
    delta: float,
    teachers: int,
    individual: IndividualBudgets | None = None,
    relation: Relation = Relation.ADD_REMOVE,
    given: DpEvent | None = None,
) -> int:
    """Return how many queries a budget covers, whatever the votes are.

    Args:
        aggregator: How votes become answers.
        epsilon: The budget of the job; with `individual`, each group has its own instead.
        delta: The delta of the guarantee.
        teachers: How many teachers vote.
        individual: The epsilons of privacy groups.
        relation: Which data sets are neighbors.
        given: What else the budget pays for. None for nothing.

    Returns:
        The number of queries.

    Raises:
        InvalidParameterError: If the budget does not cover a single query, or units with individual budgets
            are replaced.

    >>> from sfumato.pate.votes.aggregators import GNMax
    >>> affordable_queries(GNMax(stddev=40.0), epsilon=2.0, delta=1e-5, teachers=250)
    201
    """
    budgets = (epsilon,) if individual is None else tuple(individual.epsilons)
    relation = Relation.parse(relation)
    if individual is not None:
        require_fixed_groups(relation)

    def covered(place: int) -> int:
        def event(queries: int) -> DpEvent:
            if individual is None:
                return aggregator.event(queries)
            return (
                individual.events(aggregator, queries=queries, teachers=teachers)[place] or dp.NoOpDpEvent()
            )

        return calibrate_count(event, epsilon=budgets[place], delta=delta, relation=relation, given=given)

    try:
        return min(covered(place) for place in range(len(budgets)))
    except CalibrationError:
        raise InvalidParameterError(
            f"epsilon={min(budgets):g} at delta={delta:g} does not cover one query of {aggregator.name}. Use "
            "more noise or a larger epsilon. With more teachers answers are right in spite of more noise."
        ) from None
