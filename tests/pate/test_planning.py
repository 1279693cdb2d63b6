# SPDX-License-Identifier: Apache-2.0
"""Plans: the most queries that a budget covers, from public numbers."""

import numpy as np
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.pate.planning import plan
from sfumato.pate.votes.aggregators import GNMax, LNMax
from sfumato.pate.votes.individual import IndividualBudgets
from sfumato.pate.votes.labeling import Labeling
from sfumato.pate.votes.stability import StableLabeling
from sfumato.testing import seeded

TERMS = {"epsilon": 2.0, "delta": 1e-5, "teachers": 250}


def test_agreement_buys_several_times_as_many_queries():
    plain, stable = plan(**TERMS), plan(**TERMS, agreement=0.95)
    assert isinstance(plain, Labeling) and isinstance(stable, StableLabeling)
    assert stable.queries > 5 * plain.queries
    assert stable.guarantee().epsilon == 2.0 >= plain.guarantee().epsilon


@pytest.mark.parametrize("agreement", [0.9, 0.95, (0.6, 0.95, 1.0, 1.0)])
def test_a_plan_passes_its_test_if_teachers_agree_as_assumed(agreement):
    job = plan(**TERMS, agreement=agreement)
    shares = np.atleast_1d(agreement)
    top = np.floor(250 * np.resize(shares, job.queries))
    counts = np.stack([top, 250 - top], axis=1)
    passed = [job.passes(counts, generator=seeded(seed)) for seed in range(40)]
    assert sum(passed) >= 36  # 99 in a hundred are planned


def test_fewer_queries_may_be_asked_and_more_are_refused():
    assert plan(**TERMS, queries=50).queries == 50
    with pytest.raises(InvalidParameterError, match="50000 queries cost more"):
        plan(**TERMS, queries=50_000)


def test_more_teachers_or_a_larger_epsilon_buy_more():
    assert plan(**{**TERMS, "teachers": 500}).queries > plan(**TERMS).queries
    assert plan(**{**TERMS, "epsilon": 4.0}).queries > plan(**TERMS).queries
    assert plan(**{**TERMS, "epsilon": 4.0}, agreement=0.9).queries > plan(**TERMS, agreement=0.9).queries


def test_groups_have_their_own_budgets():
    groups = IndividualBudgets(epsilons=(1.0, 2.0), shares=(0.5, 0.5), delta=1e-5)
    job = plan(delta=1e-5, teachers=250, individual=groups)
    assert [each.epsilon <= most for each, most in zip(job.guarantees(), (1.0, 2.0), strict=True)] == [
        True
    ] * 2


GROUPS = IndividualBudgets(epsilons=(1.0, 2.0), shares=(0.5, 0.5), delta=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": None},
        {"epsilon": -1.0},
        {"teachers": 0},
        {"delta": 0.0},
        {"individual": GROUPS},
        {"epsilon": None, "individual": GROUPS, "agreement": 0.9},
        {"agreement": 1.5},
        {"agreement": 0.0},
        {"agreement": (0.9, 0.0)},
        {"agreement": 0.95, "queries": 1_000_000},
        {"aggregator": 3},
        {"agreement": 0.9, "aggregator": 3},
        {"agreement": ()},
        {"agreement": 0.9, "aggregator": LNMax(scale=20.0)},
        {"agreement": 0.9, "epsilon": 0.01},
        {"aggregator": GNMax(stddev=0.1)},
        {"agreement": 0.9, "relation": "replace-one"},
    ],
)
def test_plans_that_cannot_work_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        plan(**{**TERMS, **wrong})


@pytest.mark.parametrize("queries", [1, 50, 201])
def test_a_test_that_buys_nothing_is_left_out(queries):
    job = plan(**TERMS, agreement=0.95, queries=queries)
    assert isinstance(job, Labeling) and job.queries == queries
    assert job.guarantee().epsilon <= 2.0


def test_from_the_first_query_that_a_budget_does_not_cover_agreement_is_tested():
    job = plan(**TERMS, agreement=0.95, queries=202)
    assert isinstance(job, StableLabeling) and job.fallback < job.queries == 202


@pytest.mark.parametrize("teachers, epsilon", [(20, 8.0), (40, 8.0), (250, 2.0), (250, 0.5), (30, 100.0)])
@pytest.mark.parametrize("agreement", [0.3, 0.5, 0.7, 0.9, 1.0])
def test_expecting_agreement_never_buys_less(teachers, epsilon, agreement):
    terms = {"epsilon": epsilon, "delta": 1e-5, "teachers": teachers}
    plain, tested = plan(**terms), plan(**terms, agreement=agreement)
    assert tested.queries >= plain.queries
    assert isinstance(tested, Labeling) or tested.fallback < tested.queries
