# SPDX-License-Identifier: Apache-2.0
import math

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event as dp
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sfumato.accounting import composition, events, gaussian
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError, UnsupportedEventError

ADD_REMOVE, REPLACE_ONE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
ZERO_OUT, REPLACE_LABEL = Relation.ZERO_OUT, Relation.REPLACE_LABEL

pure_epsilons = st.floats(1e-3, 5)
counts = st.integers(1, 300)
small_deltas = st.floats(-12, -2).map(lambda x: 10.0**x)


def exact_composed_delta(base, count, epsilon):
    """Hockey-stick divergence of `count` randomized responses, in 60 digits and from the definition."""
    with mpmath.workdps(60):
        p = 1 / (1 + mpmath.exp(-mpmath.mpf(base)))
        likely = [mpmath.binomial(count, i) * p ** (count - i) * (1 - p) ** i for i in range(count + 1)]
        unlikely = [mpmath.binomial(count, i) * (1 - p) ** (count - i) * p**i for i in range(count + 1)]
        factor = mpmath.exp(mpmath.mpf(epsilon))
        return mpmath.fsum(max(a - factor * b, 0) for a, b in zip(likely, unlikely, strict=True))


# --- basic and parallel ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "relation", "expected"),
    [
        (dp.LaplaceDpEvent(4.0), ADD_REMOVE, 0.25),
        (dp.LaplaceDpEvent(4.0), REPLACE_ONE, 0.5),
        (dp.LaplaceDpEvent(4.0), REPLACE_LABEL, 0.5),
        (dp.DiscreteLaplaceDpEvent(0.5, 3), ZERO_OUT, 1.5),
        (dp.DiscreteLaplaceDpEvent(0.5, 3), REPLACE_ONE, 3.0),
        (dp.RandomizedResponseDpEvent(0.5, 2), REPLACE_ONE, math.log(3)),
        (events.PureDpEvent(0.7), REPLACE_ONE, 0.7),
        (events.ExponentialDpEvent(0.7), ADD_REMOVE, 0.7),
        (events.SparseVectorDpEvent(0.1, 0.2, 0.5), ADD_REMOVE, 0.8),
        (dp.NoOpDpEvent(), ADD_REMOVE, 0.0),
        (dp.NonPrivateDpEvent(), ADD_REMOVE, math.inf),
        (events.ParallelDpEvent([]), ADD_REMOVE, 0.0),
    ],
)
def test_each_pure_event_has_its_epsilon(event, relation, expected):
    assert composition.basic(event, relation) == (pytest.approx(expected), 0.0)


def test_basic_composition_adds_epsilons_and_deltas():
    event = events.compose(
        events.ApproximateDpEvent(0.5, 1e-6), events.ApproximateDpEvent(0.5, 1e-6), dp.LaplaceDpEvent(1.0)
    )
    assert composition.basic(event, ADD_REMOVE) == (2.0, 2e-6)
    assert composition.basic_epsilon(event, delta=2e-6, relation=ADD_REMOVE) == 2.0
    assert composition.basic_epsilon(event, delta=1.9e-6, relation=ADD_REMOVE) == math.inf


def test_parallel_parts_cost_the_dearest_and_replacement_is_refused():
    event = events.ParallelDpEvent([events.PureDpEvent(0.5), events.ApproximateDpEvent(0.2, 1e-6)])
    for relation in (ADD_REMOVE, ZERO_OUT, REPLACE_LABEL):
        assert composition.basic(event, relation) == (0.5, 1e-6)
    with pytest.raises(UnsupportedEventError, match=r"replace-one.*Compose"):
        composition.basic(event, REPLACE_ONE)


@pytest.mark.parametrize("relation", [ADD_REMOVE, ZERO_OUT])
def test_randomized_response_is_refused_where_a_unit_may_be_absent(relation):
    with pytest.raises(UnsupportedEventError, match=r"absent.*replace-one"):
        composition.basic(dp.RandomizedResponseDpEvent(0.5, 2), relation)


