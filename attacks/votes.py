# SPDX-License-Identifier: Apache-2.0
"""The cases of teachers' votes: every aggregator at several leads, and whole jobs that test agreement.

Neighbors  One teacher moves its vote from the leading class to the next one. The lead of a pair goes from
           above a margin to below it, so a shortcut at any lead up to the largest is crossed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attacks.releases import DELTA, Case
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.accounting.price import price
from sfumato.audit.mechanisms.mechanism_attack import Vectorized
from sfumato.mechanisms.random import Generator
from sfumato.pate import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, StableLabeling

__all__ = ["AGGREGATORS", "vote_cases"]

LEADS = (0, 2, 4, 6, 8, 10, 12)
_CLASSES, _STUDENT = 3, np.array([0.9, 0.05, 0.05])

# Noise for an epsilon of about 1 at delta 0.01; thresholds near the counts, where comparisons are in doubt.
AGGREGATORS: tuple[Any, ...] = (
    LNMax(scale=2.0),
    GNMax(stddev=2.8),
    ConfidentGNMax(threshold=12.0, threshold_stddev=3.0, stddev=4.0),
    InteractiveGNMax(threshold=3.0, threshold_stddev=3.0, stddev=4.0, confidence=0.8),
)


@dataclass(frozen=True, slots=True)
class _Answers:
    """Many independent answers to one query."""

    aggregator: Any

    def __call__(self, votes: Any, count: int, generator: Generator) -> Any:
        counts = np.tile(votes, (count, 1))
        if isinstance(self.aggregator, InteractiveGNMax):
            student = np.tile(_STUDENT, (count, 1))
            return self.aggregator.answer(counts, student, teachers=float(sum(votes)), generator=generator)
        return self.aggregator.answer(counts, generator=generator)


def vote_cases() -> tuple[Case, ...]:
    """Return the cases of aggregators and of jobs.

    Returns:
        The cases.

    >>> [case.subject for case in vote_cases()][:2]
    ['LNMax, ahead by 0', 'LNMax, ahead by 2']
    """
    return (*_aggregators(), *_jobs())


def _aggregators() -> Iterator[Case]:
    for aggregator in AGGREGATORS:
        for lead in LEADS:
            first = [8.0 + lead, 8.0, 0.0]
            second = [first[0] - 1, first[1] + 1, 0.0]
            yield Case(
                subject=f"{type(aggregator).__name__}, ahead by {lead}",
                audits=type(aggregator).__name__,
                run=Vectorized(_Answers(aggregator)),
                first=first,
                second=second,
                claim=_claim(price(aggregator.event(1), delta=DELTA).epsilon),
            )


def _claim(epsilon: float) -> Guarantee:
    return Guarantee(epsilon=epsilon, delta=DELTA, relation=Relation.ADD_REMOVE, privacy_unit="unit")


def _jobs() -> Iterator[Case]:
    """Yield jobs on two queries whose votes are safe, in doubt or not safe."""
    job = StableLabeling(
        aggregator=GNMax(stddev=3.0),
        queries=4,
        teachers=20,
        epsilon=2.0,
        delta=DELTA,
        order=4.0,
        test_stddev=1.5,
        test_delta=DELTA / 2,
    )

    def run(votes: Any, generator: Generator) -> object:
        return tuple(job.answer(np.tile(votes, (4, 1)), generator=generator).tolist())

    for top in (12, 14, 16, 18, 19, 20):
        yield Case(
            subject=f"StableLabeling, {top} of 20 agree",
            audits="StableLabeling",
            run=run,
            first=[float(top), 20.0 - top],
            second=[top - 1.0, 21.0 - top],
            claim=_claim(job.epsilon),
            share=0.5,
        )
