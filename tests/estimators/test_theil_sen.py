# SPDX-License-Identifier: Apache-2.0
import itertools
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare

from sfumato.accounting.events import ExponentialDpEvent, leaves
from sfumato.errors import InvalidParameterError
from sfumato.estimators.theil_sen import TheilSen, draw_pairs, median_scores, pair_predictions
from sfumato.testing import seeded

ALPHA = 1e-6
UNIT = (-1.0, 1.0)
BOUNDS = (-2.0, 2.0)
values = st.lists(st.floats(-3, 3), min_size=0, max_size=12)


def made(**changes) -> TheilSen:
    return TheilSen(
        **({"epsilon": 1.0, "feature_bounds": UNIT, "target_bounds": UNIT, "random_state": 0} | changes)
    )


# --- the score --------------------------------------------------------------------------------------------


def score_at(points: np.ndarray, predictions, widening: float) -> np.ndarray:
    edges, scores = median_scores(np.array(predictions, float), bounds=BOUNDS, widening=widening)
    return scores[np.searchsorted(edges, points, side="right") - 1]


def obvious_score(point: float, predictions, widening: float) -> float:
    below = [sum(z < point + shift for z in predictions) for shift in (-widening, widening)]
    rank = min(max(len(predictions) // 2, below[0]), below[1])
    return -abs(rank - len(predictions) / 2)


POINTS = np.random.default_rng(0).uniform(*BOUNDS, 60)


@given(values, st.sampled_from([0.0, 0.01, 0.7]))
def test_the_score_is_that_of_the_definition(predictions, widening):
    found = score_at(POINTS, predictions, widening)
    assert found.tolist() == [obvious_score(point, predictions, widening) for point in POINTS]


@settings(max_examples=300)
@given(values, st.lists(st.floats(-3, 3), max_size=3), st.lists(st.floats(-3, 3), max_size=3))
def test_pairs_that_come_go_or_change_move_the_score_by_one_each(kept, gone, new):
    moved = np.abs(score_at(POINTS, kept + gone, 0.1) - score_at(POINTS, kept + new, 0.1))
    swapped = min(len(gone), len(new))
    assert moved.max() <= swapped + (max(len(gone), len(new)) - swapped) / 2


def test_a_row_in_two_pairs_moves_the_score_by_two():
    others = [-1.0] * 10
    one, two = (score_at(np.array([0.0]), [*others, z, z], 0.0) for z in (-1.0, 1.0))
    assert (one - two).tolist() == [-2.0]


# --- the matchings ----------------------------------------------------------------------------------------


def matchings_of(rows: frozenset) -> list[frozenset]:
    """All ways to match rows in pairs, leaving one over where their number is odd."""
    if len(rows) < 2:
        return [frozenset()]
    if len(rows) % 2:
        return [found for left in rows for found in matchings_of(rows - {left})]
    first = min(rows)
    return [
        found | {frozenset({first, other})}
        for other in rows - {first}
        for found in matchings_of(rows - {first, other})
    ]


def without(matching: frozenset, row: int, rows: int) -> frozenset:
    """The matching of one row less that goes with it, as the module says."""
    left = [i for i in range(rows) if not any(i in pair for pair in matching)]
    mine = [pair for pair in matching if row in pair]
    if not mine:
        return matching
    (partner,) = mine[0] - {row}
    rest = matching - {mine[0]}
    return rest | {frozenset({partner, left[0]})} if left else rest


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 6, 7])
def test_matchings_with_and_without_a_row_can_be_drawn_together_but_for_one_pair(rows):
    counted = Counter()
    for matching in matchings_of(frozenset(range(rows))):
        smaller = without(matching, rows - 1, rows)
        assert len(matching - smaller) <= 1 and len(smaller - matching) <= 1
        counted[smaller] += 1
    assert set(counted) == set(matchings_of(frozenset(range(rows - 1))))
    assert len(set(counted.values())) == 1  # uniform goes to uniform


@pytest.mark.parametrize("rows", [4, 5])
def test_matchings_are_uniform(rows):
    generator, counted = seeded(0), Counter()
    for _ in range(3000):
        pairs = draw_pairs(rows, 1, generator)
        counted[frozenset(map(frozenset, pairs.T.tolist()))] += 1
    possible = matchings_of(frozenset(range(rows)))
    observed = [counted[matching] for matching in possible]
    assert sum(observed) == 3000 and chisquare(observed).pvalue > ALPHA
    lopsided = [2 * observed[0], *observed[1:]]  # one of them twice as likely
    assert chisquare(lopsided).pvalue < ALPHA


