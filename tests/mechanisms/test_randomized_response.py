# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from dp_accounting import dp_event as dp
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare

from sfumato.accounting.events import PureDpEvent, check
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.randomized_response import Encoding, RandomizedResponse, UnaryEncoding
from sfumato.testing import seeded

ALPHA = 1e-6
SAMPLE = 100_000


class Constant:
    """A generator that always gives one word, to find where a coin turns."""

    secure, seeded = False, True

    def __init__(self, word: int) -> None:
        self.word = word.to_bytes(8, "little")

    def fill(self, out: memoryview) -> None:
        out[:] = self.word * (len(out) // 8)


@pytest.mark.parametrize("buckets", [2, 5])
def test_reports_have_the_stated_law(buckets):
    mechanism = RandomizedResponse.calibrated(epsilon=1.0, num_buckets=buckets)
    reports = mechanism.release(np.full(SAMPLE, 1), generator=seeded(1))
    weights = np.where(np.arange(buckets) == 1, math.e, 1.0)
    counts = np.bincount(reports, minlength=buckets)
    assert chisquare(counts, weights / weights.sum() * SAMPLE).pvalue > ALPHA
    weights = np.where(np.arange(buckets) == 1, math.exp(1.1), 1.0)
    assert chisquare(counts, weights / weights.sum() * SAMPLE).pvalue < ALPHA  # epsilon 10% off is caught


@given(st.floats(1e-3, 50), st.integers(2, 1000))
def test_a_calibrated_response_costs_epsilon_and_never_more(epsilon, buckets):
    mechanism = RandomizedResponse.calibrated(epsilon=epsilon, num_buckets=buckets)
    event = mechanism.event()
    check(event)
    assert event == dp.RandomizedResponseDpEvent(mechanism.noise_parameter, buckets)
    other = mechanism.noise_parameter / buckets
    spent = math.log((1 - mechanism.noise_parameter + other) / other)
    assert spent <= epsilon * (1 + 1e-12)
    if epsilon < 20:
        assert spent == pytest.approx(epsilon, rel=1e-6)


@given(st.floats(1e-9, 1 - 1e-9))
def test_coins_are_the_stated_chance_or_up_to_one_word_noisier(chance):
    mechanism = RandomizedResponse(noise_parameter=chance)
    turn = math.ceil(math.ldexp(chance, 64))
    assert 0 <= turn - int(math.ldexp(chance, 64)) <= 1
    answer = [0]  # with an odd constant word, noise would report bucket 1
    for word in (turn - 1, turn):
        noisy = mechanism.release(answer, generator=Constant(word))[0] == word % 2 == 1
        if word % 2:
            assert noisy == (word < turn)


@pytest.mark.parametrize("buckets", [2, 6])
def test_the_estimate_is_unbiased(buckets):
    mechanism = RandomizedResponse.calibrated(epsilon=0.7, num_buckets=buckets)
    true = np.arange(1, buckets + 1) * 5000
    answers = np.repeat(np.arange(buckets), true)
    estimate = mechanism.estimate(
        np.bincount(mechanism.release(answers, generator=seeded(2)), minlength=buckets)
    )
    spread = math.sqrt(true.sum()) / (1 - mechanism.noise_parameter)  # above the stddev of any bucket
    assert np.abs(estimate - true).max() < 5 * spread
    assert estimate.sum() == pytest.approx(true.sum())
    # exactly unbiased: expected counts give back the truth
    expected = (1 - mechanism.noise_parameter) * true + mechanism.noise_parameter * true.sum() / buckets
    assert mechanism.estimate(expected) == pytest.approx(true)


@pytest.mark.parametrize("encoding", list(Encoding))
def test_bits_have_the_stated_law(encoding):
    mechanism = UnaryEncoding(epsilon=1.0, num_buckets=3, encoding=encoding)
    reports = mechanism.release(np.full(SAMPLE, 1), generator=seeded(3)).sum(0)
    root = math.exp(0.5)
    one, zero = (
        (root / (root + 1), 1 / (root + 1)) if encoding is Encoding.SYMMETRIC else (0.5, 1 / (math.e + 1))
    )
    for bucket, chance in enumerate((zero, one, zero)):
        assert binomtest(int(reports[bucket]), SAMPLE, chance).pvalue > ALPHA
        assert binomtest(int(reports[bucket]), SAMPLE, chance * 1.05).pvalue < ALPHA  # 5% off is caught


@given(st.floats(1e-3, 30), st.sampled_from(list(Encoding)))
def test_unary_encoding_costs_epsilon_and_never_more(epsilon, encoding):
    mechanism = UnaryEncoding(epsilon=epsilon, num_buckets=4, encoding=encoding)
    kept, flipped = mechanism.one_stays_one, mechanism.zero_becomes_one
    # Two answers differ in two bits: one turns from 1 to 0, another from 0 to 1.
    spent = math.log(kept / flipped) + math.log((1 - flipped) / (1 - kept))
    assert spent <= epsilon * (1 + 1e-12)
    if epsilon < 20:
        assert spent == pytest.approx(epsilon, rel=1e-5)
    assert mechanism.event() == PureDpEvent(epsilon)


@pytest.mark.parametrize("encoding", list(Encoding))
def test_the_unary_estimate_is_unbiased(encoding):
    mechanism = UnaryEncoding(epsilon=1.0, num_buckets=4, encoding=encoding)
    true = np.array([20_000, 5000, 0, 10_000])
    reports = mechanism.release(np.repeat(np.arange(4), true), generator=seeded(4))
    estimate = mechanism.estimate(reports.sum(0), num_reports=true.sum())
    spread = math.sqrt(true.sum()) / 2 / (mechanism.one_stays_one - mechanism.zero_becomes_one)
    assert np.abs(estimate - true).max() < 5 * spread
    expected = true * mechanism.one_stays_one + (true.sum() - true) * mechanism.zero_becomes_one
    assert mechanism.estimate(expected, num_reports=true.sum()) == pytest.approx(true, abs=1e-6)


def test_an_audit_stays_below_epsilon_and_catches_weak_noise(epsilon_lower_bound):
    def audit(mechanism, hit) -> float:
        generator = seeded(5)
        hits, others = (
            int(hit(mechanism.release(np.full(SAMPLE, answer), generator=generator)).sum())
            for answer in (0, 1)
        )
        return epsilon_lower_bound(hits, others, SAMPLE)

    def same(reports):
        return reports == 0

    def first_not_second(reports):
        return reports[:, 0] & ~reports[:, 1]

    assert 0.9 < audit(RandomizedResponse.calibrated(epsilon=1.0, num_buckets=3), same) <= 1.0
    assert audit(RandomizedResponse.calibrated(epsilon=1.1, num_buckets=3), same) > 1.0  # claimed as 1
    for encoding in Encoding:
        honest = UnaryEncoding(epsilon=1.0, num_buckets=3, encoding=encoding)
        weak = UnaryEncoding(epsilon=1.1, num_buckets=3, encoding=encoding)
        assert 0.9 < audit(honest, first_not_second) <= 1.0
        assert audit(weak, first_not_second) > 1.0


def test_reports_are_secure_by_default():
    mechanism = RandomizedResponse.calibrated(epsilon=0.1)
    assert mechanism.release([0] * 200).tolist() != mechanism.release([0] * 200).tolist()
    assert (
        mechanism.release([0] * 9, generator=seeded(6)).tolist()
        == mechanism.release([0] * 9, generator=seeded(6)).tolist()
    )


def test_no_answers_give_no_reports():
    assert RandomizedResponse(noise_parameter=0.5).release([]).shape == (0,)
    assert UnaryEncoding(epsilon=1.0, num_buckets=3).release([]).shape == (0, 3)


@pytest.mark.parametrize("answers", [[-1], [2], [0.5], [[0]], ["secret"], [None]])
@pytest.mark.parametrize(
    "mechanism", [RandomizedResponse(noise_parameter=0.5), UnaryEncoding(epsilon=1.0, num_buckets=2)]
)
def test_answers_outside_the_buckets_are_refused_without_being_shown(mechanism, answers):
    with pytest.raises(InvalidParameterError, match="nothing was released") as error:
        mechanism.release(answers)
    assert "secret" not in str(error.value) and "-1" not in str(error.value)


@pytest.mark.parametrize("wrong", [0.0, 1.0, -0.5, 1.5, math.nan, None])
def test_noise_parameters_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidParameterError, match="noise_parameter"):
        RandomizedResponse(noise_parameter=wrong)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf, 1e-17])
