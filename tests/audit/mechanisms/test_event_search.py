# SPDX-License-Identifier: Apache-2.0
"""Each search finds the event that it is made for."""

import numpy as np
import pytest

from sfumato.audit.mechanisms.event_search import Classifier, Histogram, LowBits, Outcomes, Tails, best_event
from sfumato.audit.mechanisms.outputs import read
from sfumato.errors import InvalidParameterError

RUNS = 800
draws = np.random.default_rng(0)


def promise(search, first, second, delta=0.0):
    """Return how large an epsilon a search promises on outputs that it has not learned from."""
    learn, choose = slice(0, RUNS), slice(RUNS, 2 * RUNS)
    scores = list(search.scores(read(first[learn]), read(second[learn])))
    return best_event(scores, read(first[choose]), read(second[choose]), delta=delta).promise


normal = draws.normal(size=2 * RUNS)
other = draws.normal(size=2 * RUNS)
plane = draws.normal(size=(2 * RUNS, 2))


@pytest.mark.parametrize(
    ("search", "first", "second"),
    [
        (Outcomes(), ["yes"] * 2 * RUNS, ["no"] * 2 * RUNS),
        (Outcomes(), [None] * 2 * RUNS, list(normal)),
        (Tails(), normal, normal + 3),
        (Tails(), normal + 3, normal),
        (Tails(), normal, 10 * other),
        (Tails(), plane, plane + 2),
        (Histogram(), normal, np.where(other > 0, normal + 4, normal - 4)),
        (Histogram(bins=(4,)), np.where(other > 0, normal + 4, normal - 4), normal),
        (Classifier(), plane, plane + np.array([2.0, -2.0])),
        # The same law of each number and of all that is added up: only both together tell.
        (
            Classifier(),
            np.abs(plane) * np.sign(normal)[:, None],
            np.abs(plane) * np.sign(normal)[:, None] * [1, -1],
        ),
        (LowBits(), draws.random(2 * RUNS) * 2**-8, 1 + draws.random(2 * RUNS) * 2**-8 - 1),
    ],
    ids=["words", "none", "shift", "back", "scale", "plane", "lumps", "bins", "line", "corners", "bits"],
)
def test_a_search_finds_what_it_is_made_for_and_nothing_in_noise(search, first, second):
    assert promise(search, first, second) > 1.0
    half = [*first[:RUNS], *second[:RUNS]]  # both sides mixed: nothing is left to find
    order = np.random.default_rng(1)
    shuffled = [half[i] for i in order.permutation(2 * RUNS)]
    again = [half[i] for i in order.permutation(2 * RUNS)]
    assert promise(search, shuffled, again) < 0.4


def test_an_event_of_the_other_direction_is_found():
    first, second = read([0.0] * 90 + [1.0] * 10), read([0.0] * 50 + [1.0] * 50)
    scores = [("value", lambda outputs: -outputs.of_kind(first.kinds[0])[1][:, 0])]
    event = best_event(scores, first, second, delta=0.0)
    assert event.reverse
    assert event.holds(second).sum() == 50
    assert event.holds(first).sum() == 10


def test_delta_counts_against_rare_events():
    first = (["never"] + ["often"] * 9) * (RUNS // 5)
    second = ["often"] * 2 * RUNS
    assert promise(Outcomes(), first, second) > 1.0
    assert promise(Outcomes(), first, second, delta=0.2) < 0.0


def test_infinite_numbers_and_constant_ones_are_no_obstacle():
    first = np.stack([np.where(other > 0, np.inf, normal), np.ones(2 * RUNS)], axis=1)
    second = np.stack([np.where(other > 0, -np.inf, normal), np.ones(2 * RUNS)], axis=1)
    for search in (Outcomes(), Tails(), Histogram(), Classifier()):
        assert promise(search, first, second) > 1.0


def test_a_kind_that_only_one_data_set_puts_out_leaves_no_features():
    first, second = [1.0] * RUNS, [None] * RUNS
    assert list(Tails().scores(read(first), read(second))) == []
    assert list(Classifier().scores(read(first), read(second))) == []


@pytest.mark.parametrize("make", [lambda: Histogram(bins=(0,)), lambda: Classifier(depth=0)])
def test_a_search_without_bins_or_depth_is_refused(make):
    with pytest.raises(InvalidParameterError, match="whole number, 1 or more"):
        make()
