# SPDX-License-Identifier: Apache-2.0
"""Ranges of groups: in each group the counts of bins and of blocks of bins, all with noise as one vector.

Guarantee  A unit has at most r rows in each of at most g groups (`spending.Reach`), and a row is in one bin
           and one block of one group. The counts of bins of all groups together move by at most r g in L1
           norm and r sqrt(g) in L2 norm, as other counts of groups do; so do those of blocks. So the vector
           of both moves by twice the first and by sqrt(2) times the second, whatever the number of groups.
           Keys are public: every group has counts, also one without rows.
Neighbors  Replacing a unit doubles the L1 norm, and multiplies the L2 norm by sqrt(2) (`Reach`).
Edge cases Those of `bin_blocks`, in each group. A row whose value is missing is in no bin, and may take the
           place of another row of its unit, as in a workload.
Failure    Everything but the counts is decided from parameters and the schema, before anything is charged.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms import inputs
from sfumato.mechanisms.random import Generator
from sfumato.queries.bin_blocks import BinBlocks, RangeCounts
from sfumato.queries.spending import Reach
from sfumato.queries.totals import Bins
from sfumato.queries.workload import Source
from sfumato.statistics.noise import Kind, WholeNoise
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.release import Parts, Release, key_labels

__all__ = ["GroupRangeRelease", "GroupRanges", "released"]

_MOST_COUNTS = 2**20  # of bins and blocks, in all groups


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRanges:
    """The counts of even bins over bounds in each group, measured for ranges of any length."""

    column: str
    blocks: BinBlocks
    columns: tuple[str, ...]
    reach: Reach
    contribution_bound: int
    epsilon: float
    delta: float = 0.0
    level: float = 0.95

    def __post_init__(self) -> None:
        _check.text(column=self.column)
        _check.positive(epsilon=self.epsilon)
        if self.delta != 0:
            _check.delta(delta=self.delta)
        inputs.settle(self, "epsilon", "delta")
        _check.probability(level=self.level)

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbors."""
        return self.reach.relation

    @property
    def name(self) -> str:
        """What is asked."""
        return f"ranges of {self.column} by {', '.join(self.columns)}"

    @property
    def wanted(self) -> Bins:
        """The histogram that is needed of each group."""
        return Bins(self.column, self.blocks.bounds, self.blocks.bins, at_edges=True)

    def noise(self) -> WholeNoise:
        """Return the noise for the counts of all groups, as one vector."""
        return WholeNoise(
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            kind=Kind.COUNTS,
            l1_sensitivity=2 * self.reach.l1,
            l2_sensitivity=math.sqrt(2) * self.reach.l2_of_counts,
            coordinates=2 * self.reach.l1,
        )

    def event(self) -> DpEvent:
        """Return the event that a release is charged with."""
        return self.noise().event()

    def answer(self, data: Source, *, generator: Generator | None) -> Answer[dict[Any, tuple[float, ...]]]:
        """Return consistent counts of the bins of each group."""
        keys = data.keys or ()
        found = data.grouped().compute([], [self.wanted]).bins[self.wanted]
        exact = [self.blocks.measured(group.histogram(self.blocks.edges)) for group in found]
        noisy = self.noise().add(np.concatenate(exact), generator=generator)
        parts = [self.blocks.consistent(part).tolist() for part in np.split(noisy, len(keys))]
        plain = [key[0] if len(self.columns) == 1 else key for key in keys]
        return Answer(
            value={key: tuple(part) for key, part in zip(plain, parts, strict=True)},
            parts=self._parts(keys, parts),
        )

    def plan(self, data: Source) -> str:
        """Return the SQL that the engine would run."""
        return data.grouped().plan([], [self.wanted])

    def _parts(self, keys: tuple[tuple[Any, ...], ...], counts: list[list[float]]) -> Parts:
        edges, bins = self.blocks.edges.tolist(), self.blocks.bins
        labels = key_labels(self.columns, [key for key in keys for _ in range(bins)])
        labels |= {"from": tuple(edges[:-1] * len(keys)), "to": tuple(edges[1:] * len(keys))}
        return Parts(labels=labels, numbers=tuple(number for part in counts for number in part))


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRangeRelease:
    """Released counts of bins of groups, from which any range of any group is answered at no further cost.

    Attributes:
        release: The release of the bins, with its guarantee and its exports.
        question: What was asked.
    """

    release: Release[dict[Any, tuple[float, ...]]] = field(repr=False)
    question: GroupRanges = field(repr=False)

    @property
    def guarantee(self) -> Guarantee:
        """Epsilon, delta, relation and privacy unit of all ranges of all groups together."""
        return self.release.guarantee

    @property
    def keys(self) -> list[Any]:
        """The key of each group: a value, or a tuple if there are several columns."""
        return list(self.release.value)

    def __getitem__(self, key: Any) -> RangeCounts:
        """Return the counts of one group, which answer its ranges.

        Args:
            key: The key of the group.

        Returns:
            The counts of its bins.

        Raises:
            InvalidParameterError: If there is no such key.
        """
        if key not in self.release.value:
            raise InvalidParameterError(f"there is no group {key!r}. Take one of `keys`.")
        return RangeCounts(
            counts=self.release.value[key],
            blocks=self.question.blocks,
            law=self.question.noise().law,
            level=self.question.level,
        )


def released(
    question: GroupRanges,
    source: Source,
    *,
    account: Account | None,
    purpose: str | None,
    generator: Generator | None,
) -> GroupRangeRelease:
    """Charge and release ranges of groups.

    Args:
        question: What is asked.
        source: The rows, with public keys.
        account: The account to charge before any data is read.
        purpose: The purpose that the account records.
        generator: The source of randomness. None means secure randomness from the operating system.

    Returns:
        The release.

    Raises:
        InvalidParameterError: If keys are not public or too many, or the column does not fit. Nothing is
            charged.
        BudgetExceededError: If the account has too little budget left. Nothing is computed.
    """
    if not source.keys:
        raise InvalidParameterError(
            "ranges of groups need public keys: name one or more in group_by(..., keys=[...]), or find them "
            "before by keys(...). Ranges of all rows are asked without group_by."
        )
    if len(source.keys) * question.blocks.size > _MOST_COUNTS:
        raise InvalidParameterError(
            f"{len(source.keys)} groups of {question.blocks.bins} bins are more than the {_MOST_COUNTS} "
            "counts of one release. Pass fewer bins or keys."
        )
    source.grouped().require_computable([], [question.wanted])
    found = Query(question, source).release(account=account, purpose=purpose, generator=generator)
    return GroupRangeRelease(release=found, question=question)