def test_epsilons_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidParameterError, match="epsilon"):
        RandomizedResponse.calibrated(epsilon=wrong)
    with pytest.raises(InvalidParameterError, match="epsilon"):
        UnaryEncoding(epsilon=wrong, num_buckets=2)


@pytest.mark.parametrize("wrong", [0, 1, -2, 2.0, None])
def test_bucket_numbers_that_make_no_sense_are_refused(wrong):
    for call in (
        lambda: RandomizedResponse(noise_parameter=0.5, num_buckets=wrong),
        lambda: RandomizedResponse.calibrated(epsilon=1.0, num_buckets=wrong),
        lambda: UnaryEncoding(epsilon=1.0, num_buckets=wrong),
    ):
        with pytest.raises(InvalidParameterError, match="num_buckets"):
            call()


def test_an_unknown_encoding_and_counts_of_another_length_are_refused():
    with pytest.raises(InvalidParameterError, match="encoding"):
        UnaryEncoding(epsilon=1.0, num_buckets=2, encoding="symmetric")
    with pytest.raises(InvalidParameterError, match="counts"):
        RandomizedResponse(noise_parameter=0.5).estimate([1, 2, 3])


@pytest.mark.parametrize("relation", [Relation.REPLACE_ONE, Relation.REPLACE_LABEL])
def test_the_relation_is_one_that_replaces_an_answer(relation):
    assert RandomizedResponse.calibrated(epsilon=1.0, relation=relation).relation is relation
    assert UnaryEncoding(epsilon=1.0, num_buckets=3, relation=relation).relation is relation
    assert RandomizedResponse(noise_parameter=0.5).relation is Relation.REPLACE_ONE


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.ZERO_OUT, "replace-one", None])
def test_reports_do_not_hide_whether_a_person_answered(relation):
    for call in (
        lambda: RandomizedResponse(noise_parameter=0.5, relation=relation),
        lambda: RandomizedResponse.calibrated(epsilon=1.0, relation=relation),
        lambda: UnaryEncoding(epsilon=1.0, num_buckets=3, relation=relation),
    ):
        with pytest.raises(InvalidParameterError, match="relation must be"):
            call()
