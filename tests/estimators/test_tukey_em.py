# SPDX-License-Identifier: Apache-2.0
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare, kstest

from sfumato.accounting.events import ApproximateDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.estimators.tukey_em import Boxes, DeepPoint, TukeyEM, deal, first_depth, least_squares
from sfumato.testing import seeded

ALPHA = 1e-6
ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
end = st.one_of(st.floats(-2, 2), st.sampled_from([-math.inf, math.inf, 0.0, 1.0]))
coefficient = st.one_of(st.floats(-2, 2), st.sampled_from([-1.0, 0.0, 1.0]), st.floats(-1e6, 1e6))


def deep(epsilon: float = 8.0, delta: float = 0.05) -> DeepPoint:
    return DeepPoint(epsilon=epsilon, delta=delta, relation=ADD)


def boxes_of(models, resolution: float = 1e-3) -> Boxes:
    known = np.array(models, dtype=np.float64)
    return Boxes(known.reshape(len(known), -1), resolution)


# --- boxes ------------------------------------------------------------------------------------------------


def depth_of(point: np.ndarray, models: np.ndarray) -> int:
    """The definition: the least number of models on either side, over all coefficients."""
    return int(min((models <= point).sum(0).min(), (models >= point).sum(0).min()))


@given(st.integers(0, 2**32), st.integers(2, 9), st.integers(1, 3))
def test_a_box_holds_the_points_of_its_depth_or_more(seed, count, features):
    rng = np.random.default_rng(seed)
    models = rng.normal(size=(count, features))
    boxes = boxes_of(models, 0.0)
    for point in rng.normal(size=(30, features)):
        inside = [
            all(
                low <= value <= high
                for value, (low, high) in zip(point.tolist(), boxes.sides(i), strict=True)
            )
            for i in range(1, boxes.depth + 1)
        ]
        assert sum(inside) == depth_of(point, models)


@given(st.lists(st.tuples(end, end), min_size=2, max_size=12), end)
def test_a_model_that_changes_moves_each_box_by_at_most_one_depth(models, other):
    volumes = boxes_of(models).volumes
    changed = boxes_of([*models[:-1], (other, -other)]).volumes
    for i in range(1, len(volumes) - 1):
        assert changed[i] <= volumes[i - 1] and volumes[i] <= changed[i - 1]


# --- the test ---------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.integers(8, 80), coefficient | end, st.floats(1.0, 30.0))
def test_a_model_that_changes_moves_the_margin_by_at_most_one(seed, count, other, epsilon):
    models = np.random.default_rng(seed).normal(size=(count, 2))
    changed = np.concatenate([models[:-1], [[other, other]]])
    margins = [deep(epsilon).margin(boxes_of(table).volumes) for table in (models, changed)]
    assert abs(margins[0] - margins[1]) <= 1 and min(margins) >= -1


def obvious_margin(choice: DeepPoint, volumes: list[Fraction]) -> int:
    """Try every k and every g."""
    start, deepest = first_depth(len(volumes) - 1), len(volumes) - 1
    holds = [
        any(
            volumes[start - k - 2] <= choice.threshold(g) * volumes[start + k + g]
            for g in range(1, deepest)
            if start + k + g + 1 <= deepest and volumes[start + k + g] > 0
        )
        for k in range(start - 1)
    ]
    assert holds == sorted(holds, reverse=True)
    return sum(holds) - 1


@given(st.integers(0, 2**32), st.integers(2, 60), st.floats(0.5, 40.0))
def test_the_margin_is_that_of_the_definition(seed, count, epsilon):
    volumes = boxes_of(np.random.default_rng(seed).standard_cauchy((count, 2))).volumes
    assert deep(epsilon).margin(volumes) == obvious_margin(deep(epsilon), volumes)


# google-research, dp_regression/tukey_test.py: distances with epsilon 1.1 for the choice, delta 0.5 and a
# threshold of delta / (8 e^epsilon), which is tau here. The depth t is given there, and so are the volumes.
DENSE = [128, 64, 1, 0.999, 0.998, 0.997, 0.996, 0.995, 0.994, 0.993, 0.992, 0.991, 0.99, 0.989, 0.988, 0.987]
SPARSE = [128, 64, 32, 16, 8, 4, 2, 1]


