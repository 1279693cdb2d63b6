# SPDX-License-Identifier: Apache-2.0
import json
import math

import attrs
import pytest
from dp_accounting import dp_event as dp
from hypothesis import given
from hypothesis import strategies as st

from sfumato.accounting import events
from sfumato.errors import InvalidParameterError, UnsupportedEventError

# One of each kind, with every numeric field that has a meaning.
LEAVES = [
    dp.NoOpDpEvent(),
    dp.NonPrivateDpEvent(),
    dp.GaussianDpEvent(1.1),
    dp.LaplaceDpEvent(0.5),
    dp.DiscreteLaplaceDpEvent(0.5, 3),
    dp.RandomizedResponseDpEvent(0.25, 4),
    dp.ZCDpEvent(0.1, 0.2),
    events.PureDpEvent(0.1),
    events.ApproximateDpEvent(0.1, 1e-7),
    events.ExponentialDpEvent(0.3),
    events.SparseVectorDpEvent(0.1, 0.2, 0.3),
    events.DiscreteGaussianDpEvent(12.5, 3.0, 7),
    events.JohnsonLindenstraussDpEvent(1.1, 50),
    events.SkellamDpEvent(120.5, 3.0),
    events.SummedDiscreteGaussianDpEvent(2.5, 3.0, 40),
]
NESTED = [
    dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.1)),
    dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(1.1)),
    dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.1)), 1000),
    dp.ComposedDpEvent([dp.LaplaceDpEvent(1.0), dp.SelfComposedDpEvent(events.PureDpEvent(0.5), 2)]),
    events.ParallelDpEvent([dp.GaussianDpEvent(2.0), dp.ComposedDpEvent([dp.LaplaceDpEvent(1.0)])]),
    dp.PoissonSampledDpEvent(0.5, dp.ComposedDpEvent([dp.GaussianDpEvent(1.0), dp.GaussianDpEvent(2.0)])),
    events.UnsampledDpEvent(dp.LaplaceDpEvent(2.0)),
    events.TruncatedPoissonSampledDpEvent(0.01, 20, 1000, dp.GaussianDpEvent(1.1)),
    dp.PoissonSampledDpEvent(0.5, events.JohnsonLindenstraussDpEvent(1.1, 50)),
]
BAD_NUMBERS = [math.nan, math.inf, -math.inf, -1.0, -1, "1", None]
ZERO_IS_FINE = {
    ("ZCDpEvent", "rho"),
    ("ZCDpEvent", "xi"),
    ("ApproximateDpEvent", "epsilon"),
    ("SparseVectorDpEvent", "answer_epsilon"),
}


def numeric_fields():
    for event in LEAVES + NESTED[:3] + NESTED[-2:-1]:
        for field in attrs.fields(type(event)):
            if isinstance(getattr(event, field.name), int | float):
                yield pytest.param(event, field.name, id=f"{type(event).__name__}.{field.name}")


positive = st.floats(1e-3, 1e3)
leaf_events = st.one_of(
    st.builds(dp.GaussianDpEvent, positive),
    st.builds(dp.LaplaceDpEvent, positive),
    st.builds(dp.DiscreteLaplaceDpEvent, positive, st.integers(1, 9)),
    st.builds(dp.RandomizedResponseDpEvent, st.floats(0.01, 1), st.integers(2, 9)),
    st.builds(dp.ZCDpEvent, positive, positive),
    st.builds(events.PureDpEvent, positive),
    st.builds(events.ApproximateDpEvent, positive, st.floats(1e-9, 0.5)),
    st.builds(events.ExponentialDpEvent, positive),
    st.builds(events.SparseVectorDpEvent, positive, positive, positive),
    st.builds(events.DiscreteGaussianDpEvent, positive, positive, st.integers(1, 9)),
    st.builds(events.JohnsonLindenstraussDpEvent, positive, st.integers(1, 9)),
    st.builds(events.SkellamDpEvent, positive, positive),
    st.builds(events.SummedDiscreteGaussianDpEvent, positive, positive, st.integers(1, 9)),
    st.just(dp.NoOpDpEvent()),
)
any_event = st.recursive(
    leaf_events,
    lambda inner: st.one_of(
        st.builds(dp.PoissonSampledDpEvent, st.floats(0.01, 1), inner),
        st.builds(dp.SampledWithoutReplacementDpEvent, st.integers(10, 20), st.integers(1, 10), inner),
        st.builds(
            events.TruncatedPoissonSampledDpEvent,
            st.floats(0.01, 1),
            st.integers(1, 9),
            st.integers(1, 9),
            inner,
        ),
        st.builds(dp.SelfComposedDpEvent, inner, st.integers(1, 99)),
        st.builds(dp.ComposedDpEvent, st.lists(inner, max_size=3)),
        st.builds(events.ParallelDpEvent, st.lists(inner, max_size=3)),
    ),
    max_leaves=6,
)