@pytest.mark.parametrize(
    "price", [composition.basic_epsilon, composition.advanced_epsilon, composition.optimal_epsilon]
)
@pytest.mark.parametrize(
    "event", [dp.GaussianDpEvent(1.0), dp.ZCDpEvent(0.1), events.DiscreteGaussianDpEvent(1.0, 1.0)]
)
def test_events_without_an_epsilon_of_their_own_are_refused(price, event):
    with pytest.raises(UnsupportedEventError, match="Use the RDP or PLD accountant"):
        price(event, delta=1e-5, relation=ADD_REMOVE)


# --- amplification ---------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.floats(1e-6, 50), st.floats(1e-6, 1.0))
def test_amplification_is_exact_for_randomized_response(epsilon, rate):
    # With the unit in with chance `rate`: (1-q) Q + q P against Q has odds 1 - q + q e^epsilon.
    amplified, delta = composition.amplify_poisson(epsilon, 1e-6, rate)
    with mpmath.workdps(50):
        exact = mpmath.log(1 + mpmath.mpf(rate) * mpmath.expm1(mpmath.mpf(epsilon)))
    assert amplified == pytest.approx(float(exact), rel=1e-12)
    assert amplified <= epsilon * (1 + 1e-12)
    assert delta == rate * 1e-6


def test_first_order_amplification_would_understate():
    amplified, _ = composition.amplify_poisson(2.0, 0.0, 0.01)
    assert amplified > 0.01 * 2.0  # `rate * epsilon` is not a bound


def test_amplification_does_not_overflow():
    assert composition.amplify_poisson(1e6, 0.0, 0.5)[0] == pytest.approx(1e6 - math.log(2))


def test_fixed_size_amplification_uses_the_share_sampled():
    assert composition.amplify_fixed_size(1.0, 1e-6, 1000, 10) == composition.amplify_poisson(1.0, 1e-6, 0.01)


def test_sampled_events_are_amplified_only_where_a_theorem_says_so():
    poisson = dp.PoissonSampledDpEvent(0.1, events.PureDpEvent(1.0))
    fixed = dp.SampledWithoutReplacementDpEvent(100, 10, events.PureDpEvent(1.0))
    expected = (pytest.approx(math.log1p(0.1 * math.expm1(1.0))), 0.0)
    assert composition.basic(poisson, ADD_REMOVE) == expected
    assert composition.basic(fixed, REPLACE_ONE) == expected
    refused = [(poisson, ZERO_OUT), (poisson, REPLACE_ONE), (poisson, REPLACE_LABEL)]
    refused += [(fixed, ADD_REMOVE), (fixed, ZERO_OUT), (fixed, REPLACE_LABEL)]
    for event, relation in refused:
        with pytest.raises(UnsupportedEventError, match=rf"{relation.value}.*always sound"):
            composition.basic(event, relation)


def test_noise_on_sums_of_a_fixed_size_sample_is_amplified_for_labels_too():
    event = dp.SampledWithoutReplacementDpEvent(100, 10, dp.LaplaceDpEvent(2.0))
    assert composition.basic(event, REPLACE_LABEL) == composition.basic(event, REPLACE_ONE)


@pytest.mark.parametrize("bad", [-1.0, 0.0, 1.1, math.nan, math.inf])
def test_bad_sampling_rates_are_refused(bad):
    with pytest.raises(InvalidParameterError, match="sampling_rate"):
        composition.amplify_poisson(1.0, 0.0, bad)


# --- advanced --------------------------------------------------------------------------------------------


def test_advanced_composition_is_theorem_5_of_the_report():
    epsilon, delta, count, slack = 0.1, 1e-7, 1000, 1e-6
    expected = epsilon * math.sqrt(2 * count * math.log(1 / slack))
    expected += count * epsilon * (math.exp(epsilon) - 1) / (math.exp(epsilon) + 1)
    assert composition.advanced(epsilon, delta, count, slack) == (
        pytest.approx(expected, rel=1e-12),
        pytest.approx(count * delta + slack),
    )


