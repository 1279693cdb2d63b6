# SPDX-License-Identifier: Apache-2.0
"""Rounds of answers: the student is asked between them, and bought answers stay within their number."""

import numpy as np
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.pate.votes.aggregators import NO_ANSWER
from sfumato.pate.votes.interaction import InteractiveGNMax, interactive_answers

VOTES = np.tile([100.0, 0.0, 0.0], (30, 1))


def rule(**changed) -> InteractiveGNMax:
    terms = {"threshold": 50.0, "threshold_stddev": 1e-3, "stddev": 1e-3, "confidence": 0.9}
    return InteractiveGNMax(**{**terms, **changed})


def agreeing(answers: np.ndarray) -> np.ndarray:
    return np.tile([1.0, 0.0, 0.0], (30, 1))


def disagreeing(answers: np.ndarray) -> np.ndarray:
    return np.tile([0.0, 1.0, 0.0], (30, 1))


def test_teachers_answer_first_and_a_student_who_agrees_is_confirmed():
    found = interactive_answers(rule(), VOTES, teachers=100.0, predict=agreeing, rounds=3)
    assert found.tolist() == [0] * 30


def test_confirmed_answers_are_not_counted_as_bought():
    found = interactive_answers(rule(max_answers=10), VOTES, teachers=100.0, predict=agreeing, rounds=3)
    assert (found != NO_ANSWER).sum() == 10  # those of the first round; then nothing is left to be bought
    more = interactive_answers(rule(max_answers=11), VOTES, teachers=100.0, predict=agreeing, rounds=3)
    assert (more != NO_ANSWER).sum() == 30


def test_a_student_who_is_wrong_is_corrected_while_answers_are_left():
    found = interactive_answers(rule(max_answers=15), VOTES, teachers=100.0, predict=disagreeing, rounds=3)
    assert found[:15].tolist() == [0] * 15 and (found[15:] == NO_ANSWER).all()


def test_the_student_sees_the_answers_so_far_and_nothing_else():
    seen = []

    def predict(answers):
        seen.append(answers.copy())
        return agreeing(answers)

    interactive_answers(rule(), VOTES, teachers=100.0, predict=predict, rounds=3)
    assert [int((part != NO_ANSWER).sum()) for part in seen] == [10, 20]


def test_predictions_of_another_shape_are_refused():
    with pytest.raises(InvalidParameterError, match="3 classes"):
        interactive_answers(rule(), VOTES, teachers=100.0, predict=lambda answers: np.zeros((30, 2)))
