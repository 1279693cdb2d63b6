# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import FastGenerator
from sfumato.statistics.columns.columns import column_of
from sfumato.statistics.questions.clipped_values import ClippedShare, clipped_share
from sfumato.statistics.questions.means import Mean, mean
from sfumato.statistics.questions.variances import StandardDeviation, Variance, standard_deviation, variance
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


@pytest.mark.parametrize("function", [mean, variance, standard_deviation, clipped_share])
@pytest.mark.parametrize("wrong", [(1, 1), (2, 1), (0, math.inf), None], ids=repr)
def test_bounds_that_make_no_sense_are_refused(function, wrong):
    with pytest.raises(InvalidParameterError, match="bounds"):
        function([1.0], bounds=wrong, epsilon=1.0)


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True])
def test_a_public_size_is_a_count(wrong):
    with pytest.raises(InvalidParameterError, match="public_size"):
        mean([1.0], bounds=(0, 1), epsilon=1.0, public_size=wrong)
