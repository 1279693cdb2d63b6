# SPDX-License-Identifier: Apache-2.0
import math

import torch
from flwr.app import MetricRecord
from torch import nn

from sfumato.federated.flower.server_evaluation import ServerEvaluation
from sfumato.training.description import describe


def test_loss_and_accuracy_of_the_function_are_the_figures_of_the_run():
    calls = []

    def evaluate(number, arrays):
        calls.append((number, sorted(arrays)))
        return MetricRecord({"loss": 0.25, "accuracy": 0.75})

    measured = ServerEvaluation(evaluate)
    run, model = measured.described(describe({})), nn.Linear(2, 2)
    (row,) = run.evaluation.data
    assert run.optimization.loss(model, row).tolist() == [0.25]
    assert run.evaluation.score(model, row).tolist() == [0.75]
    assert calls == [(0, ["bias", "weight"])] and measured.records[0]["loss"] == 0.25


def test_a_function_that_returns_nothing_has_no_figures():
    run = ServerEvaluation(lambda number, arrays: None).described(describe({}))
    assert math.isnan(run.optimization.loss(nn.Linear(2, 2), torch.zeros(1)).item())


def test_rounds_are_counted_by_the_schedule_of_the_run():
    numbers = []
    measured = ServerEvaluation(lambda number, arrays: numbers.append(number))
    run, model = measured.described(describe({})), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = run.optimization.schedule(optimizer)
    for _ in range(3):
        run.optimization.loss(model, torch.zeros(1))
        optimizer.step()
        schedule.step()
    assert numbers == [0, 1, 2] and optimizer.param_groups[0]["lr"] == 0.1


def test_a_schedule_of_the_user_is_kept():
    halved = describe({"schedule": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)})
    run = ServerEvaluation(lambda number, arrays: None).described(halved)
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    assert isinstance(run.optimization.schedule(optimizer), torch.optim.lr_scheduler.StepLR)
