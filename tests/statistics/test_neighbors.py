# SPDX-License-Identifier: Apache-2.0
"""The replay harness catches questions that let out more than they state."""

from dataclasses import dataclass

import pytest

from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.mechanisms import AboveThreshold, Exponential, Laplace
from sfumato.statistics.columns.columns import column_of
from sfumato.statistics.query import Answer
from sfumato.statistics.questions.counts import Sum
from sfumato.statistics.questions.means import Mean

DATA = [0.2, 0.9, 0.4, 0.7]
MORE = [*DATA, 1.0]


@dataclass(frozen=True)
class Asked:
    """A question on its own terms: what it computes is given to it."""

    compute: object
    epsilon: float = 1.0
    name: str = "asked"
    relation: Relation = Relation.ADD_REMOVE
    delta: float = 0.0
    contribution_bound: int = 1

    def event(self):
        return PureDpEvent(self.epsilon)

    def answer(self, data, *, generator):
        return Answer(value=self.compute(data.values, generator))


def laplace(sensitivity=1.0, epsilon=1.0):
    return Laplace.calibrated(epsilon=epsilon, sensitivity=sensitivity, relation=Relation.ADD_REMOVE)


def noisy_sum(values, generator):
    return laplace().release(float(values.sum()), generator=generator)


def test_a_question_that_states_its_sensitivity_passes(neighbors):
    calls = neighbors.replay(Asked(noisy_sum), column_of(DATA), column_of(MORE))
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("compute", "says"),
    [
        (lambda v, g: laplace(0.5).release(float(v.sum()), generator=g), "sensitivity is 0.5"),
        (lambda v, g: noisy_sum(v, g) / len(v), "answers differ"),
        (lambda v, g: [noisy_sum(v, g) for _ in v], "fewer mechanisms"),
        (lambda v, g: laplace(float(v.max())).release(0.0, generator=g), "other parameters"),
        (lambda v, g: noisy_sum(v, g) * (1 + (len(v) > 4)), "answers differ"),
        (lambda v, g: [noisy_sum(v, g), noisy_sum(v, g)], "cost 2 together"),
        (lambda v, g: float(v.sum()), "differ"),
        (lambda v, g: 0.0, "no mechanism"),
        (
            lambda v, g: Exponential(
                epsilon=1.0, sensitivity=1.0, relation=Relation.ADD_REMOVE, monotonic=True
            ).release([float(v.sum()), float(-v.sum())], generator=g),
            "both directions",
        ),
        (
            lambda v, g: AboveThreshold(
                threshold=1.0, threshold_epsilon=0.5, comparison_epsilon=0.5, sensitivity=0.5, max_answers=1,
                relation=Relation.ADD_REMOVE, generator=g,
            ).ask(float(v.sum())),
            "sensitivity is 0.5",
        ),
    ],
    ids=["sensitivity", "past", "calls", "scale", "branch", "cost", "plain", "nothing", "both", "asked"],
)  # fmt: skip
def test_a_question_that_leaks_is_caught(neighbors, compute, says):
    with pytest.raises(neighbors.LeakError, match=says):
        neighbors.replay(Asked(compute), column_of(MORE), column_of(DATA))


def test_real_questions_with_understated_bounds_are_caught(neighbors, monkeypatch):
    one, two = column_of([-1.0]), column_of([-1.0, 1.0])
    neighbors.replay(Sum(bounds=(-1, 1), epsilon=1.0), one, two)
    monkeypatch.setattr(Sum, "_sensitivity", lambda self: 2**19)
    with pytest.raises(neighbors.LeakError, match="added up"):
        neighbors.replay(Sum(bounds=(-1, 1), epsilon=1.0), one, two)


def test_a_replaced_row_is_too_much_for_a_question_about_added_ones(neighbors):
    one, two = column_of([-1.0, 0.0]), column_of([1.0, 0.0])
    neighbors.replay(Mean(bounds=(-1, 1), epsilon=1.0, relation="replace-one"), one, two)
    with pytest.raises(neighbors.LeakError, match="added up"):
        neighbors.replay(Mean(bounds=(-1, 1), epsilon=1.0), one, two)


def test_mechanisms_work_as_before_after_a_replay(neighbors):
    neighbors.replay(Asked(noisy_sum), column_of(DATA), column_of(MORE))
    assert laplace().release(5.0) != laplace().release(5.0)
