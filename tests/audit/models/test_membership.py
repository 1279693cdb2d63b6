# SPDX-License-Identifier: Apache-2.0
"""LiRA and RMIA against loops over rows and pairs, on scores whose law is known, and what is refused."""

import math

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from sfumato.audit.evidence.roc import Roc
from sfumato.audit.models.membership import Lira, Rmia, Variance, loss_from_confidences
from sfumato.audit.models.shadow_models import coin_flips, halves
from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded


def observed(rows=40, models=6, queries=2, *, leak=1.0, seed=0, ease=5.0):
    """Return target, shadows, who is in each, and who is in the target: normal laws, `leak` apart."""
    rng = np.random.default_rng(seed)
    members = halves(rows, models, generator=seeded(seed))
    inside = coin_flips(rows, generator=seeded(seed + 1000))
    easy = ease * rng.normal(size=(rows, 1))
    shadows = easy + leak * members[:, :, None] + rng.normal(size=(models, rows, queries))
    target = easy + leak * inside[:, None] + rng.normal(size=(rows, queries))
    return target, shadows, members, inside


def curve(scores, inside):
    return Roc(scores[inside], scores[~inside])


# --- LiRA ------------------------------------------------------------------------------------------------


def spread(values):
    """Return the pooled standard deviation of groups about their own means."""
    squares = sum(((v - v.mean()) ** 2).sum() for v in values)
    return math.sqrt(squares / sum(len(v) - 1 for v in values))


@pytest.mark.parametrize("variance", list(Variance), ids=str)
def test_online_lira_is_the_log_ratio_of_two_normal_densities(variance):
    target, shadows, members, _ = observed()
    expected = np.zeros(len(target))
    for q in range(2):
        groups = [
            [shadows[mask[:, row], row, q] for row in range(len(target))] for mask in (members, ~members)
        ]
        for row in range(len(target)):
            inside, outside = groups[0][row], groups[1][row]
            stds = [inside.std(ddof=1), outside.std(ddof=1)]
            if variance == Variance.FIXED:
                stds = [spread(group) for group in groups]
            expected[row] += norm.logpdf(target[row, q], inside.mean(), stds[0])
            expected[row] -= norm.logpdf(target[row, q], outside.mean(), stds[1])
    found = Lira(variance=variance).scores(target, shadows=shadows, members=members)
    assert found == pytest.approx(expected / 2)


def test_offline_lira_uses_only_models_without_the_row():
    target, shadows, members, _ = observed()
    attack = Lira(online=False)
    before = attack.scores(target, shadows=shadows, members=members)
    after = attack.scores(target, shadows=shadows + 100.0 * members[:, :, None], members=members)
    assert np.array_equal(before, after)
    row = [shadows[~members[:, i], i, 0] for i in range(len(target))]
    expected = (target[0, 0] - row[0].mean()) / spread(row)
    one = attack.scores(target[:, :1], shadows=shadows[:, :, :1], members=members)
    assert one[0] == pytest.approx(expected)


def test_one_query_needs_no_axis_of_its_own():
    target, shadows, members, _ = observed(queries=1)
    flat = Lira().scores(target[:, 0], shadows=shadows[:, :, 0], members=members)
    assert np.array_equal(flat, Lira().scores(target, shadows=shadows, members=members))


def test_lira_finds_what_rows_of_different_ease_hide_from_the_loss():
    target, shadows, members, inside = observed(rows=4000, models=32, queries=1)
    best = norm.cdf(1 / math.sqrt(2))  # of any attack that knows the laws
    assert curve(loss_from_confidences(target), inside).area < 0.6
    for online in (True, False):
        found = curve(Lira(online=online).scores(target, shadows=shadows, members=members), inside).area
        assert best - 0.05 < found < best + 0.02


def test_more_queries_help_where_they_are_independent():
    target, shadows, members, inside = observed(rows=2000, models=16, queries=4)
    areas = [
        curve(Lira().scores(target[:, :count], shadows=shadows[:, :, :count], members=members), inside).area
        for count in (1, 4)
    ]
    assert areas[1] > areas[0] + 0.05


@pytest.mark.parametrize("variance", list(Variance), ids=str)
@pytest.mark.parametrize("online", [True, False], ids=["online", "offline"])
def test_no_attack_sees_what_is_not_there(online, variance):
    target, shadows, members, inside = observed(rows=4000, models=8, leak=0.0)
    found = curve(
        Lira(online=online, variance=variance).scores(target, shadows=shadows, members=members), inside
    )
    assert 0.5 in found.area_interval(confidence=1 - 1e-6)
    assert found.tpr_at(0.01).p_value > 1e-6


def test_a_row_that_all_models_agree_on_gets_the_spread_of_the_others():
    target, shadows, members, _ = observed()
    shadows[:, 0] = 1.0
    scores = Lira(variance="per-example").scores(target, shadows=shadows, members=members)
    assert np.isfinite(scores).all() and scores[0] == pytest.approx(
        _fixed_spread_score(target[0], shadows, members)
    )


