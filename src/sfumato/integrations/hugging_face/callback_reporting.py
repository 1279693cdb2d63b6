# SPDX-License-Identifier: Apache-2.0
"""What `transformers` does between the steps of a run: callbacks, logs, evaluation and checkpoints.

Guarantee  Callbacks of steps run before a checkpoint holds the weights, and do not get them. Evaluation and
           the folders `checkpoint-...` come after it (`record.reporting`).
Edge cases The state of trainer and callbacks is a part of the checkpoint. What was due when it was written is
           done again where a run that died is resumed.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle
from transformers import Trainer, TrainerState
from transformers.trainer_callback import ExportableState

from sfumato.integrations.hugging_face.callbacks import PublicCallbacks
from sfumato.training.loop import TrainingLoop
from sfumato.training.record.metrics import Metrics
from sfumato.training.record.progress import ProgressBar

__all__ = ["Actions", "CallbackReporting"]

_FLAGS = ("should_log", "should_evaluate", "should_save", "should_training_stop")


@dataclass(frozen=True, kw_only=True, slots=True)
class Actions:
    """What a trainer does with weights that a checkpoint holds."""

    try_out: Callable[[], object]  # evaluate a few rows
    rehearsed: Callable[[], object]  # private rows come next
    evaluate: Callable[[], Mapping[str, Any]]
    save: Callable[[], object]  # write a folder `checkpoint-...`
    choose: Callable[[], object]  # load the best weights, if that was asked for


class CallbackReporting:
    """The `Reporting` of a trainer of transformers."""

    def __init__(
        self,
        trainer: Trainer,
        handler: PublicCallbacks,
        actions: Actions,
        *,
        delta: float,
        steps_per_epoch: float,
        evaluated: bool,
        resumable: bool,
    ) -> None:
        self._trainer, self._handler, self._actions = trainer, handler, actions
        self._delta, self._per_epoch = delta, steps_per_epoch
        self._evaluated, self._resumable = evaluated, resumable
        self._stopped = False
        self._learning_rate = 0.0  # of the step at hand
        self._hooks: list[RemovableHandle] = []

    @property
    def evaluated(self) -> bool:
        """Whether there is evaluation data."""
        return self._evaluated

    @property
    def stopped(self) -> bool:
        """Whether a callback asked to stop."""
        return self._stopped

    def try_out(self, loop: TrainingLoop) -> None:
        """Evaluate a few rows."""
        if self._evaluated:
            self._actions.try_out()

    def begin(self, loop: TrainingLoop) -> None:
        """Tell callbacks that the run begins."""
        trainer, handler = self._trainer, self._handler
        self._actions.rehearsed()
        handler.optimizer, handler.lr_scheduler = loop.optimizer, loop.schedule
        self._hooks = [
            loop.optimizer.register_step_pre_hook(self._before_update),
            loop.optimizer.register_step_post_hook(self._after_update),
        ]
        pending = {flag: getattr(trainer.control, flag) for flag in _FLAGS}
        trainer.control = handler.on_train_begin(trainer.args, trainer.state, trainer.control)
        for flag in ("should_evaluate", "should_save"):
            setattr(trainer.control, flag, pending[flag])
        if trainer.args.eval_on_start and loop.step == 0 and self._evaluated:
            self._actions.evaluate()

    def before(self, loop: TrainingLoop) -> None:
        """Tell callbacks that a step begins, and an epoch, where one does."""
        trainer, handler = self._trainer, self._handler
        handler.show(weights=not self._resumable)
        if self._epoch(loop.step) > self._epoch(loop.step - 1):
            trainer.control = handler.on_epoch_begin(trainer.args, trainer.state, trainer.control)
        trainer.control = handler.on_step_begin(trainer.args, trainer.state, trainer.control)
        self._learning_rate = loop.learning_rate

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        trainer = self._trainer
        trainer.control = self._handler.on_pre_optimizer_step(trainer.args, trainer.state, trainer.control)

    def _after_update(self, optimizer: Optimizer, *_: Any) -> None:
        trainer = self._trainer
        trainer.control = self._handler.on_optimizer_step(trainer.args, trainer.state, trainer.control)

    def after(self, loop: TrainingLoop) -> None:
        """Tell callbacks that a step ended, and log."""
        trainer, handler = self._trainer, self._handler
        trainer.state.global_step = loop.step
        trainer.state.epoch = loop.step / self._per_epoch
        trainer.control = handler.on_step_end(trainer.args, trainer.state, trainer.control)
        if self._epoch(loop.step) > self._epoch(loop.step - 1) or loop.step == loop.mechanism.steps:
            trainer.control = handler.on_epoch_end(trainer.args, trainer.state, trainer.control)
        self._note_stop(loop)
        if trainer.control.should_log:
            trainer.log({"learning_rate": self._learning_rate, "epsilon": self._epsilon(loop)})
            if not self.due(loop):  # else the row has metrics, too
                loop.history.append(self._row(loop, {}))

    def due(self, loop: TrainingLoop) -> bool:
        """Return whether weights are to be evaluated or saved."""
        return self._trainer.control.should_evaluate or self._trainer.control.should_save

    def make(self, loop: TrainingLoop, bar: ProgressBar) -> None:
        """Evaluate and save."""
        trainer, handler = self._trainer, self._handler
        handler.show(weights=True)
        metrics: Mapping[str, Any] = {}
        if trainer.control.should_evaluate:
            metrics = self._actions.evaluate()
        if trainer.control.should_save:
            self._actions.save()
            trainer.control = handler.on_save(trainer.args, trainer.state, trainer.control)
        trainer.control.should_evaluate = trainer.control.should_save = False
        row = self._row(loop, metrics)
        loop.history.append(row)
        bar.note(row)
        self._note_stop(loop)

    def finish(self, loop: TrainingLoop) -> None:
        """Load the best weights, if that was asked for; the history ends with the last step."""
        self._handler.show(weights=True)
        if not loop.history or loop.history[-1].step != loop.step:
            loop.history.append(self._row(loop, {}))
        self._actions.choose()

    def close(self) -> None:
        """Leave nothing behind in the optimizer, however the run ended."""
        for hook in self._hooks:
            hook.remove()
        self._handler.show(weights=True)

    def rewrite(self, loop: TrainingLoop) -> None:
        """Do nothing: logs are a part of the trainer's state."""

    def state(self) -> dict[str, str]:
        """Return the state of the trainer and its callbacks as text."""
        trainer = self._trainer
        kept = {
            "state": asdict(trainer.state),
            "control": {flag: getattr(trainer.control, flag) for flag in _FLAGS},
            "stopped": self._stopped,
            "callbacks": {type(each).__name__: each.state()["attributes"] for each in self._exportable()},
        }
        return {"trainer": json.dumps(kept)}

    def load_state(self, state: Mapping[str, str]) -> None:
        """Go on from what `state` returned."""
        trainer, kept = self._trainer, json.loads(state["trainer"])
        local = trainer.state.is_local_process_zero, trainer.state.is_world_process_zero
        trainer.state = TrainerState(**kept["state"])
        trainer.state.is_local_process_zero, trainer.state.is_world_process_zero = local
        for flag, value in kept["control"].items():
            setattr(trainer.control, flag, value)
        self._stopped = kept["stopped"]
        for each in self._exportable():
            for name, value in kept["callbacks"].get(type(each).__name__, {}).items():
                setattr(each, name, value)

    def _exportable(self) -> list[ExportableState]:
        """Return the callbacks with a state of their own."""
        return [each for each in self._handler.callbacks if isinstance(each, ExportableState)]

    def _note_stop(self, loop: TrainingLoop) -> None:
        if self._trainer.control.should_training_stop and loop.step < loop.mechanism.steps:
            self._stopped = True

    def _epoch(self, step: int) -> int:
        """Return the number of epochs that are over after some steps; -1 before the first."""
        return int(step / self._per_epoch + 1e-9) if step >= 0 else -1

    def _epsilon(self, loop: TrainingLoop) -> float:
        return loop.mechanism.first(loop.step).price(delta=self._delta).epsilon

    def _row(self, loop: TrainingLoop, metrics: Mapping[str, Any]) -> Metrics:
        return Metrics(
            step=loop.step,
            epsilon=self._epsilon(loop),
            learning_rate=loop.learning_rate,
            loss=_number(metrics.get("eval_loss")),
            accuracy=_number(metrics.get("eval_accuracy")),
        )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
