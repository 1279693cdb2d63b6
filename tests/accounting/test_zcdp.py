# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from dp_accounting import dp_event as dp
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.accounting import events, gaussian, rdp, renyi, zcdp
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError, UnsupportedEventError

DELTA = 1e-5
GRID = 1.02  # how much the listed orders of `rdp` may lose against the best real order
ADD_REMOVE, REPLACE_ONE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
ORDERS = np.concatenate([1 + np.logspace(-3, 0, 20), np.logspace(0.4, 4, 40)])

epsilons = st.floats(1e-6, 60)


@settings(deadline=None)
@given(epsilons)
def test_rho_of_pure_dp_bounds_its_whole_renyi_curve_and_is_tight_at_order_one(epsilon):
    rho = zcdp.rho(events.PureDpEvent(epsilon), ADD_REMOVE)
    assert np.all(renyi.pure(ORDERS, epsilon) <= rho * ORDERS * (1 + 2e-9))
    assert rho <= epsilon**2 / 2 and rho <= epsilon
    near_one = renyi.pure(np.array([1 + 1e-7]), epsilon)[0]
    assert near_one == pytest.approx(rho, rel=1e-4)  # no smaller rho is true


@settings(deadline=None)
@given(st.floats(0.02, 1e6))
def test_rho_of_laplace_bounds_its_whole_renyi_curve_and_is_tight_at_order_one(noise_multiplier):
    rho = zcdp.rho(dp.LaplaceDpEvent(noise_multiplier), ADD_REMOVE)
    truth = renyi.laplace(ORDERS, 1 / noise_multiplier)
    rounding = 1e-14 / (ORDERS - 1)  # `renyi.laplace` adds its own, absolute
    assert np.all(truth <= rho * ORDERS * (1 + 2e-9) + 2 * rounding)
    pure = zcdp.rho(events.PureDpEvent(1 / noise_multiplier), ADD_REMOVE)
    assert 0.5 * pure < rho <= pure


def test_rho_of_laplace_has_no_jump_where_the_series_takes_over():
    below, above = (zcdp.rho(dp.LaplaceDpEvent(1 / e), ADD_REMOVE) for e in (1e-3 * (1 - 1e-9), 1e-3))
    assert above / below == pytest.approx(1 + 2e-9, abs=1e-9)


@settings(deadline=None)
@given(epsilons)
def test_rho_of_the_exponential_mechanism_bounds_its_whole_renyi_curve(epsilon):
    rho = zcdp.rho(events.ExponentialDpEvent(epsilon), ADD_REMOVE)
    assert rho <= epsilon**2 / 8
    assert np.all(renyi.bounded_range(ORDERS, epsilon) <= rho * ORDERS * (1 + 2e-9))


@pytest.mark.parametrize("relation", list(Relation))
def test_rho_of_gaussians_is_half_the_squared_shift(relation):
    expected = (relation.diameter / 4.0) ** 2 / 2
    assert zcdp.rho(dp.GaussianDpEvent(4.0), relation) == expected
    assert zcdp.rho(events.DiscreteGaussianDpEvent(8.0, 2.0, 3), relation) == expected


@settings(deadline=None)
@given(st.floats(-4, 4), st.floats(-50, -0.5))
def test_the_conversion_beats_the_loose_formula_and_never_the_closed_form(log_rho, log_delta):
    rho, delta = 10.0**log_rho, 10.0**log_delta
    epsilon = zcdp.epsilon_of(rho, delta)
    assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta))
    assert epsilon >= gaussian.epsilon(math.sqrt(2 * rho), delta) * (1 - 1e-9)  # a Gaussian attains rho


