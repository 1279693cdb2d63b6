# SPDX-License-Identifier: Apache-2.0
import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from dp_accounting import dp_event as dp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from sfumato.accounting.events import ExponentialDpEvent, PureDpEvent
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import FastGenerator
from sfumato.statistics.columns.categories import categories_of
from sfumato.statistics.query import cost
from sfumato.statistics.questions.top_k import TopK, top_k
from sfumato.testing import seeded

ALPHA = 1e-6
NAMES = ("a", "b", "c", "d")
TERMS = [{}, {"delta": 1e-6}, {"relation": "replace-one"}, {"delta": 1e-6, "relation": "replace-one"}]
letters = st.sampled_from([*NAMES, "z", None])


@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("bound", [1, 3])
@given(rows=st.lists(st.tuples(st.integers(0, 3), letters), max_size=15), other=st.lists(letters, max_size=4))
@settings(max_examples=25, deadline=None)
def test_replayed_on_a_neighbor_only_the_selection_comes_out(neighbors, terms, bound, rows, other):
    def column(kept):
        owners = [o for o, _ in kept]
        return categories_of([v for _, v in kept], owners=owners, contribution_bound=bound)

    kept = [row for row in rows if row[0] != 0]
    replaced = kept + [(0, v) for v in other] if "relation" in terms else kept
    question = TopK(k=3, categories=NAMES, epsilon=0.9, contribution_bound=bound, **terms)
    neighbors.replay(question, column(rows), column(replaced))


def test_the_most_frequent_are_found_in_order():
    values = ["a"] * 100 + ["b"] * 900 + ["c"] * 500 + ["z"] * 5000
    assert top_k(values, k=3, categories=NAMES, epsilon=3.0, generator=seeded(0)).value == ("b", "c", "a")


def gumbel_law(scores, rate, k):
    """The law of the k largest of scores with Gumbel noise, by peeling: a plain loop over all orders."""
    law = {}
    for order in permutations(range(len(scores)), k):
        chance, left = 1.0, set(range(len(scores)))
        for pick in order:
            weights = {i: math.exp(rate * scores[i]) for i in left}
            chance *= weights[pick] / sum(weights.values())
            left.remove(pick)
        law[order] = chance
    return law


def test_with_a_delta_picks_have_the_law_of_one_shot_gumbel_noise():
    question = TopK(k=2, categories=NAMES, epsilon=1.5, delta=1e-2)
    scores, runs, generator = [3, 1, 0, 2], 8000, FastGenerator(1)
    data = categories_of([name for name, n in zip(NAMES, scores, strict=True) for _ in range(n)])
    drawn = Counter(question.answer(data, generator=generator).value for _ in range(runs))
    rate = question._selection().epsilon
    law = gumbel_law(scores, rate, 2)
    names = [tuple(NAMES[i] for i in order) for order in law]
    observed = np.array([drawn[name] for name in names])
    assert chisquare(observed, np.array(list(law.values())) * runs).pvalue > ALPHA
    off = gumbel_law(scores, rate * 1.4, 2)
    assert chisquare(observed, np.array(list(off.values())) * runs).pvalue < ALPHA
    noise = np.random.default_rng(2).gumbel(size=(200_000, 4)) + rate * np.array(scores)
    oneshot = Counter(map(tuple, np.argsort(-noise, axis=1)[:, :2].tolist()))
    for order, chance in law.items():
        assert oneshot[order] / 200_000 == pytest.approx(chance, abs=0.006)


def test_costs_are_split_evenly_or_better():
    pure = TopK(k=4, categories=NAMES, epsilon=1.0)
    assert pure.event() == dp.SelfComposedDpEvent(PureDpEvent(0.25), 4)
    assert cost(pure) == 1.0
    many = TopK(k=20, categories=tuple(range(30)), epsilon=1.0, delta=1e-6)
    assert isinstance(many.event().event, ExponentialDpEvent)
    assert many.event().event.epsilon > 1.5 * (1.0 / 20)
    assert cost(many) <= 1.0 + 1e-9
    assert TopK(k=1, categories=NAMES, epsilon=1.0).event() == PureDpEvent(1.0)


def test_nothing_to_count_still_gives_k_names():
    assert len(set(top_k([], k=3, categories=NAMES, epsilon=0.1).value)) == 3
    assert set(top_k([], k=4, categories=NAMES, epsilon=0.1).value) == set(NAMES)


@pytest.mark.parametrize(
    "wrong",
    [{"k": 0}, {"k": 5}, {"k": 1.5}, {"categories": []}, {"categories": ["a", "a", "b"]}, {"epsilon": 0.0}],
    ids=str,
)
def test_parameters_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        top_k(["a"], **({"k": 2, "categories": NAMES, "epsilon": 1.0} | wrong))
