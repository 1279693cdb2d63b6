# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.labels import Alibi, ClusterLabels, MultiStage, RandomizedLabels
from sfumato.labels.choose import Choice, choose

NAMES = {
    Alibi(epsilon=1.0, classes=3).name,
    MultiStage(epsilon=1.0, classes=3).name,
    RandomizedLabels(epsilon=1.0, classes=3).name,
    ClusterLabels(epsilon=1.0, classes=2, clusters=torch.tensor([0, 0])).name,
    *("altconv", "selfconv", "selfspan", "dp-sgd"),
}
# From the method for the least information about a label to that for the most.
RUNGS = ["nothing", "altconv", "dp-sgd", "clusters", "multi-stage", "randomized-response"]

epsilons = st.floats(1e-6, 1e6)
counts = st.integers(1, 10**9)
class_counts = st.integers(2, 10**5)
bounds = st.integers(1, 1000)


def rung(choice: Choice) -> int:
    return RUNGS.index(choice.method if choice.useful else "nothing")


@settings(deadline=None)
@given(epsilons, class_counts, counts, bounds)
@example(1e6, 2, 1, 1)
@example(5e-324, 10**5, 10**9, 1000)
def test_every_answer_names_two_methods_that_exist_and_the_epsilon(epsilon, classes, size, bound):
    choice = choose(epsilon, classes, size, contribution_bound=bound)
    assert choice.method in NAMES
    assert choice.otherwise in NAMES - {choice.method}
    assert f"epsilon {epsilon:g}" in choice.why


@settings(deadline=None)
@given(epsilons, class_counts, counts, bounds, st.floats(1, 100), st.integers(1, 100))
def test_more_epsilon_more_rows_fewer_classes_and_fewer_labels_of_a_user_never_go_down_a_rung(
    epsilon, classes, size, bound, more, times
):
    here = rung(choose(epsilon, classes, size, contribution_bound=bound))
    assert rung(choose(epsilon * more, classes, size, contribution_bound=bound)) >= here
    assert rung(choose(epsilon, classes, size * times, contribution_bound=bound)) >= here
    assert rung(choose(epsilon, max(2, classes // times), size, contribution_bound=bound)) >= here
    assert rung(choose(epsilon, classes, size, contribution_bound=max(1, bound // times))) >= here


@pytest.mark.parametrize(
    ("epsilon", "classes", "size", "method", "otherwise"),
    [
        (0.1, 10, 60_000, "clusters", "altconv"),
        (1.0, 10, 60_000, "clusters", "dp-sgd"),
        (1.8, 10, 60_000, "clusters", "dp-sgd"),
        (2.0, 10, 60_000, "multi-stage", "alibi"),  # from here on reports win in the tables of the paper
        (10.0, 10, 60_000, "randomized-response", "multi-stage"),
        (0.2, 10, 2_000, "altconv", "dp-sgd"),
        (1.0, 10, 2_000, "dp-sgd", "altconv"),
        (1.0, 2, 60_000, "multi-stage", "alibi"),  # a report of one of two classes tells more
        (
            0.1,
            2,
            60_000,
            "clusters",
            "altconv",
        ),  # and yet little here, although it is true more often than not
        (2.0, 100, 60_000, "clusters", "dp-sgd"),
    ],
)
def test_the_rules_give_what_tables_and_measurements_say(epsilon, classes, size, method, otherwise):
    choice = choose(epsilon, classes, size)
    assert (choice.method, choice.otherwise, choice.useful) == (method, otherwise, True)


@pytest.mark.parametrize(("epsilon", "size"), [(0.01, 1_000), (1e-9, 60_000), (1.0, 20), (3.0, 1)])
def test_where_noise_hides_whole_classes_it_says_that_nothing_can_be_learned(epsilon, size):
    choice = choose(epsilon, 10, size)
    assert not choice.useful
    assert "nothing useful" in choice.why
    assert f"{2 / epsilon:g}" in choice.why  # the scale of the noise
    assert "more rows" in choice.why


def test_a_user_with_many_labels_is_told_what_they_share():
    alone, shared = choose(4.0, 10, 60_000), choose(4.0, 10, 60_000, contribution_bound=10)
    assert (alone.method, shared.method) == ("multi-stage", "clusters")
    assert "10 labels of a user" in shared.why
    assert "user" not in alone.why


def test_the_chance_that_is_said_is_that_of_randomized_response():
    said = choose(3.0, 10, 60_000).why
    noise = RandomizedLabels(epsilon=3.0, classes=10).event().noise_parameter
    assert f"{1 - noise:.2f}" in said


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"epsilon": "1"},
        {"classes": 1},
        {"classes": 2.0},
        {"size": 0},
        {"size": 1e4},
        {"contribution_bound": 0},
    ],
    ids=str,
)
def test_what_is_no_epsilon_or_no_count_is_refused_by_name(changes):
    given = {"epsilon": 1.0, "classes": 10, "size": 100, "contribution_bound": 1} | changes
    with pytest.raises(InvalidParameterError, match=next(iter(changes))):
        choose(
            given["epsilon"], given["classes"], given["size"], contribution_bound=given["contribution_bound"]
        )


def test_a_choice_cannot_be_changed():
    with pytest.raises(AttributeError):
        choose(1.0, 10, 100).method = "none"  # type: ignore[misc]
