# SPDX-License-Identifier: Apache-2.0
"""The figures that may be seen while a run is going on.

Guarantee  A `Metrics` row holds the number of steps, what they cost, the learning rate, and the loss and
           score of the private weights on evaluation data that was declared as not protected. The loss on
           training data is not there, nor is the time: both are functions of private rows. How long steps
           take can tell which of them a client with many rows took part in.
Edge cases Figures on evaluation data are exact. Rows that must be protected do not belong there.
Failure    The file has one JSON object a line. A checkpoint holds the same rows, and a resumed run writes the
           file anew from them. So lines that a crash left incomplete, or of steps that were lost, disappear.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sfumato import _files
from sfumato.errors import InvalidParameterError
from sfumato.training.data import rows
from sfumato.training.data.units import RowSource, moved
from sfumato.training.engine.evaluation_mode import evaluating
from sfumato.training.engine.losses import Loss, checked
from sfumato.training.runtime import Runtime

__all__ = ["Metrics", "MetricsFile", "RunLogger", "Settings", "correct_rows", "evaluate"]

Score = Callable[..., Tensor]  # (model, *batch) -> [rows]
OnEvaluation = Callable[[nn.Module, int], object]  # (model, step)
Settings = Mapping[str, str | int | float | None]


class RunLogger(Protocol):
    """What gets the figures of a run. `sfumato.integrations.loggers` has some."""

    def begin(self, settings: Settings) -> None:
        """Begin: figures from before, of the same run, are given again."""
        ...

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        """Take the figures after a step."""
        ...

    def end(self, facts: Mapping[str, Any] | None) -> None:
        """End, with what may be said of the run; None if it did not finish."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """The figures of a run after some steps.

    Attributes:
        step: The number of steps taken.
        epsilon: What these steps cost.
        learning_rate: The learning rate of the next step.
        loss: The mean loss on evaluation data; None without any.
        accuracy: The mean score on evaluation data; None without any.
    """

    step: int
    epsilon: float
    learning_rate: float
    loss: float | None = None
    accuracy: float | None = None

    def to_dict(self) -> dict[str, float | None]:
        """Return the figures as JSON can hold them.

        Returns:
            The figures by name; None for those that are not finite, such as the loss of a run that diverged.

        >>> Metrics(step=1, epsilon=1.0, learning_rate=9.0, loss=math.nan).to_dict()["loss"]
        """
        return {
            name: value if value is None or math.isfinite(value) else None
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "Metrics":
        """Return the figures that `to_dict` gave. What an earlier version kept besides, a time, is dropped.

        Args:
            row: The figures by name.

        Returns:
            The figures.

        >>> Metrics.from_dict({"step": 1, "epsilon": 1.0, "learning_rate": 9.0, "seconds": 0.1}).step
        1
        """
        return cls(**{name: value for name, value in row.items() if name != "seconds"})

    def to_json(self) -> str:
        """Return the figures as JSON.

        Returns:
            One line.
        """
        return json.dumps(self.to_dict(), allow_nan=False)


class MetricsFile:
    """The metrics of a run in a file, one row a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def rewrite(self, history: Iterable[Metrics]) -> None:
        """Write exactly these rows."""
        _files.write_whole(self._path, "".join(f"{row.to_json()}\n" for row in history).encode())

    def append(self, row: Metrics) -> None:
        """Add a row."""
        with self._path.open("a") as file:
            file.write(f"{row.to_json()}\n")


def correct_rows(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return 1 for each row whose largest output is at its label, else 0. Their mean is the accuracy.

    Args:
        model: A classifier.
        x: The inputs, one row an example.
        y: The labels, as whole numbers.

    Returns:
        One number for each row.

    >>> correct_rows(nn.Identity(), torch.eye(2), torch.tensor([0, 0])).tolist()
    [1.0, 0.0]
    """
    return (model(x).argmax(1) == y).float()


@torch.no_grad()
def evaluate(
    model: nn.Module,
    data: RowSource,
    *,
    loss: Loss,
    score: Score | None = None,
    runtime: Runtime,
    device: torch.device,
    most: int | None = None,
) -> tuple[float, float | None]:
    """Return the mean loss and score of rows that are not protected; at most of the first `most`."""
    count = len(data) if most is None else min(len(data), most)
    if not count:
        raise InvalidParameterError("the evaluation data has no rows. Pass some, or leave evaluation out.")
    totals = [0.0, 0.0]
    with evaluating(model):
        for index in torch.arange(count).split(runtime.evaluation_batch_size):
            batch = moved(data.take(index), device)
            for i, measure in enumerate((loss, score)):
                totals[i] += _total(model, measure, batch, runtime, device) if measure is not None else 0.0
    return totals[0] / count, totals[1] / count if score is not None else None


def _total(model: nn.Module, measure: Score, batch: Any, runtime: Runtime, device: torch.device) -> float:
    with runtime.forward(device):
        values = checked(measure(model, *batch), rows.count(batch))
    return float(values.double().sum())
