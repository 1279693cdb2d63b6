# SPDX-License-Identifier: Apache-2.0
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event as dp
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.accounting import composition, events, gaussian, rdp
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError, UnsupportedEventError

DELTA = 1e-5
ADD_REMOVE, REPLACE_ONE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
ZERO_OUT, REPLACE_LABEL = Relation.ZERO_OUT, Relation.REPLACE_LABEL
ROUNDING = 1 + 1e-8  # the accountant adds 1e-9 to what it computes

# (noise multiplier, steps, epsilon of dp_accounting 0.6.0's RdpAccountant, epsilon of its PLDAccountant);
# sampling rate 0.01, Poisson, add-remove. The project's baseline measurements of 2026-11-15, sections 3, 6.
SAMPLED = [
    (0.6, 1_000, 8.6803958, 7.4336161),
    (0.6, 10_000, 25.198508, 23.017587),
    (0.6, 100_000, 128.24602, 108.53029),
    (1.0, 1_000, 2.1013665, 1.8282436),
    (1.0, 10_000, 6.7127567, 6.187745),
    (1.0, 100_000, 27.237905, 25.573273),
    (4.0, 1_000, 0.30116116, 0.27217292),
    (4.0, 10_000, 1.0354901, 0.94699931),
    (4.0, 100_000, 3.6881128, 3.4071181),
    (7.0, 1_000, 0.16864131, 0.14523223),
    (1.4, 1_000, 1.1221052, 1.015712),
    (0.7, 1_000, 5.4232574, 4.6182914),
    (0.14, 1_000, 1004.80, 560.343),
    (0.07, 1_000, 61720.7, 2546.75),
]

# (noise multiplier, steps, epsilon of RdpAccountant) without sampling; section 6.
UNSAMPLED = [
    (1, 100, 96.116308),
    (1, 600, 414.86126),
    (1, 2200, 1321.7783),
    (5, 100, 10.72551),
    (5, 600, 34.126631),
    (5, 2200, 87.116308),
    (10, 100, 4.7285071),
    (10, 600, 13.776204),
    (10, 2200, 32.126631),
    (7, 1000, 30.534794),
    (1.4, 1000, 360.98371),
    (0.7, 1000, 1234.2272),
]

EVERY_EVENT = [
    (dp.GaussianDpEvent(1.5), list(Relation)),
    (dp.LaplaceDpEvent(2.0), list(Relation)),
    (dp.DiscreteLaplaceDpEvent(0.4, 2), list(Relation)),
    (dp.RandomizedResponseDpEvent(0.4, 5), [REPLACE_ONE, REPLACE_LABEL]),
    (dp.ZCDpEvent(0.1, 0.01), list(Relation)),
    (events.PureDpEvent(0.5), list(Relation)),
    (events.ApproximateDpEvent(0.5, 1e-8), list(Relation)),
    (events.ExponentialDpEvent(0.7), list(Relation)),
    (events.SparseVectorDpEvent(0.1, 0.2, 0.3), list(Relation)),
    (events.DiscreteGaussianDpEvent(5.0, 3.0, 2), list(Relation)),
    (dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), list(Relation)),
    (dp.PoissonSampledDpEvent(0.01, events.DiscreteGaussianDpEvent(4.0, 2.0)), list(Relation)),
    (dp.PoissonSampledDpEvent(0.05, dp.LaplaceDpEvent(1.0)), [ADD_REMOVE, ZERO_OUT]),
    (dp.PoissonSampledDpEvent(0.05, events.ApproximateDpEvent(1.0, 1e-7)), [ADD_REMOVE]),
    (dp.SampledWithoutReplacementDpEvent(1000, 10, dp.GaussianDpEvent(2.0)), [REPLACE_ONE, REPLACE_LABEL]),
    (dp.SampledWithoutReplacementDpEvent(1000, 10, dp.LaplaceDpEvent(2.0)), [REPLACE_ONE, REPLACE_LABEL]),
    (dp.SampledWithoutReplacementDpEvent(1000, 10, events.PureDpEvent(1.0)), [REPLACE_ONE]),
    (
        events.ParallelDpEvent([events.PureDpEvent(0.5), dp.GaussianDpEvent(2.0)]),
        [ADD_REMOVE, ZERO_OUT, REPLACE_LABEL],
    ),
    (events.TruncatedPoissonSampledDpEvent(0.05, 30, 300, dp.GaussianDpEvent(1.5)), list(Relation)),
    (events.TruncatedPoissonSampledDpEvent(0.05, 90, 300, dp.GaussianDpEvent(1.5)), list(Relation)),
    (dp.PoissonSampledDpEvent(0.05, events.JohnsonLindenstraussDpEvent(1.5, 200)), list(Relation)),
    (events.JohnsonLindenstraussDpEvent(4.0, 40), list(Relation)),
    (events.TruncatedPoissonSampledDpEvent(0.05, 30, 300, dp.LaplaceDpEvent(1.5)), []),
    (events.SkellamDpEvent(400.0, 11.0), list(Relation)),
    (events.SummedDiscreteGaussianDpEvent(2.0, 11.0, 100), list(Relation)),
    (dp.PoissonSampledDpEvent(0.05, events.SkellamDpEvent(400.0, 11.0)), list(Relation)),
    (dp.PoissonSampledDpEvent(0.05, events.SummedDiscreteGaussianDpEvent(2.0, 11.0, 100)), list(Relation)),
    (
        dp.SampledWithoutReplacementDpEvent(1000, 10, events.SkellamDpEvent(400.0, 11.0)),
        [REPLACE_ONE, REPLACE_LABEL],
    ),
    (events.TruncatedPoissonSampledDpEvent(0.05, 30, 300, events.SkellamDpEvent(400.0, 11.0)), []),
]
PRICED = [(event, relation) for event, relations in EVERY_EVENT for relation in relations]
REFUSED = [(e, r) for e, relations in EVERY_EVENT for r in Relation if r not in relations]


