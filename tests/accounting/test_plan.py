# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from sfumato.accounting import events
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.accounting.plan import plan
from sfumato.accounting.price import price
from sfumato.errors import CalibrationError, InvalidParameterError

DELTA = 1e-5


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
def test_whichever_is_left_out_is_found(relation):
    whole = plan(delta=DELTA, noise_multiplier=1.2, sampling_rate=0.02, steps=500, relation=relation)
    run = events.dp_sgd(noise_multiplier=1.2, sampling_rate=0.02, steps=500)
    assert whole.event() == run
    assert whole.price == price(run, delta=DELTA, relation=relation)
    budget = {"epsilon": whole.epsilon, "delta": DELTA, "relation": relation}
    by_noise = plan(sampling_rate=0.02, steps=500, **budget)
    by_rate = plan(noise_multiplier=1.2, steps=500, **budget)
    by_steps = plan(noise_multiplier=1.2, sampling_rate=0.02, **budget)
    assert 1.2 <= by_noise.noise_multiplier <= 1.2 * (1 + 1e-3)
    assert 0.02 * (1 - 1e-3) <= by_rate.sampling_rate <= 0.02
    assert 498 <= by_steps.steps <= 500
    for found in (by_noise, by_rate, by_steps):
        assert found.epsilon <= whole.epsilon and found.relation is relation and found.delta == DELTA


def test_rate_and_steps_are_derived_from_public_sizes():
    found = plan(epsilon=3, delta=DELTA, public_size=60_000, expected_batch_size=1024, epochs=30)
    assert found.sampling_rate == 1024 / 60_000
    assert found.steps == round(30 * 60_000 / 1024) == 1758
    assert found.noise_multiplier == pytest.approx(1.236, abs=2e-3)
    short = plan(noise_multiplier=1, delta=DELTA, public_size=1000, expected_batch_size=1000, epochs=0.1)
    assert short.steps == 1 and short.sampling_rate == 1


def test_a_plan_states_its_guarantee_and_leaves_what_was_given_out_of_its_event():
    spent = events.PureDpEvent(0.5)
    found = plan(epsilon=1, delta=DELTA, sampling_rate=0.01, steps=100, given=spent)
    assert found.guarantee("user") == Guarantee(
        epsilon=found.epsilon, delta=DELTA, relation=Relation.ADD_REMOVE, privacy_unit="user"
    )
    assert found.given == spent
    alone = price(found.event(), delta=DELTA).epsilon
    together = price(events.compose(spent, found.event()), delta=DELTA).epsilon
    assert alone < 1 and together == found.epsilon <= 1


def test_the_relation_may_be_told_by_name():
    found = plan(delta=DELTA, noise_multiplier=1.0, sampling_rate=0.01, steps=10, relation="replace-one")
    assert found.relation is Relation.REPLACE_ONE


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"epsilon": 1, "steps": 10}, "2 are missing: noise_multiplier, sampling_rate"),
        ({"epsilon": 1, "noise_multiplier": 1, "sampling_rate": 0.1, "steps": 3}, "0 are missing"),
        ({"noise_multiplier": 1, "sampling_rate": 0.1}, "2 are missing: epsilon, steps"),
        (
            {"epsilon": 1, "sampling_rate": 0.1, "public_size": 10, "steps": 3},
            "give either sampling_rate",
        ),
        ({"epsilon": 1, "public_size": 10, "steps": 3}, "both public_size and expected_batch_size"),
        ({"epsilon": 1, "public_size": 10, "expected_batch_size": 20, "steps": 3}, "at most public_size=10"),
        ({"epsilon": 1, "sampling_rate": 0.1, "steps": 3, "epochs": 2}, "give either steps, or epochs"),
        ({"epsilon": 1, "noise_multiplier": 1, "epochs": 2}, "epochs together with a sampling rate"),
        ({"epsilon": 1, "sampling_rate": 0.1, "epochs": 0}, "epochs must be a finite number above 0, but 0"),
        ({"epsilon": 1, "sampling_rate": 1.5, "steps": 3}, "sampling_rate must be .* at most 1, but 1.5"),
        ({"epsilon": 1, "sampling_rate": 1.5, "epochs": 3}, "sampling_rate must be .* at most 1, but 1.5"),
        ({"epsilon": 1, "sampling_rate": math.nan, "steps": 3}, "sampling_rate must be .* but nan"),
        ({"epsilon": 1, "sampling_rate": 0.1, "steps": 0}, "steps must be a whole number, 1 or more, but 0"),
        ({"epsilon": 1, "sampling_rate": 0.1, "steps": 2.5}, "steps must be a whole number"),
        ({"epsilon": 1, "noise_multiplier": 0, "steps": 3}, "noise_multiplier must be .* above 0, but 0"),
        ({"epsilon": 1, "noise_multiplier": math.nan, "sampling_rate": 0.1}, "noise_multiplier must be"),
        ({"epsilon": math.nan, "sampling_rate": 0.1, "steps": 3}, "epsilon must be .* but nan"),
        (
            {"epsilon": -1, "sampling_rate": 0.1, "steps": 3},
            "epsilon must be a finite number above 0",
        ),
        ({"epsilon": math.inf, "sampling_rate": 0.1, "steps": 3}, "epsilon must be .* but inf"),
        ({"noise_multiplier": -2, "sampling_rate": 0.1, "steps": 3}, "noise_multiplier must be .* but -2"),
        ({"epsilon": 1, "sampling_rate": 0.1, "steps": 3, "relation": "swap"}, "unknown relation 'swap'"),
        ({"epsilon": 1, "public_size": 0, "expected_batch_size": 1, "steps": 3}, "public_size must be"),
    ],
    ids=str,
)
def test_bad_input_is_refused_with_what_to_do(given, words):
    with pytest.raises(InvalidParameterError, match=words):
        plan(delta=DELTA, **given)


@pytest.mark.parametrize("delta", [0, 1, -0.1, math.nan])
def test_a_bad_delta_is_refused_whatever_is_asked_for(delta):
    for given in ({"epsilon": 1}, {"noise_multiplier": 1}):
        with pytest.raises(InvalidParameterError, match="delta must be a number strictly between 0 and 1"):
            plan(delta=delta, sampling_rate=0.1, steps=10, **given)


def test_a_budget_that_is_spent_leaves_nothing_to_plan():
    with pytest.raises(CalibrationError, match=r"cannot be met.*spent"):
        plan(epsilon=1, delta=DELTA, sampling_rate=0.1, steps=10, given=events.PureDpEvent(2.0))