@settings(deadline=None, max_examples=60)
@given(st.floats(1e-3, 3), st.integers(1, 120), small_deltas)
def test_advanced_composition_is_sound_for_repeated_randomized_response(epsilon, count, slack):
    composed, _ = composition.advanced(epsilon, 0.0, count, slack)
    assert exact_composed_delta(epsilon, count, composed) <= slack


def test_advanced_composition_of_different_parts_reduces_to_the_equal_case():
    mixed = events.compose(
        events.PureDpEvent(0.1), dp.LaplaceDpEvent(10.0), dp.SelfComposedDpEvent(events.PureDpEvent(0.1), 998)
    )
    expected, _ = composition.advanced(0.1, 0.0, 1000, 1e-6)
    assert composition.advanced_epsilon(mixed, delta=1e-6, relation=ADD_REMOVE) == pytest.approx(expected)


def test_advanced_composition_takes_the_parts_deltas_off_first():
    event = dp.SelfComposedDpEvent(events.ApproximateDpEvent(0.01, 1e-8), 1000)
    expected, delta = composition.advanced(0.01, 1e-8, 1000, 1e-6)
    assert composition.advanced_epsilon(event, delta=delta, relation=ADD_REMOVE) == pytest.approx(expected)
    assert composition.advanced_epsilon(event, delta=1e-6, relation=ADD_REMOVE) == math.inf


# --- optimal ---------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.floats(1e-3, 3), st.integers(1, 120), small_deltas)
def test_optimal_composition_is_the_exact_curve_of_repeated_randomized_response(epsilon, count, delta):
    composed = composition.optimal(epsilon, 0.0, count, target_delta=delta)
    assert exact_composed_delta(epsilon, count, composed) <= delta
    if composed > 1e-6:
        assert exact_composed_delta(epsilon, count, composed * (1 - 1e-6)) > delta * (1 - 1e-8)


@pytest.mark.parametrize("i", [0, 1, 3, 5])
def test_optimal_composition_passes_through_the_points_of_theorem_3_3(i):
    # delta_i = sum_{m<i} C(k,m) (e^{(k-m) epsilon} - e^{(k-2i+m) epsilon}) / (1 + e^epsilon)^k
    k, epsilon = 12, 0.4
    terms = [
        math.comb(k, m) * (math.exp((k - m) * epsilon) - math.exp((k - 2 * i + m) * epsilon))
        for m in range(i)
    ]
    delta = math.fsum(terms) / (1 + math.exp(epsilon)) ** k
    assert composition.optimal(epsilon, 0.0, k, target_delta=delta) == pytest.approx(
        (k - 2 * i) * epsilon, rel=1e-7
    )


def test_optimal_composition_counts_the_parts_deltas_as_theorem_3_3_does():
    epsilon, delta, count, slack = 0.2, 1e-7, 50, 1e-5
    total = 1 - (1 - delta) ** count * (1 - slack)
    with_deltas = composition.optimal(epsilon, delta, count, target_delta=total)
    assert with_deltas == pytest.approx(
        composition.optimal(epsilon, 0.0, count, target_delta=slack), rel=1e-7
    )
    assert composition.optimal(epsilon, delta, count, target_delta=delta * count * 0.9) == math.inf


@settings(deadline=None)
@given(pure_epsilons, counts, small_deltas)
def test_optimal_is_at_most_advanced_is_at_most_basic(epsilon, count, delta):
    event = dp.SelfComposedDpEvent(events.PureDpEvent(epsilon), count)
    basic, advanced, optimal = (
        price(event, delta=delta, relation=ADD_REMOVE)
        for price in (composition.basic_epsilon, composition.advanced_epsilon, composition.optimal_epsilon)
    )
    assert 0 <= optimal <= advanced * (1 + 1e-12)
    assert advanced <= basic


@settings(deadline=None, max_examples=30)
@given(pure_epsilons, st.integers(1, 100), small_deltas)
def test_repeating_costs_the_same_as_listing(epsilon, count, delta):
    part = events.PureDpEvent(epsilon)
    for price in (composition.basic_epsilon, composition.advanced_epsilon, composition.optimal_epsilon):
        repeated = price(dp.SelfComposedDpEvent(part, count), delta=delta, relation=ADD_REMOVE)
        assert repeated == price(dp.ComposedDpEvent([part] * count), delta=delta, relation=ADD_REMOVE)


