# SPDX-License-Identifier: Apache-2.0
"""Range queries: a histogram of bins and of blocks of bins, from which every range is answered consistently.

Guarantee  All counts of bins and blocks get noise as one vector. A unit of k rows moves it by at most 2 k in
           L1 norm and sqrt(2) k in L2 norm (`bin_blocks`). Everything else is computed from the noisy counts.
Neighbors  Replacing a unit doubles the L1 norm, and multiplies the L2 norm by sqrt(2) (`noise`).
Edge cases Those of `bin_blocks`.
Not here   Ranges of groups: `group_ranges`.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator
from sfumato.queries.bin_blocks import BinBlocks, RangeCounts
from sfumato.queries.counts import Cell
from sfumato.statistics.columns.columns import Bounds, Column, column_of
from sfumato.statistics.noise import Kind, WholeNoise, l2_of_counts
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.release import Parts, Release
from sfumato.statistics.terms import Terms

__all__ = ["RangeRelease", "Ranges", "ranges"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranges(Terms):
    """The counts of even bins over bounds, measured for ranges of any length."""

    bounds: Bounds
    bins: int = 1024

    def __post_init__(self) -> None:
        Terms.__post_init__(self)
        BinBlocks(bounds=self.bounds, bins=self.bins)  # refuses what does not fit
        if self.relation not in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
            raise InvalidParameterError(
                f"ranges support add-remove and replace-one neighbors, not {self.relation.value}."
            )

    @property
    def name(self) -> str:
        """What is asked."""
        return f"ranges of {self.column}"

    @property
    def blocks(self) -> BinBlocks:
        """The bins, in blocks."""
        return BinBlocks(bounds=self.bounds, bins=self.bins)

    def noise(self) -> WholeNoise:
        """Return the noise for the counts of bins and of blocks, as one vector."""
        rows, diameter = self.contribution_bound, self.relation.diameter
        return WholeNoise(
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            kind=Kind.COUNTS,
            l1_sensitivity=2 * rows * diameter,
            l2_sensitivity=math.sqrt(2) * l2_of_counts(rows, self.relation),
            coordinates=min(self.blocks.size, 2 * rows * diameter),
        )

    def event(self) -> DpEvent:
        """Return the event that a release is charged with."""
        return self.noise().event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[tuple[float, ...]]:
        """Return consistent counts of the bins."""
        blocks = self.blocks
        exact = blocks.measured(data.histogram(blocks.edges))
        found = blocks.consistent(self.noise().add(exact, generator=generator))
        edges = blocks.edges.tolist()
        labels = {"from": tuple(edges[:-1]), "to": tuple(edges[1:])}
        return Answer(value=tuple(found.tolist()), parts=Parts(labels=labels, numbers=tuple(found.tolist())))


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeRelease:
    """Released counts of bins, from which any range is answered at no further cost.

    Attributes:
        release: The release of the bins, with its guarantee and its exports.
        question: What was asked.
    """

    release: Release[tuple[float, ...]] = field(repr=False)
    question: Ranges = field(repr=False)

    @property
    def guarantee(self) -> Guarantee:
        """Epsilon, delta, relation and privacy unit of all ranges together."""
        return self.release.guarantee

    @property
    def counts(self) -> RangeCounts:
        """The counts of bins, which answer the ranges."""
        return RangeCounts(
            counts=self.release.value,
            blocks=self.question.blocks,
            law=self.question.noise().law,
            level=self.question.level,
        )

    def between(self, lower: float, upper: float) -> Cell:
        """Return the number of rows with a value from `lower` to `upper`, with its interval.

        Args:
            lower: The lower end; it is moved to the nearest edge of a bin.
            upper: The upper end, likewise.

        Returns:
            The number and its interval.

        Raises:
            InvalidParameterError: If the ends are not numbers in order.
        """
        return self.counts.between(lower, upper)

    def cdf(self, value: float) -> float:
        """Return the share of rows below a value, between 0 and 1; it never falls as the value rises.

        Args:
            value: The value; it is moved to the nearest edge of a bin.

        Returns:
            The share; 0 if the noisy number of rows is not positive.
        """
        return self.counts.cdf(value)


def ranges(
    values: Any,
    *,
    bounds: Bounds,
    bins: int = 1024,
    epsilon: float,
    delta: float = 0.0,
    relation: Relation | str = Relation.ADD_REMOVE,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> RangeRelease:
    """Release counts from which every range of values is answered, and the distribution function.

    Args:
        values: Numbers in a list, array or series, or a column of a private table.
        bounds: Lower and upper bound, public. Values outside count in the first and the last bin.
        bins: The number of even bins.
        epsilon: The privacy budget of all ranges together.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors.
        level: The confidence level of the intervals.
        account: The account to charge before any data is read.
        purpose: The purpose that the account records.
        generator: The source of randomness. None means secure randomness from the operating system.

    Returns:
        The release.

    Raises:
        InvalidParameterError: If a parameter is out of range. Nothing is charged.
        BudgetExceededError: If the account has too little budget left. Nothing is computed.

    >>> ages = ranges([20.0] * 500 + [60.0] * 500, bounds=(0, 100), bins=100, epsilon=2.0)
    >>> 400 < ages.between(50, 70).value < 600, ages.cdf(100)
    (True, 1.0)
    """
    column = column_of(values)
    question = Ranges(
        bounds=bounds,
        bins=bins,
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=column.contribution_bound,
        level=level,
        column=column.name,
    )
    found = Query(question, column).release(account=account, purpose=purpose, generator=generator)
    return RangeRelease(release=found, question=question)
