# SPDX-License-Identifier: Apache-2.0
"""Many answers where teachers agree, with a guarantee that does not depend on the votes.

If most teachers agree, answers cost much less than their noise alone suggests (`accounting.votes`). But that
price depends on private votes: to publish it would leak, and a ledger cannot charge what it learns only
afterwards. Here the budget is proposed first, and charged. Then a test decides, with noise, whether the votes
are far enough from any votes that would exceed it: how many teachers would have to vote otherwise? If the
test passes, all `queries` are answered; if it fails, the first `fallback` ones, which the budget covers
whatever the votes are.

Guarantee  The job is (epsilon, delta)-DP. Let a be the order, r the divergence of order a that converts to
           (epsilon, delta - test_delta), and t = a / (2 test_stddev^2) the cost of the test, whose statistic
           moves by at most 1 (`accounting.votes.distance`). Votes are safe if all answers cost at most r - t;
           the fallback costs no more than that for all votes. If the votes are safe, test and answers
           together have divergence at most r from any neighbor's. If they are not, the statistic is 0, and
           the test passes with a probability of at most test_delta; otherwise the test and the fallback were
           run, of divergence at most r.
Neighbors  Units that are in one teacher each, added or removed, or zeroed out.
Failure    A failed test is a result, not an error: it is charged, and the fallback is answered.
Source     Dwork and Lei 2009 (propose, test, release); Redberg, Zhu and Wang 2023, arXiv:2301.00301. Papernot
           et al. 2018 add noise to the price itself, by its smooth sensitivity; why not here:
           docs/decisions/0011-a-test-for-agreement.md.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from sfumato import _check
from sfumato.accounting import rdp, votes
from sfumato.accounting.events import ApproximateDpEvent, DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.accounting.rdp import RdpCurve
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.additive import Gaussian
from sfumato.mechanisms.random import Generator
from sfumato.pate.votes.aggregators import NO_ANSWER, Answers, ConfidentGNMax, Counts, GNMax

__all__ = ["StableLabeling"]

_CAREFUL = 1 + 1e-9  # of the limit of the test, whose quantile is rounded


def require_testable(aggregator: object, relation: Relation) -> None:
    """Raise if agreement cannot be tested for an aggregator or for these neighbors."""
    if relation not in (Relation.ADD_REMOVE, Relation.ZERO_OUT):
        raise InvalidParameterError(
            "agreement is tested for units that are added, removed or zeroed out: a replaced unit may "
            "change two teachers. Use a data-independent job."
        )
    if not isinstance(aggregator, GNMax | ConfidentGNMax):
        raise InvalidParameterError("agreement is tested for GNMax and ConfidentGNMax alone.")
    if getattr(aggregator, "max_answers", None) is not None:
        raise InvalidParameterError("leave max_answers out: the test decides how much is answered.")


@dataclass(frozen=True, kw_only=True, slots=True)
class StableLabeling:
    """A labeling job that answers more queries if teachers agree.

    Args:
        aggregator: `GNMax` or `ConfidentGNMax`, without `max_answers`.
        queries: How many queries are answered if the test passes.
        teachers: How many teachers vote.
        epsilon: The epsilon of the whole job.
        delta: The delta of the whole job.
        order: The Renyi order at which the job is counted, above 1.
        test_stddev: The standard deviation of the noise in the test. A small one costs more; a large one
            needs votes that are farther from the limit.
        test_delta: The chance that the test passes although it must not. It is part of `delta`.
        relation: Which data sets are neighbors: add-remove or zero-out.

    Raises:
        InvalidParameterError: If a parameter is out of range, or the budget does not cover the test.

    >>> job = StableLabeling(aggregator=GNMax(stddev=30.0), queries=500, teachers=250, epsilon=2.0,
    ...                      delta=1e-5, order=16.0, test_stddev=4.0, test_delta=1e-6)
    >>> job.event(), job.fallback
    (ApproximateDpEvent(epsilon=2.0, delta=1e-05), 54)
    >>> answers = job.answer(np.array([[250.0, 0.0, 0.0]] * 500))
    >>> int((answers == 0).sum())
    500
    """

    aggregator: GNMax | ConfidentGNMax
    queries: int
    teachers: int
    epsilon: float
    delta: float
    order: float
    test_stddev: float
    test_delta: float
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        _check.count(queries=self.queries, teachers=self.teachers)
        _check.positive(epsilon=self.epsilon, test_stddev=self.test_stddev)
        _check.delta(delta=self.delta)
        _check.probability(test_delta=self.test_delta)
        require_testable(self.aggregator, self.relation)
        if not self.test_delta < self.delta:
            raise InvalidParameterError("test_delta is a part of delta, and must be smaller.")
        if not self.room > 0:
            raise InvalidParameterError(
                f"epsilon={self.epsilon:g} does not cover the test of agreement, whose noise is "
                f"{self.test_stddev:g}. Use a larger epsilon, or more noise in the test."
            )

    @property
    def room(self) -> float:
        """The divergence that is left for answers when the test is paid for."""
        whole = rdp.largest_rdp(epsilon=self.epsilon, delta=self.delta - self.test_delta, order=self.order)
        return whole - self.order / (2 * self.test_stddev**2) * _CAREFUL

    @property
    def limit(self) -> float:
        """The noisy distance from which the test passes."""
        return -float(ndtri(self.test_delta)) * self.test_stddev * _CAREFUL

    @property
    def fallback(self) -> int:
        """How many queries are answered if the test fails, whatever the votes are. It may be 0."""
        once = rdp.curve(self.aggregator.event(1), self.relation, np.array([self.order]))
        return min(self.queries, math.floor(self.room / float(once.values[0]) / _CAREFUL))

    def event(self) -> DpEvent:
        """Return the event of the job, which accountants price.

        Returns:
            The event.
        """
        return ApproximateDpEvent(self.epsilon, self.delta)

    @property
    def groups(self) -> tuple[int, ...]:
        """How many teachers there are, as the one group that they are."""
        return (self.teachers,)

    def guarantee(self, privacy_unit: str = "example") -> Guarantee:
        """Return the guarantee of the job.

        Args:
            privacy_unit: Who is protected.

        Returns:
            The guarantee.
        """
        return Guarantee(
            epsilon=self.epsilon, delta=self.delta, relation=self.relation, privacy_unit=privacy_unit
        )

    def guarantees(self, privacy_unit: str = "example") -> tuple[Guarantee, ...]:
        """Return the guarantee, as that of the one group.

        Args:
            privacy_unit: Who is protected.

        Returns:
            The guarantee.
        """
        return (self.guarantee(privacy_unit),)

    def events(self) -> tuple[DpEvent, ...]:
        """Return the event, as that of the one group.

        Returns:
            The event.
        """
        return (self.event(),)

    def ballots(self) -> None:
        """Return None: every vote counts once."""
        return None

    def passes(self, counts: Counts, *, generator: Generator | None = None) -> bool:
        """Test, with noise, whether the votes agree enough. The result is charged with the job.

        Args:
            counts: The votes for each class, [queries, classes], whole numbers. They are private.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            Whether all queries may be answered.
        """
        most = math.ceil(2 * self.limit) + 1  # the test hardly ever fails beyond it
        found = votes.distance(
            counts[: self.queries],
            self.aggregator.votes,
            safe=self._is_safe,
            most=most,
            orders=np.array([self.order]),
        )
        noisy = Gaussian(stddev=self.test_stddev, sensitivity=1.0, relation=self.relation)
        return noisy.release(float(found), generator=generator) >= self.limit

    def _is_safe(self, curve: RdpCurve) -> bool:
        return float(curve.values[0]) <= self.room

    def answer(self, counts: Counts, *, generator: Generator | None = None) -> Answers:
        """Test the votes, and answer all queries or the first few.

        Args:
            counts: The votes for each class, [queries, classes], whole numbers. They are private.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The class of each query, or `NO_ANSWER`.

        Raises:
            InvalidParameterError: If there are not `queries` rows, or the counts are no whole numbers.
        """
        known = np.asarray(counts, dtype=np.float64)
        if known.ndim != 2 or len(known) != self.queries:
            raise InvalidParameterError(f"counts must have one row for each of {self.queries} queries.")
        answered = self.queries if self.passes(known, generator=generator) else self.fallback
        answers = np.full(self.queries, NO_ANSWER, dtype=np.int64)
        if answered:
            answers[:answered] = self.aggregator.answer(known[:answered], generator=generator)
        return answers
