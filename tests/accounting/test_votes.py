# SPDX-License-Identifier: Apache-2.0
"""Prices that depend on votes: published formulas, exact divergences, and a distance that moves by one."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import log_ndtr
from scipy.stats import norm

from sfumato.accounting import votes
from sfumato.accounting.votes import Votes, answers, distance, log_error, one_answer
from sfumato.errors import InvalidParameterError

SLACK = 1e-6  # of numerical integration
ORDERS = np.array([2.0, 5.0, 16.0, 40.0])


# --- the published formulas, written again from the paper, with 50 digits -----------------------------------


def published(log_q: float, stddev: float, order: float) -> float:
    """Papernot et al. 2018: Theorem 6 at the orders of Proposition 10, else Proposition 8."""
    with mpmath.workdps(50):
        whole = mpmath.mpf(order) / stddev**2
        q = mpmath.exp(log_q)
        if q >= 1:
            return float(whole)
        mu2 = stddev * mpmath.sqrt(mpmath.log(1 / q))
        mu1 = mu2 + 1
        e1, e2 = mu1 / stddev**2, mu2 / stddev**2
        if mu2 <= 1 or order > mu1:
            return float(whole)
        if q > mpmath.exp((mu2 - 1) * e2) / (mu1 / (mu1 - 1) * mu2 / (mu2 - 1)) ** mu2:
            return float(whole)
        if q * mpmath.exp(e2) >= 1:
            return float(whole)
        a = (1 - q) / (1 - (q * mpmath.exp(e2)) ** ((mu2 - 1) / mu2))
        b = mpmath.exp(e1) / q ** (1 / (mu1 - 1))
        bound = mpmath.log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1)
        return float(min(bound, whole))


@pytest.mark.parametrize("threshold", [-500.0, 0.0, 15.0, 30.0, 2000.0])
@pytest.mark.parametrize("stddev", [0.05, 1.0, 4.0])
def test_little_noise_costs_no_more_than_without_consensus(stddev, threshold):
    noise = Votes(stddev=stddev, threshold=threshold, threshold_stddev=5.0)
    for counts in ([[20, 0]], [[12, 8]], [[10, 10]], [[0, 0]]):
        found = answers(counts, noise).values
        whole = votes.ORDERS * (1 / stddev**2 + 1 / 50)
        assert np.all(found >= 0) and np.all(found <= whole * (1 + 1e-6))
    if threshold == 0.0:  # almost always answered: the price of the answer is not lost in an overflow
        assert np.all(answers([[10, 10]], noise).values >= 0.9 * votes.ORDERS / stddev**2 - 1)


@pytest.mark.parametrize("stddev", [10.0, 40.0, 100.0])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("log_q", [-1e-3, -0.5, -2.0, -6.9, -20.0, -80.0, -600.0])
def test_one_answer_is_the_published_formula(stddev, order, log_q):
    found = one_answer(np.array([log_q]), stddev=stddev, orders=np.array([order]))[0, 0]
    assert found == pytest.approx(published(log_q, stddev, order), rel=1e-6, abs=1e-15)


def test_the_chance_of_an_error_is_proposition_seven():
    counts, stddev = [180, 40, 20, 10], 40.0
    expected = sum(math.erfc((180 - n) / (2 * stddev)) / 2 for n in counts[1:])
    margins = np.array([[180.0 - n for n in counts[1:]]])
    assert math.exp(log_error(margins, stddev=stddev)[0]) == pytest.approx(expected)


def test_without_consensus_an_answer_costs_what_the_gaussian_mechanism_costs():
    found = one_answer(np.array([0.0]), stddev=40.0, orders=ORDERS)
    assert found[0] == pytest.approx(ORDERS / 40.0**2)  # Proposition 8


# --- exact divergences of argmax distributions --------------------------------------------------------------


def law(counts: list[int], stddev: float) -> np.ndarray:
    """Return the chance that each class wins, by integration."""

    def wins(i: int) -> float:
        def density(x: float) -> float:
            others = sum(log_ndtr((x - n) / stddev) for j, n in enumerate(counts) if j != i)
            return math.exp(others - ((x - counts[i]) / stddev) ** 2 / 2)

        low, high = counts[i] - 10 * stddev, counts[i] + 10 * stddev
        scale = stddev * math.sqrt(2 * math.pi)
        return quad(density, low, high, limit=200, epsabs=1e-14 * scale)[0] / scale

    found = np.array([wins(i) for i in range(len(counts))])
    return found / found.sum()


def neighbors(counts: list[int]) -> list[list[int]]:
    """Return all counts in which one teacher votes otherwise, or abstains."""
    found = []
    for i, n in enumerate(counts):
        if n == 0:
            continue
        for j in (*range(len(counts)), None):
            other = list(counts)
            other[i] -= 1
            if j is not None:
                other[j] += 1
            found.append(other)
    return found


def renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    return math.log(float((p**order * q ** (1 - order)).sum())) / (order - 1)


@pytest.mark.parametrize("counts", [[12, 3, 1], [16, 0, 0], [8, 8, 0], [6, 5, 5], [14, 2, 0]])
def test_a_bound_is_never_below_the_exact_divergence(counts):
    stddev, here = 4.0, law(counts, 4.0)
    bound = answers([counts], Votes(stddev=stddev), orders=ORDERS).values
    for other in neighbors(counts):
        there = law(other, stddev)
        for order, most in zip(ORDERS, bound, strict=True):
            assert renyi(here, there, order) <= most + SLACK


@pytest.mark.parametrize("counts", [[12, 3, 1], [16, 0, 0], [8, 8, 0]])
@pytest.mark.parametrize("threshold", [6.0, 12.0, 20.0])
def test_a_bound_with_a_threshold_is_never_below_the_exact_divergence(counts, threshold):
    rule = Votes(stddev=4.0, threshold=threshold, threshold_stddev=5.0)

    def outputs(votes_: list[int]) -> np.ndarray:
        answered = norm.sf(threshold, max(votes_), 5.0)
        return np.append(answered * law(votes_, 4.0), 1 - answered)

    here, bound = outputs(counts), answers([counts], rule, orders=ORDERS).values
    for other in neighbors(counts):
        for order, most in zip(ORDERS, bound, strict=True):
            assert renyi(here, outputs(other), order) <= most + SLACK


def test_the_exact_divergence_would_exceed_a_bound_for_more_noise():
    """The comparison above has power: half of the noise is caught."""
    here = law([12, 3, 1], 2.0)
    worst = max(renyi(here, law(other, 2.0), 16.0) for other in neighbors([12, 3, 1]))
    assert worst > answers([[12, 3, 1]], Votes(stddev=4.0), orders=np.array([16.0])).values[0]


# --- relations ------------------------------------------------------------------------------

rows = st.lists(st.tuples(*[st.integers(0, 60)] * 3), min_size=1, max_size=6)
rules = st.sampled_from([Votes(stddev=8.0), Votes(stddev=8.0, threshold=40.0, threshold_stddev=12.0)])


@given(rows, rules, st.integers(0, 12), st.data())
def test_the_bound_at_a_distance_covers_neighbors_one_nearer(counts, rule, far, data):
    other = []
    for row in counts:
        options = [list(row), *neighbors(list(row))]
        other.append(options[data.draw(st.integers(0, len(options) - 1))])
    here = answers(counts, rule, distance=far + 1, orders=ORDERS).values
    there = answers(other, rule, distance=far, orders=ORDERS).values
    assert np.all(there <= here * (1 + 1e-9))


@given(rows, rules, st.floats(1e-4, 1.0), st.data())
def test_the_distance_moves_by_at_most_one(counts, rule, limit, data):
    other = []
    for row in counts:
        options = [list(row), *neighbors(list(row))]
        other.append(options[data.draw(st.integers(0, len(options) - 1))])

    def measured(votes_: list) -> int:
        return distance(
            votes_, rule, safe=lambda c: bool(c.values[0] <= limit), most=60, orders=np.array([8.0])
        )

    assert abs(measured(counts) - measured(other)) <= 1


@given(rows, rules)
def test_listing_a_query_twice_costs_twice(counts, rule):
    once, twice = (answers(c, rule, orders=ORDERS).values for c in (counts, counts + counts))
    assert twice == pytest.approx(2 * once, rel=1e-9)


@given(rows, st.permutations([0, 1, 2]))
def test_which_class_leads_does_not_matter(counts, order):
    moved = [[row[i] for i in order] for row in counts]
    rule = Votes(stddev=8.0)
    assert np.array_equal(answers(counts, rule).values, answers(moved, rule).values)


@given(rows, rules)
@settings(max_examples=30)
def test_a_bound_is_never_above_the_price_of_the_noise_alone(counts, rule):
    found = answers(counts, rule, orders=ORDERS).values
    whole = len(counts) * ORDERS / rule.stddev**2
    if rule.threshold is not None:
        whole = whole + len(counts) * ORDERS / (2 * rule.threshold_stddev**2)
    assert np.all(found <= whole * (1 + 1e-6))


def test_agreement_makes_answers_cheap_and_the_bound_sees_it():
    agreed = answers([[250, 0, 0]] * 100, Votes(stddev=40.0), orders=np.array([16.0])).values[0]
    assert agreed < 0.05 * 100 * 16 / 40**2


def test_equal_votes_far_from_the_limit_have_the_largest_distance():
    assert distance([[250, 0]], Votes(stddev=20.0), safe=lambda c: True, most=7) == 7
    assert distance([[250, 0]], Votes(stddev=20.0), safe=lambda c: False, most=7) == 0


# --- bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "counts", [[], [[1]], [[1.5, 2]], [[-1, 2]], [1, 2], [[math.nan, 1]], [[math.inf, 1]]]
)
def test_counts_that_are_no_votes_are_refused_without_being_shown(counts):
    with pytest.raises(InvalidParameterError) as error:
        answers(counts, Votes(stddev=1.0))
    assert "1.5" not in str(error.value) and "nan" not in str(error.value)


@pytest.mark.parametrize(
    "wrong", [{"stddev": 0.0}, {"stddev": math.nan}, {"stddev": 1.0, "threshold": 3.0}, {"stddev": -1.0}]
)
def test_noise_out_of_range_is_refused(wrong):
    with pytest.raises(InvalidParameterError):
        Votes(**wrong)


def test_the_orders_are_above_one_and_cannot_be_changed():
    assert np.all(votes.ORDERS > 1)
    with pytest.raises(ValueError):
        votes.ORDERS[0] = 2.0
