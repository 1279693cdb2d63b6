# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import FastGenerator, Laplace
from sfumato.statistics.columns.columns import STEPS, column_of
from sfumato.statistics.questions.means import (
    ClippedShare,
    Mean,
    StandardDeviation,
    Variance,
    clipped_share,
    mean,
    standard_deviation,
    variance,
)
from sfumato.statistics.release import Covers
from sfumato.testing import seeded

any_float = st.floats()
columns = st.lists(any_float, max_size=15)
bounds = st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)).map(lambda b: (b[0], b[0] + b[1]))
SURE = 1e6  # an epsilon that leaves next to no noise
LIMITS = (0.0, 100.0)
QUESTIONS = [
    lambda **terms: Mean(**terms),
    lambda **terms: Mean(population=True, **terms),
    lambda **terms: Mean(public_size=10, **terms),
    lambda **terms: Mean(public_size=10, population=True, **terms),
    lambda **terms: Variance(**terms),
    lambda **terms: StandardDeviation(public_size=10, **terms),
    lambda **terms: ClippedShare(**terms),
]
NAMES = ["mean", "population", "public", "public-population", "variance", "deviation", "clipped"]
TERMS = [{}, {"delta": 1e-6}, {"relation": "replace-one"}, {"delta": 1e-6, "relation": "replace-one"}]


@pytest.mark.parametrize("make", QUESTIONS, ids=NAMES)
@pytest.mark.parametrize("terms", TERMS, ids=str)
@given(values=columns, one=any_float, other=any_float, limits=bounds)
@settings(max_examples=20, deadline=None)
def test_replayed_on_a_neighbor_only_the_noise_comes_out(neighbors, make, terms, values, one, other, limits):
    question = make(bounds=limits, epsilon=0.5, **terms)
    replaced = [*values, other] if "relation" in terms else values
    neighbors.replay(question, column_of([*values, one]), column_of(replaced))


@given(st.lists(st.tuples(st.integers(0, 3), any_float), max_size=15), st.integers(1, 3), bounds)
@settings(max_examples=40, deadline=None)
def test_replayed_without_an_owner_its_rows_are_hidden_together(neighbors, rows, bound, limits):
    def column(kept):
        values = np.array([v for _, v in kept], dtype=float)
        return column_of(values, owners=[o for o, _ in kept], contribution_bound=bound)

    pair = column(rows), column([row for row in rows if row[0] != 0])
    for question in (Mean, Variance, ClippedShare):
        neighbors.replay(question(bounds=limits, epsilon=0.5, contribution_bound=bound), *pair)


def test_the_stated_sensitivity_is_reached(neighbors):
    question = Variance(bounds=(-1, 1), epsilon=0.5, relation="replace-one")
    calls = neighbors.replay(question, column_of([-1.0]), column_of([1.0]))
    exact = np.array(calls[0].given[0])
    assert np.abs(exact - exact[::-1]).sum() == calls[0].mechanism.l1_sensitivity == 8 * STEPS
    assert np.linalg.norm(exact - exact[::-1]) == pytest.approx(calls[0].mechanism.l2_sensitivity)


@pytest.mark.parametrize("public", [None, 2000])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_without_noise_the_answers_are_those_of_numpy(public, delta):
    values = np.random.default_rng(0).normal(40, 30, 2000)
    clipped, data = np.clip(values, *LIMITS), column_of(values)
    common = {"bounds": LIMITS, "epsilon": SURE, "delta": delta, "public_size": public}
    for question, true in [
        (Mean(**common), clipped.mean()),
        (Mean(population=True, **common), clipped.mean()),
        (Variance(**common), clipped.var()),
        (StandardDeviation(**common), clipped.std()),
    ]:
        assert question.answer(data, generator=seeded(0)).value == pytest.approx(true, rel=1e-3)
    share = ClippedShare(bounds=LIMITS, epsilon=50.0, public_size=public)
    expected = ((values < 0) | (values > 100)).mean()
    assert share.answer(data, generator=seeded(0)).value == pytest.approx(expected, abs=1e-3)


def test_values_at_the_bounds_are_not_clipped():
    assert clipped_share([0.0, 100.0] * 500, bounds=LIMITS, epsilon=50.0, generator=seeded(0)).value == 0.0
    beyond = [math.nextafter(100.0, 200.0), math.nextafter(0.0, -1.0)] * 500
    assert clipped_share(beyond, bounds=LIMITS, epsilon=50.0, generator=seeded(0)).value == 1.0


# --- coverage: 1000 runs each -----------------------------------------------------------------------------

SAMPLE = np.random.default_rng(5).beta(2, 5, 800) * 100
TRUTHS = {Mean: SAMPLE.mean(), Variance: SAMPLE.var(), StandardDeviation: SAMPLE.std()}


COVERAGE = [(kind, terms) for kind in (Mean, Variance) for terms in (*TERMS[:3], {"public_size": 800})]


@pytest.mark.parametrize(
    ("kind", "terms"),
    [*COVERAGE, (StandardDeviation, {})],
    ids=lambda part: part.__name__ if isinstance(part, type) else str(part),
)
def test_an_interval_for_noise_covers_as_often_as_it_says(check_coverage, kind, terms):
    question = kind(bounds=LIMITS, epsilon=0.5, **terms)
    data, generator = column_of(SAMPLE), FastGenerator(1)
    check_coverage(lambda _: TRUTHS[kind] in question.answer(data, generator=generator).interval)


