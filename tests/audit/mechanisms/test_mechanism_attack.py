# SPDX-License-Identifier: Apache-2.0
"""The audit of a mechanism: what is true is not contradicted, what is broken is."""

import math

import numpy as np
import pytest
import torch

from sfumato import mechanisms as m
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.audit.mechanisms.event_search import EVENTS, LowBits, Outcomes, Tails
from sfumato.audit.mechanisms.exact_discrete import audit_laws, claim_of
from sfumato.audit.mechanisms.mechanism_attack import Vectorized, audit_mechanism, audit_outputs, runs_needed
from sfumato.audit.mechanisms.replay import replay
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import words
from sfumato.testing import seeded

ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
CONFIDENCE = 1 - 1e-6  # of checks that must not fail by chance


def claim(epsilon=1.0, delta=0.0, relation=ADD):
    return Guarantee(epsilon=epsilon, delta=delta, relation=relation, privacy_unit="unit")


def audited(run, first, second, *, claim, trials=1200, seed=0, events=EVENTS):
    return audit_mechanism(
        run,
        first,
        second,
        claim=claim,
        trials=trials,
        confidence=CONFIDENCE,
        generator=seeded(seed),
        events=events,
    )


def released(mechanism):
    return lambda data, generator: mechanism.release(data, generator=generator)


# --- validity ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "events"),
    [
        (
            lambda value, count, generator: m.RandomizedResponse.calibrated(epsilon=1.0).release(
                np.full(count, int(value)), generator=generator
            ),
            (Outcomes(),),
        ),
        (
            lambda value, count, generator: (
                value + m.laplace((count,), scale=1.0, generator=generator).numpy()
            ),
            (Tails(),),
        ),
    ],
    ids=["two outcomes", "laplace"],
)
def test_a_bound_exceeds_the_truth_no_more_often_than_it_says(draw, events):
    found = [
        audit_mechanism(
            Vectorized(draw),
            0.0,
            1.0,
            trials=400,
            confidence=0.8,
            generator=seeded(seed),
            events=events,
        ).best.epsilon
        for seed in range(200)
    ]
    above = sum(epsilon > 1.0 for epsilon in found)
    assert above <= 0.2 * 200
    assert np.mean(found) > 0.5  # and it is not true because it says nothing


def test_a_mechanism_that_ignores_its_data_is_not_contradicted_by_many_searches():
    def noise(data, count, generator):
        return m.gaussian((count, 2), stddev=1.0, generator=generator).numpy()

    found = [
        audit_mechanism(Vectorized(noise), 0, 1, trials=200, confidence=0.8, generator=seeded(seed))
        for seed in range(30)
    ]
    # Chosen and counted on the same outputs, the best of all these events would be above 0 nearly always.
    assert sum(result.best.epsilon > 0 for result in found) <= 12  # 6 are expected at most; 13 in 1 of 200


def test_the_half_that_counts_is_not_the_half_that_searched():
    # All outputs are different. If the events knew the outputs that they are counted on, they would tell.
    ordered = [object() for _ in range(400)]
    assert audit_outputs(ordered[:200], ordered[200:]).best.epsilon == 0


def forking(value, generator):
    """Draw noise as a step of a training run does, from a fork of the generator."""
    return (
        value + m.laplace((1,), scale=1.0, generator=generator.fork("noise", 0), dtype=torch.float64).item()
    )


@pytest.mark.parametrize("generator", [seeded(0), m.FastGenerator(0), None], ids=["seeded", "fast", "secure"])
def test_a_mechanism_that_forks_its_generator_is_not_accused_of_repeating_its_noise(generator):
    found = audit_mechanism(
        forking, 0.0, 1.0, trials=400, claim=claim(), confidence=CONFIDENCE, generator=generator
    )
    assert not found.refuted


def test_each_run_has_a_generator_of_its_own_and_the_same_seed_gives_the_same_audit():
    seen = []

    def run(data, generator):
        seen.append((data, int(words(1, generator.fork("any", 0))[0])))
        return 0

    for _ in range(2):
        audit_mechanism(run, "one", "two", trials=50, generator=seeded(0))
    assert len(set(seen)) == 100 and seen[:100] == seen[100:]


def test_runs_with_a_secure_generator_all_have_it_as_it_is():
    secure, seen = m.SecureGenerator(), []
    audit_mechanism(lambda data, generator: seen.append(generator), 0, 1, trials=50, generator=secure)
    assert all(generator is secure for generator in seen)


# --- power ------------------------------------------------------------------------------------------------


def laplace(scale):
    return m.Laplace(scale=scale, sensitivity=1.0, relation=ADD)


