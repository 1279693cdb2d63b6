# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import binomtest, kstest, uniform

from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import FastGenerator
from sfumato.statistics.columns.categories import categories_of
from sfumato.statistics.columns.columns import column_of
from sfumato.statistics.query import cost
from sfumato.statistics.questions.histograms import BinCounts, CategoryCounts, Histogram, histogram
from sfumato.testing import seeded

ALPHA = 1e-6


EDGES = (0.0, 1.0, 2.0, 5.0)


NAMES = ("a", "b", "c")


any_float = st.floats()


letters = st.sampled_from([*NAMES, "d", None, math.nan])


TERMS = [{}, {"delta": 1e-6}, {"relation": "replace-one"}, {"delta": 1e-6, "relation": "replace-one"}]


@pytest.mark.parametrize("terms", TERMS, ids=str)
@given(values=st.lists(any_float, max_size=12), one=any_float, other=any_float)
@settings(max_examples=25, deadline=None)
def test_replayed_on_a_neighbor_bins_let_out_their_noise_alone(neighbors, terms, values, one, other):
    replaced = [*values, other] if "relation" in terms else values
    question = BinCounts(edges=EDGES, epsilon=0.5, **terms)
    neighbors.replay(question, column_of([*values, one]), column_of(replaced))


@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("bound", [1, 3])
@given(rows=st.lists(st.tuples(st.integers(0, 3), letters), max_size=12), other=st.lists(letters, max_size=4))
@settings(max_examples=25, deadline=None)
def test_replayed_on_a_neighbor_categories_let_out_their_noise_alone(neighbors, terms, bound, rows, other):
    def column(kept):
        owners = [o for o, _ in kept]
        return categories_of([v for _, v in kept], owners=owners, contribution_bound=bound)

    kept = [row for row in rows if row[0] != 0]
    replaced = kept + [(0, v) for v in other] if "relation" in terms else kept
    question = CategoryCounts(categories=NAMES, epsilon=0.5, contribution_bound=bound, **terms)
    neighbors.replay(question, column(rows), column(replaced))


def test_without_noise_counts_are_those_of_numpy():
    values = np.random.default_rng(0).uniform(-1, 6, 3000)
    release = histogram(values, edges=EDGES, epsilon=60.0, generator=seeded(0))
    expected, _ = np.histogram(np.clip(values, 0, 4.9), EDGES)
    assert release.value.counts == tuple(expected)
    assert release.value.edges == EDGES


def test_categories_that_are_not_named_and_missing_ones_are_not_counted():
    values = ["a"] * 5 + ["z"] * 9 + [None, math.nan]
    assert histogram(values, categories=NAMES, epsilon=60.0, generator=seeded(0)).value.counts == (5, 0, 0)


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_counts_are_covered_as_often_as_they_say(check_coverage, terms):
    question = BinCounts(edges=EDGES, epsilon=0.3, **terms)
    data, generator = column_of([0.5] * 400 + [1.5] * 300), FastGenerator(1)

    def contains(run: int) -> bool:  # a different bin each time: intervals are about each, not all at once
        place = run % 2
        return (400, 300)[place] in question.answer(data, generator=generator).interval[place]

    check_coverage(contains)


@given(st.lists(st.integers(-50, 200), min_size=1, max_size=12))
def test_probabilities_are_a_distribution_in_the_order_of_the_counts(counts):
    found = Histogram(categories=tuple(range(len(counts))), counts=tuple(counts)).probabilities()
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1.0)
    if sum(counts) > 0:
        assert all(found[i] >= found[j] - 1e-12 for i in range(len(counts)) for j in range(len(counts))
                   if counts[i] >= counts[j])  # fmt: skip


def test_probabilities_are_the_nearest_distribution():
    counts = np.array([30, -4, 12, 3, -1])
    shares = counts / counts.sum()
    nearest = minimize(
        lambda p: ((p - shares) ** 2).sum(),
        np.full(5, 0.2),
        bounds=[(0, 1)] * 5,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        tol=1e-12,
    ).x
    found = Histogram(categories=tuple("abcde"), counts=tuple(counts)).probabilities()
    assert found == pytest.approx(nearest, abs=1e-4)


def test_counts_without_noise_are_their_own_distribution():
    assert Histogram(categories=NAMES, counts=(1, 2, 5)).probabilities() == pytest.approx(
        [1 / 8, 1 / 4, 5 / 8]
    )
    assert Histogram(categories=NAMES, counts=(-1, 0, 1)).probabilities() == pytest.approx([1 / 3] * 3)


def test_synthetic_rows_have_the_shares_and_lie_evenly_in_their_bins():
    rows = Histogram(edges=(0.0, 1.0, 3.0), counts=(100, 300)).sample(40_000, generator=seeded(1))
    low = int((rows < 1).sum())
    assert binomtest(low, 40_000, 0.25).pvalue > ALPHA
    assert binomtest(low, 40_000, 0.27).pvalue < ALPHA
    assert kstest(rows[rows >= 1], uniform(1, 2).cdf).pvalue > ALPHA
    assert kstest(rows[rows < 1], uniform(0, 1).cdf).pvalue > ALPHA


def test_synthetic_categories_are_the_objects_themselves():
    drawn = Histogram(categories=("a", ("b", 1)), counts=(0, 10)).sample(3, generator=seeded(1))
    assert drawn.tolist() == [("b", 1)] * 3


@pytest.mark.parametrize("size", [0, -1, 1.5])
def test_as_many_rows_are_drawn_as_are_asked_for_or_none(size):
    with pytest.raises(InvalidParameterError, match="size"):
        Histogram(categories=NAMES, counts=(1, 1, 1)).sample(size)


def test_nothing_is_drawn_from_nothing():
    with pytest.raises(InvalidParameterError, match="no rows"):
        Histogram(categories=(), counts=()).sample(1)


@pytest.mark.parametrize(
    "wrong",
    [{}, {"edges": (0.0, 1.0), "categories": ("a",)}, {"edges": (0.0, 1.0, 2.0)}, {"categories": ("a", "b")}],
    ids=str,
)
def test_a_histogram_has_as_many_bins_as_counts(wrong):
    with pytest.raises(InvalidParameterError):
        Histogram(counts=(1,), **wrong)


@pytest.mark.parametrize(
    "edges", [[0.0], [], [1.0, 1.0], [2.0, 1.0], [0.0, math.nan], [0.0, math.inf]], ids=str
)
def test_edges_that_make_no_sense_are_refused(edges):
    with pytest.raises(InvalidParameterError, match="edge"):
        histogram([1.0], edges=edges, epsilon=1.0)


@pytest.mark.parametrize("names", [[], ["a", "a"], ["a", None], [math.nan], [["a"]]], ids=str)
def test_categories_that_make_no_sense_are_refused(names):
    with pytest.raises(InvalidParameterError, match="categories"):
        histogram(["a"], categories=names, epsilon=1.0)


@pytest.mark.parametrize("domain", [{}, {"edges": [0, 1], "categories": ["a"]}], ids=str)
def test_a_domain_is_edges_or_categories(domain):
    with pytest.raises(InvalidParameterError, match="either"):
        histogram([1.0], epsilon=1.0, **domain)


def test_more_bins_cost_no_more():
    def events(bins):
        return BinCounts(edges=tuple(range(bins + 1)), epsilon=0.5).event()

    assert events(2) == events(1000)
    wide = BinCounts(edges=(0, 1, 2), epsilon=0.5, contribution_bound=3, relation=Relation.REPLACE_ONE)
    assert cost(wide) == pytest.approx(0.5)