# --- JSON ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", LEAVES + NESTED, ids=lambda e: type(e).__name__)
def test_every_kind_of_event_survives_json(event):
    assert events.from_json(events.to_json(event)) == event


@given(any_event)
def test_any_event_survives_json_and_keeps_its_leaves(event):
    text = events.to_json(event)
    back = events.from_json(text)
    assert back == event
    assert events.leaves(back) == events.leaves(event)
    assert events.to_json(back) == text  # equal events, equal text


def test_json_is_plain_and_strict():
    assert json.loads(events.to_json(NESTED[2])) == {
        "type": "SelfComposedDpEvent",
        "count": 1000,
        "event": {
            "type": "PoissonSampledDpEvent",
            "sampling_probability": 0.01,
            "event": {"type": "GaussianDpEvent", "noise_multiplier": 1.1},
        },
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "{}",
        "[]",
        "3",
        "null",
        '"GaussianDpEvent"',
        '{"type": "GaussianDpEvent"}',
        '{"type": "NoSuchEvent"}',
        '{"type": ["GaussianDpEvent"]}',
        '{"type": "GaussianDpEvent", "noise_multiplier": NaN}',
        '{"type": "GaussianDpEvent", "noise_multiplier": Infinity}',
        '{"type": "GaussianDpEvent", "noise_multiplier": "1"}',
        '{"type": "GaussianDpEvent", "noise_multiplier": true}',
        '{"type": "GaussianDpEvent", "noise_multiplier": -1}',
        '{"type": "GaussianDpEvent", "noise_multiplier": 1, "extra": 2}',
        '{"type": "SelfComposedDpEvent", "count": 1.5, "event": {"type": "NoOpDpEvent"}}',
        '{"type": "GaussianDpEvent", "noise_multiplier": 1e999}',
    ],
)
def test_anything_else_is_not_an_event(text):
    with pytest.raises((InvalidParameterError, UnsupportedEventError)):
        events.from_json(text)


def test_an_invalid_event_is_not_written():
    with pytest.raises(InvalidParameterError, match="noise_multiplier"):
        events.to_json(dp.GaussianDpEvent(math.nan))


# --- check -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", LEAVES + NESTED, ids=lambda e: type(e).__name__)
def test_well_formed_events_pass(event):
    events.check(event)


@pytest.mark.parametrize(("event", "field"), list(numeric_fields()))
def test_every_parameter_of_every_event_is_checked(event, field):
    bad = BAD_NUMBERS if (type(event).__name__, field) in ZERO_IS_FINE else [*BAD_NUMBERS, 0, 0.0]
    for value in bad:
        with pytest.raises(InvalidParameterError):
            events.check(attrs.evolve(event, **{field: value}))


