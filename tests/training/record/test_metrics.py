# SPDX-License-Identifier: Apache-2.0
import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.training import Metrics, Runtime, cross_entropy
from sfumato.training.data.units import open_rows
from sfumato.training.record.metrics import MetricsFile, correct_rows, evaluate

X = torch.randn(11, 3, generator=torch.Generator().manual_seed(1))
Y = torch.arange(11) % 2
ROW = Metrics(step=3, epsilon=1.0001, learning_rate=0.1, loss=0.25, accuracy=0.75)


@pytest.mark.parametrize("size", [1, 4, 100])
def test_evaluation_is_the_mean_over_rows_whatever_the_pieces(size):
    model, device = nn.Linear(3, 2), torch.device("cpu")
    loss, accuracy = evaluate(
        model,
        open_rows((X, Y)),
        loss=cross_entropy,
        score=correct_rows,
        runtime=Runtime(evaluation_batch_size=size),
        device=device,
    )
    assert loss == pytest.approx(float(cross_entropy(model, X, Y).mean().detach()), rel=1e-5)
    assert accuracy == pytest.approx(float(correct_rows(model, X, Y).mean()))


def test_a_loss_that_averages_cannot_be_evaluated():
    with pytest.raises(InvalidParameterError, match="one number"):
        evaluate(
            nn.Linear(3, 2),
            open_rows((X, Y)),
            loss=lambda m, x, y: cross_entropy(m, x, y).mean(),
            runtime=Runtime(),
            device=torch.device("cpu"),
        )


def test_the_file_has_a_row_a_line_and_can_be_written_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.append(ROW)
    file.append(ROW)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [3, 3]
    file.rewrite([ROW])
    assert json.loads(path.read_text()) == {
        "step": 3, "epsilon": 1.0001, "learning_rate": 0.1, "loss": 0.25, "accuracy": 0.75,
    }  # fmt: skip


def test_a_run_that_diverged_is_still_written_as_json():
    row = replace(ROW, loss=math.nan, epsilon=math.inf)
    found = json.loads(row.to_json(), parse_constant=pytest.fail)  # NaN and Infinity are no JSON
    assert found["loss"] is None and found["epsilon"] is None and found["step"] == 3
