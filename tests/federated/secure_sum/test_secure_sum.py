# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.accounting.guarantee import Relation
from sfumato.accounting.kinds import SkellamDpEvent, SummedDiscreteGaussianDpEvent
from sfumato.accounting.price import price
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.modulus import log_wrap_probability
from sfumato.federated.secure_sum.secure_sum import IntegerNoise, SecureSum

KINDS = list(IntegerNoise)


def mechanism(**options):
    facts = {"dimension": 1000, "clip_norm": 1.0, "noise_multiplier": 1.0, "cohort": 100}
    return SecureSum(**{**facts, "least_survivors": 80, **options})


def epsilon(event, relation=Relation.ZERO_OUT):
    return price(event, delta=1e-5, relation=relation).epsilon


@pytest.mark.parametrize("noise", KINDS)
def test_the_scale_is_the_largest_that_the_bits_hold(noise):
    found = mechanism(noise=noise)

    def log_probability(scale):
        return log_wrap_probability(
            modulus=2**16,
            clients=100,
            clip_steps=scale,
            size=1024,
            noise_variance=found._share_stddev(scale, 1.0) ** 2,
            skellam=noise is IntegerNoise.SKELLAM,
        )

    assert log_probability(found.scale) <= math.log(1e-9) < log_probability(found.scale * 1.001)


@pytest.mark.parametrize("noise", KINDS)
def test_the_noise_of_the_least_survivors_is_what_the_multiplier_states(noise):
    found = mechanism(noise=noise, noise_multiplier=0.7)
    total = math.sqrt(found.least_survivors) * found.share_stddev
    assert total >= 0.7 * found.l2_bound
    assert total == pytest.approx(0.7 * found.l2_bound, rel=1e-9)


@pytest.mark.parametrize("noise", KINDS)
@pytest.mark.parametrize("relation", [Relation.ZERO_OUT, Relation.ADD_REMOVE, Relation.REPLACE_ONE])
def test_the_event_costs_what_gaussian_noise_of_the_same_multiplier_costs(noise, relation):
    found = epsilon(mechanism(noise=noise).event(), relation)
    gaussian = epsilon(dp.GaussianDpEvent(1.0), relation)
    assert gaussian <= found < gaussian * 1.001


def test_events_have_the_least_survivors_and_the_bound_after_rounding():
    found = mechanism()
    event = found.event()
    assert isinstance(event, SummedDiscreteGaussianDpEvent)
    assert (event.summands, event.sensitivity) == (80, found.l2_bound)
    event = mechanism(noise="skellam").event()
    assert isinstance(event, SkellamDpEvent)
    assert event.sensitivity > mechanism(noise="skellam").scale  # rounding makes a clipped vector longer


def test_planted_bug_noise_sized_for_the_invited_costs_more_than_was_claimed():
    """If shares are sized for the cohort and 40 of 100 are left, the true event is dearer than the claim."""
    claimed = mechanism(least_survivors=100)
    truly = SummedDiscreteGaussianDpEvent(claimed.share_stddev, claimed.l2_bound, 40)
    assert epsilon(truly) > 1.3 * epsilon(claimed.event())
    right = mechanism(least_survivors=40)
    left = SummedDiscreteGaussianDpEvent(right.share_stddev, right.l2_bound, 40)
    assert epsilon(left) <= epsilon(right.event())


@given(
    st.integers(1, 5000),
    st.floats(0.01, 100.0),
    st.floats(0.01, 4.0),
    st.integers(1, 200),
    st.sampled_from(KINDS),
)
def test_bounds_are_in_order(dimension, clip_norm, multiplier, cohort, noise):
    found = SecureSum(
        dimension=dimension,
        clip_norm=clip_norm,
        noise_multiplier=multiplier,
        cohort=cohort,
        least_survivors=cohort,
        noise=noise,
        bits=20,
    )
    assert found.size >= dimension and found.l2_bound**2 >= found.l2_bound_squared
    assert found.l2_bound <= found.l1_bound * (1 + 1e-12)
    assert found.l1_bound <= math.sqrt(found.size) * found.l2_bound * (1 + 1e-12)
    assert found.l2_bound >= math.floor(clip_norm * found.scale * (1 - 1e-12))


