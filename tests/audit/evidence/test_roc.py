# SPDX-License-Identifier: Apache-2.0
"""ROC curves against slow versions, exact chances by enumeration, and what is refused."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from sfumato.audit.evidence.roc import OperatingPoint, Roc
from sfumato.errors import InvalidParameterError

scores = st.lists(st.integers(0, 8), min_size=1, max_size=30)  # few values: ties are common


@given(scores, scores)
def test_the_area_is_the_peers(inside, outside):
    labels = [1] * len(inside) + [0] * len(outside)
    assert Roc(inside, outside).area == pytest.approx(roc_auc_score(labels, inside + outside))


@given(scores, scores, st.floats(0.01, 0.99))
def test_the_threshold_is_the_best_of_those_with_few_false_positives(inside, outside, fpr):
    roc = Roc(inside, outside)
    if math.floor(fpr * len(outside) + 1e-9) < 1:
        with pytest.raises(InvalidParameterError, match=f"Give at least {math.ceil(1 / fpr - 1e-9)}"):
            roc.tpr_at(fpr)
        return
    found = roc.tpr_at(fpr)
    allowed = [t for t in range(-1, 10) if np.mean(np.array(outside) > t) <= fpr + 1e-9]
    assert found.fpr <= fpr + 1e-9
    assert found.tpr == pytest.approx(max(np.mean(np.array(inside) > t) for t in allowed))


def test_a_share_of_scores_is_not_lost_to_rounding():
    assert Roc(np.arange(100), np.arange(100)).tpr_at(0.29).false_positives == 29  # 0.29 * 100 is below 29


def test_a_tie_with_the_threshold_is_not_a_member():
    assert Roc([1.0] * 10, [1.0] * 10).tpr_at(0.1).true_positives == 0


def test_the_chance_where_nothing_leaks_is_that_of_all_orders():
    places = list(combinations(range(7), 4))  # where the four in-scores stand among seven
    points = [
        Roc([p for p in range(7) if p in chosen], [p for p in range(7) if p not in chosen]).tpr_at(0.34)
        for chosen in places
    ]
    for point in points:
        as_many = sum(other.true_positives >= point.true_positives for other in points)
        assert point.p_value == pytest.approx(as_many / len(places))


def test_scores_without_a_leak_are_seldom_suspicious_and_leaking_ones_are():
    rng = np.random.default_rng(0)
    chances = [Roc(*rng.normal(size=(2, 300))).tpr_at(0.05).p_value for _ in range(400)]
    assert np.mean(np.array(chances) <= 0.05) <= 0.085  # 3 standard deviations above the most it may be
    leaking = Roc(rng.normal(size=300) + 1, rng.normal(size=300))
    assert leaking.tpr_at(0.05).p_value < 1e-6


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng, truth = np.random.default_rng(1), 0.7602499  # Phi(1 / sqrt 2)
    found = [Roc(rng.normal(size=60) + 1, rng.normal(size=40)).area_interval() for _ in range(200)]
    assert sum(truth in interval for interval in found) >= 190
    assert all(interval.high - interval.low < 0.4 for interval in found)


def test_rates_have_the_exact_binomial_interval():
    point = OperatingPoint(
        threshold=0.0, true_positives=0, positives=10, false_positives=10, negatives=10, p_value=1.0
    )
    low, high = point.tpr_interval(confidence=0.95), point.fpr_interval(confidence=0.95)
    assert (low.low, round(low.high, 4)) == (0.0, 0.3085)  # Clopper and Pearson's textbook case
    assert (round(high.low, 4), high.high) == (0.6915, 1.0)


def test_a_perfect_attack_has_area_one_and_an_inverted_one_zero():
    assert Roc([2.0, 3.0], [0.0, 1.0]).area == 1
    assert Roc([0.0, 1.0], [2.0, 3.0]).area == 0
    assert Roc([0.0], [math.inf]).area == 0


def test_points_rise_from_nothing_to_everything():
    rng = np.random.default_rng(2)
    fpr, tpr = Roc(rng.normal(size=50), rng.normal(size=70)).points()
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    assert (np.diff(fpr) >= 0).all() and (np.diff(tpr) >= 0).all()


def test_the_points_enclose_the_area():
    roc = Roc([1, 2, 2, 5], [2, 0, 3])
    fpr, tpr = roc.points()
    assert float((np.diff(fpr) * (tpr[1:] + tpr[:-1]) / 2).sum()) == pytest.approx(roc.area)


def test_points_for_a_log_plot_are_few_and_on_the_curve():
    rng = np.random.default_rng(3)
    roc = Roc(rng.normal(size=5000) + 1, rng.normal(size=5000))
    points = roc.log_points(most=50)
    assert 20 < len(points) <= 50
    assert points[0][0] == pytest.approx(-math.log10(5000)) and points[-1] == (0.0, 0.0)
    x, y = points[25]
    assert 10**y == pytest.approx(roc.tpr_at(10**x * (1 + 1e-9)).tpr, abs=1e-3)


@pytest.mark.parametrize(
    ("inside", "outside", "message"),
    [
        ([], [1.0], "in_scores is empty"),
        ([1.0], [], "out_scores is empty"),
        ([math.nan], [1.0], "in_scores holds NaN"),
        ([[1.0, 2.0]], [1.0], "one axis"),
        (["a"], [1.0], "in_scores must be real numbers"),
        ([1.0], [None], "out_scores must be real numbers"),
        ([1.0], [1j], "out_scores must be real numbers"),
    ],
    ids=["no members", "no others", "nan", "two axes", "a word", "nothing", "complex"],
)
def test_groups_that_cannot_be_compared_are_refused(inside, outside, message):
    with pytest.raises(InvalidParameterError, match=message):
        Roc(inside, outside)


def test_a_sentence_leaves_out_rates_that_cannot_be_seen():
    text = Roc(np.arange(100), np.arange(100), name="loss").describe()
    assert text.startswith("loss: area 0.5 (") and "FPR 0.01" in text and "FPR 0.001" not in text