BROKEN = {
    "a third of the noise": (released(laplace(1 / 3)), 0.0, 1.0, claim()),
    "a third of the sensitivity": (released(laplace(1.0)), 0.0, 3.0, claim()),
    "no noise": (lambda value, generator: value, 0.0, 1.0, claim()),
    "the same noise each time": (
        lambda value, generator: laplace(1.0).release(value, generator=seeded(3)),
        0.0,
        1.0,
        claim(),
    ),
    "noise that depends on the data": (
        lambda value, generator: laplace(0.1 + value).release(0.0, generator=generator),
        0.0,
        5.0,
        claim(),
    ),
    "Gaussian noise, a quarter": (
        released(m.Gaussian(stddev=0.4, sensitivity=1.0, relation=ADD)),
        0.0,
        1.0,
        claim(delta=1e-5),
    ),
    "discrete noise, a third": (
        released(m.DiscreteLaplace(scale=1 / 3, sensitivity=1, relation=ADD)), 0, 1, claim(),
    ),
    "a vector with the noise of one number": (
        lambda value, generator: value + m.laplace((12,), scale=1.0, generator=generator).numpy(),
        0.0,
        1.0,
        claim(),
    ),
    "an index by scores that move too far": (
        released(m.NoisyMax(epsilon=1.0, sensitivity=1.0, relation=REPLACE)),
        [4.0, 0.0],
        [0.0, 4.0],
        claim(relation=REPLACE),
    ),
    "a selection without noise": (
        lambda scores, generator: int(np.argmax(scores)), [1.0, 0.0], [0.0, 1.0], claim(),
    ),
    "a coin that tells the truth too often": (
        lambda answer, generator: answer if int(words(1, generator)[0]) % 20 else 1 - answer, 0, 1, claim(),
    ),
    "a failure that tells": (
        lambda value, generator: None if value else laplace(1.0).release(0.0, generator=generator),
        0.0,
        1.0,
        claim(),
    ),
    "a shape that tells": (
        lambda size, generator: m.gaussian((size,), stddev=9.0, generator=generator).numpy(), 2, 3, claim(),
    ),
    "a threshold whose noise is forgotten": (
        lambda values, generator: tuple(v + float(m.laplace((1,), scale=0.1, generator=generator)) > 0.5
                                        for v in values),
        [0.0, 1.0],
        [1.0, 0.0],
        claim(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_mechanism_is_contradicted(name):
    run, first, second, claimed = BROKEN[name]
    result = audited(run, first, second, claim=claimed, trials=700)
    assert result.refuted
    assert result.best.trials == 700
    assert "FALSE" in result.statement()
    assert audited(run, second, first, claim=claimed, trials=700).refuted  # whichever comes first


def test_the_bound_of_laplace_noise_comes_near_the_truth():
    draw = Vectorized(lambda v, count, g: v + m.laplace((count,), scale=0.5, generator=g).numpy())
    result = audit_mechanism(draw, 0.0, 1.0, trials=20_000, generator=seeded(0))
    assert 1.8 < result.best.epsilon < 2.0


def test_a_classifier_sees_what_single_numbers_do_not():
    draw = Vectorized(lambda v, count, g: v + m.gaussian((count, 20), stddev=1.0, generator=g).numpy())
    result = audit_mechanism(draw, 0.0, 1.0, trials=1000, delta=1e-5, generator=seeded(0))
    assert result.best.epsilon > 3.0  # all 20 together lie 4.5 stddevs apart; one number shows about 1


def test_low_bits_tell_noise_that_was_added_in_floating_point():
    naive = Vectorized(
        lambda v, count, g: v + m.laplace((count,), scale=1.0, generator=g, dtype=torch.float64).numpy()
    )
    assert audited(naive, 0.0, 1.0, claim=claim(2.0), events=(LowBits(),)).refuted
    assert not audited(naive, 0.0, 1.0, claim=claim(2.0)).refuted  # nobody else sees it


def test_low_bits_tell_nothing_of_secure_noise():
    secure = laplace(1.0)
    result = audit_mechanism(
        lambda value, generator: secure.release(value),
        0.0,
        1.0,
        trials=1200,
        confidence=CONFIDENCE,
        claim=claim_of(secure),
        events=(LowBits(),),
    )
    assert not result.refuted


# --- what is asked ----------------------------------------------------------------------------------------


def test_a_seed_repeats_an_audit():
    found = [audited(released(laplace(1.0)), 0.0, 1.0, claim=claim(), trials=400) for _ in range(2)]
    assert found[0] == found[1]


def test_the_delta_is_that_of_the_claim():
    coin = ["rare"] * 5 + ["common"] * 95
    result = audit_outputs(coin * 4, ["common"] * 400, claim=claim(1.0, 0.1))
    assert result.best.delta == 0.1
    assert not result.refuted


def test_a_bound_at_a_smaller_delta_than_the_claim_is_refused():
    with pytest.raises(InvalidParameterError, match="does not contradict a claim at delta=1e-05"):
        audit_outputs([0.0] * 100, [1.0] * 100, claim=claim(1.0, 1e-5), delta=0.0)
    assert audit_outputs([0.0] * 100, [1.0] * 100, claim=claim(1.0, 1e-5), delta=0.01).best.delta == 0.01


@pytest.mark.parametrize(("epsilon", "needed"), [(0.5, 40), (8.0, 21998)])
def test_too_few_runs_are_refused_with_the_number_it_takes(epsilon, needed):
    assert runs_needed(epsilon) == needed
    with pytest.raises(InvalidParameterError, match=f"takes at least {needed},"):
        audit_mechanism(released(laplace(1.0)), 0.0, 1.0, claim=claim(epsilon), trials=needed - 1)
    with pytest.raises(InvalidParameterError, match=f"takes at least {needed},"):
        audit_outputs([0.0] * (needed - 1), [1.0] * needed, claim=claim(epsilon))


def test_the_least_number_of_runs_contradicts_the_claim_of_a_mechanism_that_tells_all():
    count = runs_needed(3.0)
    assert audit_outputs(["yes"] * count, ["no"] * count, claim=claim(2.999)).refuted


def test_no_outputs_no_searches_and_too_few_rows_are_refused():
    with pytest.raises(InvalidParameterError, match="0 runs on each data set are too few"):
        audit_outputs([], [])
    with pytest.raises(InvalidParameterError, match="at least one search"):
        audit_outputs([0.0] * 100, [1.0] * 100, events=())
    with pytest.raises(InvalidParameterError, match=r"Add Outcomes\(\)"):
        audit_outputs([None] * 100, ["no"] * 100, events=(Tails(),))
    with pytest.raises(InvalidParameterError, match="one output for each of the 100 runs"):
        audit_mechanism(Vectorized(lambda data, count, generator: [data]), 0, 1, trials=100)
    with pytest.raises(InvalidParameterError, match="trials must be a whole number"):
        audit_mechanism(released(laplace(1.0)), 0.0, 1.0, trials=0)
    with pytest.raises(InvalidParameterError, match="confidence must be"):
        audit_outputs([0.0] * 100, [1.0] * 100, confidence=math.nan)


def test_what_claims_nothing_is_attacked_all_the_same():
    result = audit_outputs(["yes"] * 100, ["no"] * 100, subject="a mechanism")
    assert result.claim is None
    assert "claims nothing" in result.statement()
    infinite = audit_outputs(["yes"] * 100, ["no"] * 100, claim=claim(math.inf))
    assert not infinite.refuted


def test_a_claim_that_is_a_bare_number_is_refused():
    for attack in (
        lambda: audit_mechanism(lambda data, generator: data, 0, 1, trials=100, claim=1.0),
        lambda: audit_outputs([0] * 100, [1] * 100, claim=1.0),
        lambda: audit_laws({0: 1.0}, {1: 1.0}, claim=1.0),
        lambda: replay(lambda data, generator: data, 0, 1, claim=1.0),
    ):
        with pytest.raises(InvalidParameterError, match="claim must be a Guarantee or None"):
            attack()


# --- what a function is called with -----------------------------------------------------------------------


def broken_sum(values, generator):  # clips after adding up
    return min(max(sum(values), 0), 100) + m.laplace((1,), scale=1.0, generator=generator).item()


def test_a_function_that_changes_its_data_hides_nothing():
    def tidy(values, generator):
        answer = broken_sum(values, generator)
        values[:] = [min(value, 1.0) for value in values]
        return answer

    rows = [0.5, 50.0]
    assert audited(tidy, rows, rows[:1], claim=claim()).refuted
    assert rows == [0.5, 50.0]


@pytest.mark.parametrize("rows", [iter([0.5, 50.0]), (row for row in [0.5, 50.0])], ids=["list", "code"])
def test_an_iterator_is_refused(rows):
    with pytest.raises(InvalidParameterError, match="used up by the first run"):
        audited(broken_sum, rows, [0.5], claim=claim())


def test_a_function_of_the_data_alone_is_refused_with_what_to_do():
    with pytest.raises(InvalidParameterError, match="wrap it: lambda data, generator"):
        audited(lambda values: sum(values), [0.5], [0.5, 1.0], claim=claim())