def test_more_bits_leave_less_to_rounding():
    ratios = [found.l2_bound / found.scale for found in (mechanism(bits=b) for b in (12, 16, 24))]
    assert ratios[0] > ratios[1] > ratios[2] >= 1.0


def test_sums_that_do_not_fit_are_refused_and_can_still_be_priced():
    with pytest.raises(InvalidParameterError, match="do not fit 8 bits"):
        mechanism(bits=8)
    found = mechanism()
    assert epsilon(found.event_at(1e6)) < 1e-3  # calibration may try it
    with pytest.raises(InvalidParameterError, match="do not fit"):
        found.scaled(1e6)


def test_skellam_noise_stays_drawable_with_many_bits():
    found = mechanism(noise="skellam", bits=32, least_survivors=1, cohort=2)
    assert found.share_stddev**2 <= 2.0**26


@pytest.mark.parametrize(
    "options",
    [
        {"least_survivors": 101},
        {"least_survivors": 0},
        {"bits": 7},
        {"bits": 33},
        {"clip_norm": 0.0},
        {"clip_norm": math.nan},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.inf},
        {"cohort": 0},
        {"dimension": 0},
        {"wrap_probability": 1.5},
        {"wrap_probability": 0.0},
    ],
)
def test_settings_out_of_range_are_refused(options):
    with pytest.raises(InvalidParameterError):
        mechanism(**options)


def test_another_law_of_noise_is_refused():
    with pytest.raises(InvalidParameterError, match="discrete-gaussian, skellam"):
        mechanism(noise="gaussian")


def test_the_statement_tells_the_noise_and_the_rule():
    assert "fewer than 80 clients" in mechanism().statement(1.25) and "1.25" in mechanism().statement(1.25)
    assert "Skellam" in mechanism(noise="skellam").statement(1.0)


def test_scaled_mechanisms_differ_in_noise_alone():
    assert mechanism().scaled(2.0) == mechanism(noise_multiplier=2.0)
    assert np.isclose(mechanism().scaled(2.0).share_stddev, mechanism(noise_multiplier=2.0).share_stddev)


def test_the_bound_of_a_rounded_update_is_that_of_its_integers():
    one = mechanism(noise_multiplier=1.5)
    assert one.bound_at(1.5) == pytest.approx(one.l2_bound / one.scale)
    assert one.clip_norm <= one.bound_at(1.5) == mechanism().bound_at(1.5)


@pytest.mark.parametrize("noise", KINDS)
def test_the_guarantee_against_the_server_is_that_of_all_rounds_without_sampling(noise):
    found = mechanism(noise=noise, noise_multiplier=4.0)
    wanted = epsilon(dp.SelfComposedDpEvent(dp.GaussianDpEvent(4.0), 10))
    told = found.against_server(rounds=10, delta=1e-5)
    assert wanted <= told.epsilon < wanted * 1.001
    assert (told.delta, told.relation, told.privacy_unit) == (1e-5, Relation.ZERO_OUT, "client")


@pytest.mark.parametrize("noise", KINDS)
@pytest.mark.parametrize("helpers", [20, 79])
def test_helpers_of_the_server_take_their_shares_of_noise_away(noise, helpers):
    found = mechanism(noise=noise, noise_multiplier=8.0)
    left = 8.0 * math.sqrt((80 - helpers) / 80)  # by share: 79 helpers leave one, 8 / sqrt(80)
    wanted = epsilon(dp.GaussianDpEvent(left))
    assert wanted <= found.against_server(rounds=1, delta=1e-5, helpers=helpers).epsilon < wanted * 1.01


@pytest.mark.parametrize("helpers", [-1, 80, 1.5, True])
def test_more_helpers_than_there_are_others_are_refused(helpers):
    with pytest.raises(InvalidParameterError, match="helpers"):
        mechanism().against_server(rounds=1, delta=1e-5, helpers=helpers)