@given(st.integers(0, 30), st.integers(1, 5))
def test_no_row_is_in_more_pairs_than_there_are_matchings(rows, matchings):
    pairs = draw_pairs(rows, matchings, seeded(3))
    assert pairs.shape == (2, rows // 2 * matchings)
    assert np.bincount(pairs.ravel(), minlength=rows).max(initial=0) <= matchings
    assert (pairs[0] != pairs[1]).all()


# --- the line ---------------------------------------------------------------------------------------------


def test_predictions_are_those_of_the_lines_through_the_pairs():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=9), rng.normal(size=9)
    pairs = np.array(list(itertools.combinations(range(9), 2))).T
    expected = [np.polyval(np.polyfit(x[[i, j]], y[[i, j]], 1), 0.3) for i, j in pairs.T]
    np.testing.assert_allclose(pair_predictions(x, y, pairs, 0.3), expected, rtol=1e-9)


def test_pairs_that_have_no_line_predict_nothing():
    x = np.array([0.0, 0.0, np.nan, np.inf, 1e308, -1e308])
    y = np.array([0.0, 1.0, 0.0, 0.0, 1e308, -1e308])
    pairs = np.array([[0, 1], [0, 2], [0, 3]]).T
    assert pair_predictions(x, y, pairs, 0.5).size == 0
    assert np.isfinite(pair_predictions(x, y, np.array([[4], [5]]), 0.5)).all()


def test_with_a_huge_epsilon_and_many_matchings_it_is_the_median_over_all_pairs():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 40)
    y = 0.6 * x + 0.1 + rng.normal(0, 0.02, 40)
    y[:8] = rng.uniform(-1, 1, 8)  # a fifth of the rows is junk
    fitted = made(epsilon=1e6, matchings=400, widening=0.0, relation="replace-one").fit(x, y)
    pairs = np.array(list(itertools.combinations(range(40), 2))).T
    expected = [np.median(pair_predictions(x, y, pairs, place)) for place in (-0.5, 0.5)]
    np.testing.assert_allclose(fitted.predict([-0.5, 0.5]), expected, atol=0.004)
    assert abs(fitted.coef_[0] - 0.6) < 0.05 < abs(np.polyfit(x, y, 1)[0] - 0.6)


def test_the_medians_have_the_law_of_the_exponential_mechanism():
    """Two rows, five times the same pair: 5 predictions agree, and the law has three pieces."""
    widening, epsilon, runs = 0.05, 40.0, 1500
    estimator = made(epsilon=epsilon, matchings=5, widening=widening / 2)
    x, y = np.array([-1.0, 1.0]), np.array([-0.4, 0.4])
    inside, generator = 0, seeded(0)
    for _ in range(runs):
        estimator._learn(x, y, generator=generator)
        at = estimator.coef_[0] * -0.5 + estimator.intercept_
        inside += abs(at + 0.2) < widening
    assert binomtest(inside, runs, chance(epsilon, widening)).pvalue > ALPHA
    assert binomtest(inside, runs, chance(1.2 * epsilon, widening)).pvalue < ALPHA


def chance(epsilon: float, widening: float) -> float:
    """Score -1/2 within the widening of the prediction, -5/2 elsewhere in [-2, 2]; sensitivity 5."""
    rate = epsilon / 2 / (2 * 5)
    near, far = 2 * widening * math.exp(-0.5 * rate), (4 - 2 * widening) * math.exp(-2.5 * rate)
    return near / (near + far)


def test_a_fit_costs_two_exponential_mechanisms_of_half_of_epsilon():
    assert leaves(made(epsilon=3.0).event()) == {ExponentialDpEvent(1.5): 2}


def test_predictions_that_all_agree_need_the_widening():
    x = np.linspace(-1, 1, 400)
    exact = made(epsilon=1.0).fit(x, 0.5 * x)
    assert abs(exact.coef_[0] - 0.5) < 0.02
    spread = [made(epsilon=1.0, widening=0.0, random_state=s).fit(x, 0 * x).coef_[0] for s in range(5)]
    assert np.std(spread) > 0.1  # 0 exactly leaves the median no room


def test_a_constant_feature_is_answered_with_noise_alone():
    fitted = made().fit(np.full(50, 0.3), np.linspace(-1, 1, 50))
    assert -4 <= fitted.coef_[0] <= 4


def test_memory_grows_with_the_rows_and_not_with_their_square():
    n = 20_000
    x = np.linspace(-1, 1, n)
    made(matchings=2).fit(x[:10], x[:10])  # imports
    tracemalloc.start()
    made(matchings=2).fit(x, 0.3 * x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1000 * n < 8 * n**2 / 100


@pytest.mark.parametrize(
    "wrong",
    [{"matchings": 0}, {"matchings": 2.0}, {"widening": -1.0}, {"prediction_bounds": (2, 1)}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_parameters_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidParameterError, match=next(iter(wrong))):
        made(**wrong).fit([0.0, 1.0], [0.0, 1.0])
