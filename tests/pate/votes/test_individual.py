# SPDX-License-Identifier: Apache-2.0
"""Individual budgets: each group within its own epsilon, weights that add up, copies and attendance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.accounting import price
from sfumato.errors import InvalidParameterError
from sfumato.pate.votes.aggregators import ConfidentGNMax, GNMax
from sfumato.pate.votes.individual import IndividualBudgets, Individualization
from sfumato.pate.votes.labeling import Labeling, affordable_queries

METHODS = [each.value for each in Individualization]
TERMS = {"epsilons": (1.0, 2.0, 3.0), "shares": (0.34, 0.43, 0.23), "delta": 1e-5}
every_method = pytest.mark.parametrize("method", METHODS)


def budgets(**changed) -> IndividualBudgets:
    return IndividualBudgets(**{**TERMS, **changed})


@every_method
@pytest.mark.parametrize(
    "aggregator",
    [
        GNMax(stddev=40.0),
        ConfidentGNMax(threshold=200.0, threshold_stddev=150.0, stddev=40.0, max_answers=50),
    ],
)
def test_each_group_stays_within_its_own_epsilon_and_one_uses_it_up(method, aggregator):
    groups = budgets(method=method)
    most = affordable_queries(aggregator, epsilon=0.0, delta=1e-5, teachers=250, individual=groups)
    job = Labeling(aggregator=aggregator, queries=most, teachers=250, delta=1e-5, individual=groups)
    found = [each.epsilon for each in job.guarantees()]
    assert all(epsilon <= most for epsilon, most in zip(found, groups.epsilons, strict=True))
    more = groups.events(aggregator, queries=most + 1 + most // 50, teachers=250)
    dearer = [price(event, delta=1e-5).epsilon for event in more if event is not None]
    assert any(epsilon > allowed for epsilon, allowed in zip(dearer, groups.epsilons, strict=True))


def test_weighting_uses_up_all_budgets_together():
    groups = budgets()
    most = affordable_queries(GNMax(stddev=40.0), epsilon=0.0, delta=1e-5, teachers=250, individual=groups)
    job = Labeling(aggregator=GNMax(stddev=40.0), queries=most, teachers=250, delta=1e-5, individual=groups)
    for guarantee, epsilon in zip(job.guarantees(), groups.epsilons, strict=True):
        assert guarantee.epsilon == pytest.approx(epsilon, rel=0.01)


@pytest.mark.parametrize("method", ["weighting", "vanishing"])
def test_more_can_be_asked_than_if_all_had_the_strictest_budget(method):
    plain = affordable_queries(GNMax(stddev=40.0), epsilon=1.0, delta=1e-5, teachers=250)
    groups = affordable_queries(
        GNMax(stddev=40.0), epsilon=0.0, delta=1e-5, teachers=250, individual=budgets(method=method)
    )
    assert groups > 2 * plain


@given(
    st.lists(st.floats(0.05, 20), min_size=2, max_size=5, unique=True),
    st.integers(5, 400),
    st.sampled_from(METHODS),
)
@settings(max_examples=50)
def test_weights_add_up_to_the_number_of_teachers(epsilons, teachers, method):
    groups = IndividualBudgets(
        epsilons=sorted(epsilons), shares=[1.0] * len(epsilons), delta=1e-5, method=method
    )
    assert sum(groups.teachers(teachers)) == teachers
    ballots = groups.ballots(7, teachers)
    assert ballots.shape == (teachers, 7)
    assert ballots[:, 0].sum() <= teachers * (1 + 1e-9)
    if method == "weighting":
        assert ballots[:, 0].sum() == pytest.approx(teachers)
    assert groups.copies()[0] == 1 and list(groups.copies()) == sorted(groups.copies())


def test_a_group_votes_on_as_many_queries_as_its_event_says():
    groups = budgets(method="vanishing")
    voted = (groups.ballots(300, 250) > 0).sum(axis=1)
    expected = np.repeat(groups.attendance(300), groups.teachers(250))
    assert voted.tolist() == expected.tolist()
    assert groups.attendance(300)[-1] == 300 > groups.attendance(300)[0] > 0


def test_upsampled_units_are_charged_for_all_their_teachers():
    groups = budgets(method="upsampling")
    assert groups.copies() == (1, 2, 3)
    one, _, three = groups.events(GNMax(stddev=40.0), queries=10, teachers=250)
    assert price(three, delta=1e-5) == price(GNMax(stddev=40.0).event(10, weight=3.0), delta=1e-5)
    assert price(one, delta=1e-5).epsilon < price(three, delta=1e-5).epsilon


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilons": (1.0,), "shares": (1.0,)},
        {"epsilons": (1.0, 2.0)},
        {"epsilons": (3.0, 2.0, 1.0)},
        {"epsilons": (1.0, 1.0, 2.0)},
        {"epsilons": (0.0, 1.0, 2.0)},
        {"shares": (0.5, 0.5, 0.0)},
        {"delta": 0.0},
        {"method": "guessing"},
    ],
)
def test_budgets_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        budgets(**wrong)


def test_fewer_teachers_than_groups_are_refused():
    with pytest.raises(InvalidParameterError, match="3 groups"):
        budgets().teachers(2)
