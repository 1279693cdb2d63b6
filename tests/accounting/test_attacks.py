# SPDX-License-Identifier: Apache-2.0
"""Attacks on the accounting that once succeeded: each number here was on the wrong side of the truth."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event as dp

from sfumato.accounting import Accountant, Relation, compose, events, pld, price, renyi
from sfumato.errors import InvalidParameterError, UnsupportedEventError


@pytest.mark.parametrize(("epsilon", "delta"), [(34.0, 1e-9), (35.5, 0.3), (20.0, 1e-3), (0.5, 1e-6)])
def test_one_laplace_release_is_never_below_its_exact_epsilon(epsilon, delta):
    exact = epsilon + 2 * math.log1p(-delta)  # of |x| <= 1/2 noise, from the two-sided exponential
    lower, upper = pld.interval(dp.LaplaceDpEvent(1 / epsilon), delta=delta, relation=Relation.ADD_REMOVE)
    assert lower <= exact <= upper <= exact + 1e-3 * epsilon


def test_a_sampled_laplace_release_is_never_below_its_exact_epsilon():
    inner, rate, delta = 34.0, 0.5, 1e-3
    # delta = rate (1 - e^{(t - inner)/2}) at the inner loss t, and e^epsilon = 1 - rate + rate e^t.
    t = inner + 2 * math.log1p(-delta / rate)
    exact = math.log1p(rate * math.expm1(t))
    event = dp.PoissonSampledDpEvent(rate, dp.LaplaceDpEvent(1 / inner))
    lower, upper = pld.interval(event, delta=delta, relation=Relation.ADD_REMOVE)
    assert lower <= exact <= upper <= exact + 0.03


def test_bounded_range_masses_are_never_negative_and_can_be_mixed_with_others():
    event = dp.ComposedDpEvent(
        [
            dp.PoissonSampledDpEvent(0.5, dp.GaussianDpEvent(1.0)),
            dp.SelfComposedDpEvent(events.ExponentialDpEvent(0.3779607501460835), 1000),
        ]
    )
    assert 0 < price(event, delta=1e-5).upper < math.inf


@pytest.mark.parametrize("accountant", [None, *Accountant])
def test_an_epsilon_of_its_own_is_not_amplified_where_a_zero_may_still_be_counted(accountant):
    event = dp.PoissonSampledDpEvent(0.01, events.PureDpEvent(1.0))
    assert price(event, delta=1e-9, relation=Relation.ADD_REMOVE).upper < 0.02
    with pytest.raises(UnsupportedEventError):
        price(event, delta=1e-9, relation=Relation.ZERO_OUT, accountant=accountant)


def test_noise_on_a_sum_is_amplified_under_zero_out_as_under_add_remove():
    event = dp.PoissonSampledDpEvent(0.01, dp.LaplaceDpEvent(1.0))
    same = [price(event, delta=1e-9, relation=r).upper for r in (Relation.ADD_REMOVE, Relation.ZERO_OUT)]
    assert same[0] == same[1]


def test_composing_does_not_make_an_unsampled_event_fit_for_sampling():
    unsampled = compose(events.UnsampledDpEvent(dp.GaussianDpEvent(2.0)))
    again = compose(unsampled, events.from_json(events.to_json(unsampled)))
    for event in (unsampled, again):
        with pytest.raises(UnsupportedEventError, match="must not be sampled"):
            price(dp.PoissonSampledDpEvent(0.01, event), delta=1e-6, relation=Relation.REPLACE_ONE)
    plain = dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 2)
    assert price(again, delta=1e-6).upper == price(plain, delta=1e-6).upper


def test_an_accountant_that_gives_up_does_not_claim_a_lower_bound():
    found = price(events.ApproximateDpEvent(1.0, 1e-5), delta=1e-5, accountant=Accountant.RDP)
    assert (found.lower, found.upper) == (0.0, math.inf)
    assert price(dp.NonPrivateDpEvent(), delta=1e-5, accountant=Accountant.RDP).lower == math.inf


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (events.SparseVectorDpEvent(1e-3, 1e-3, 1.0), Relation.ADD_REMOVE),
        (events.DiscreteGaussianDpEvent(0.5, 1.5), Relation.REPLACE_ONE),
        (events.SkellamDpEvent(9.0, 1.0), Relation.ADD_REMOVE),
        (dp.PoissonSampledDpEvent(0.5, events.SkellamDpEvent(9.0, 2.0)), Relation.ADD_REMOVE),
        (events.ExponentialDpEvent(1.0), Relation.ADD_REMOVE),
    ],
)
def test_what_no_mechanism_attains_has_no_lower_bound(event, relation):
    assert price(event, delta=0.1, relation=relation).lower == 0


def test_the_closed_form_of_gaussians_has_a_lower_bound_below_its_upper():
    found = price(dp.GaussianDpEvent(1.0), delta=1e-5)
    assert found.upper - 1e-5 < found.lower < found.upper


def test_whole_orders_cost_what_real_ones_do():
    whole = renyi.sampled_gaussian(np.array([2]), 0.7, 0.5)
    assert whole == renyi.sampled_gaussian(np.array([2.0]), 0.7, 0.5) > 0.14


@pytest.mark.parametrize("noise", [1e200, 1e-170, 1e-100])
def test_absurd_noise_has_an_absurd_price_and_no_crash(noise):
    for event in (dp.GaussianDpEvent(noise), dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(noise))):
        upper = price(event, delta=1e-6).upper
        assert upper == 0 if noise > 1 else upper > 1e100


@pytest.mark.parametrize("text", ['{"type":"ComposedDpEvent","events":5}', "5", "[]", "null"])
def test_json_of_the_wrong_shape_is_a_specific_error(text):
    with pytest.raises(InvalidParameterError, match="not an event in JSON"):
        events.from_json(text)


def test_json_does_not_depend_on_how_a_number_was_typed():
    typed = dp.SelfComposedDpEvent(dp.GaussianDpEvent(1), np.int64(3))
    assert events.to_json(typed) == events.to_json(dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 3))
    assert events.from_json(events.to_json(typed)) == dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 3)


def test_a_non_private_part_is_found_wherever_it_hides():
    hidden = events.ParallelDpEvent([dp.PoissonSampledDpEvent(0.5, dp.NonPrivateDpEvent())])
    assert not events.is_private(hidden)


def test_a_tiny_sampled_epsilon_is_not_below_the_truth_by_rounding():
    event = dp.PoissonSampledDpEvent(8.710585762235187e-05, events.PureDpEvent(0.002532815188098437))
    _, upper = pld.interval(event, delta=1.438393596469469e-08, relation=Relation.ADD_REMOVE)
    assert upper >= 1.920983054800e-07  # by 50-digit arithmetic
