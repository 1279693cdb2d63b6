# SPDX-License-Identifier: Apache-2.0
"""Bugs of teachers and their votes: shared noise, teachers who share people, prices that depend on votes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from attacks.catalogue import _attacked
from attacks.votes import vote_cases
from sfumato.accounting.votes import distance
from sfumato.audit.mechanisms.mechanism_attack import audit_mechanism
from sfumato.audit.mechanisms.sensitivity_check import check_sensitivity
from sfumato.audit.mechanisms.vote_canaries import VoteCanaries
from sfumato.mechanisms import arrays
from sfumato.pate import (
    ConfidentGNMax,
    GNMax,
    IndividualBudgets,
    Labeling,
    Partition,
    StableLabeling,
    train_teachers,
)
from sfumato.pate.teaching import teachers
from sfumato.pate.votes import aggregators
from sfumato.pate.votes.aggregators import NO_ANSWER, noisy_counts
from sfumato.testing import seeded

from .catalogue import CONFIDENCE, Planted, leaks

__all__ = ["BUGS"]

CASES = {case.subject: case for case in vote_cases()}
TEACHERS, QUERIES, ROWS = 8, 5, 80


def attacked(*subjects: str, trials: int = 4000) -> Callable[[int], bool]:
    """Return an audit of cases of `make audit`."""

    def audit(seed: int) -> bool:
        found = (_attacked(CASES[name], trials, CONFIDENCE, seeded(seed)) for name in subjects)
        return any(result.refuted for result in found)

    return audit


# --- noise ------------------------------------------------------------------------------------------------


def share_the_noise_of_the_comparison(patch: pytest.MonkeyPatch) -> None:
    """Draw one noise for a query, compare with it, and add it to all counts: the answer has none."""

    def answer(self, counts, *, generator=None):
        noise = arrays.gaussian(len(counts), stddev=self.threshold_stddev, generator=generator)
        above = counts.max(axis=1) + noise >= self.threshold
        return np.where(above, (counts + noise[:, None]).argmax(axis=1), NO_ANSWER)

    patch.setattr(ConfidentGNMax, "answer", answer)


def compare_without_noise(patch: pytest.MonkeyPatch) -> None:
    def above(rule, values, generator):
        found = values >= rule.threshold
        return found & aggregators.before_the_end(found, rule.max_answers)

    patch.setattr(aggregators, "above_threshold", above)


def break_ties_by_index(patch: pytest.MonkeyPatch) -> None:
    original = GNMax.answer

    def answer(self, counts, *, generator=None):
        tied = np.sort(counts, axis=1)[:, -1] == np.sort(counts, axis=1)[:, -2]
        return np.where(tied, counts.argmax(axis=1), original(self, counts, generator=generator))

    patch.setattr(GNMax, "answer", answer)


def answer_clear_queries_without_noise(patch: pytest.MonkeyPatch) -> None:
    original = GNMax.answer

    def answer(self, counts, *, generator=None):
        first, second = np.sort(counts, axis=1)[:, [-1, -2]].T
        clear = first - second > 2 * self.stddev
        return np.where(clear, counts.argmax(axis=1), original(self, counts, generator=generator))

    patch.setattr(GNMax, "answer", answer)


def repeat_the_noise_of_the_first_query(patch: pytest.MonkeyPatch) -> None:
    def noisy(counts, *, stddev, generator=None):
        half = arrays.gaussian((counts.size + 1) // 2, stddev=stddev, generator=generator)
        return counts + np.concatenate([half, half])[: counts.size].reshape(counts.shape)

    patch.setattr(aggregators, "noisy_counts", noisy)


def canaries(seed: int) -> bool:
    job = Labeling(aggregator=GNMax(stddev=4.0), queries=30, teachers=30, delta=1e-5)
    return VoteCanaries(count=400, confidence=CONFIDENCE).attack(job, generator=seeded(seed)).refuted


# --- prices that depend on votes ------------------------------------------------------------------


def decide_without_noise(patch: pytest.MonkeyPatch) -> None:
    """Decide by the true distance from the budget: by what depends on the votes, and is published."""

    def passes(self, counts, *, generator=None):
        found = distance(
            counts, self.aggregator.votes, safe=self._is_safe, most=99, orders=np.array([self.order])
        )
        return found >= self.limit

    patch.setattr(StableLabeling, "passes", passes)


def in_doubt(seed: int) -> bool:
    """Attack a job whose votes are just far enough from the limit, and a neighbor whose are not."""
    job = StableLabeling(
        aggregator=GNMax(stddev=2.0),
        queries=2,
        teachers=60,
        epsilon=3.0,
        delta=0.01,
        order=3.0,
        test_stddev=1.5,
        test_delta=0.005,
    )

    def far(top: int) -> int:
        counts = np.tile([float(top), 60.0 - top], (2, 1))
        return distance(
            counts, job.aggregator.votes, safe=job._is_safe, most=99, orders=np.array([job.order])
        )

    edge = next(top for top in range(30, 60) if far(top) >= job.limit > far(top - 1))

    def run(top, generator):
        return tuple(job.answer(np.tile([float(top), 60.0 - top], (2, 1)), generator=generator).tolist())

    return audit_mechanism(
        run, edge, edge - 1, trials=600, confidence=CONFIDENCE, claim=job.guarantee(), generator=seeded(seed)
    ).refuted


def charge_all_groups_alike(patch: pytest.MonkeyPatch) -> None:
    """Price the votes of heavy teachers as if they weighed one."""
    patch.setattr(
        IndividualBudgets,
        "events",
        lambda self, aggregator, *, queries, teachers: (aggregator.event(queries),) * len(self.epsilons),
    )


def heavy_votes(seed: int) -> bool:
    """Attack the answer of two groups of teachers, where one of the heavy ones votes otherwise."""
    groups = IndividualBudgets(epsilons=(0.2, 4.0), shares=(0.9, 0.1), delta=0.01)
    job = Labeling(aggregator=GNMax(stddev=9.0), queries=1, teachers=20, delta=0.01, individual=groups)
    heavy = float(groups.weights(20)[-1])
    case = replace(
        CASES["GNMax, ahead by 0"],
        first=[10.0, 10.0, 0.0],
        second=[10.0 - heavy, 10.0 + heavy, 0.0],
        claim=job.guarantees()[-1],
    )
    run = replace(case.run, run_many=replace(case.run.run_many, aggregator=job.aggregator))
    return _attacked(replace(case, run=run), 4000, CONFIDENCE, seeded(seed)).refuted


# --- teachers ----------------------------------------------------------------------------------------


def people(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, labels and people; the last person has many rows, all of them unlike the others'."""
    rng = np.random.default_rng(seed)
    ordinary = rng.normal(size=(ROWS, 2)) + np.array([6.0, 6.0])
    loud = rng.normal(size=(ROWS, 2)) * 0.1
    rows = np.concatenate([ordinary, loud])
    return rows, np.repeat([0, 1], ROWS), np.concatenate([np.arange(ROWS), np.full(ROWS, ROWS)])


