# SPDX-License-Identifier: Apache-2.0
"""Train a network of the slides, with noise or without, and return what was measured as JSON.

A seed decides first weights, batches and noise, so a run can be repeated; its noise protects nobody, and need
not, because the sets are public. Accuracy is that on test rows after the last step. Settings that the slides
do not state are ours and are stated in each experiment; they were not searched on the private rows' budget.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.experiments.experiment import Scale
from sfumato.experiments.r5.tasks import Rows, Task, device_of, with_seed
from sfumato.report.spread import half_interval, mean_of
from sfumato.testing import seeded
from sfumato.training import DpSgd, Runtime, TrainingRun, correct_rows, train

__all__ = ["Measured", "clearly_above", "evaluated", "plain_run", "private_run", "sgd", "summary"]

Measured = Mapping[str, Any]
MakeModel = Callable[[], nn.Module]


def private_run(
    make: MakeModel,
    task: Task,
    *,
    seed: int,
    scale: Scale,
    runtime: Runtime | None = None,
    mechanism: DpSgd | None = None,
    **keywords: Any,
) -> TrainingRun:
    """Train by DP-SGD; `keywords` are those of `sfumato.training.train`."""
    runtime = replace(runtime or Runtime(), device=device_of(scale))
    return train(
        with_seed(make, seed),
        task.train,
        public_size=task.public_size,
        evaluation=task.test,
        mechanism=mechanism,
        runtime=runtime,
        generator=seeded(seed),
        progress=False,
        **keywords,
    )


def sgd(learning_rate: float) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """Return a maker of SGD without momentum, as in the slides' algorithm."""

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=learning_rate)

    return make


def summary(run: TrainingRun) -> Measured:
    """Return what a private run has to show: its accuracy, loss and guarantee."""
    last = run.history[-1]
    return {
        "accuracy": last.accuracy,
        "loss": last.to_dict()["loss"],
        "epsilon": run.epsilon,
        "noise_multiplier": run.mechanism.noise_multiplier(0),
        "steps": run.mechanism.steps,
    }


def plain_run(
    make: MakeModel,
    task: Task,
    *,
    seed: int,
    scale: Scale,
    steps: int,
    batch_size: int,
    learning_rate: float,
    momentum: float = 0.9,
    evaluate_every: int | None = None,
) -> Measured:
    """Train by ordinary SGD on random batches, without clipping and noise: what privacy is compared with."""
    device = device_of(scale)
    model = with_seed(make, seed).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)
    features, labels = (part.to(device) for part in task.train)
    draws = torch.Generator().manual_seed(seed)
    history: list[dict[str, float]] = []
    begun = time.monotonic()
    for step in range(1, steps + 1):
        chosen = torch.randint(task.public_size, (batch_size,), generator=draws).to(device)
        optimizer.zero_grad()
        F.cross_entropy(model(features[chosen]), labels[chosen]).backward()
        optimizer.step()
        if evaluate_every is not None and step % evaluate_every == 0:
            history.append({"step": step, **evaluated(model, task.test, device)})
    seconds = time.monotonic() - begun
    return {**evaluated(model, task.test, device), "seconds": seconds, "history": history}


@torch.no_grad()
def evaluated(model: nn.Module, rows: Rows, device: str) -> dict[str, float]:
    """Return accuracy and mean loss on rows that are not protected."""
    right, loss = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for x, y in zip(*(part.split(2048) for part in rows), strict=True):
        x, y = x.to(device), y.to(device)
        right += correct_rows(model, x, y).double().sum().cpu()
        loss += _losses(model, x, y).double().sum().cpu()
    return {"accuracy": float(right) / len(rows[1]), "loss": float(loss) / len(rows[1])}


def _losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="sum")


def clearly_above(high: Sequence[float], low: Sequence[float]) -> bool:
    """Whether one mean over seeds is above another by more than both errors (95%) together."""
    errors = (half_interval(high) or 0.0) + (half_interval(low) or 0.0)
    return mean_of(high) - mean_of(low) > errors