def sampled(noise_multiplier, sampling_rate, steps=1):
    return events.dp_sgd(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, steps=steps)


# --- golden values and oracles ---------------------------------------------------------------------------


@pytest.mark.parametrize(("noise_multiplier", "steps", "peer", "tight"), SAMPLED)
def test_sampled_epsilon_lies_between_the_pld_value_and_the_peers_rdp_value(
    noise_multiplier, steps, peer, tight
):
    epsilon = rdp.epsilon(sampled(noise_multiplier, 0.01, steps), delta=DELTA, relation=ADD_REMOVE)
    assert tight < epsilon <= peer * (1 + 1e-7)


@pytest.mark.parametrize(("noise_multiplier", "steps", "peer"), [row[:3] for row in SAMPLED if row[0] == 4.0])
def test_sampled_epsilon_equals_the_peers_where_the_best_order_is_whole(noise_multiplier, steps, peer):
    epsilon = rdp.epsilon(sampled(noise_multiplier, 0.01, steps), delta=DELTA, relation=ADD_REMOVE)
    assert epsilon == pytest.approx(peer, rel=2e-6)


@pytest.mark.parametrize(("noise_multiplier", "steps", "peer"), UNSAMPLED)
def test_unsampled_epsilon_matches_the_peer_or_beats_it_by_finer_orders(noise_multiplier, steps, peer):
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(noise_multiplier), steps)
    epsilon = rdp.epsilon(event, delta=DELTA, relation=ADD_REMOVE)
    exact = gaussian.epsilon(math.sqrt(steps) / noise_multiplier, DELTA)
    assert exact < epsilon <= peer * (1 + 1e-7)
    theirs = np.array(RdpAccountant().orders)
    same_orders = rdp.epsilon_of(rdp.curve(event, ADD_REMOVE, theirs), DELTA)
    assert same_orders == pytest.approx(peer, rel=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.floats(0.4, 20), st.floats(1e-5, 0.9))
def test_whole_orders_agree_with_dp_accounting_for_sampled_gaussians(noise_multiplier, rate):
    orders = np.array([2.0, 3.0, 8.0, 32.0, 256.0])
    event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise_multiplier))
    peer = RdpAccountant(orders=list(orders)).compose(event)
    np.testing.assert_allclose(rdp.curve(event, ADD_REMOVE, orders).values, peer.rdp, rtol=1e-7, atol=1e-13)


