# SPDX-License-Identifier: Apache-2.0
"""The figures that a run shows: epsilon so far, and exact metrics on data that is not protected.

Guarantee  Weights are evaluated only after a checkpoint holds them. An evaluation that a crash prevented is
           made when the run is resumed.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch

from sfumato import _check
from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.training import distributed
from sfumato.training.data.units import open_rows
from sfumato.training.description import Evaluation
from sfumato.training.engine.losses import Loss, cross_entropy
from sfumato.training.loop import TrainingLoop
from sfumato.training.privacy.dp_sgd import DpSgd
from sfumato.training.record.metrics import Metrics, MetricsFile, correct_rows, evaluate
from sfumato.training.record.progress import ProgressBar
from sfumato.training.record.run_folder import RunFolder
from sfumato.training.runtime import Runtime

__all__ = ["Reports", "every"]

_TIMES = 10  # measurements in a run, unless told otherwise
_TRIED = 2  # rows of the evaluation data that are tried out before anything begins


class Reports:
    """The measurements of one run: when they are due, and what they are."""

    def __init__(
        self,
        mechanism: DpSgd,
        evaluation: Evaluation,
        *,
        delta: float,
        loss: Loss,
        runtime: Runtime,
        device: torch.device,
        folder: RunFolder | None,
    ) -> None:
        self._mechanism, self._delta, self._loss = mechanism, delta, loss
        self._evaluation = None if evaluation.data is None else open_rows(evaluation.data)
        default = evaluation.score is None and loss is cross_entropy
        self._score = correct_rows if default else evaluation.score
        self._every = every(mechanism.steps, _TIMES, evaluate_every=evaluation.evaluate_every)
        self._runtime, self._device, self._on_evaluation = runtime, device, evaluation.on_evaluation
        self._file = None if folder is None else MetricsFile(folder.metrics)

    @property
    def evaluated(self) -> bool:
        """Whether there is evaluation data."""
        return self._evaluation is not None

    def try_out(self, loop: TrainingLoop) -> None:
        """Measure on a few rows, and keep nothing: what cannot work raises."""
        try:
            with _averaged(loop):
                self._measure(loop, most=_TRIED)
        except (SfumatoError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, TypeError, ValueError, IndexError) as error:  # no row of these is protected
            raise InvalidParameterError(
                "the model cannot be measured on the first rows of `evaluation`: "
                f"{str(error).partition(chr(10))[0] or type(error).__name__}. Its rows must have the parts, "
                "shapes and types of those that are learned from, as the model, the loss and the score take "
                "them."
            ) from error

    def due(self, loop: TrainingLoop) -> bool:
        """Whether the weights are to be measured after this step, and were not yet."""
        step, last = loop.step, loop.history[-1].step if loop.history else 0
        now = step == self._mechanism.steps or (step > 0 and step % self._every == 0)
        return now and (step > last or not distributed.is_first())  # other ranks keep no history

    def make(self, loop: TrainingLoop, bar: ProgressBar) -> None:
        """Measure, keep the figures and show them. Only the first rank does; others lend it their shards."""
        if not (distributed.is_first() or loop.private.sharding.shards):
            return
        with _averaged(loop), loop.private.sharding.together():
            if distributed.is_first():
                self._make(loop, bar)

    def _make(self, loop: TrainingLoop, bar: ProgressBar) -> None:
        loop.history.append(self._figures(loop))
        if self._file is not None:
            self._file.append(loop.history[-1])
        bar.note(loop.history[-1])
        if self._on_evaluation is not None:
            with loop.private.sharding.lent():
                self._on_evaluation(loop.model, loop.step)

    stopped = False  # evaluation ends no run

    def begin(self, loop: TrainingLoop) -> None:
        """Do nothing: no step was taken yet."""

    def before(self, loop: TrainingLoop) -> None:
        """Do nothing before a step."""

    def after(self, loop: TrainingLoop) -> None:
        """Do nothing until a checkpoint holds the weights."""

    def finish(self, loop: TrainingLoop) -> None:
        """Do nothing: the last weights are the result."""

    def state(self) -> dict[str, str]:
        """Return nothing: the history is a part of the loop."""
        return {}

    def load_state(self, state: Mapping[str, str]) -> None:
        """Do nothing."""

    def rewrite(self, loop: TrainingLoop) -> None:
        """Let the file hold what a checkpoint knows, and nothing else."""
        if self._file is not None and distributed.is_first():
            self._file.rewrite(loop.history)

    def _figures(self, loop: TrainingLoop) -> Metrics:
        spent = self._mechanism.first(loop.step).price(delta=self._delta)
        loss, accuracy = self._measure(loop)
        return Metrics(
            step=loop.step,
            epsilon=spent.epsilon,
            learning_rate=loop.learning_rate,
            loss=loss,
            accuracy=accuracy,
        )

    def _measure(self, loop: TrainingLoop, *, most: int | None = None) -> tuple[float | None, float | None]:
        """Return loss and accuracy on evaluation data."""
        if self._evaluation is None:
            return None, None
        with loop.private.sharding.lent():
            return evaluate(
                loop.model,
                self._evaluation,
                loss=self._loss,
                score=self._score,
                runtime=self._runtime,
                device=self._device,
                most=most,
            )


def _averaged(loop: TrainingLoop) -> AbstractContextManager[None]:
    return nullcontext() if loop.average is None else loop.average.applied()


def every(steps: int, times: int, **given: int | None) -> int:
    """Return after how many steps something is done: the one number given, or so that it is done `times`."""
    (value,) = given.values()
    if value is None:
        return max(1, steps // times)
    _check.count(**{name: number for name, number in given.items() if number is not None})
    return value