@settings(deadline=None)
@given(st.floats(-3, 3), st.floats(-12, -1), st.integers(1, 500), st.sampled_from(list(Relation)))
def test_gaussians_cost_the_same_as_under_rdp_up_to_its_grid_of_orders(log_noise, log_delta, steps, relation):
    event, delta = dp.SelfComposedDpEvent(dp.GaussianDpEvent(10.0**log_noise), steps), 10.0**log_delta
    by_rho = zcdp.epsilon(event, delta=delta, relation=relation)
    by_orders = rdp.epsilon(event, delta=delta, relation=relation)
    assert by_rho <= by_orders
    if by_orders > 2e-3:  # below, the largest listed order is too small
        assert by_orders <= by_rho * GRID + 1e-9


@settings(deadline=None)
@given(st.floats(0.01, 5), st.integers(1, 200))
def test_pure_mechanisms_cost_no_less_than_under_rdp(epsilon, count):
    event = dp.SelfComposedDpEvent(events.PureDpEvent(epsilon), count)
    by_orders = rdp.epsilon(event, delta=DELTA, relation=ADD_REMOVE)
    assert zcdp.epsilon(event, delta=DELTA, relation=ADD_REMOVE) * GRID >= by_orders


def test_repeating_costs_the_same_as_listing():
    for event in (
        dp.GaussianDpEvent(2.0),
        events.PureDpEvent(0.3),
        dp.LaplaceDpEvent(3.0),
        dp.ZCDpEvent(0.2),
        events.SkellamDpEvent(400.0, 11.0),
    ):
        repeated = zcdp.rho(dp.SelfComposedDpEvent(event, 9), REPLACE_ONE)
        assert repeated == zcdp.rho(dp.ComposedDpEvent([event] * 9), REPLACE_ONE)
        assert repeated == pytest.approx(9 * zcdp.rho(event, REPLACE_ONE), rel=1e-14)


def test_parallel_parts_cost_the_dearest():
    event = events.ParallelDpEvent([dp.ZCDpEvent(0.1), dp.SelfComposedDpEvent(dp.ZCDpEvent(0.1), 3)])
    assert zcdp.rho(event, ADD_REMOVE) == pytest.approx(0.3)
    with pytest.raises(UnsupportedEventError, match="replace-one"):
        zcdp.rho(event, REPLACE_ONE)


def test_a_sampled_pure_mechanism_is_charged_its_amplified_epsilon():
    event = dp.PoissonSampledDpEvent(0.1, events.PureDpEvent(1.0))
    amplified = math.log1p(0.1 * math.expm1(1.0))
    assert zcdp.rho(event, ADD_REMOVE) == pytest.approx(amplified * math.tanh(amplified / 2))


@pytest.mark.parametrize(
    "event",
    [
        dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0)),
        dp.SampledWithoutReplacementDpEvent(10, 1, dp.GaussianDpEvent(1.0)),
        events.ApproximateDpEvent(0.1, 1e-6),
        dp.PoissonSampledDpEvent(0.1, events.ApproximateDpEvent(0.1, 1e-6)),
        dp.ZCDpEvent(0.1, xi=0.1),
    ],
)
def test_events_that_are_not_zcdp_are_refused_with_a_remedy(event):
    with pytest.raises(UnsupportedEventError, match="Use the RDP"):
        zcdp.rho(event, ADD_REMOVE)


def test_zero_and_infinity_are_decided():
    assert zcdp.epsilon_of(0.0, DELTA) == 0
    assert zcdp.epsilon_of(math.inf, DELTA) == math.inf
    assert zcdp.epsilon(dp.NonPrivateDpEvent(), delta=DELTA, relation=ADD_REMOVE) == math.inf
    assert zcdp.epsilon(dp.NoOpDpEvent(), delta=DELTA, relation=ADD_REMOVE) == 0
    assert zcdp.epsilon_of(1e300, DELTA) == pytest.approx(1e300)
    assert zcdp.epsilon_of(1e-300, DELTA) == 0


@pytest.mark.parametrize(
    ("rho", "delta"), [(math.nan, 0.1), (-1.0, 0.1), (1.0, 0.0), (1.0, 1.0), (1.0, math.nan)]
)
def test_bad_parameters_are_refused(rho, delta):
    with pytest.raises(InvalidParameterError):
        zcdp.epsilon_of(rho, delta)
