# SPDX-License-Identifier: Apache-2.0
"""The area that a claim allows: never below what an attack can reach, and turned back into epsilon."""

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import dp_event as dp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from sfumato.accounting.events import PureDpEvent, dp_sgd
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price
from sfumato.audit.evidence import claim_limits
from sfumato.audit.evidence.claim_limits import AreaBound, bound_of_area, epsilon_of_area, largest_area
from sfumato.errors import InvalidParameterError

ADDED, REPLACED = Relation.ADD_REMOVE, Relation.REPLACE_ONE
DELTA = 1e-5


def gaussian(noise):
    return dp.GaussianDpEvent(noise)


@given(st.floats(0.1, 30.0))
@settings(max_examples=50, deadline=None)
def test_gaussian_noise_allows_its_exact_area_and_little_more(noise):
    exact = norm.cdf(1 / (noise * math.sqrt(2)))
    assert exact <= largest_area(gaussian(noise), relation=ADDED) <= exact + 0.006


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0, 8.0])
def test_a_replaced_unit_is_told_apart_as_with_half_of_the_noise(noise):
    twice = largest_area(gaussian(noise), relation=REPLACED)
    assert twice == pytest.approx(largest_area(gaussian(noise / 2), relation=ADDED))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_pure_privacy_allows_the_area_of_randomized_response(epsilon):
    # Its curve has one corner, at e^-epsilon of the way: the area is e^epsilon / (1 + e^epsilon).
    area = largest_area(PureDpEvent(epsilon), relation=ADDED)
    exact = 1 / (1 + math.exp(-epsilon))
    assert exact - 1e-6 <= area <= exact + 1e-3


def test_more_noise_fewer_steps_and_lower_rates_allow_no_more():
    def area(noise=1.0, rate=0.1, steps=20):
        event = dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=steps)
        return largest_area(event, relation=ADDED)

    by_noise = [area(noise=noise) for noise in (0.5, 1.0, 2.0, 50.0)]
    assert by_noise == sorted(by_noise, reverse=True)
    assert area(steps=5) < area()
    assert area(rate=0.02) < area()
    assert 0.5 <= by_noise[-1] < 0.51


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 0.1, 20), (0.5, 0.3, 4), (0.4, 0.1, 10)])
def test_the_best_attack_on_sampled_steps_stays_within_the_area(noise, rate, steps):
    random = np.random.default_rng(0)
    count = 20_000
    there = (random.random((count, steps)) < rate) + noise * random.standard_normal((count, steps))
    gone = noise * random.standard_normal((count, steps))
    inside, outside = (
        np.logaddexp((seen - 0.5) / noise**2 + math.log(rate), math.log1p(-rate)).sum(1)
        for seen in (there, gone)
    )
    ranks = np.searchsorted(np.sort(outside), inside) / count
    event = dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=steps)
    assert ranks.mean() - 0.01 < largest_area(event, relation=ADDED)


def test_what_gives_no_privacy_allows_everything():
    assert largest_area(dp.NonPrivateDpEvent(), relation=ADDED) == 1.0


@pytest.mark.parametrize("mu", [0.25, 1.0, 3.0])
def test_the_epsilon_of_a_gaussian_area_is_that_of_its_noise(mu):
    found = epsilon_of_area(
        norm.cdf(mu / math.sqrt(2)), lambda factor: gaussian(factor), delta=DELTA, relation=ADDED
    )
    exact = price(gaussian(1 / mu), delta=DELTA).epsilon
    assert 0.94 * exact - 0.05 < found <= exact  # it errs downwards


def test_the_area_that_a_claim_allows_does_not_refute_it():
    def event(factor):
        return dp_sgd(noise_multiplier=factor * 0.8, sampling_rate=0.2, steps=10)

    claim = price(event(1.0), delta=DELTA).epsilon
    area = largest_area(event(1.0), relation=ADDED)
    assert epsilon_of_area(area, event, delta=DELTA, relation=ADDED) <= claim
    assert epsilon_of_area(area + 0.01, event, delta=DELTA, relation=ADDED) > claim


@pytest.mark.parametrize(("lower", "certified"), [(1.5, True), (0.0, False)])
def test_the_accountants_lower_bound_counts_where_it_has_one(monkeypatch, lower, certified):
    def priced(event, *, delta, relation):
        found = price(event, delta=delta, relation=relation)
        return replace(found, lower=lower, upper=4.0) if delta == DELTA else found

    monkeypatch.setattr(claim_limits, "price", priced)
    found = bound_of_area(0.9, gaussian, delta=DELTA, relation=ADDED)
    assert found.epsilon == (lower if certified else 4.0) and found.certified is certified
    assert epsilon_of_area(0.9, gaussian, delta=DELTA, relation=ADDED) == found.epsilon


def test_of_sampled_steps_no_more_is_said_than_the_accountant_can_prove():
    def event(factor):
        return dp_sgd(noise_multiplier=factor * 2.0, sampling_rate=0.1, steps=100)

    area = largest_area(event(1.0), relation=ADDED)
    found = bound_of_area(area, event, delta=DELTA, relation=ADDED)
    assert found.certified and found.epsilon < price(event(1.0), delta=DELTA).lower


def test_an_area_that_guessing_has_is_certain_to_say_nothing():
    assert bound_of_area(0.5, gaussian, delta=DELTA, relation=ADDED) == AreaBound(epsilon=0.0, certified=True)


def test_epsilon_grows_with_the_area():
    areas = (0.0, 0.5, 0.55, 0.7, 0.9, 0.999, 1.0)
    found = [epsilon_of_area(area, gaussian, delta=DELTA, relation=ADDED) for area in areas]
    assert found == sorted(found)
    assert found[:2] == [0.0, 0.0]
    assert found[-1] > 50  # as large as areas in float64 can tell


@pytest.mark.parametrize("area", [-0.1, 1.1, math.nan])
def test_what_is_no_area_is_refused(area):
    with pytest.raises(InvalidParameterError, match="area"):
        epsilon_of_area(area, gaussian, delta=DELTA, relation=ADDED)