def test_fractional_orders_are_never_above_dp_accountings():
    orders = np.array([1.1, 1.5, 2.5, 4.2, 10.9])
    event = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0))
    peer = RdpAccountant(orders=list(orders)).compose(event)
    assert np.all(rdp.curve(event, ADD_REMOVE, orders).values <= np.array(peer.rdp) * ROUNDING)


@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 10.0])
def test_laplace_agrees_with_dp_accounting(noise_multiplier):
    orders = np.array([1.5, 2.0, 7.3, 64.0])
    peer = RdpAccountant(orders=list(orders)).compose(dp.LaplaceDpEvent(noise_multiplier))
    ours = rdp.curve(dp.LaplaceDpEvent(noise_multiplier), ADD_REMOVE, orders).values
    np.testing.assert_allclose(ours, peer.rdp, rtol=1e-7)


def test_randomized_response_agrees_with_dp_accounting():
    orders = np.array([1.5, 2.0, 7.3, 64.0])
    event = dp.RandomizedResponseDpEvent(0.3, 4)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    peer = RdpAccountant(orders=list(orders), neighboring_relation=relation).compose(event)
    np.testing.assert_allclose(rdp.curve(event, REPLACE_ONE, orders).values, peer.rdp, rtol=1e-7)


@pytest.mark.parametrize("noise_multiplier", [1.0, 4.0])
def test_fixed_size_sampling_agrees_with_dp_accounting_once_its_sensitivity_is_doubled(noise_multiplier):
    orders = np.array([257.0, 300.5, 512.0])  # up to 256 dp_accounting has a further refinement
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    peer = RdpAccountant(orders=list(orders), neighboring_relation=relation)
    peer.compose(dp.SampledWithoutReplacementDpEvent(100_000, 10, dp.GaussianDpEvent(noise_multiplier / 2)))
    ours = rdp.curve(
        dp.SampledWithoutReplacementDpEvent(100_000, 10, dp.GaussianDpEvent(noise_multiplier)),
        REPLACE_ONE,
        orders,
    ).values
    unsampled = rdp.curve(dp.GaussianDpEvent(noise_multiplier), REPLACE_ONE, orders).values
    np.testing.assert_allclose(ours, np.minimum(peer.rdp, unsampled), rtol=1e-7)


def test_sampled_epsilon_under_replace_one_is_above_dp_accountings_tight_one():
    # PLD replace-one of section 6, sampling rate 0.01, 1000 steps.
    for noise_multiplier, tight in ((7, 0.30504745), (1.4, 1.8200158), (0.7, 5.7660084), (0.14, 570.357)):
        epsilon = rdp.epsilon(sampled(noise_multiplier, 0.01, 1000), delta=DELTA, relation=REPLACE_ONE)
        assert tight < epsilon < tight * 1.15


# --- the two known bugs of dp_accounting 0.6.0 do not reach us ------------------------------------------


def test_replace_one_doubles_the_shift_of_a_gaussian_unlike_in_dp_accounting():
    event = dp.GaussianDpEvent(1.0)
    ours = rdp.epsilon(event, delta=DELTA, relation=REPLACE_ONE)
    exact = gaussian.epsilon(2.0, DELTA)
    upstream = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE).compose(
        event
    )
    assert upstream.get_epsilon(DELTA) < 0.6 * exact  # the bug: remove this line when it is gone
    assert exact < ours < exact * 1.1


def test_repeated_randomized_response_costs_more_than_one_unlike_in_dp_accounting():
    once = dp.RandomizedResponseDpEvent(0.5, 2)
    often = dp.SelfComposedDpEvent(once, 20)

    def upstream(event):
        relation = dp_accounting.NeighboringRelation.REPLACE_ONE
        return PLDAccountant(relation).compose(event).get_epsilon(1e-9)

    assert upstream(often) == upstream(once)  # the bug: remove this line when it is gone
    for price in (rdp.epsilon, composition.basic_epsilon, composition.optimal_epsilon):
        assert price(often, delta=1e-9, relation=REPLACE_ONE) > 5 * price(
            once, delta=1e-9, relation=REPLACE_ONE
        )


