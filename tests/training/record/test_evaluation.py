# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.training import Evaluation, train
from sfumato.training.record.evaluation import every

X, Y = torch.randn(60, 2), torch.zeros(60, dtype=torch.int64)
OPTIONS = {"public_size": 60, "expected_batch_size": 20, "noise_multiplier": 2.0, "delta": 1e-5}


def test_something_is_done_as_often_as_asked_or_so_many_times():
    assert every(100, 10, evaluate_every=None) == 10
    assert every(3, 10, evaluate_every=None) == 1
    assert every(100, 10, evaluate_every=7) == 7
    with pytest.raises(InvalidParameterError, match="evaluate_every"):
        every(100, 10, evaluate_every=0)


def test_weights_are_measured_when_due_and_after_the_last_step():
    evaluation = Evaluation(data=(X, Y), evaluate_every=2, progress=False)
    run = train(nn.Linear(2, 2), (X, Y), steps=5, evaluation=evaluation, **OPTIONS)
    assert [row.step for row in run.history] == [2, 4, 5]
    assert all(row.accuracy is not None and row.loss is not None for row in run.history)
    costs = [row.epsilon for row in run.history]
    assert costs == sorted(costs) and costs[-1] == run.epsilon


def test_another_score_is_shown_as_accuracy():
    evaluation = Evaluation(
        data=(X, Y), score=lambda model, x, y: torch.full((len(x),), 0.25), progress=False
    )
    run = train(nn.Linear(2, 2), (X, Y), steps=1, evaluation=evaluation, **OPTIONS)
    assert run.accuracy == 0.25


def test_without_data_there_is_epsilon_alone():
    run = train(nn.Linear(2, 2), (X, Y), steps=1, progress=False, **OPTIONS)
    assert (run.history[-1].loss, run.history[-1].accuracy, run.evaluated) == (None, None, False)


def test_a_score_that_fails_is_found_before_the_run():
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    with pytest.raises(ZeroDivisionError):
        train(model, (X, Y), steps=1, progress=False, evaluation=(X, Y), score=lambda *_: 1 / 0, **OPTIONS)
    assert torch.equal(model.weight, before)


def test_a_function_is_called_after_each_evaluation_with_the_weights_that_are_kept():
    model, seen = nn.Linear(2, 2), []

    def look(shown, step):
        seen.append((step, shown.weight.detach().clone()))

    evaluation = Evaluation(evaluate_every=2, on_evaluation=look, progress=False)
    train(model, (X, Y), steps=5, evaluation=evaluation, ema_decay=0.5, **OPTIONS)
    assert [step for step, _ in seen] == [2, 4, 5]
    assert torch.equal(seen[-1][1], model.weight) and not torch.equal(seen[0][1], model.weight)
