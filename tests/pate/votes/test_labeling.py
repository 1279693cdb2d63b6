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


@pytest.mark.parametrize("method", ["weighting", "upsampling", "vanishing"])
def test_individual_budgets_of_replaced_units_are_refused(method):
    groups = IndividualBudgets(epsilons=(1.0, 8.0), shares=(1.0, 1.0), delta=1e-5, method=method)
    terms = {"aggregator": GNMax(stddev=20.0), "teachers": 100, "delta": 1e-5, "individual": groups}
    # A unit of group 0 that one of group 1 replaces moves w0 + w1 votes, and 2 * w0 was claimed.
    for relation in ("replace-one", Relation.REPLACE_ONE):
        with pytest.raises(InvalidParameterError, match="another group"):
            Labeling(queries=50, relation=relation, **terms)
    with pytest.raises(InvalidParameterError, match="another group"):
        affordable_queries(epsilon=0.0, relation=Relation.REPLACE_ONE, **terms)


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.ZERO_OUT])
@pytest.mark.parametrize("method", ["weighting", "upsampling", "vanishing"])
def test_the_distance_of_a_group_is_what_its_unit_moves(method, relation):
    groups = IndividualBudgets(epsilons=(1.0, 3.0), shares=(1.0, 1.0), delta=1e-5, method=method)
    job = Labeling(
        aggregator=GNMax(stddev=20.0),
        queries=50,
        teachers=100,
        delta=1e-5,
        individual=groups,
        relation=relation,
    )
    moved = groups.weights(100) * np.array(groups.copies())
    for place, promise in enumerate(job.guarantees("person")):
        event = GNMax(stddev=20.0).event(groups.attendance(50)[place], weight=float(moved[place]))
        assert promise.epsilon == price(event, delta=1e-5, relation=relation).epsilon
