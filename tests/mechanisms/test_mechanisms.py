# SPDX-License-Identifier: Apache-2.0
"""What holds for every mechanism: it says its relation, and its event is good for no more than it says."""

import math

import pytest
from dp_accounting import dp_event as dp
from scipy.stats import norm

from sfumato import mechanisms
from sfumato.accounting.events import UnsampledDpEvent, check, from_json, to_json
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.errors import UnsupportedEventError
from sfumato.mechanisms import (
    AboveThreshold,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    Gaussian,
    GridGaussian,
    IntervalExponential,
    Laplace,
    NoisyMax,
    PermuteAndFlip,
    ProposeTestRelease,
    RandomizedResponse,
    Rounded,
    SmoothMedian,
    SparseVector,
    UnaryEncoding,
)

RUN = {
    "threshold": 0.0,
    "threshold_epsilon": 1.0,
    "comparison_epsilon": 1.0,
    "sensitivity": 1.0,
    "max_answers": 1,
}
GRID = {"clip_norm": 1.0, "granularity": 0.25, "stddev": 4.0, "dimension": 4}


def halved(relation: Relation) -> list:
    """Mechanisms that state half of what a replaced unit moves."""
    return [
        Laplace(scale=1.0, sensitivity=1.0, relation=relation),
        Gaussian(stddev=1.0, sensitivity=1.0, relation=relation),
        DiscreteLaplace(scale=1.0, sensitivity=2, relation=relation),
        DiscreteGaussian(stddev=1.0, sensitivity=2, relation=relation),
        GridGaussian(**GRID, relation=relation, rounded=Rounded.SUM),
    ]


def every(relation: Relation) -> list:
    chosen = {"epsilon": 1.0, "sensitivity": 1.0, "relation": relation}
    made = [
        *halved(relation),
        GridGaussian(**GRID, relation=relation),
        Exponential(**chosen),
        IntervalExponential(**chosen, bounds=(0.0, 1.0)),
        NoisyMax(**chosen),
        PermuteAndFlip(**chosen),
        AboveThreshold(**RUN, relation=relation),
        SparseVector(**RUN, answer_epsilon=1.0, relation=relation),
    ]
    if relation.replaces:
        made += [
            RandomizedResponse(noise_parameter=0.5, relation=relation),
            UnaryEncoding(epsilon=1.0, num_buckets=3, relation=relation),
        ]
    if relation is Relation.REPLACE_ONE:
        made += [
            SmoothMedian(epsilon=1.0, bounds=(0.0, 1.0)),
            ProposeTestRelease(proposed_sensitivity=0.5, test_epsilon=1.0, release_epsilon=1.0, delta=1e-6),
        ]
    return made


@pytest.mark.parametrize("relation", list(Relation))
def test_every_mechanism_says_its_relation_and_an_event_that_a_ledger_can_keep(relation):
    for mechanism in every(relation):
        assert mechanism.relation is relation
        check(mechanism.event())
        assert from_json(to_json(mechanism.event())) == mechanism.event()


def test_no_mechanism_is_left_out_here():
    named = {getattr(mechanisms, name) for name in mechanisms.__all__}
    with_events = {cls for cls in named if isinstance(cls, type) and hasattr(cls, "event")}
    assert with_events == {type(m) for m in every(Relation.REPLACE_ONE)}


@pytest.mark.parametrize("relation", list(Relation))
def test_an_event_that_halves_the_reach_of_a_replacement_cannot_be_sampled(relation):
    for mechanism in halved(relation):
        event = mechanism.event()
        assert isinstance(event, UnsampledDpEvent) == relation.replaces
        for inside in (event, dp.SelfComposedDpEvent(event, 3), dp.ComposedDpEvent([event, event])):
            for sampled in (
                dp.PoissonSampledDpEvent(0.1, inside),
                dp.SampledWithoutReplacementDpEvent(100, 10, inside),
            ):
                if not relation.replaces:
                    check(sampled)
                else:
                    with pytest.raises(UnsupportedEventError, match="must not be sampled"):
                        check(sampled)


def test_an_event_that_bounds_each_contribution_can_be_sampled():
    for relation in Relation:
        event = GridGaussian(**GRID, relation=relation).event()
        check(dp.PoissonSampledDpEvent(0.1, event))
        assert price(dp.PoissonSampledDpEvent(0.1, event), delta=1e-3, relation=relation).epsilon > 0


def test_no_price_is_named_for_a_sampled_gaussian_that_would_break_it():
    # One in ten sampled, noise 1: epsilon 0.2174 was named at delta 1e-3, where the true delta is 8.9e-3.
    rate, delta, relation = 0.1, 1e-3, Relation.REPLACE_ONE
    event = Gaussian(stddev=1.0, sensitivity=1.0, relation=relation).event()
    for sampled in (
        dp.PoissonSampledDpEvent(rate, event),
        dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, event), 2),
        dp.SampledWithoutReplacementDpEvent(10, 1, event),
    ):
        with pytest.raises(UnsupportedEventError, match="must not be sampled"):
            price(sampled, delta=delta, relation=relation)

    # The danger is real: with the wrapping taken off, the price is one that the mechanism does not keep.
    assert isinstance(event, UnsampledDpEvent)
    naive = price(dp.PoissonSampledDpEvent(rate, event.event), delta=delta, relation=relation).epsilon
    # Values of 100 or 101: a sampled unit is seen by its size, so it is told apart as if it were alone.
    true_delta = rate * (norm.cdf(0.5 - naive) - math.exp(naive) * norm.cdf(-0.5 - naive))
    assert naive == pytest.approx(0.2174, abs=1e-3)
    assert true_delta > 8 * delta


def test_all_of_the_data_costs_the_same_with_and_without_the_wrapping():
    for mechanism in halved(Relation.REPLACE_ONE):
        event = mechanism.event()
        costs = [price(e, delta=1e-3, relation=Relation.REPLACE_ONE).epsilon for e in (event, event.event)]
        assert costs[0] == costs[1]
