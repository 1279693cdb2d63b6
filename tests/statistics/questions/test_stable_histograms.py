# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from dp_accounting import dp_event as dp
from scipy.stats import binomtest

from sfumato.accounting.events import ApproximateDpEvent, compose
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import FastGenerator
from sfumato.statistics.columns.categories import categories_of
from sfumato.statistics.query import cost
from sfumato.statistics.questions.stable_histograms import StableCounts, stable_histogram
from sfumato.testing import seeded

ALPHA = 1e-6


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_replayed_on_neighbors_with_the_same_categories_stable_counts_let_out_noise_alone(
    neighbors, relation
):
    question = StableCounts(epsilon=0.5, delta=1e-6, relation=relation)
    rows = ["a"] * 40 + ["b"] * 30 + ["c"] * 2
    neighbor = [*rows[1:], "b"] if relation == "replace-one" else rows[1:]
    neighbors.replay(question, categories_of(rows), categories_of(neighbor))


@pytest.mark.parametrize("bound", [1, 2, 5])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_categories_of_one_unit_alone_pass_with_at_most_delta(bound, relation, delta):
    question = StableCounts(epsilon=0.7, delta=delta, relation=relation, contribution_bound=bound)
    law = question._noise().law
    x = np.arange(-400, 401)
    mass = np.exp(-np.abs(x) / law.scale)
    mass /= mass.sum()

    def passing(counts, threshold):  # the exact chance that at least one is shown
        return 1 - math.prod(mass[x < threshold - count].sum() for count in counts)

    worst = max(passing(p, question.threshold) for p in partitions(bound))
    assert worst <= delta
    lower = max(sum(1 - mass[x < question.threshold - 1 - c].sum() for c in p) for p in partitions(bound))
    assert lower > delta  # one less would not do, by the union bound that is used


def partitions(total: int, most: int | None = None):
    if total == 0:
        yield ()
    for first in range(min(total, most or total), 0, -1):
        for rest in partitions(total - first, first):
            yield (first, *rest)


def test_a_lone_category_passes_as_rarely_as_it_should():
    question, data = StableCounts(epsilon=1.0, delta=0.02), categories_of(["x"])
    generator, runs = FastGenerator(3), 4000
    shown = sum(bool(question.answer(data, generator=generator).value.categories) for _ in range(runs))
    assert binomtest(shown, runs, 0.02, alternative="greater").pvalue > ALPHA
    assert (
        binomtest(shown, runs, 0.002, alternative="greater").pvalue < ALPHA
    )  # the threshold is not wasteful


def test_stable_counts_cost_their_noise_and_a_delta():
    question = StableCounts(epsilon=0.5, delta=1e-6)
    assert question.event() == compose(dp.DiscreteLaplaceDpEvent(0.5, 1), ApproximateDpEvent(0.0, 1e-6))
    assert cost(question) == pytest.approx(0.5, rel=1e-6)


def test_stable_counts_show_common_categories_largest_first_and_no_rare_one():
    values = ["tea"] * 300 + ["coffee"] * 500 + [f"name {i}" for i in range(50)]
    release = stable_histogram(values, epsilon=1.0, delta=1e-9, generator=seeded(0))
    assert release.value.categories == ("coffee", "tea")
    assert release.guarantee.delta == 1e-9
    assert stable_histogram(values[::-1], epsilon=1.0, delta=1e-9, generator=seeded(0)).value == release.value


def test_stable_counts_of_nothing_are_nothing():
    assert stable_histogram([], epsilon=1.0, delta=1e-6).value.counts == ()


def test_unknown_categories_need_a_delta():
    with pytest.raises(InvalidParameterError, match="delta"):
        stable_histogram(["a"], epsilon=1.0, delta=0.0)


def test_stable_counts_far_above_the_threshold_are_covered_as_often_as_they_say(check_coverage):
    question, data = StableCounts(epsilon=0.3, delta=1e-6), categories_of(["a"] * 900)
    generator = FastGenerator(2)
    check_coverage(lambda _: 900 in question.answer(data, generator=generator).interval[0])
