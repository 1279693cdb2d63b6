# SPDX-License-Identifier: Apache-2.0
"""Exposure against ranks by hand, known laws and a mechanism of known epsilon, and what is refused."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binomtest, norm, skewnorm

from sfumato.audit.models.memorization import (
    Exposure,
    SecretFormat,
    exact_exposures,
    log_tail,
    sampled_exposures,
)
from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded

ALPHA = 1e-6
PINS = SecretFormat(template="pin {}", digits=2)


def lookup(scores):
    """Return a model that scores the text of each secret as told."""
    return lambda texts: [scores[int(text.split()[-1])] for text in texts]


def random_model(seed, size=100):
    return np.random.default_rng(seed).normal(size=size)


# --- the space -------------------------------------------------------------------------------------------


def test_every_secret_has_a_text_of_its_own_and_of_one_length():
    texts = {PINS.text(secret) for secret in range(PINS.size)}
    assert len(texts) == PINS.size == 100 and {len(text) for text in texts} == {6}


def test_secrets_are_uniform_and_independent():
    drawn = SecretFormat(template="{}", digits=1).draw(20_000, generator=seeded(0))
    counts = np.bincount(drawn, minlength=10)
    assert all(binomtest(int(count), 20_000, 0.1).pvalue > ALPHA for count in counts)
    repeated = sum(a == b for a, b in pairwise(drawn))
    assert binomtest(repeated, 19_999, 0.1).pvalue > ALPHA


@pytest.mark.parametrize(
    ("template", "digits", "message"),
    [("no place", 4, "once"), ("{} and {}", 4, "once"), ("{}", 0, "digits"), ("{}", 19, "digits")],
    ids=["none", "two", "no digit", "too many digits"],
)
def test_a_format_without_one_place_for_digits_is_refused(template, digits, message):
    with pytest.raises(InvalidParameterError, match=message):
        SecretFormat(template=template, digits=digits)


def test_a_secret_outside_of_the_space_is_refused():
    with pytest.raises(InvalidParameterError, match="from 0 to 99"):
        PINS.text(100)
    with pytest.raises(InvalidParameterError, match="from 0 to 99"):
        exact_exposures(lookup(random_model(0)), [-1], form=PINS)


# --- by rank ---------------------------------------------------------------------------------------------


def test_exposure_is_the_space_over_the_rank_in_bits():
    scores = random_model(0)
    order = np.argsort(-scores)
    found = exact_exposures(lookup(scores), [int(order[0]), int(order[24]), int(order[99])], form=PINS)
    assert [e.bits for e in found] == pytest.approx([math.log2(100), 2.0, 0.0])
    assert [e.tail for e in found] == pytest.approx([0.01, 0.25, 1.0])


def test_a_tie_counts_against_the_secret():
    (found,) = exact_exposures(lookup(np.zeros(100)), [7], form=PINS)
    assert (found.bits, found.tail) == (0.0, 1.0)


def test_a_model_that_knows_nothing_gives_t_bits_with_chance_two_to_the_minus_t():
    secrets = PINS.draw(2000, generator=seeded(1))
    found = [exact_exposures(lookup(random_model(i)), [s], form=PINS)[0] for i, s in enumerate(secrets)]
    bits = np.array([e.bits for e in found])
    for t in (1, 2, 4):
        assert binomtest(int((bits >= t).sum()), 2000, 2.0**-t, alternative="greater").pvalue > ALPHA
    assert abs(bits.mean() - math.log2(math.e)) < 0.15


# --- by sampling -----------------------------------------------------------------------------------------

WIDE = SecretFormat(template="card {}", digits=12)


def normal_model(known):
    """Return a model whose scores are standard normal, but for texts that it knows."""

    def score(texts):
        numbers = [int(text.split()[-1]) for text in texts]
        normal = norm.ppf((np.array([n * 2654435761 % 2**32 for n in numbers]) + 0.5) / 2**32)
        return [known.get(n, score) for n, score in zip(numbers, normal, strict=True)]

    return score


def test_a_fitted_law_reaches_beyond_the_sample():
    found = sampled_exposures(
        normal_model({1: 6.0, 2: 0.0, 3: 60.0}), [1, 2, 3], form=WIDE, samples=5000, generator=seeded(2)
    )
    assert found[0].bits == pytest.approx(-norm.logcdf(-6) / math.log(2), rel=0.2)  # 29.9 bits
    assert found[0].tail == 1 / 5001 and not found[0].exact
    assert found[1].bits == pytest.approx(1.0, abs=0.1)
    assert found[2].bits == math.log2(WIDE.size)  # never more than first of all


def test_sampled_exposure_agrees_with_the_exact_one():
    form, scores = SecretFormat(template="{}", digits=4), random_model(3, 10_000)
    order = np.argsort(-scores)
    secrets = [int(order[rank]) for rank in (4, 99, 3000)]
    exact = exact_exposures(lookup(scores), secrets, form=form)
    sampled = sampled_exposures(lookup(scores), secrets, form=form, generator=seeded(4))
    assert [e.bits for e in sampled] == pytest.approx([e.bits for e in exact], abs=0.6)


@pytest.mark.parametrize("shape", [-4.0, 0.0, 2.0])
def test_the_tail_is_that_of_the_skew_normal_law(shape):
    sample = skewnorm.ppf((np.arange(20_000) + 0.5) / 20_000, shape, loc=3.0, scale=2.0)
    for chance in (0.5, 1e-2, 1e-4):
        value = skewnorm.ppf(chance, shape, loc=3.0, scale=2.0)
        assert log_tail(value, sample) == pytest.approx(math.log(chance), rel=0.02, abs=0.02)


def test_a_tail_far_out_is_not_rounded_to_nothing():
    sample = norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    assert log_tail(-30.0, sample) == pytest.approx(norm.logcdf(-30), rel=0.02)
    assert log_tail(50.0, sample) == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("others", [0.0, 0.1, -math.inf], ids=["zero", "rounded", "impossible"])
def test_a_secret_that_stands_out_of_a_sample_of_equals_has_the_bits_of_the_sample(others):
    def model(texts):
        return [1.0 if text == "card 000000000007" else others for text in texts]

    found = sampled_exposures(model, [7, 8], form=WIDE, samples=200, generator=seeded(0))
    assert [e.bits for e in found] == pytest.approx([math.log2(201), 0.0])
    assert found[0].tail == 1 / 201


# --- a bound on epsilon ----------------------------------------------------------------------------------


def test_the_bound_is_the_least_epsilon_that_makes_the_tail_likely_enough():
    found = Exposure(bits=10.0, tail=1e-3, compared=999, exact=True).bound(delta=1e-2, confidence=0.95)
    assert math.exp(found.epsilon) * 1e-3 + 1e-2 == pytest.approx(0.05)
    assert Exposure(bits=0.0, tail=1.0, compared=999, exact=True).bound(delta=0.0).epsilon == 0


def told(epsilon, secret, rng, *, size=1000):
    """Return a model that knows one number: the secret e^epsilon times as likely as any other."""
    known = secret if rng.random() < math.exp(epsilon) / (math.exp(epsilon) + size - 1) else None
    number = known if known is not None else (secret + rng.integers(1, size)) % size
    return lookup(np.where(np.arange(size) == number, 1.0, -rng.random(size)))


@pytest.mark.parametrize(("claim", "refuted"), [(3.0, False), (0.5, True)], ids=["true", "understated"])
def test_the_bound_exceeds_the_truth_as_seldom_as_it_says(claim, refuted):
    rng, form = np.random.default_rng(5), SecretFormat(template="{}", digits=3)
    secrets = form.draw(400, generator=seeded(6))
    found = [exact_exposures(told(3.0 if not refuted else 8.0, s, rng), [s], form=form)[0] for s in secrets]
    above = sum(e.bound(delta=0.0).epsilon > claim for e in found)
    chance = binomtest(above, 400, 0.05, alternative="greater").pvalue
    assert (chance < ALPHA) == refuted


def test_a_bound_that_cannot_be_shown_says_how_many_are_needed():
    small = Exposure(bits=3.3, tail=0.1, compared=9, exact=True)
    with pytest.raises(InvalidParameterError, match="compare with at least 20"):
        small.bound(delta=0.0)
    assert Exposure(bits=4.4, tail=1 / 21, compared=20, exact=True).bound(delta=0.0).epsilon > 0
    with pytest.raises(InvalidParameterError, match="compare with at least 20"):
        Exposure(bits=4.3, tail=1 / 20, compared=19, exact=True).bound(delta=0.0)
    with pytest.raises(InvalidParameterError, match=r"confidence below 0\.9"):
        small.bound(delta=0.1)


# --- refused ---------------------------------------------------------------------------------------------


def test_a_model_that_diverged_is_refused():
    with pytest.raises(InvalidParameterError, match="NaN"):
        exact_exposures(lookup(np.full(100, np.nan)), [1], form=PINS)


def test_a_model_that_answers_for_other_texts_is_refused():
    with pytest.raises(InvalidParameterError, match="one number for each text"):
        exact_exposures(lambda texts: [0.0], [1], form=PINS)


def test_a_run_without_secrets_is_refused():
    for exposures in (exact_exposures, sampled_exposures):
        with pytest.raises(InvalidParameterError, match="plant at least one"):
            exposures(lookup(random_model(0)), [], form=PINS)


def test_a_space_too_large_to_rank_and_a_sample_too_small_to_fit_are_refused():
    with pytest.raises(InvalidParameterError, match="use sampled_exposures"):
        exact_exposures(normal_model({}), [1], form=WIDE)
    with pytest.raises(InvalidParameterError, match="100 at least"):
        sampled_exposures(normal_model({}), [1], form=WIDE, samples=99)
    with pytest.raises(InvalidParameterError, match="no distribution can be fitted"):
        log_tail(0.0, np.zeros(10))