def _fixed_spread_score(seen, shadows, members):
    total = 0.0
    for q in range(2):
        spreads = [
            spread([shadows[mask[:, row], row, q] for row in range(shadows.shape[1])])
            for mask in (members, ~members)
        ]
        total += norm.logpdf(seen[q], 1.0, spreads[0]) - norm.logpdf(seen[q], 1.0, spreads[1])
    return total / 2


# --- RMIA ------------------------------------------------------------------------------------------------


def crowd(models, queries=2, count=25, seed=9):
    rng = np.random.default_rng(seed)
    easy = rng.normal(size=(count, 1))
    return easy + rng.normal(size=(count, queries)), easy + rng.normal(size=(models, count, queries))


@pytest.mark.parametrize("gamma", [1.0, 2.0])
@pytest.mark.parametrize("online", [True, False], ids=["online", "offline"])
def test_rmia_counts_the_pairs_that_a_row_wins(online, gamma):
    target, shadows, members, _ = observed(queries=1, ease=1.0)
    z, z_shadows = crowd(len(members), queries=1)
    attack = Rmia(online=online, gamma=gamma, offline_a=0.4)
    found = attack.scores(target, shadows=shadows, members=members, population=(z, z_shadows))
    for row in range(len(target)):
        wins = sum(
            _gain(target[row, 0], shadows[:, row, 0], members[:, row], online)
            > gamma * _gain(z[i, 0], z_shadows[:, i, 0], np.zeros(len(members), bool), online)
            for i in range(len(z))
        )
        assert math.floor(found[row] * (len(z) + 1)) == wins


def _gain(seen, others, mask, online):
    """The paper's ratio of one row: its probability over the average of in and out."""
    out = expit(others[~mask]).mean()
    inside = (expit(others[mask]).mean() if mask.any() else out) if online else 0.4 * out + 0.6
    return expit(seen) / ((out + inside) / 2)


def test_rows_that_win_the_same_pairs_are_ordered_by_their_gain():
    members = np.array([[True, False, True], [False, True, False]])
    population = np.full(5, -3.0), np.zeros((2, 5))
    found = Rmia().scores([3.0, 9.0, 1.0], shadows=np.zeros((2, 3)), members=members, population=population)
    assert (np.floor(found * 6) == 5).all()
    assert found[1] > found[0] > found[2]


def test_rmia_finds_members_and_sees_nothing_where_nothing_is():
    for leak, seen in ((1.0, True), (0.0, False)):
        target, shadows, members, inside = observed(rows=3000, models=8, leak=leak, ease=2.0)
        scores = Rmia().scores(target, shadows=shadows, members=members, population=crowd(8, count=500))
        assert (0.5 not in curve(scores, inside).area_interval(confidence=1 - 1e-6)) == seen


def test_a_confidence_beyond_rounding_still_counts():
    scores = loss_from_confidences([-800.0, 40.0, 50.0, 800.0])
    assert scores[0] == -800.0 and (np.diff(scores) > 0).all()


# --- refused ---------------------------------------------------------------------------------------------


def changed(place, value):
    target, shadows, members, _ = observed()
    arrays = {"target": target, "shadows": shadows, "members": members}
    arrays[place] = value(arrays[place])
    return arrays


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("target", lambda a: np.where(a > 0, np.nan, a), "target holds confidences that are not finite"),
        ("shadows", lambda a: np.where(a > 0, np.inf, a), "shadows holds confidences that are not finite"),
        ("target", lambda a: a[:0], "at least one"),
        ("target", lambda a: a[:-1], "the same rows"),
        ("shadows", lambda a: a[:, :, :1], "same rows and queries"),
        ("members", lambda a: a.astype(int), "True or False"),
        ("members", lambda a: a[:-1], "True or False"),
        (
            "members",
            lambda a: np.ones_like(a),
            "at least 1 shadow models that it was out of, but a row has 0",
        ),
        ("members", lambda a: np.zeros_like(a), "at least 1 shadow models that it was in, but a row has 0"),
        ("shadows", lambda a: np.zeros_like(a), "at least 4"),
    ],
    ids=["nan", "inf", "empty", "rows", "queries", "kind", "masks", "never out", "never in", "no spread"],
)
def test_groups_that_cannot_be_compared_are_refused(place, value, message):
    arrays = changed(place, value)
    with pytest.raises(InvalidParameterError, match=message):
        Lira().scores(arrays["target"], shadows=arrays["shadows"], members=arrays["members"])


def test_a_spread_of_each_row_needs_two_models_on_either_side():
    target, shadows, members, _ = observed(models=2)
    with pytest.raises(InvalidParameterError, match=r"at least 2 .* a row has 1. Train 4 or more"):
        Lira(variance="per-example").scores(target, shadows=shadows, members=members)


def test_a_population_of_other_models_is_refused():
    target, shadows, members, _ = observed()
    with pytest.raises(InvalidParameterError, match="the same 6 shadow models and 2 queries"):
        Rmia().scores(target, shadows=shadows, members=members, population=crowd(5))


def test_unknown_settings_are_refused():
    with pytest.raises(InvalidParameterError, match="fixed, per-example"):
        Lira(variance="global")
    with pytest.raises(InvalidParameterError, match="gamma"):
        Rmia(gamma=0.5)
    with pytest.raises(InvalidParameterError, match="offline_a"):
        Rmia(offline_a=1.5)
