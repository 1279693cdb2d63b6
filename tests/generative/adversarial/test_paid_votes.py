# SPDX-License-Identifier: Apache-2.0
"""Rounds of a paid job: as many queries and answers as were paid for; fresh noise; the claim is attacked."""

import math

import numpy as np
import pytest

from sfumato.accounting.price import price
from sfumato.audit.evidence.bounds import epsilon_from_counts
from sfumato.errors import InvalidParameterError
from sfumato.generative.adversarial.paid_votes import PaidVotes
from sfumato.pate import ConfidentGNMax, Labeling
from sfumato.pate.votes.aggregators import NO_ANSWER
from sfumato.testing import seeded

EXACT = ConfidentGNMax(threshold=50.0, threshold_stddev=1e-6, stddev=1e-6)
UNANIMOUS = np.array([[0.0, 100.0]])


def paid(aggregator, queries, generator=None):
    job = Labeling(aggregator=aggregator, queries=queries, teachers=100, delta=1e-5)
    return PaidVotes(job, aggregator, generator)


def test_no_more_queries_are_answered_than_were_paid_for():
    votes = paid(EXACT, 5)
    assert votes.answer(3, lambda: UNANIMOUS.repeat(3, 0)).tolist() == [1, 1, 1] and votes.left == 2

    def counted():
        raise AssertionError("votes were counted")

    with pytest.raises(InvalidParameterError, match="2 are left"):
        votes.answer(3, counted)
    votes.answer(2, lambda: UNANIMOUS.repeat(2, 0))
    assert votes.left == 0 and votes.asked == votes.answered == 5
    with pytest.raises(InvalidParameterError, match="0 are left"):
        votes.answer(1, counted)


def test_no_more_answers_are_given_than_were_paid_for():
    few = ConfidentGNMax(threshold=50.0, threshold_stddev=1e-6, stddev=1e-6, max_answers=4)
    votes = paid(few, 9)
    first = votes.answer(3, lambda: UNANIMOUS.repeat(3, 0))
    second = votes.answer(3, lambda: UNANIMOUS.repeat(3, 0))
    assert first.tolist() == [1, 1, 1] and second.tolist() == [1, NO_ANSWER, NO_ANSWER]
    assert votes.left == 0 and votes.answered == 4


def test_other_votes_than_announced_are_refused():
    with pytest.raises(InvalidParameterError, match="announced"):
        paid(EXACT, 5).answer(1, lambda: UNANIMOUS.repeat(3, 0))


def test_each_round_gets_noise_of_its_own():
    noisy = ConfidentGNMax(threshold=-1e9, threshold_stddev=1.0, stddev=1.0)
    votes = paid(noisy, 400, seeded(0))
    tie = np.full((200, 2), 50.0)
    first, second = votes.answer(200, lambda: tie), votes.answer(200, lambda: tie)
    assert (first != second).any() and 150 < (first + second == 1).sum() + 100 < 250


def told_apart(aggregator, trials):
    """Return how often three quarters of the answers are "real", without and with one changed teacher."""
    queries, found = 40, []
    for votes_real in (50.0, 51.0):
        counts = np.array([[100.0 - votes_real, votes_real]]).repeat(queries // 2, 0)
        hits = 0
        for trial in range(trials):
            votes = paid(aggregator, queries, seeded(trial + 10_000 * int(votes_real)))
            answers = [votes.answer(queries // 2, lambda counts=counts: counts) for _ in range(2)]
            hits += bool(np.concatenate(answers).mean() > 0.75)
        found.append(hits)
    return found


@pytest.mark.parametrize(("noise", "caught"), [(20.0, False), (0.4, True)])
def test_a_distinguisher_stays_below_the_claim_unless_noise_is_missing(noise, caught):
    claimed = ConfidentGNMax(threshold=-1e9, threshold_stddev=100.0, stddev=20.0)
    claim = price(claimed.event(40), delta=1e-5).epsilon
    used = ConfidentGNMax(threshold=-1e9, threshold_stddev=100.0, stddev=noise)
    without, with_unit = told_apart(used, trials := 300)
    lower = epsilon_from_counts(with_unit, trials, without, trials, delta=1e-5)
    assert math.isfinite(claim) and (lower > claim) is caught