@pytest.mark.parametrize(("event", "field"), list(numeric_fields()))
def test_a_bad_parameter_is_found_however_deep(event, field):
    broken = attrs.evolve(event, **{field: math.nan})
    wrappers = [
        dp.ComposedDpEvent([dp.NoOpDpEvent(), broken]),
        dp.SelfComposedDpEvent(broken, 2),
        dp.PoissonSampledDpEvent(0.5, broken),
        dp.SampledWithoutReplacementDpEvent(10, 1, broken),
        events.ParallelDpEvent([dp.ComposedDpEvent([broken])]),
    ]
    for wrapped in wrappers:
        with pytest.raises(InvalidParameterError):
            events.leaves(wrapped)


def test_whole_numbers_must_be_whole():
    for bad in (
        dp.DiscreteLaplaceDpEvent(1.0, 1.5),
        dp.RandomizedResponseDpEvent(0.5, 2.5),
        dp.RandomizedResponseDpEvent(0.5, 1),
        dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 2.0),
        events.DiscreteGaussianDpEvent(1.0, 1.0, 1.5),
        events.SummedDiscreteGaussianDpEvent(1.0, 1.0, 1.5),
    ):
        with pytest.raises(InvalidParameterError):
            events.check(bad)


def test_rates_and_sizes_stay_in_range():
    for bad in (
        dp.PoissonSampledDpEvent(1.01, dp.GaussianDpEvent(1.0)),
        dp.SampledWithoutReplacementDpEvent(10, 11, dp.GaussianDpEvent(1.0)),
        dp.RandomizedResponseDpEvent(1.01, 2),
        events.ApproximateDpEvent(1.0, 1.0),
    ):
        with pytest.raises(InvalidParameterError):
            events.check(bad)


def test_an_unknown_kind_of_event_is_refused_by_name():
    with pytest.raises(UnsupportedEventError, match=r"UnsupportedDpEvent.*ApproximateDpEvent"):
        events.check(dp.UnsupportedDpEvent())


# --- leaves and compose ----------------------------------------------------------------------------------


def test_leaves_count_through_nested_compositions():
    a, b = dp.GaussianDpEvent(1.0), events.PureDpEvent(0.5)
    inner = dp.SelfComposedDpEvent(dp.ComposedDpEvent([a, dp.SelfComposedDpEvent(b, 3)]), 4)
    assert events.leaves(dp.ComposedDpEvent([inner, a, dp.NoOpDpEvent()])) == {a: 5, b: 12}


@given(st.lists(leaf_events, max_size=5), st.integers(1, 50))
def test_repeating_an_event_counts_the_same_as_listing_it(parts, times):
    event = dp.ComposedDpEvent(parts)
    assert events.leaves(dp.SelfComposedDpEvent(event, times)) == events.leaves(
        dp.ComposedDpEvent([event] * times)
    )


@given(st.lists(any_event, max_size=4))
def test_composing_keeps_the_leaves(parts):
    assert events.leaves(events.compose(*parts)) == events.leaves(dp.ComposedDpEvent(parts))


@given(any_event)
def test_leaves_are_hashable_whatever_is_inside(event):
    assert all(hash(leaf) is not None and count >= 1 for leaf, count in events.leaves(event).items())


def test_composing_nothing_is_no_operation():
    assert events.compose() == dp.NoOpDpEvent()
    assert events.compose(dp.NoOpDpEvent()) == dp.NoOpDpEvent()


def test_one_sampled_release_stays_one_leaf():
    event = dp.PoissonSampledDpEvent(0.1, dp.ComposedDpEvent([dp.GaussianDpEvent(1.0)] * 2))
    [(leaf, count)] = events.leaves(dp.SelfComposedDpEvent(event, 5)).items()
    assert count == 5
    assert leaf == dp.PoissonSampledDpEvent(0.1, dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 2))


# --- small helpers ---------------------------------------------------------------------------------------


def test_dp_sgd_is_a_repeated_poisson_sampled_gaussian():
    step = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.1))
    assert events.dp_sgd(noise_multiplier=1.1, sampling_rate=0.01, steps=10) == dp.SelfComposedDpEvent(
        step, 10
    )