def test_optimal_composition_approaches_a_gaussian_for_a_hundred_thousand_small_parts():
    count, epsilon = 100_000, 0.01
    composed = composition.optimal(epsilon, 0.0, count, target_delta=1e-6)
    # Central limit: the loss is nearly normal with mean k epsilon tanh(epsilon/2), so mu = epsilon sqrt(k).
    assert composed == pytest.approx(gaussian.epsilon(epsilon * math.sqrt(count), 1e-6), rel=1e-4)


def test_optimal_composition_decides_its_edges():
    assert composition.optimal(0.0, 0.0, 5, target_delta=0.0) == 0
    assert composition.optimal(0.5, 0.0, 4, target_delta=0.0) == 2.0
    assert composition.optimal(0.5, 0.0, 4, target_delta=1.0) == 0
    assert composition.optimal(0.5, 1.0, 4, target_delta=0.5) == math.inf
    assert composition.optimal(0.01, 0.0, 1, target_delta=0.5) == 0
    assert composition.optimal(1e4, 0.0, 1000, target_delta=1e-5) == pytest.approx(1e7)
    assert composition.optimal_epsilon(dp.NoOpDpEvent(), delta=0.0, relation=ADD_REMOVE) == 0
    assert composition.optimal_epsilon(dp.NonPrivateDpEvent(), delta=0.1, relation=ADD_REMOVE) == math.inf


def test_optimal_composition_of_different_epsilons_is_refused_with_a_remedy():
    event = events.compose(events.PureDpEvent(0.1), events.PureDpEvent(0.2))
    with pytest.raises(UnsupportedEventError, match="advanced_epsilon"):
        composition.optimal_epsilon(event, delta=1e-5, relation=ADD_REMOVE)


def test_optimal_composition_of_one_epsilon_may_mix_kinds_and_deltas():
    mixed = events.compose(
        events.PureDpEvent(0.5), dp.LaplaceDpEvent(2.0), events.ApproximateDpEvent(0.5, 1e-7)
    )
    same = composition.optimal(0.5, 0.0, 3, target_delta=1e-3 - 1e-7)
    assert composition.optimal_epsilon(mixed, delta=1e-3, relation=ADD_REMOVE) == pytest.approx(
        same, rel=1e-6
    )


@settings(deadline=None, max_examples=30)
@given(st.floats(0.01, 1), st.integers(2, 100), small_deltas)
def test_fewer_parts_never_cost_more(epsilon, count, delta):
    assume(count > 1)
    fewer = composition.optimal(epsilon, 0.0, count - 1, target_delta=delta)
    assert fewer <= composition.optimal(epsilon, 0.0, count, target_delta=delta) + 1e-9


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bad_parameters_are_refused(bad):
    for call in (
        lambda: composition.advanced(bad, 0.0, 1, 1e-6),
        lambda: composition.advanced(1.0, bad, 1, 1e-6),
        lambda: composition.advanced(1.0, 0.0, 1, bad),
        lambda: composition.optimal(bad, 0.0, 1, target_delta=0.1),
        lambda: composition.optimal(1.0, 0.0, 1, target_delta=bad),
        lambda: composition.optimal(1.0, 0.0, 0, target_delta=0.1),
        lambda: composition.basic_epsilon(events.PureDpEvent(1.0), delta=bad, relation=ADD_REMOVE),
        lambda: composition.amplify_fixed_size(bad, 0.0, 10, 1),
        lambda: composition.amplify_fixed_size(1.0, 0.0, 10, 11),
    ):
        with pytest.raises(InvalidParameterError):
            call()


def test_statements_are_plain_floats():
    for value in (
        *composition.amplify_poisson(2.0, 0.0, 0.1),
        composition.optimal(0.1, 0.0, 50, target_delta=1e-6),
    ):
        assert type(value) is float
    assert not isinstance(composition.optimal(0.1, 0.0, 50, target_delta=1e-6), np.floating)
