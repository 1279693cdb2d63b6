# SPDX-License-Identifier: Apache-2.0
"""Jobs that test agreement: the test fails where it must, the fallback is paid for, the claim holds."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from sfumato.accounting import Relation, price, rdp
from sfumato.accounting.events import ApproximateDpEvent, compose
from sfumato.accounting.upstream import dp_event as dp
from sfumato.accounting.votes import answers
from sfumato.audit import audit_mechanism
from sfumato.errors import InvalidParameterError
from sfumato.pate.votes.aggregators import NO_ANSWER, ConfidentGNMax, GNMax, LNMax
from sfumato.pate.votes.stability import StableLabeling
from sfumato.testing import seeded

ALPHA = 1e-6
TERMS = {
    "teachers": 250,
    "epsilon": 2.0,
    "delta": 1e-5,
    "order": 12.0,
    "test_stddev": 4.0,
    "test_delta": 1e-6,
}


def job(**changed) -> StableLabeling:
    return StableLabeling(**{"aggregator": GNMax(stddev=30.0), "queries": 400, **TERMS, **changed})


def votes(top: int, queries: int = 400, teachers: int = 250) -> np.ndarray:
    return np.tile([float(top), float(teachers - top), 0.0], (queries, 1))


def test_agreeing_teachers_answer_all_queries():
    found = job().answer(votes(245), generator=seeded(0))
    assert (found == 0).mean() > 0.99


def test_teachers_who_disagree_answer_the_first_few():
    done = job()
    found = done.answer(votes(130), generator=seeded(0))
    assert 0 < done.fallback < 100
    assert (found[: done.fallback] != NO_ANSWER).all() and (found[done.fallback :] == NO_ANSWER).all()


def test_unsafe_votes_pass_as_rarely_as_stated_and_not_much_more_rarely():
    """At a large test_delta the chance can be counted."""
    loose = job(delta=0.05, test_delta=0.04, queries=1500)
    counts = votes(150, queries=1500)
    assert not loose._is_safe(answers(counts, loose.aggregator.votes, orders=np.array([loose.order])))
    passed = sum(loose.passes(counts, generator=seeded(seed)) for seed in range(1500))
    assert binomtest(passed, 1500, 0.04).pvalue > ALPHA
    assert binomtest(passed, 1500, 0.08).pvalue < ALPHA  # a test without noise, or with less, is caught


def test_safe_votes_and_the_fallback_stay_within_the_budget():
    done = job()
    test = done.order / (2 * done.test_stddev**2)
    whole = rdp.epsilon_at(done.room + test, order=done.order, delta=done.delta - done.test_delta)
    assert whole <= done.epsilon
    few = compose(dp.GaussianDpEvent(done.test_stddev), done.aggregator.event(done.fallback))
    assert price(few, delta=done.delta - done.test_delta).epsilon <= done.epsilon


def test_the_event_is_the_whole_budget_whatever_happens():
    assert job().event() == ApproximateDpEvent(2.0, 1e-5)
    assert str(job().guarantee("patient")).startswith("(2, 1e-05)-differential privacy for one patient")


@pytest.mark.parametrize("top", [9, 12, 14, 16])
def test_an_attack_on_a_whole_job_stays_below_the_claim(top):
    """Small teams, where the test is in doubt, and a neighbor in which one teacher votes otherwise."""
    small = StableLabeling(
        aggregator=GNMax(stddev=3.0),
        queries=3,
        teachers=16,
        epsilon=2.0,
        delta=0.05,
        order=3.0,
        test_stddev=1.5,
        test_delta=0.02,
    )
    one, two = (np.tile([float(n), 16.0 - n], (3, 1)) for n in (top, top - 1))
    found = audit_mechanism(
        lambda counts, generator: tuple(small.answer(counts, generator=generator).tolist()),
        one,
        two,
        trials=2000,
        claim=small.guarantee(),
        generator=seeded(top),
    )
    assert not found.refuted


def test_a_threshold_is_part_of_what_is_tested():
    confident = job(aggregator=ConfidentGNMax(threshold=200.0, threshold_stddev=100.0, stddev=30.0))
    found = confident.answer(votes(248), generator=seeded(0))
    assert 0.5 < (found == 0).mean() < 0.9  # 68 in a hundred are above the threshold


@pytest.mark.parametrize(
    "wrong",
    [
        {"queries": 0},
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"test_delta": 1e-5},
        {"delta": 0.5},
        {"epsilon": 0.01},
        {"relation": Relation.REPLACE_ONE},
        {"aggregator": LNMax(scale=20.0)},
        {"aggregator": ConfidentGNMax(threshold=1.0, threshold_stddev=1.0, stddev=1.0, max_answers=3)},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        job(**wrong)


def test_other_than_the_planned_queries_are_refused():
    with pytest.raises(InvalidParameterError, match="400"):
        job().answer(votes(240, queries=399))