@pytest.mark.parametrize(
    "bad",
    [{"noise_multiplier": 0.0}, {"sampling_rate": 0.0}, {"sampling_rate": 1.5}, {"steps": 0}, {"steps": 1.0}],
)
def test_dp_sgd_refuses_bad_parameters_by_name(bad):
    with pytest.raises(InvalidParameterError, match=next(iter(bad))):
        events.dp_sgd(**{"noise_multiplier": 1.1, "sampling_rate": 0.01, "steps": 10} | bad)


def test_a_schedule_counts_equal_noises_wherever_they_stand():
    event = events.dp_sgd_schedule([(2.0, 3), (1.0, 4), (2.0, 5)], sampling_rate=0.1)
    assert events.leaves(event) == {
        dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)): 8,
        dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0)): 4,
    }
    for bad in ([(0.0, 3)], [(1.0, 0)], [(1.0, 1.5)], [(math.nan, 1)]):
        with pytest.raises(InvalidParameterError):
            events.dp_sgd_schedule(bad, sampling_rate=0.1)
    with pytest.raises(InvalidParameterError):
        events.dp_sgd_schedule([(1.0, 1)], sampling_rate=0.0)


@given(st.lists(st.tuples(positive, st.integers(1, 9)), min_size=1, max_size=40), st.integers(1, 8))
def test_a_coarse_schedule_has_the_same_steps_in_order_and_never_more_noise(schedule, levels):
    coarse = events.coarsen(schedule, levels=levels)
    assert len({noise for noise, _ in coarse}) <= levels
    before = [noise for noise, steps in schedule for _ in range(steps)]
    after = [noise for noise, steps in coarse for _ in range(steps)]
    assert len(before) == len(after)
    assert all(min(before) <= a <= b for a, b in zip(after, before, strict=True))
    if len({noise for noise, _ in schedule}) <= levels:
        assert after == before


def test_sparse_vector_adds_its_parts():
    assert events.SparseVectorDpEvent(0.1, 0.2, 0.3).epsilon == pytest.approx(0.6)


def test_is_private_looks_at_every_leaf():
    assert events.is_private(NESTED[3])
    assert not events.is_private(dp.ComposedDpEvent([dp.GaussianDpEvent(1.0), dp.NonPrivateDpEvent()]))


def test_several_gaussians_have_the_scale_of_one():
    assert events.gaussian_scale(dp.SelfComposedDpEvent(dp.GaussianDpEvent(4.0), 4)) == pytest.approx(2.0)
    assert events.gaussian_scale(dp.ComposedDpEvent([dp.GaussianDpEvent(3.0), dp.GaussianDpEvent(4.0)])) == (
        pytest.approx(2.4)
    )
    for event in (dp.LaplaceDpEvent(1.0), dp.NoOpDpEvent(), NESTED[0]):
        assert events.gaussian_scale(event) is None


@pytest.mark.parametrize(
    "wrap",
    [
        lambda e: dp.PoissonSampledDpEvent(0.1, e),
        lambda e: dp.SampledWithoutReplacementDpEvent(10, 1, e),
        lambda e: events.TruncatedPoissonSampledDpEvent(0.1, 1, 10, e),
        lambda e: dp.PoissonSampledDpEvent(0.1, dp.ComposedDpEvent([dp.SelfComposedDpEvent(e, 2)])),
        lambda e: dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, events.ParallelDpEvent([e])), 3),
    ],
)
def test_an_event_whose_bound_holds_between_neighbors_only_cannot_be_sampled(wrap):
    events.check(wrap(dp.GaussianDpEvent(2.0)))
    with pytest.raises(UnsupportedEventError, match="must not be sampled"):
        events.check(wrap(events.UnsampledDpEvent(dp.GaussianDpEvent(2.0))))


def test_an_unsampled_event_costs_what_is_in_it():
    inner = dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 3)
    assert events.leaves(events.UnsampledDpEvent(inner)) == events.leaves(inner)