# --- relations that must hold ----------------------------------------------------------------------------


@pytest.mark.parametrize(("event", "relation"), PRICED)
def test_repeating_costs_the_same_as_listing(event, relation):
    repeated = rdp.curve(dp.SelfComposedDpEvent(event, 7), relation)
    listed = rdp.curve(dp.ComposedDpEvent([event] * 7), relation)
    once = rdp.curve(event, relation)
    np.testing.assert_array_equal(repeated.values, listed.values)
    np.testing.assert_allclose(repeated.values, 7 * once.values, rtol=1e-14)
    assert repeated.delta == listed.delta == pytest.approx(7 * once.delta)


@pytest.mark.parametrize(("event", "relation"), PRICED)
def test_one_order_alone_gives_the_same_value_as_among_all(event, relation):
    whole = rdp.curve(event, relation)
    for i in (0, 40, 120, 180, 199):
        alone = rdp.curve(event, relation, whole.orders[i : i + 1])
        assert alone.values[0] == pytest.approx(whole.values[i], rel=1e-12)


@pytest.mark.parametrize(("event", "relation"), PRICED)
def test_curves_grow_with_the_order_as_renyi_divergences_do(event, relation):
    curve = rdp.curve(event, relation)
    order = np.argsort(curve.orders)
    assert np.all(np.diff(curve.values[order]) >= -1e-8 * curve.values[order][1:])


@pytest.mark.parametrize(("event", "relation"), REFUSED)
def test_an_event_without_a_bound_is_refused_with_relation_and_remedy(event, relation):
    with pytest.raises(UnsupportedEventError, match=rf"(?s){relation.value}.*(Use|State|Compose)"):
        rdp.curve(event, relation)


def test_replace_label_does_not_amplify_a_promise_about_labels_alone():
    # A mechanism may publish the features of its batch: a promise about labels says nothing of them.
    event = dp.SampledWithoutReplacementDpEvent(1000, 10, events.PureDpEvent(1.0))
    with pytest.raises(UnsupportedEventError, match="replace-label"):
        rdp.curve(event, REPLACE_LABEL)


noises = st.floats(0.3, 50)
rates = st.floats(1e-6, 0.99)


@settings(deadline=None, max_examples=30)
@given(noises, st.floats(1, 3), rates, st.sampled_from(list(Relation)))
def test_more_noise_never_raises_epsilon(noise_multiplier, factor, rate, relation):
    loud = rdp.epsilon(sampled(noise_multiplier * factor, rate, 100), delta=DELTA, relation=relation)
    quiet = rdp.epsilon(sampled(noise_multiplier, rate, 100), delta=DELTA, relation=relation)
    assert loud <= quiet * ROUNDING


@settings(deadline=None, max_examples=30)
@given(noises, rates, st.floats(0.01, 1), st.sampled_from(list(Relation)))
def test_a_lower_sampling_rate_never_raises_epsilon(noise_multiplier, rate, factor, relation):
    rare = rdp.epsilon(sampled(noise_multiplier, rate * factor, 100), delta=DELTA, relation=relation)
    often = rdp.epsilon(sampled(noise_multiplier, rate, 100), delta=DELTA, relation=relation)
    unsampled = rdp.epsilon(sampled(noise_multiplier, 1.0, 100), delta=DELTA, relation=relation)
    assert rare <= often * ROUNDING
    assert often <= unsampled * ROUNDING


@settings(deadline=None, max_examples=30)
@given(noises, rates, st.integers(1, 1000), st.integers(0, 1000), st.sampled_from(list(Relation)))
def test_fewer_steps_never_raise_epsilon(noise_multiplier, rate, steps, more, relation):
    few = rdp.epsilon(sampled(noise_multiplier, rate, steps), delta=DELTA, relation=relation)
    assert few <= rdp.epsilon(sampled(noise_multiplier, rate, steps + more), delta=DELTA, relation=relation)