@pytest.mark.parametrize(
    ("volumes", "t", "expected"), [(DENSE, 6, 1), (SPARSE, 4, -1)], ids=["dense", "sparse"]
)
def test_margins_are_those_of_the_authors_tests(volumes, t, expected):
    tau = 0.5 / (8 * math.exp(1.1))
    choice = deep(epsilon=2.2, delta=tau * (1 + math.exp(0.55)))
    exact = [*map(Fraction, volumes), Fraction(0)]
    holds = [choice._holds(exact, t, k) for k in range(t - 1)]
    assert sum(holds) - 1 == expected


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 20.0])
@pytest.mark.parametrize("delta", [0.2, 1e-6])
def test_unsafe_data_pass_with_a_chance_of_at_most_delta_and_nearly_so(epsilon, delta):
    choice = deep(epsilon, delta)
    a = math.exp(-epsilon / 2)

    def chance(bar: int) -> float:
        return a ** (bar + 1) / (1 + a)  # that -1 plus noise reaches the bar

    assert chance(choice.bar) <= delta
    assert choice.bar == 0 or chance(choice.bar - 1) > delta


def test_how_often_unsafe_data_pass_is_as_computed():
    choice, generator = deep(2.0, 0.1), seeded(0)
    unsafe = boxes_of(np.geomspace(1, 1e9, 40), 0.0)
    assert choice.margin(unsafe.volumes) == -1
    passed = sum(choice.release(unsafe, generator) is not None for _ in range(3000))
    a = math.exp(-1.0)
    assert binomtest(passed, 3000, a ** (choice.bar + 1) / (1 + a)).pvalue > ALPHA
    assert binomtest(passed, 3000, 0.1 / 2).pvalue < ALPHA


# --- the choice -------------------------------------------------------------------------------------------


def law(models: np.ndarray, choice: DeepPoint, cuts: np.ndarray, factor: float = 0.5) -> np.ndarray:
    """The chance of each interval between cuts, for one coefficient: exp(factor E depth) where allowed."""
    middles = (cuts[1:] + cuts[:-1]) / 2
    depths = np.array([depth_of(np.array([middle]), models) for middle in middles])
    allowed = depths >= first_depth(-(-len(models) // 2))
    weights = np.diff(cuts) * np.exp(factor * choice.half * depths) * allowed
    return weights / weights.sum()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(8, 60), st.floats(-3, 3), st.floats(2.0, 20.0))
def test_choices_of_neighbors_cannot_be_told_apart_where_one_of_them_is_safe(seed, count, other, epsilon):
    """The claim itself, by exact integration: both hockey-stick divergences are at most delta."""
    models = np.random.default_rng(seed).uniform(-1, 1, (count, 1))
    changed = np.concatenate([models[:-1], [[other]]])
    choice = deep(epsilon, 0.05)
    if all(choice.margin(boxes_of(table, 0.0).volumes) < 0 for table in (models, changed)):
        return
    cuts = np.unique(np.concatenate([models, changed]))
    one, two = law(models, choice, cuts), law(changed, choice, cuts)
    for p, q in ((one, two), (two, one)):
        assert np.maximum(p - math.exp(choice.half) * q, 0).sum() <= choice.delta + 1e-12


def test_choices_of_unsafe_neighbors_can_be_told_apart():
    """Why there is a test: one more model that lies far away lets far points be chosen."""
    models = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0]).reshape(-1, 1)
    changed = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 101.0, 100.0]).reshape(-1, 1)
    choice = deep(2.0, 0.05)
    assert choice.margin(boxes_of(models, 0.0).volumes) == -1
    cuts = np.unique(np.concatenate([models, changed]))
    p, q = law(models, choice, cuts), law(changed, choice, cuts)
    worst = max(np.maximum(a - math.e * b, 0).sum() for a, b in ((p, q), (q, p)))
    assert worst > choice.delta


