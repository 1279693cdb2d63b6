# SPDX-License-Identifier: Apache-2.0
"""Labeling jobs: the charge is that of the units it reveals most about, and budgets buy what they should."""

import numpy as np
import pytest

from sfumato.accounting import Relation, price
from sfumato.errors import InvalidParameterError
from sfumato.pate.votes.aggregators import GNMax, LNMax
from sfumato.pate.votes.individual import IndividualBudgets
from sfumato.pate.votes.labeling import Labeling, affordable_queries

GROUPS = IndividualBudgets(epsilons=(1.0, 3.0), shares=(1.0, 1.0), delta=1e-5)


@pytest.mark.parametrize("aggregator", [GNMax(stddev=40.0), LNMax(scale=40.0)])
@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
def test_a_budget_buys_as_many_queries_as_it_covers_and_no_more(aggregator, relation):
    most = affordable_queries(aggregator, epsilon=2.0, delta=1e-5, teachers=9, relation=relation)
    cost = [price(aggregator.event(n), delta=1e-5, relation=relation).epsilon for n in (most, most + 1)]
    assert cost[0] <= 2.0 < cost[1]


def test_the_job_is_charged_for_those_it_reveals_most_about():
    job = Labeling(aggregator=GNMax(stddev=40.0), queries=30, teachers=100, delta=1e-5, individual=GROUPS)
    strict, loose = job.guarantees("person")
    assert job.guarantee("person") == loose and strict.epsilon < loose.epsilon
    assert job.event() == job.events()[1]


def test_a_budget_below_one_query_is_refused_before_anything_is_spent():
    with pytest.raises(InvalidParameterError, match="does not cover one query"):
        affordable_queries(GNMax(stddev=1.0), epsilon=0.1, delta=1e-5, teachers=9)


def test_groups_of_another_delta_are_refused():
    with pytest.raises(InvalidParameterError, match="one delta"):
        Labeling(aggregator=GNMax(stddev=40.0), queries=3, teachers=9, delta=1e-6, individual=GROUPS)


def test_other_than_the_planned_queries_are_refused():
    job = Labeling(aggregator=GNMax(stddev=40.0), queries=3, teachers=9, delta=1e-6)
    with pytest.raises(InvalidParameterError, match="3 queries"):
        job.answer(np.zeros((4, 2)))