@settings(deadline=None, max_examples=60)
@given(st.floats(-3, 3), st.floats(-12, -0.5), st.integers(1, 1000), st.sampled_from(list(Relation)))
def test_epsilon_of_gaussians_is_never_below_the_closed_form(log_noise, log_delta, steps, relation):
    noise_multiplier, delta = 10.0**log_noise, 10.0**log_delta
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(noise_multiplier), steps)
    exact = gaussian.epsilon(relation.diameter * math.sqrt(steps) / noise_multiplier, delta)
    assert rdp.epsilon(event, delta=delta, relation=relation) >= exact * (1 - 1e-9)


def test_replace_one_costs_between_once_and_far_more_than_add_remove():
    event = sampled(1.0, 0.01, 1000)
    add_remove = rdp.epsilon(event, delta=DELTA, relation=ADD_REMOVE)
    assert add_remove < rdp.epsilon(event, delta=DELTA, relation=REPLACE_ONE) < 3 * add_remove


def test_several_gaussians_on_one_sample_are_one_gaussian():
    joint = dp.PoissonSampledDpEvent(
        0.01, dp.ComposedDpEvent([dp.GaussianDpEvent(2.0), dp.GaussianDpEvent(2.0)])
    )
    single = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(math.sqrt(2)))
    for relation in Relation:
        np.testing.assert_allclose(
            rdp.curve(joint, relation).values, rdp.curve(single, relation).values, rtol=1e-9
        )


def test_discrete_gaussian_costs_as_much_as_the_gaussian_it_stands_for():
    discrete, continuous = events.DiscreteGaussianDpEvent(6.0, 2.0), dp.GaussianDpEvent(3.0)
    for relation in Relation:
        np.testing.assert_array_equal(
            rdp.curve(discrete, relation).values, rdp.curve(continuous, relation).values
        )


def test_sampling_everything_is_not_sampling():
    inner = events.PureDpEvent(1.0)
    for event in (dp.PoissonSampledDpEvent(1.0, inner), dp.SampledWithoutReplacementDpEvent(5, 5, inner)):
        for relation in Relation:
            np.testing.assert_array_equal(
                rdp.curve(event, relation).values, rdp.curve(inner, relation).values
            )


def test_parallel_parts_cost_the_dearest_at_each_order():
    parts = [events.PureDpEvent(0.8), dp.GaussianDpEvent(2.0), events.ApproximateDpEvent(0.1, 1e-7)]
    curves = [rdp.curve(part, ADD_REMOVE) for part in parts]
    whole = rdp.curve(events.ParallelDpEvent(parts), ADD_REMOVE)
    np.testing.assert_array_equal(whole.values, np.max([c.values for c in curves], axis=0))
    assert whole.delta == 1e-7


# --- deltas, conversion, edge cases ----------------------------------------------------------------------


def test_deltas_of_the_parts_are_taken_off_the_delta_asked_for():
    event = dp.SelfComposedDpEvent(events.ApproximateDpEvent(0.1, 1e-6), 5)
    pure = dp.SelfComposedDpEvent(events.PureDpEvent(0.1), 5)
    with_deltas = rdp.epsilon(event, delta=1e-5, relation=ADD_REMOVE)
    assert with_deltas == pytest.approx(rdp.epsilon(pure, delta=5e-6, relation=ADD_REMOVE), rel=1e-12)
    assert rdp.epsilon(event, delta=5e-6, relation=ADD_REMOVE) == math.inf
    assert rdp.epsilon(event, delta=1e-6, relation=ADD_REMOVE) == math.inf


def test_a_sampled_approximate_mechanism_leaves_a_sampled_delta():
    event = dp.PoissonSampledDpEvent(0.01, events.ApproximateDpEvent(1.0, 1e-5))
    assert rdp.curve(event, ADD_REMOVE).delta == pytest.approx(1e-7)