def test_one_coefficient_is_chosen_by_the_stated_law():
    models = np.sort(np.random.default_rng(0).normal(size=(12, 1)), axis=0)
    choice, boxes, generator = deep(3.0), boxes_of(models, 0.0), seeded(0)
    drawn = np.array([choice.choose(boxes, generator)[0] for _ in range(3000)])
    cuts = models[:, 0]

    def cdf(factor):
        return lambda x: np.interp(x, cuts, np.r_[0, np.cumsum(law(models, choice, cuts, factor))])

    assert kstest(drawn, cdf(0.5)).pvalue > ALPHA
    assert (
        kstest(drawn, cdf(1.0)).pvalue < ALPHA
    )  # exp(E depth), as the authors' code has it: half the privacy


def test_several_coefficients_are_chosen_by_the_stated_law():
    models = np.random.default_rng(1).normal(size=(10, 2))
    choice, boxes, generator = deep(2.0), boxes_of(models, 0.0), seeded(0)
    drawn = np.array([choice.choose(boxes, generator) for _ in range(3000)])
    ordered = np.sort(models, axis=0)
    cells = [np.searchsorted(ordered[:, j], drawn[:, j]) for j in (0, 1)]
    counted, expected = [], []
    for i in range(1, 10):
        for j in range(1, 10):
            depth = min(i, 10 - i, j, 10 - j)
            if depth >= first_depth(5):
                size = (ordered[i, 0] - ordered[i - 1, 0]) * (ordered[j, 1] - ordered[j - 1, 1])
                expected.append(size * math.exp(choice.half * depth / 2))
                counted.append(((cells[0] == i) & (cells[1] == j)).sum())
    chances = np.array(expected) / sum(expected)
    likely = chances * 3000 > 5
    observed = np.r_[np.array(counted)[likely], np.array(counted)[~likely].sum()]
    wanted = np.r_[chances[likely], chances[~likely].sum()]
    assert observed.sum() == 3000 and chisquare(observed, wanted * 3000).pvalue > ALPHA
    assert chisquare(observed, np.roll(wanted, 1) * 3000).pvalue < ALPHA


def test_a_chosen_number_has_forty_significant_bits():
    boxes = boxes_of(np.random.default_rng(0).normal(size=(12, 2)))
    for value in deep().choose(boxes, seeded(0)):
        assert math.frexp(value)[0] * 2**40 == int(math.frexp(value)[0] * 2**40)


# --- dealing, models --------------------------------------------------------------------------------------


def test_rows_are_dealt_evenly_where_their_number_is_public_and_by_dice_elsewhere():
    even = np.bincount(deal(103, 10, even=True, generator=seeded(0)), minlength=10)
    assert set(even) == {10, 11}
    dice = np.bincount(deal(20_000, 10, even=False, generator=seeded(0)), minlength=10)
    assert chisquare(dice).pvalue > ALPHA and len(set(dice)) > 2


@given(st.integers(0, 2**32), st.tuples(st.floats(), st.floats(), st.floats()))
def test_one_row_changes_one_model(seed, hostile):
    rng = np.random.default_rng(seed)
    rows, target, parts = rng.normal(size=(40, 2)), rng.normal(size=40), rng.integers(0, 5, 40)
    before = least_squares(rows, target, parts, 5)
    rows[7], target[7] = hostile[:2], hostile[2]
    after = least_squares(rows, target, parts, 5)
    assert not np.isnan(after).any()
    assert set(np.flatnonzero((before != after).any(1))) <= {parts[7]}


def test_the_models_are_least_squares_of_their_parts():
    rng = np.random.default_rng(0)
    rows, target, parts = rng.normal(size=(50, 2)), rng.normal(size=50), np.arange(50) % 3
    models = least_squares(rows, target, parts, 4)
    for part in range(3):
        mine = parts == part
        np.testing.assert_allclose(models[part], np.linalg.pinv(rows[mine]) @ target[mine], rtol=1e-9)


