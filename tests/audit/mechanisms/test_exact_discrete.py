# SPDX-License-Identifier: Apache-2.0
"""Exact epsilons of discrete laws, beside what the events of our mechanisms cost."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from sfumato import mechanisms as m
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.audit.mechanisms.exact_discrete import audit_discrete, audit_laws, claim_of, exact_epsilon, law
from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded

ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
ALPHA = 1e-6  # chance that correct code fails one check on a fresh seed
weights = st.lists(st.sampled_from([0, 1, 2, 5, 100]), min_size=4, max_size=4).filter(any)


def by_all_events(one, two, delta):
    """Return the largest log((P - delta) / Q) over all events, both ways, by trying each."""
    largest = 0.0
    for event in itertools.product([0, 1], repeat=len(one)):
        for p, q in ((one @ event, two @ event), (two @ event, one @ event)):
            if p - delta > 1e-12:
                largest = max(largest, math.inf if q == 0 else math.log((p - delta) / q))
    return largest


@given(weights, weights, st.sampled_from([0.0, 1e-3, 0.3]))
def test_the_exact_epsilon_is_that_of_the_best_of_all_events(first, second, delta):
    one, two = np.array(first) / sum(first), np.array(second) / sum(second)
    assert exact_epsilon(one, two, delta=delta) == pytest.approx(by_all_events(one, two, delta), abs=1e-6)


def test_equal_laws_have_epsilon_0_and_disjoint_ones_none():
    assert exact_epsilon([0.5, 0.5], [0.5, 0.5]) == 0
    assert exact_epsilon([1.0, 0.0], [0.0, 1.0], delta=0.5) == math.inf
    assert exact_epsilon([1.0, 0.0], [0.0, 1.0], delta=1.0) == 0


@pytest.mark.parametrize("wrong", [[], [-0.1, 1.1], [0.6, 0.6], [math.nan, 0.5]])
def test_what_is_no_law_is_refused(wrong):
    with pytest.raises(InvalidParameterError, match="a distribution must be a list of probabilities"):
        exact_epsilon(wrong, [0.5, 0.5])


def test_laws_of_different_outcomes_are_refused():
    with pytest.raises(InvalidParameterError, match="2 and 3 numbers"):
        exact_epsilon([0.5, 0.5], [0.5, 0.25, 0.25])
    with pytest.raises(InvalidParameterError, match="delta must be"):
        exact_epsilon([0.5, 0.5], [0.5, 0.5], delta=2)


def test_an_outcome_that_only_one_law_has_is_no_secret():
    assert audit_laws({"a": 1.0}, {"a": 0.5, "b": 0.5}).best.epsilon == math.inf


UP, DOWN = [2.0] + [0.0] * 900, [0.0] + [2.0] * 900
PAIRS = [
    (m.DiscreteLaplace.calibrated(epsilon=0.7, sensitivity=3, relation=ADD), 0, 3, 0.0),
    (m.DiscreteLaplace.calibrated(epsilon=0.7, sensitivity=2, relation=REPLACE), 5, 3, 0.0),
    (m.DiscreteLaplace.calibrated(epsilon=0.7, sensitivity=1, relation=ADD), 0, 1, 0.01),
    (m.DiscreteGaussian(stddev=0.7, sensitivity=1, relation=ADD), 0, 1, 1e-5),
    (m.DiscreteGaussian(stddev=9.0, sensitivity=2, relation=REPLACE), 0, 2, 1e-3),
    (m.RandomizedResponse.calibrated(epsilon=2.0, num_buckets=5), 1, 4, 0.0),
    (m.UnaryEncoding(epsilon=1.5, num_buckets=4), 0, 3, 0.0),
    (m.UnaryEncoding(epsilon=1.5, num_buckets=4, encoding=m.Encoding.SYMMETRIC), 0, 3, 0.0),
    (m.Exponential(epsilon=1.0, sensitivity=2.0, relation=REPLACE), UP, DOWN, 0.0),
    (m.PermuteAndFlip(epsilon=1.0, sensitivity=2.0, relation=REPLACE), UP[:31], DOWN[:31], 0.0),
]  # fmt: skip
NAMES = [f"{type(mechanism).__name__} {index}" for index, (mechanism, *_) in enumerate(PAIRS)]


@pytest.mark.parametrize(("mechanism", "first", "second", "delta"), PAIRS, ids=NAMES)
def test_the_price_of_an_event_is_reached_and_not_passed(mechanism, first, second, delta):
    result = audit_discrete(mechanism, first, second, delta=delta)
    assert not result.refuted
    assert result.best.epsilon == pytest.approx(result.claim.epsilon, rel=2e-3)  # the claim is tight


@pytest.mark.parametrize(("mechanism", "first", "second", "delta"), PAIRS, ids=NAMES)
def test_a_price_that_is_a_percent_too_small_is_contradicted(mechanism, first, second, delta):
    claim = claim_of(mechanism, delta=delta)
    less = Guarantee(epsilon=0.99 * claim.epsilon, delta=delta, relation=claim.relation, privacy_unit="unit")
    assert audit_discrete(mechanism, first, second, delta=delta, claim=less).refuted


def test_an_exact_epsilon_is_compared_at_the_delta_of_its_claim():
    claim = Guarantee(epsilon=1.0, delta=0.6, relation=ADD, privacy_unit="unit")
    assert not audit_laws({"a": 1.0}, {"a": 0.5, "b": 0.5}, claim=claim).refuted
    with pytest.raises(InvalidParameterError, match=r"does not contradict a claim at delta=0\.6"):
        audit_laws({"a": 1.0}, {"a": 0.5, "b": 0.5}, claim=claim, delta=0.0)


def test_inputs_further_apart_than_the_sensitivity_are_contradicted():
    mechanism = m.DiscreteLaplace.calibrated(epsilon=1.0, sensitivity=1, relation=ADD)
    assert audit_discrete(mechanism, 0, 2).refuted
    assert not audit_discrete(mechanism, 1, 0).refuted


TINY = {
    "two answers": lambda e: (m.RandomizedResponse.calibrated(epsilon=e, num_buckets=2), 0, 1),
    "many answers": lambda e: (m.RandomizedResponse.calibrated(epsilon=e, num_buckets=7), 0, 1),
    "unary": lambda e: (m.UnaryEncoding(epsilon=e, num_buckets=3), 0, 1),
    "exponential": lambda e: (
        m.Exponential(epsilon=e, sensitivity=1.0, relation=ADD),
        [1.0, 0.0, 0.0, 0.0],
        [0.0, 1.0, 1.0, 1.0],
    ),
    "permute": lambda e: (
        m.PermuteAndFlip(epsilon=e, sensitivity=1.0, relation=ADD),
        [1.0, 0.0, 0.0, 0.0],
        [0.0, 1.0, 1.0, 1.0],
    ),
}


@pytest.mark.parametrize("name", TINY)
def test_a_true_claim_of_a_tiny_epsilon_is_not_contradicted(name):
    tiny = np.logspace(-12, -3, 100).tolist()
    assert [epsilon for epsilon in tiny if audit_discrete(*TINY[name](epsilon)).refuted] == []


def test_a_false_claim_of_a_tiny_epsilon_is_contradicted():
    mechanism, first, second = TINY["two answers"](1e-6)
    less = Guarantee(epsilon=0.99e-6, delta=0.0, relation=REPLACE, privacy_unit="unit")
    assert audit_discrete(mechanism, first, second, claim=less).refuted


@pytest.mark.parametrize(
    ("mechanism", "value"),
    [
        (m.DiscreteLaplace(scale=2.0, sensitivity=1, relation=ADD), 3),
        (m.DiscreteGaussian(stddev=1.5, sensitivity=1, relation=ADD), 3),
        (m.Exponential(epsilon=2.0, sensitivity=1.0, relation=REPLACE), [0.0, 1.0, 3.0, 0.5]),
        (m.PermuteAndFlip(epsilon=2.0, sensitivity=1.0, relation=REPLACE), [0.0, 1.0, 3.0, 0.5]),
    ],
    ids=["laplace", "gaussian", "exponential", "permute"],
)
def test_a_law_is_what_its_mechanism_draws(mechanism, value):
    generator, runs = seeded(0), 3000
    drawn = [mechanism.release(value, generator=generator) for _ in range(runs)]
    outcomes = range(4) if isinstance(value, list) else range(-1, 8)
    probabilities = law(mechanism, value, outcomes)
    counts = [sum(x == outcome for x in drawn) for outcome in outcomes]
    expected = [runs * probabilities[outcome] for outcome in outcomes]
    if not isinstance(value, list):
        counts.append(runs - sum(counts))
        expected.append(runs - sum(expected))
    assert chisquare(counts, np.array(expected) * sum(counts) / sum(expected)).pvalue > ALPHA
    wrong = np.roll(expected, 1)
    assert chisquare(counts, wrong * sum(counts) / sum(wrong)).pvalue < ALPHA


@pytest.mark.parametrize(
    ("mechanism", "value"),
    [
        (PAIRS[5][0], 1),
        (PAIRS[6][0], 1),
        (PAIRS[7][0], 2),
        (PAIRS[8][0], [1.0, 2.0]),
        (PAIRS[9][0], [1.0, 2.0]),
    ],
    ids=["response", "optimized", "symmetric", "exponential", "permute"],
)
def test_the_probabilities_of_all_outcomes_add_up_to_one(mechanism, value):
    outcomes = range(len(value)) if isinstance(value, list) else range(5)
    if isinstance(mechanism, m.UnaryEncoding):
        outcomes = list(itertools.product((False, True), repeat=4))
    assert sum(law(mechanism, value, outcomes).values()) == pytest.approx(1.0, abs=1e-12)


def test_a_mechanism_without_a_known_law_is_refused():
    continuous = m.Laplace(scale=1.0, sensitivity=1.0, relation=ADD)
    with pytest.raises(InvalidParameterError, match="the distribution of a Laplace is not known"):
        audit_discrete(continuous, 0.0, 1.0)
    with pytest.raises(InvalidParameterError, match="num_buckets must be"):
        audit_discrete(m.UnaryEncoding(epsilon=1.0, num_buckets=30), 0, 1)