@settings(deadline=None)
@given(st.floats(1e-6, 1e4), st.floats(-200, -0.1), st.floats(1.0005, 1e5))
def test_largest_rdp_inverts_the_conversion(epsilon, log_delta, order):
    delta = 10.0**log_delta
    value = rdp.largest_rdp(epsilon=epsilon, delta=delta, order=order)
    assert value >= 0
    if value > 0:
        back = rdp.epsilon_of(rdp.RdpCurve(orders=np.array([order]), values=np.array([value])), delta)
        assert back <= epsilon
        over = value * (1 + 1e-9) + 1e-9 * (epsilon + math.log(1 / delta) / (order - 1))
        more = rdp.epsilon_of(rdp.RdpCurve(orders=np.array([order]), values=np.array([over])), delta)
        assert more > epsilon or more == 0  # 0: the total variation alone is below delta


@settings(deadline=None)
@given(st.floats(1e-8, 10), st.floats(1e-9, 0.5))
def test_conversion_is_sound_for_randomized_response(epsilon, delta):
    # Exact delta of one randomized response at e: p - exp(e) (1 - p).
    converted = rdp.epsilon(events.PureDpEvent(epsilon), delta=delta, relation=REPLACE_ONE)
    p = 1 / (1 + math.exp(-epsilon))
    assert p - math.exp(converted) * (1 - p) <= delta * (1 + 1e-9)


def test_an_empty_composition_costs_nothing():
    for event in (dp.NoOpDpEvent(), dp.ComposedDpEvent([]), dp.PoissonSampledDpEvent(0.1, dp.NoOpDpEvent())):
        for relation in Relation:
            assert rdp.epsilon(event, delta=DELTA, relation=relation) == 0


def test_no_privacy_costs_infinity():
    for event in (dp.NonPrivateDpEvent(), dp.PoissonSampledDpEvent(0.1, dp.NonPrivateDpEvent())):
        assert rdp.epsilon(event, delta=DELTA, relation=ADD_REMOVE) == math.inf


@pytest.mark.parametrize("x", [1e-300, 1e-150, 1e-9, 1.0, 1e9, 1e150, 1e300])
@pytest.mark.parametrize("relation", list(Relation))
def test_extreme_parameters_never_give_nan(x, relation):
    extreme = [
        dp.GaussianDpEvent(x),
        dp.LaplaceDpEvent(x),
        dp.DiscreteLaplaceDpEvent(x, 1000),
        events.PureDpEvent(x),
        events.ExponentialDpEvent(x),
        dp.ZCDpEvent(x),
        dp.PoissonSampledDpEvent(1e-12, dp.GaussianDpEvent(x)),
        dp.PoissonSampledDpEvent(1 - 1e-12, events.DiscreteGaussianDpEvent(x, 1.0)),
    ]
    for event in extreme:
        assert rdp.epsilon(event, delta=DELTA, relation=relation) >= 0


@pytest.mark.parametrize("orders", [[1.0], [0.5, 2.0], [math.nan], [math.inf], [], [[2.0]]])
def test_bad_orders_are_refused(orders):
    with pytest.raises(InvalidParameterError, match="orders"):
        rdp.curve(dp.GaussianDpEvent(1.0), ADD_REMOVE, np.array(orders))


@pytest.mark.parametrize("bad", [0.0, 1.0, -1.0, math.nan, math.inf])
def test_bad_deltas_and_orders_are_refused(bad):
    with pytest.raises(InvalidParameterError, match="delta"):
        rdp.epsilon(dp.GaussianDpEvent(1.0), delta=bad, relation=ADD_REMOVE)
    with pytest.raises(InvalidParameterError, match="order"):
        rdp.largest_rdp(epsilon=1.0, delta=1e-5, order=bad)


def test_bad_values_cannot_make_a_curve():
    for values in ([math.nan], [-1.0], [1.0, 2.0]):
        with pytest.raises(InvalidParameterError):
            rdp.RdpCurve(orders=np.array([2.0]), values=np.array(values))


def test_no_caller_can_change_the_default_orders_or_a_remembered_curve():
    with pytest.raises(ValueError, match="read-only"):
        rdp.ORDERS[0] = 7.0
    event = sampled(1.0, 0.01)
    curve = rdp.curve(event, ADD_REMOVE)
    before = curve.values.copy()
    curve.values[:] = 0
    np.testing.assert_array_equal(rdp.curve(event, ADD_REMOVE).values, before)
