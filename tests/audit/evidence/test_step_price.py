# SPDX-License-Identifier: Apache-2.0
"""What steps cost at least is below the accountant's answer, and near it."""

import math

import pytest

from sfumato.accounting.events import dp_sgd
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.accounting.price import price
from sfumato.audit.evidence.step_price import compared, is_precise, least_epsilon

RUNS = [(1.0, 0.1, 10), (2.0, 1.0, 4), (8.0, 1.0, 64), (0.3, 0.1, 10), (0.8, 0.02, 200), (50.0, 1.0, 100)]


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
@pytest.mark.parametrize(("noise", "rate", "steps"), RUNS)
def test_the_least_cost_is_near_the_accountants_and_never_above(noise, rate, steps, relation):
    least = least_epsilon([noise] * steps, sampling_rate=rate, relation=relation, delta=1e-5)
    told = price(
        dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=steps), delta=1e-5, relation=relation
    )
    assert told.epsilon - 0.15 < least <= told.epsilon


def test_steps_of_different_noise_add_up():
    mixed = least_epsilon([1.0] * 3 + [2.0] * 4, sampling_rate=0.2, relation=Relation.ADD_REMOVE, delta=1e-5)
    parts = [([1.0] * 3), ([2.0] * 4), ([1.0] * 7)]
    low, other, high = (
        least_epsilon(part, sampling_rate=0.2, relation=Relation.ADD_REMOVE, delta=1e-5) for part in parts
    )
    assert max(low, other) < mixed < high


def test_no_steps_cost_nothing():
    assert least_epsilon([], sampling_rate=0.2, relation=Relation.ADD_REMOVE, delta=1e-5) == 0.0


@pytest.mark.parametrize(
    ("noise", "epsilon", "delta", "precise"),
    [
        (1.0, 3.0, 1e-5, True),
        (0.05, 1300.0, 1e-5, False),
        (1.0, 8.0, 1e-13, False),
        (1.0, math.inf, 1e-5, False),
    ],
)
def test_where_float64_has_too_few_digits_nothing_is_said(noise, epsilon, delta, precise):
    claim = Guarantee(epsilon=epsilon, delta=delta, relation=Relation.ADD_REMOVE, privacy_unit="example")
    assert is_precise([noise], claim) is precise


@pytest.mark.parametrize(("epsilon", "p_value"), [(1.0, 0.0), (3.0, 1.0)])
def test_a_claim_below_the_least_cost_is_a_finding(epsilon, p_value):
    claim = Guarantee(epsilon=epsilon, delta=1e-5, relation=Relation.ADD_REMOVE, privacy_unit="example")
    found = compared([1.0] * 10, claim, sampling_rate=0.1, relation=Relation.ADD_REMOVE)
    assert found.p_value == p_value and found.observations == 10
