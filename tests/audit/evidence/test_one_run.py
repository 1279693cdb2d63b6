# SPDX-License-Identifier: Apache-2.0
"""Audits of one run: they stay below the truth, find what is broken, and refuse what they cannot judge."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from sfumato.accounting import gaussian
from sfumato.audit.evidence import bounds
from sfumato.audit.evidence.one_run import (
    _right,
    binary_guesses,
    f_dp,
    gaussian_scores,
    least_canaries,
    ranks,
)
from sfumato.audit.evidence.results import LowerBound
from sfumato.errors import InvalidParameterError

Scores = npt.NDArray[np.float64]
Audit = Callable[..., LowerBound]

DELTA = 1e-5
FEW = settings(max_examples=40, deadline=None)
AUDITS = [binary_guesses, f_dp, gaussian_scores]
RUNS, ALPHA = 60, 1e-6  # simulated audits, and the chance that correct code fails one check on a fresh seed
# At confidence 0.95 an audit is above the truth with chance at most 0.05: more than this many means a fault.
ALLOWED = int(binom.isf(ALPHA, RUNS, 0.05))
TOO_MANY = int(binom.isf(1e-3, RUNS, 0.05))  # for a control, which should be above far more often


def gaussian_run(canaries: int, mu: float, seed: int) -> tuple[Scores, Scores]:
    """Return scores of those in and of those out, of a Gaussian mechanism with one coordinate for each."""
    draws = np.random.default_rng(seed)
    present = draws.random(canaries) < 0.5
    scores = draws.normal(size=canaries) + mu * present
    return scores[present], scores[~present]


def shared_run(canaries: int, mu: float, seed: int) -> tuple[Scores, Scores]:
    """Return scores of a mu-GDP mechanism that is, in three runs of ten, good for all canaries at once."""
    draws = np.random.default_rng(seed)
    present = draws.random(canaries) < 0.5
    named = draws.random(canaries) < (_largest_accuracy(0.3, mu) if draws.random() < 0.3 else 0.5)
    scores = np.where(named, present, ~present) + 0.5 * draws.random(canaries)
    return scores[present], scores[~present]


def _largest_accuracy(state: float, mu: float) -> float:
    """Return q for which the ROC curve of `shared_run` touches that of mu-GDP at (state (1 - q), state q)."""
    low, high = 0.5, 1 - 1e-12
    for _ in range(60):
        q = (low + high) / 2
        false, true = state * (1 - q), state * q
        # mu-GDP: a test with these rates needs true <= e^eps false + delta(eps), for every eps.
        fits = all(
            true <= math.exp(eps) * false + gaussian.delta(mu, eps)
            for eps in np.linspace(0, 12, 121).tolist()
        )
        low, high = (q, high) if fits else (low, q)
    return low


def mu_of(epsilon: float) -> float:
    """Return the mu of the Gaussian mechanism with this epsilon."""
    return 1 / gaussian.stddev_for(epsilon, DELTA, sensitivity=1.0)


@pytest.mark.parametrize("audit", AUDITS, ids=lambda audit: audit.__name__)
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_bounds_stay_below_the_truth_and_rise_above_a_false_claim(audit: Audit, epsilon: float) -> None:
    found = [audit(*gaussian_run(600, mu_of(epsilon), seed), delta=DELTA).epsilon for seed in range(RUNS)]
    assert sum(bound > epsilon for bound in found) <= ALLOWED
    # The control: four times the signal is shown to be more than what is claimed.
    louder = [audit(*gaussian_run(600, 4 * mu_of(epsilon), seed), delta=DELTA).epsilon for seed in range(5)]
    assert min(louder) > epsilon


def test_guesses_may_depend_on_one_another_but_ranked_scores_may_not() -> None:
    mu = mu_of(4.0)
    runs = [shared_run(600, mu, seed) for seed in range(RUNS)]
    assert sum(f_dp(*run, delta=DELTA, guesses=600).epsilon > 4 for run in runs) <= ALLOWED
    assert sum(binary_guesses(*run, delta=DELTA).epsilon > 4 for run in runs) <= ALLOWED
    # The condition of gaussian_scores is needed: here it does not hold, and too many bounds are too high.
    assert sum(gaussian_scores(*run, delta=DELTA).epsilon > 4 for run in runs) > TOO_MANY


def test_canaries_with_laws_of_their_own_are_judged_soundly() -> None:
    mu = mu_of(2.0)
    above = 0
    for seed in range(RUNS):
        draws = np.random.default_rng(seed)
        present = draws.random(300) < 0.5
        scores = (draws.normal(size=300) + mu * present) * draws.lognormal(0, 1, 300) + np.arange(300) % 3
        above += gaussian_scores(scores[present], scores[~present], delta=DELTA).epsilon > 2
    assert above <= ALLOWED


def test_randomized_response_is_judged_soundly_by_binary_guesses_only() -> None:
    # Outside the Gaussian family only binary_guesses holds: the other two would say far more than is true.
    epsilon, draws = 1.0, np.random.default_rng(0)
    present = draws.random(4000) < 0.5
    told = np.where(draws.random(4000) < 1 / (1 + math.exp(-epsilon)), present, ~present)
    scores = told + draws.random(4000) / 2
    run = scores[present], scores[~present]
    assert 0.7 < binary_guesses(*run, delta=0).epsilon < epsilon
    assert gaussian_scores(*run, delta=DELTA).epsilon > epsilon


def test_an_ideal_gaussian_run_shows_what_issue_6_asks_for() -> None:
    bars = {1.0: 0.6, 2.0: 1.2, 4.0: 2.6, 8.0: 5.0}
    for epsilon, bar in bars.items():
        runs = [gaussian_run(5000, mu_of(epsilon), seed) for seed in range(8)]
        assert np.mean([gaussian_scores(*run, delta=DELTA).epsilon for run in runs]) >= bar


@FEW
@given(
    inside=st.lists(st.integers(0, 5), min_size=5, max_size=30),
    outside=st.lists(st.integers(0, 5), min_size=5, max_size=30),
)
def test_ranks_are_those_of_mann_and_whitney(inside: list[int], outside: list[int]) -> None:
    share = float(np.mean([(a > b) + (a == b) / 2 for a in inside for b in outside]))
    expected = bounds.area_from_pairs(share, min(len(inside), len(outside)), confidence=0.95)
    assert ranks(inside, outside) == pytest.approx(expected, abs=1e-9)


@FEW
@given(
    inside=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    outside=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    share=st.floats(0, 1),
    order=st.randoms(use_true_random=False),
)
def test_no_order_of_ties_has_fewer_right_guesses(
    inside: list[int], outside: list[int], share: float, order: object
) -> None:
    members = [(score, True) for score in inside] + [(score, False) for score in outside]
    order.shuffle(members)  # type: ignore[attr-defined]
    members.sort(key=lambda member: member[0])  # keeps the shuffled order among ties
    guesses = max(1, round(share * len(members)))
    lowest, highest = members[: guesses // 2], members[len(members) - (guesses - guesses // 2) :]
    right = sum(not present for _, present in lowest) + sum(present for _, present in highest)
    assert _right(np.array(inside, float), np.array(outside, float), guesses) <= right


def test_equal_scores_show_nothing() -> None:
    for audit in AUDITS:
        assert audit(np.ones(500), np.ones(500), delta=DELTA).epsilon == 0


def test_scores_count_by_their_order_alone_and_infinite_ones_have_their_place() -> None:
    inside, outside = gaussian_run(400, 2.0, seed=1)
    warped = np.exp(inside), np.exp(outside)
    raised = np.append(inside, np.inf), np.append(outside, -np.inf)
    fooled = np.append(inside, -np.inf), np.append(outside, np.inf)
    for audit in AUDITS:
        plain = audit(inside, outside, delta=DELTA)
        assert audit(*warped, delta=DELTA) == plain
        assert (
            audit(*raised, delta=DELTA).epsilon > 0.999 * plain.epsilon > audit(*fooled, delta=DELTA).epsilon
        )


@pytest.mark.parametrize("audit", [binary_guesses, f_dp], ids=lambda audit: audit.__name__)
def test_the_choice_among_numbers_of_guesses_is_paid_for(audit: Audit) -> None:
    run = gaussian_run(1000, 2.0, seed=3)
    alone = audit(*run, delta=DELTA, guesses=200, confidence=0.98).epsilon
    among = audit(*run, delta=DELTA, guesses=[200, 4, 4, 4, 4]).epsilon  # four guesses show nothing at all
    five = audit(*run, delta=DELTA, guesses=[200] * 2 + [199] * 3, confidence=0.9).epsilon
    assert audit(*run, delta=DELTA, guesses=200).epsilon == among
    assert five == pytest.approx(
        max(alone, audit(*run, delta=DELTA, guesses=199, confidence=0.98).epsilon), rel=1e-6
    )


@pytest.mark.parametrize("audit", AUDITS, ids=lambda audit: audit.__name__)
def test_bad_scores_are_refused_with_what_to_do(audit: Audit) -> None:
    good = np.arange(50.0)
    with pytest.raises(InvalidParameterError, match="in_scores holds NaN"):
        audit(np.append(good, np.nan), good, delta=DELTA)
    with pytest.raises(InvalidParameterError, match="at least 5 of each"):
        audit(good, [], delta=DELTA)
    with pytest.raises(InvalidParameterError, match="run without canaries"):
        audit([], [], delta=DELTA)
    with pytest.raises(InvalidParameterError, match="out_scores must have one axis"):
        audit(good, good.reshape(25, 2), delta=DELTA)
    with pytest.raises(InvalidParameterError, match="real numbers"):
        audit(good, ["a", "b"], delta=DELTA)
    with pytest.raises(InvalidParameterError, match="confidence"):
        audit(good, good, delta=DELTA, confidence=1.0)


@pytest.mark.parametrize(
    ("audit", "needs"),
    [
        (binary_guesses, r"at least 12 canaries"),
        (f_dp, r"at least \d+ canaries"),
        (gaussian_scores, "at least 5 in"),
    ],
    ids=["binary_guesses", "f_dp", "gaussian_scores"],
)
def test_too_few_canaries_are_refused_with_how_many_would_do(audit: Audit, needs: str) -> None:
    with pytest.raises(InvalidParameterError, match=needs):
        audit([2.0, 3.0], [0.0, 1.0], delta=DELTA)


def test_as_many_canaries_as_are_asked_for_show_something() -> None:
    for audit in (binary_guesses, f_dp):
        with pytest.raises(InvalidParameterError) as caught:
            audit([2.0, 3.0], [0.0, 1.0], delta=DELTA)
        count = int(str(caught.value).split("at least ")[1].split()[0])
        high, low = np.arange(count, 2 * count), np.arange(count)
        assert audit(high[: count - count // 2], low[: count // 2], delta=DELTA).epsilon > 0
        with pytest.raises(InvalidParameterError, match=f"at least {count} canaries"):
            audit(high[: count // 2], low[: (count - 1) // 2], delta=DELTA)
    for confidence in (0.5, 0.75, 0.95, 0.999):
        least = least_canaries(confidence)
        assert ranks(np.ones(least), np.zeros(least), confidence=confidence) > 0.5
        with pytest.raises(InvalidParameterError):
            ranks(np.ones(least - 1) if least > 1 else [], np.zeros(least), confidence=confidence)


@pytest.mark.parametrize("audit", [binary_guesses, f_dp], ids=lambda audit: audit.__name__)
def test_groups_that_fair_coins_do_not_make_are_refused(audit: Audit) -> None:
    with pytest.raises(InvalidParameterError, match="do not come from fair coins"):
        audit(np.zeros(1000), np.zeros(100), delta=DELTA)
    with pytest.raises(InvalidParameterError, match="more than the number of canaries, 10"):
        audit(np.zeros(5), np.zeros(5), delta=DELTA, guesses=11)


def test_a_delta_that_explains_everything_is_said_to_be_too_large() -> None:
    with pytest.raises(InvalidParameterError, match="a smaller delta"):
        binary_guesses(np.ones(500), np.zeros(500), delta=0.1)