def one_person_more(seed: int) -> bool:
    """Compare noisy counts with and without a person: may they move by more than one vote a query?"""
    rows, labels, who = people(seed)
    queries = np.random.default_rng(seed + 1).normal(size=(QUERIES, 2)) * 0.1

    def release(kept, generator):
        partition = Partition(teachers=(TEACHERS,), key=bytes([seed % 256]) * 32)
        with train_teachers(
            KNeighborsClassifier(1),
            rows[kept],
            labels[kept],
            partition=partition,
            classes=2,
            units=who[kept],
            progress=False,
            rehearsal=queries,
        ) as ensemble:
            return noisy_counts(ensemble.counts(queries), stddev=1.0, generator=generator)

    everybody, others = np.arange(len(rows)), np.flatnonzero(who < ROWS)
    most = float(np.sqrt(2 * QUERIES))
    return leaks(
        lambda: check_sensitivity(release, everybody, others, sensitivity=most, generator=seeded(seed))
    )


def assign_rows_instead_of_units(patch: pytest.MonkeyPatch) -> None:
    original = Partition.assign

    def assign(self, units=None, *, rows=None, groups=None, copies=None):
        return original(self, rows=len(units), groups=groups, copies=copies)

    patch.setattr(Partition, "assign", assign)


def draw_the_partition_again(patch: pytest.MonkeyPatch) -> None:
    """Let every teacher have a part of a partition of its own, as if it was drawn anew each time."""
    original = teachers._parts

    def parts(assigned, numbers):
        rows = np.unique(assigned[0])
        for number in numbers:
            shuffled = np.random.default_rng(number).integers(0, TEACHERS, len(rows))
            yield from original(
                (rows[shuffled == number], np.full((shuffled == number).sum(), number)), [number]
            )

    patch.setattr(teachers, "_parts", parts)


BUGS = (
    Planted(
        name="one-noise-for-comparison-and-answer",
        bug="the noise of the comparison is added to all counts, so that the answer has none",
        found_by="event search",
        plant=share_the_noise_of_the_comparison,
        audit=attacked("ConfidentGNMax, ahead by 0", "ConfidentGNMax, ahead by 2"),
    ),
    Planted(
        name="comparison-without-noise",
        bug="the largest count is compared with the threshold as it is",
        found_by="event search",
        plant=compare_without_noise,
        audit=attacked("ConfidentGNMax, ahead by 4"),
    ),
    Planted(
        name="ties-broken-by-index",
        bug="classes with equal votes are decided by their place, without noise",
        found_by="event search",
        plant=break_ties_by_index,
        audit=attacked("GNMax, ahead by 0"),
    ),
    Planted(
        name="clear-votes-without-noise",
        bug="a class that leads by two standard deviations is answered without noise",
        found_by="event search",
        plant=answer_clear_queries_without_noise,
        audit=attacked("GNMax, ahead by 4", "GNMax, ahead by 6", "GNMax, ahead by 8"),
    ),
    Planted(
        name="noise-of-votes-repeated",
        bug="half of the counts get the noise of the other half",
        found_by="canaries",
        plant=repeat_the_noise_of_the_first_query,
        audit=canaries,
    ),
    Planted(
        name="price-by-the-votes-published",
        bug="the price that depends on votes decides without noise how many answers are given",
        found_by="event search",
        plant=decide_without_noise,
        audit=in_doubt,
    ),
    Planted(
        name="heavy-votes-at-the-price-of-one",
        bug="teachers whose votes weigh more are priced as if they weighed one",
        found_by="event search",
        plant=charge_all_groups_alike,
        audit=heavy_votes,
    ),
    Planted(
        name="one-unit-in-two-teachers",
        bug="rows are assigned to teachers, and not units: the rows of one are in many",
        found_by="replay on neighbors",
        plant=assign_rows_instead_of_units,
        audit=one_person_more,
    ),
    Planted(
        name="teachers-partitioned-again",
        bug="the partition is drawn anew for each teacher, so that a unit is in several",
        found_by="replay on neighbors",
        plant=draw_the_partition_again,
        audit=one_person_more,
    ),
)