@pytest.mark.parametrize(
    ("size", "terms"),
    [
        (800, {"epsilon": 0.1}),
        (800, {"epsilon": 1.0}),
        (60, {"epsilon": 1.0}),
        (800, {"epsilon": 0.5, "delta": 1e-6}),
        (800, {"epsilon": 0.5, "public_size": 800}),
        (2000, {"epsilon": 5.0}),
    ],
    ids=str,
)
def test_an_interval_for_the_population_covers_its_mean_as_often_as_it_says(check_coverage, size, terms):
    question = Mean(bounds=LIMITS, population=True, **terms)
    generator, rng = FastGenerator(2), np.random.default_rng(6)

    def contains(_: int) -> bool:
        answer = question.answer(column_of(rng.beta(2, 5, size) * 100), generator=generator)
        return answer.value is not None and 200 / 7 in answer.interval

    check_coverage(contains)


def test_an_interval_for_noise_alone_would_miss_the_population():
    question, generator, rng = Mean(bounds=LIMITS, epsilon=5.0), FastGenerator(3), np.random.default_rng(7)
    found = [
        200 / 7 in question.answer(column_of(rng.beta(2, 5, 800) * 100), generator=generator).interval
        for _ in range(200)
    ]
    assert np.mean(found) < 0.5


def test_a_clipped_share_covers_as_often_as_it_says(check_coverage):
    question = ClippedShare(bounds=(0, 40), epsilon=0.2)
    data, generator, true = column_of(SAMPLE), FastGenerator(4), (SAMPLE > 40).mean()
    check_coverage(lambda _: true in question.answer(data, generator=generator).interval)


# --- how good, and what it says ---------------------------------------------------------------------------


def test_sharing_rows_out_beats_splitting_epsilon():
    data, runs, generator = column_of(SAMPLE), 400, FastGenerator(5)
    question = Mean(bounds=LIMITS, epsilon=0.2)
    shared = [question.answer(data, generator=generator).value for _ in range(runs)]
    sums = Laplace.calibrated(epsilon=0.1, sensitivity=50.0, relation=Relation.ADD_REMOVE)
    counts = Laplace.calibrated(epsilon=0.1, sensitivity=1.0, relation=Relation.ADD_REMOVE)
    split = [
        50 + sums.release(float((SAMPLE - 50).sum()), generator=generator)
        / counts.release(800.0, generator=generator)
        for _ in range(runs)
    ]  # fmt: skip
    assert np.var(shared) < 0.65 * np.var(split)  # in theory 0.5


def test_intervals_say_what_they_cover():
    values = SAMPLE.tolist()
    assert mean(values, bounds=LIMITS, epsilon=1.0).interval.covers == (Covers.NOISE,)
    sampled = mean(values, bounds=LIMITS, epsilon=1.0, population=True).interval.covers
    assert sampled == (Covers.NOISE, Covers.SAMPLING)
    assert variance(values, bounds=LIMITS, epsilon=1.0).interval.covers == (Covers.NOISE,)


@pytest.mark.parametrize("function", [mean, variance, standard_deviation, clipped_share])
@pytest.mark.parametrize("values", [[], [7.0], [7.0] * 300, [math.nan], [math.inf, -math.inf]], ids=str)
def test_hostile_columns_are_answered_or_fail_privately(function, values):
    for seed in range(20):
        release = function(values, bounds=(0, 10), epsilon=0.5, generator=seeded(seed))
        if release.value is None:
            assert "failed" in release.notes[0]
            assert release.interval is None
        else:
            assert 0 <= release.value <= 25
            assert release.interval.lower <= release.interval.upper


def test_too_few_rows_fail_having_spent(account):
    release = mean([], bounds=(0, 1), epsilon=0.001, account=account, generator=seeded(0))
    while release.value is not None:
        release = mean([], bounds=(0, 1), epsilon=0.001, account=account)
    assert account.spent().epsilon >= 0.001
    assert str(release).startswith("mean of values: failed")


def test_a_constant_column_has_a_small_variance():
    release = variance([7.0] * 5000, bounds=(0, 10), epsilon=1.0, generator=seeded(1))
    assert 0.0 in release.interval
    assert release.value < 0.2


@pytest.mark.parametrize("function", [mean, variance, standard_deviation, clipped_share])
@pytest.mark.parametrize("wrong", [(1, 1), (2, 1), (0, math.inf), None], ids=repr)
def test_bounds_that_make_no_sense_are_refused(function, wrong):
    with pytest.raises(InvalidParameterError, match="bounds"):
        function([1.0], bounds=wrong, epsilon=1.0)


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True])
def test_a_public_size_is_a_count(wrong):
    with pytest.raises(InvalidParameterError, match="public_size"):
        mean([1.0], bounds=(0, 1), epsilon=1.0, public_size=wrong)


def test_rows_of_one_owner_are_no_independent_draws():
    data = column_of([1.0, 2.0], owners=["a", "a"], contribution_bound=2)
    with pytest.raises(InvalidParameterError, match="independent"):
        mean(data, bounds=(0, 1), epsilon=1.0, population=True)
