# SPDX-License-Identifier: Apache-2.0
"""Aggregators: the right answer without noise, the stated noise, two noises, and events that cover a unit."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, norm

from sfumato.accounting import Relation, price
from sfumato.accounting.events import gaussian_scale, leaves
from sfumato.errors import InvalidParameterError
from sfumato.pate.votes.aggregators import (
    NO_ANSWER,
    ConfidentGNMax,
    GNMax,
    LNMax,
    noisy_counts,
)
from sfumato.pate.votes.interaction import InteractiveGNMax
from sfumato.testing import seeded

ALPHA = 1e-6  # chance that correct code fails one check on a fresh seed
CONFIDENT = ConfidentGNMax(threshold=60.0, threshold_stddev=1e-3, stddev=1e-3)


def test_answers_without_noise_are_the_leading_classes():
    counts = np.array([[3.0, 90.0, 7.0], [80.0, 10.0, 10.0], [0.0, 1.0, 99.0]])
    for aggregator in (LNMax(scale=1e-3), GNMax(stddev=1e-3), CONFIDENT):
        assert aggregator.answer(counts).tolist() == [1, 0, 2]


def test_a_query_below_the_threshold_is_not_answered():
    assert CONFIDENT.answer(np.array([[30.0, 40.0, 30.0], [61.0, 39.0, 0.0]])).tolist() == [NO_ANSWER, 0]


def test_a_job_ends_after_its_last_answer():
    ended = ConfidentGNMax(threshold=60.0, threshold_stddev=1e-3, stddev=1e-3, max_answers=2)
    counts = np.array([[90.0, 0.0], [50.0, 40.0], [0.0, 90.0], [90.0, 0.0]])
    assert ended.answer(counts).tolist() == [0, NO_ANSWER, 1, NO_ANSWER]


def test_a_student_is_confirmed_only_before_the_end_and_only_if_sure():
    rule = InteractiveGNMax(threshold=50.0, threshold_stddev=1e-3, stddev=1e-3, confidence=0.9, max_answers=1)
    counts = np.array([[100.0, 0.0], [100.0, 0.0], [100.0, 0.0], [100.0, 0.0], [100.0, 0.0]])
    student = np.array([[0.95, 0.05], [0.8, 0.2], [0.0, 1.0], [0.95, 0.05], [0.0, 1.0]])
    found = rule.answer(counts, student, teachers=100.0)
    assert found.tolist() == [0, NO_ANSWER, 0, NO_ANSWER, NO_ANSWER]


# --- noise ----------------------------------------------------------


def share(found: np.ndarray) -> tuple[int, int]:
    return int(found.sum()), len(found)


@pytest.mark.parametrize("stddev, right", [(10.0, True), (11.0, False)])
def test_the_noise_of_an_answer_has_the_stated_size(stddev, right):
    counts = np.tile([10.0, 0.0], (200_000, 1))
    wins = GNMax(stddev=10.0).answer(counts, generator=seeded(0)) == 0
    expected = norm.cdf(10 / (math.sqrt(2) * stddev))
    assert (binomtest(*share(wins), expected).pvalue > ALPHA) == right


@pytest.mark.parametrize("scale, right", [(10.0, True), (11.0, False)])
def test_the_laplace_noise_of_an_answer_has_the_stated_size(scale, right):
    wins = LNMax(scale=10.0).answer(np.tile([10.0, 0.0], (200_000, 1)), generator=seeded(0)) == 0
    gap = 10 / scale
    expected = 1 - (2 + gap) / 4 * math.exp(-gap)  # of a difference of two Laplace draws
    assert (binomtest(*share(wins), expected).pvalue > ALPHA) == right


@pytest.mark.parametrize("stddev, right", [(20.0, True), (22.0, False)])
def test_the_noise_of_a_comparison_has_the_stated_size(stddev, right):
    rule = ConfidentGNMax(threshold=60.0, threshold_stddev=20.0, stddev=1e-3)
    answered = rule.answer(np.tile([70.0, 0.0], (200_000, 1)), generator=seeded(0)) != NO_ANSWER
    assert (binomtest(*share(answered), norm.sf(60, 70, stddev)).pvalue > ALPHA) == right


def test_comparison_and_answer_have_noises_of_their_own():
    """With one noise for both, an answered query would have a large noise in its leading class."""
    rule = ConfidentGNMax(threshold=60.0, threshold_stddev=20.0, stddev=20.0)
    found = rule.answer(np.tile([50.0, 50.0], (200_000, 1)), generator=seeded(1))
    first = found[found != NO_ANSWER] == 0
    assert binomtest(*share(first), 0.5).pvalue > ALPHA


def test_equal_counts_are_decided_by_noise_and_not_by_their_place():
    first = GNMax(stddev=1e-6).answer(np.tile([7.0, 7.0], (20_000, 1)), generator=seeded(2)) == 0
    assert binomtest(*share(first), 0.5).pvalue > ALPHA


def test_noise_is_secure_and_never_the_same():
    counts = np.zeros((5, 3))
    assert not np.array_equal(noisy_counts(counts, stddev=1.0), noisy_counts(counts, stddev=1.0))


# --- events ---------------------------------------------------------

votes = st.lists(st.integers(0, 2), min_size=1, max_size=9)


@given(votes, st.data())
def test_one_teacher_moves_counts_by_the_root_of_two_and_their_maximum_by_one(cast, data):
    who, other = data.draw(st.integers(0, len(cast) - 1)), data.draw(st.integers(-1, 2))
    changed = [other if i == who else vote for i, vote in enumerate(cast)]
    one, two = (np.bincount([v for v in c if v >= 0], minlength=3) for c in (cast, changed))
    assert np.linalg.norm(one - two) <= math.sqrt(2) + 1e-12
    assert abs(one.max() - two.max()) <= 1
    assert np.abs(one - two).sum() <= 2


def test_events_state_the_noise_relative_to_one_teacher():
    assert gaussian_scale(GNMax(stddev=40.0).event(1)) == pytest.approx(40 / math.sqrt(2))
    assert gaussian_scale(GNMax(stddev=40.0).event(100)) == pytest.approx(4 / math.sqrt(2))
    assert gaussian_scale(GNMax(stddev=40.0).event(1, weight=2.0)) == pytest.approx(20 / math.sqrt(2))
    both = ConfidentGNMax(threshold=9.0, threshold_stddev=150.0, stddev=40.0, max_answers=10).event(100)
    assert 1 / gaussian_scale(both) ** 2 == pytest.approx(100 / 150**2 + 10 * 2 / 40**2)


def test_a_laplace_event_is_two_moved_counts():
    (part, count), *rest = leaves(LNMax(scale=20.0).event(7)).items()
    assert (part.noise_multiplier, count, rest) == (20.0, 14, [])
    assert price(LNMax(scale=20.0).event(1), delta=1e-9).epsilon <= 2 / 20 + 1e-6  # Papernot et al. 2017


def test_a_replaced_unit_costs_twice_the_distance():
    event = GNMax(stddev=40.0).event(100)
    added, replaced = (
        price(event, delta=1e-5, relation=each).epsilon
        for each in (Relation.ADD_REMOVE, Relation.REPLACE_ONE)
    )
    wider = price(GNMax(stddev=20.0).event(100), delta=1e-5).epsilon
    assert added < replaced == pytest.approx(wider)


# --- bad input ------------------------------------------------------

WRONG = [
    lambda: LNMax(scale=0.0),
    lambda: GNMax(stddev=math.nan),
    lambda: ConfidentGNMax(threshold=math.inf, threshold_stddev=1.0, stddev=1.0),
    lambda: ConfidentGNMax(threshold=1.0, threshold_stddev=0.0, stddev=1.0),
    lambda: ConfidentGNMax(threshold=1.0, threshold_stddev=1.0, stddev=1.0, max_answers=0),
    lambda: InteractiveGNMax(threshold=1.0, threshold_stddev=1.0, stddev=1.0, confidence=1.5),
    lambda: GNMax(stddev=1.0).event(0),
    lambda: GNMax(stddev=1.0).event(3, weight=-1.0),
    lambda: GNMax(stddev=1.0).answer(np.array([1.0, 2.0])),
    lambda: GNMax(stddev=1.0).answer(np.array([[math.nan, 2.0]])),
]


@pytest.mark.parametrize("call", WRONG)
def test_what_is_out_of_range_is_refused(call):
    with pytest.raises(InvalidParameterError):
        call()


def test_no_query_gives_no_answer():
    assert GNMax(stddev=1.0).answer(np.zeros((0, 3))).tolist() == []


def test_predictions_of_another_shape_are_refused():
    rule = InteractiveGNMax(threshold=1.0, threshold_stddev=1.0, stddev=1.0, confidence=0.5)
    with pytest.raises(InvalidParameterError, match="as large as"):
        rule.answer(np.zeros((2, 3)), np.zeros((2, 2)), teachers=3.0)