def test_parts_without_a_model_stand_at_the_ends_and_make_their_boxes_unsafe():
    none = least_squares(np.zeros((1, 2)), np.zeros(1), np.zeros(1, dtype=np.int64), 40)
    assert (none[::2] == -math.inf).all() and (none[1::2] == math.inf).all()
    models = np.random.default_rng(0).uniform(-1, 1, (40, 2))
    margins = [deep(30.0).margin(boxes_of(np.r_[none[:m], models[m:]]).volumes) for m in range(0, 41, 2)]
    assert margins == sorted(margins, reverse=True) and margins[0] > margins[6] > margins[-1] == -1
    passed = [deep(30.0, 0.9).release(boxes_of(none), seeded(seed)) for seed in range(20)]
    assert passed == [None] * 20


# --- the estimator ----------------------------------------------------------------------------------------


def regression(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(1000, 200, (n, 2))
    return x, x @ [3.0, -1.0] + 5 + rng.normal(0, 10, n)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_with_plenty_of_rows_it_is_near_least_squares_without_any_bounds(relation):
    x, y = regression(12_000)
    fitted = TukeyEM(epsilon=2.0, delta=1e-5, num_models=500, relation=relation, random_state=0).fit(x, y)
    assert not fitted.failed_
    np.testing.assert_allclose(fitted.coef_, [3.0, -1.0], atol=0.01)
    assert fitted.score(x, y) > 0.999


def test_data_without_noise_or_influence_have_a_volume_by_the_resolution():
    x = np.column_stack([np.linspace(0, 1, 4000), np.zeros(4000)])
    fitted = TukeyEM(epsilon=2.0, delta=1e-5, num_models=300, random_state=0).fit(x, 2 * x[:, 0])
    np.testing.assert_allclose(fitted.coef_, [2.0, 0.0], atol=1e-6)
    without = TukeyEM(epsilon=2.0, delta=1e-5, num_models=300, resolution=0.0, random_state=0).fit(
        x, 0 * y_of(x)
    )
    assert without.failed_


def y_of(x: np.ndarray) -> np.ndarray:
    return x[:, 0]


def test_too_few_rows_fail_privately_and_predict_the_fallback_or_say_so():
    x, y = regression(300)
    fitted = TukeyEM(epsilon=2.0, delta=1e-5, num_models=400, random_state=0).fit(x, y)
    assert fitted.failed_ and fitted.guarantee_.epsilon == 2.0
    with pytest.raises(QueryFailedError, match="failed_"):
        fitted.predict(x)
    kind = TukeyEM(epsilon=2.0, delta=1e-5, num_models=400, fallback=1.5, random_state=0).fit(x, y)
    assert (kind.predict(x) == 1.5).all()


def test_a_fit_costs_epsilon_and_delta_once():
    assert TukeyEM(epsilon=2.0, delta=1e-5).event() == ApproximateDpEvent(2.0, 1e-5)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-6), (5.0, 1e-3)])
def test_too_few_models_are_refused_exactly_where_the_best_data_would_fail(epsilon, delta):
    choice = deep(epsilon, delta)
    fewest = choice.fewest_models()
    TukeyEM(epsilon=epsilon, delta=delta, num_models=fewest).event()
    for count, enough in ((fewest, True), (fewest - 1, False)):
        best = [Fraction(1)] * -(-count // 2) + [Fraction(0)]
        assert (choice.margin(best) >= choice.bar) is enough
    with pytest.raises(InvalidParameterError, match=f"at least {fewest}"):
        TukeyEM(epsilon=epsilon, delta=delta, num_models=fewest - 1).fit([[0.0]], [0.0])


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"num_models": 0}, "num_models"),
        ({"resolution": -1.0}, "resolution"),
        ({"delta": 0.0}, "delta"),
        ({"fallback": math.inf}, "fallback"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(wrong, name):
    with pytest.raises(InvalidParameterError, match=name):
        TukeyEM(**({"epsilon": 1.0, "delta": 1e-6} | wrong)).fit([[0.0]], [0.0])
