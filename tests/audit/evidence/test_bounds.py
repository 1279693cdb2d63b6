# SPDX-License-Identifier: Apache-2.0
"""Bounds from counts: exact coverage, published values, and what each inequality rests on."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import binom, binomtest, norm

from sfumato.accounting import gaussian
from sfumato.audit.evidence.bounds import (
    area_from_pairs,
    clopper_pearson,
    epsilon_from_counts,
    epsilon_from_guesses,
    mu_from_guesses,
    needed,
)
from sfumato.errors import InvalidParameterError

FEW = settings(max_examples=40, deadline=None)
CONFIDENCES = st.sampled_from([0.8, 0.95, 0.999])


@FEW
@given(trials=st.integers(1, 400), share=st.floats(0, 1), confidence=CONFIDENCES)
def test_clopper_pearson_agrees_with_scipy_on_each_side(trials: int, share: float, confidence: float) -> None:
    hits = round(share * trials)
    low, high = clopper_pearson(hits, trials, confidence=confidence)
    above, below = binomtest(hits, trials, alternative="greater"), binomtest(hits, trials, alternative="less")
    assert low == pytest.approx(above.proportion_ci(confidence, method="exact").low, abs=1e-9)
    assert high == pytest.approx(below.proportion_ci(confidence, method="exact").high, abs=1e-9)


@FEW
@given(trials=st.integers(1, 60), rate=st.floats(1e-9, 1), confidence=CONFIDENCES)
def test_each_end_of_clopper_pearson_holds_with_the_confidence(
    trials: int, rate: float, confidence: float
) -> None:
    ends = [clopper_pearson(hits, trials, confidence=confidence) for hits in range(trials + 1)]
    chances = binom.pmf(np.arange(trials + 1), trials, rate)
    assert sum(chances[[low > rate for low, _ in ends]]) <= 1 - confidence + 1e-9
    assert sum(chances[[high < rate for _, high in ends]]) <= 1 - confidence + 1e-9


@pytest.mark.parametrize(("tpr", "fpr"), [(0.5, 0.5), (0.9, 0.3), (0.7, 0.1)])
def test_epsilon_from_counts_exceeds_the_truth_in_at_most_the_allowed_share(tpr: float, fpr: float) -> None:
    runs, delta = 40, 0.01
    truth = max(math.log((tpr - delta) / fpr), math.log((1 - fpr - delta) / (1 - tpr)), 0.0)
    failed = 0.0
    for right in range(runs + 1):
        for wrong in range(runs + 1):
            if epsilon_from_counts(right, runs, wrong, runs, delta=delta, confidence=0.8) > truth:
                failed += binom.pmf(right, runs, tpr) * binom.pmf(wrong, runs, fpr)
    assert 0 < failed <= 0.2


def test_epsilon_from_counts_looks_both_ways() -> None:
    assert epsilon_from_counts(300, 1000, 0, 1000, delta=0) > 4  # few false positives
    assert epsilon_from_counts(1000, 1000, 700, 1000, delta=0) > 4  # few false negatives
    assert epsilon_from_counts(100, 1000, 900, 1000, delta=0) == 0  # worse than guessing shows nothing


@FEW
@given(epsilon=st.floats(0.01, 6), delta=st.sampled_from([0.0, 1e-5, 0.1]), confidence=CONFIDENCES)
def test_needed_is_the_least_number_that_shows_an_epsilon(
    epsilon: float, delta: float, confidence: float
) -> None:
    least = needed(epsilon, delta=delta, confidence=confidence)

    def shown(runs: int) -> float:
        return epsilon_from_counts(runs, runs, 0, runs, delta=delta, confidence=confidence)

    assert shown(least) >= epsilon - 1e-9
    assert least == 1 or shown(least - 1) < epsilon


def test_guesses_at_delta_zero_are_a_binomial_test() -> None:
    # An epsilon-DP mechanism is right with chance at most e^eps / (1 + e^eps), whatever happened before.
    epsilon = epsilon_from_guesses(75, 100, 1000, delta=0)
    low, _ = clopper_pearson(75, 100, confidence=0.95)
    assert 1 / (1 + math.exp(-epsilon)) == pytest.approx(low, abs=1e-8)


# Steinke, Nasr, Jagielski 2023, arXiv:2305.08846v1, Appendix D and section 7: right, guesses, canaries, delta
PUBLISHED = {(75, 100, 1000, 1e-4): 0.673, (1439, 1510, 100_000, 1e-5): 2.675}


@pytest.mark.parametrize(("counts", "published"), PUBLISHED.items(), ids=["appendix", "section"])
def test_guesses_show_a_little_more_than_the_published_bound(
    counts: tuple[int, int, int, float], published: float
) -> None:
    right, guesses, canaries, delta = counts
    ours = epsilon_from_guesses(right, guesses, canaries, delta=delta)
    assert published < ours < published + 0.15
    assert ours < epsilon_from_guesses(right, guesses, canaries, delta=0)


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_no_mechanism_whatever_is_right_more_often_than_the_bound_says(epsilon: float, delta: float) -> None:
    canaries = 14
    for right in (11, 13, 14):
        most = _best_mechanism(canaries, right, (epsilon, delta))
        shown = epsilon_from_guesses(right, canaries, canaries, delta=delta, confidence=1 - most * (1 - 1e-6))
        assert shown <= epsilon + 1e-6
        if delta < 0.05:  # and the bound is nearly what the best mechanism reaches
            assert (
                epsilon_from_guesses(right, canaries, canaries, delta=delta, confidence=1 - 1.1 * most)
                >= epsilon
            )


def _best_mechanism(canaries: int, right: int, *pairs: tuple[float, float]) -> float:
    """Return the largest chance of so many right guesses among all mechanisms that are DP for all pairs.

    By symmetry only the law p of the number of right guesses matters: of canary j, "j right and i others" has
    chance p[i + 1] (i + 1) / m, "j wrong and i others" p[i] (m - i) / m, and what either exceeds e^epsilon
    times the other by may be delta in all (the variables after p, as many for each pair).
    """
    i, size = np.arange(canaries), canaries + 1
    width = size + 2 * canaries * len(pairs)
    blocks: list[np.ndarray] = []
    for place, (epsilon, _) in enumerate(pairs):
        rows, excess = np.zeros((2 * canaries + 1, width)), size + 2 * canaries * place
        named, missed = (i + 1) / canaries, (canaries - i) / canaries
        rows[i, i + 1], rows[i, i] = named, -math.exp(epsilon) * missed
        rows[canaries + i, i], rows[canaries + i, i + 1] = missed, -math.exp(epsilon) * named
        rows[np.arange(2 * canaries), excess + np.arange(2 * canaries)] = -1
        rows[-1, excess : excess + 2 * canaries] = 1
        blocks.append(rows)
    limits = np.concatenate([np.append(np.zeros(2 * canaries), delta) for _, delta in pairs])
    total, wanted = np.zeros((1, width)), np.zeros(width)
    total[0, :size], wanted[right:size] = 1, -1
    return -float(linprog(wanted, np.concatenate(blocks), limits, total, [1.0], method="highs").fun)


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_if_all_guesses_are_right_the_gaussian_curve_gives_what_the_best_mechanism_reaches(mu: float) -> None:
    curve = [(epsilon, gaussian.delta(mu, epsilon)) for epsilon in np.linspace(0, 4 * mu, 40).tolist()]
    most = _best_mechanism(8, 8, *curve)  # a little too high: the curve has more points than these
    assert mu_from_guesses(8, 8, 8, confidence=1 - most) == pytest.approx(mu, rel=0.01)


@pytest.mark.parametrize("boost", [0.001, 0.02])
def test_the_chance_of_right_guesses_bounds_a_mechanism_that_shows_all_at_times(boost: float) -> None:
    # With chance `boost` every canary is named, else each by randomized response: (epsilon, boost)-DP.
    canaries, epsilon = 60, 1.0
    q = 1 / (1 + math.exp(-epsilon))
    for right in range(40, canaries + 1):
        chance = boost + (1 - boost) * binom.sf(right - 1, canaries, q)
        # Had it been less likely than 1 - confidence, that epsilon could have been called refuted.
        shown = epsilon_from_guesses(right, canaries, canaries, delta=boost, confidence=1 - chance)
        assert shown <= epsilon + 1e-9


@pytest.mark.parametrize("state", [0.02, 0.05, 0.2])
def test_the_gaussian_curve_allows_a_run_that_is_good_for_all_canaries_at_once(state: float) -> None:
    # With chance `state`, shared by all canaries, each is named rightly with chance q, else with chance 1/2.
    # For this q its ROC curve touches that of mu-GDP: mu may not be refuted more often than allowed.
    mu, canaries = 1.0, 200
    below, above = 0.5, 1.0
    for _ in range(60):
        q = (below + above) / 2
        fits = norm.ppf(state * q) - norm.ppf(state * (1 - q)) <= mu
        below, above = (q, above) if fits else (below, q)
    counts = np.arange(canaries + 1)
    law = state * binom.pmf(counts, canaries, below) + (1 - state) * binom.pmf(counts, canaries, 0.5)
    for right in range(110, canaries, 3):
        chance = law[right:].sum()
        assert mu_from_guesses(right, canaries, canaries, confidence=1 - chance) <= mu
    assert below > norm.cdf(mu / 2)  # better than any test of one canary alone


def test_more_right_guesses_or_less_confidence_never_show_less() -> None:
    shown = [epsilon_from_guesses(right, 100, 500, delta=1e-5) for right in range(0, 101, 5)]
    assert shown == sorted(shown) and shown[0] == 0 < shown[-1]
    mus = [mu_from_guesses(right, 100, 500) for right in range(0, 101, 5)]
    assert mus == sorted(mus) and mus[0] == 0 < mus[-1]
    assert mu_from_guesses(80, 100, 500, confidence=0.9) > mu_from_guesses(80, 100, 500, confidence=0.99)


@FEW
@given(pairs=st.integers(5, 3000), share=st.floats(0.5, 1), confidence=CONFIDENCES)
def test_the_area_lies_between_chernoff_and_the_binomial(pairs: int, share: float, confidence: float) -> None:
    area = area_from_pairs(share, pairs, confidence=confidence)
    hits = math.floor(share * pairs)
    # Not below the Chernoff bound, which is the same argument with another convex function.
    divergence = (
        share * math.log(share / area) + (1 - share) * math.log((1 - share) / (1 - area))
        if share < 1
        else -math.log(area)
    )
    assert pairs * divergence <= -math.log(1 - confidence) * (1 + 1e-6) + 1e-9
    # Not above what as many independent pairs would show: these are a special case.
    assert area <= clopper_pearson(min(hits + 1, pairs), pairs, confidence=confidence)[0] + 1e-9


@FEW
@given(pairs=st.integers(5, 200), share=st.floats(0.55, 0.99), confidence=CONFIDENCES)
def test_the_area_is_where_the_mean_of_the_worst_outcomes_is_the_share(
    pairs: int, share: float, confidence: float
) -> None:
    area = area_from_pairs(share, pairs, confidence=confidence)
    left, total = 1 - confidence, 0.0
    for hits in range(pairs, -1, -1):  # from the worst down, until the error is used up
        taken = min(left, float(binom.pmf(hits, pairs, area)))
        left, total = left - taken, total + taken * hits / pairs
    assert total / (1 - confidence) == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("mean", [0.5, 0.7, 0.95])
def test_the_area_exceeds_the_truth_in_at_most_the_allowed_share(mean: float) -> None:
    pairs, confidence = 50, 0.9
    shown = np.array(
        [area_from_pairs(hits / pairs, pairs, confidence=confidence) for hits in range(pairs + 1)]
    )
    failed = binom.pmf(np.arange(pairs + 1), pairs, mean)[shown > mean].sum()
    assert 0 < failed <= 1 - confidence


def test_what_is_no_count_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="hits must be a whole number from 0 to trials"):
        clopper_pearson(11, 10)
    with pytest.raises(InvalidParameterError, match="hits must be"):
        clopper_pearson(-1, 10)
    with pytest.raises(InvalidParameterError, match="trials"):
        clopper_pearson(0, 0)
    with pytest.raises(InvalidParameterError, match="confidence"):
        epsilon_from_counts(1, 2, 1, 2, delta=0, confidence=1.0)
    with pytest.raises(InvalidParameterError, match="Guess each at most once"):
        epsilon_from_guesses(5, 10, 9, delta=0)
    with pytest.raises(InvalidParameterError, match="delta below 1"):
        needed(1.0, delta=1.0)


@pytest.mark.parametrize("confidence", [1e-17, 1e-300])
def test_a_confidence_that_is_lost_to_rounding_is_refused(confidence: float) -> None:
    for bound in (
        lambda: epsilon_from_guesses(5, 10, 10, delta=0, confidence=confidence),
        lambda: mu_from_guesses(10, 10, 10, confidence=confidence),
        lambda: clopper_pearson(5, 10, confidence=confidence),
        lambda: area_from_pairs(0.9, 10, confidence=confidence),
    ):
        with pytest.raises(InvalidParameterError, match=r"is 0 in float64.*0\.95"):
            bound()


def test_the_least_confidence_that_float64_knows_has_a_finite_bound() -> None:
    for correct in (5, 10):
        assert epsilon_from_guesses(correct, 10, 10, delta=0, confidence=1e-15) < 100
        assert mu_from_guesses(correct, 10, 10, confidence=1e-15) < 100
