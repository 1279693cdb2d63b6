# SPDX-License-Identifier: Apache-2.0
"""Flower's `evaluate_fn` as the evaluation of a training run.

Flower calls `evaluate_fn(round, arrays)` to measure a model on data of the server, which is not protected. A
training run shows weights only after a checkpoint holds them, so here the function is called where the run
measures: once before the first round, and after every `evaluate_every` rounds.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from flwr.app import ArrayRecord, MetricRecord
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, LRScheduler

from sfumato.errors import InvalidParameterError
from sfumato.training.description import RunDescription

__all__ = ["EvaluateFn", "ServerEvaluation"]

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class ServerEvaluation:
    """Calls `evaluate_fn` once for each measurement, and keeps what it returned by round.

    Args:
        evaluate_fn: Flower's function of the number of a round and the arrays.
    """

    def __init__(self, evaluate_fn: EvaluateFn) -> None:
        self._evaluate = evaluate_fn
        self._schedule: LRScheduler | None = None
        self.records: dict[int, MetricRecord] = {}

    def described(self, run: RunDescription) -> RunDescription:
        """Return the description of a run that is measured by the function."""
        if run.evaluation.data is not None or run.evaluation.score is not None:
            raise InvalidParameterError(
                "the model is evaluated by evaluation=... or by evaluate_fn, not both."
            )
        # One row of data: loss and score are called once each. The loss is not used to train.
        measured = replace(run.evaluation, data=(torch.zeros(1),), score=self._score)
        make = run.optimization.schedule

        def schedule(optimizer: Optimizer) -> LRScheduler:
            self._schedule = make(optimizer) if make else ConstantLR(optimizer, factor=1.0, total_iters=0)
            return self._schedule

        how = replace(run.optimization, loss=self._loss, schedule=schedule)
        return replace(run, evaluation=measured, optimization=how)

    @property
    def _round(self) -> int:
        """How many rounds were taken: schedules count them, and checkpoints keep the count."""
        return 0 if self._schedule is None else int(self._schedule.last_epoch)

    def _loss(self, model: nn.Module, row: Tensor) -> Tensor:
        found = self._evaluate(self._round, ArrayRecord(model.state_dict()))
        self.records[self._round] = found if found is not None else MetricRecord()
        return self._figure("loss", row)

    def _score(self, _model: nn.Module, row: Tensor) -> Tensor:
        return self._figure("accuracy", row)

    def _figure(self, name: str, row: Tensor) -> Tensor:
        value: Any = self.records[self._round].get(name)
        return torch.full((len(row),), float(value) if isinstance(value, int | float) else torch.nan)
