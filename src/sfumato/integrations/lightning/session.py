# SPDX-License-Identifier: Apache-2.0
"""One private run in a Lightning trainer: what is put around its loop, and what each of its batches does.

Guarantee  Each batch of Lightning's loop is one step of the paid run. Weights may be seen (by validation,
           callbacks, files) only after a checkpoint of the run holds them, if it keeps any.
Failure    What was changed of the trainer (its loop, its callbacks, its loggers) is given back, whatever
           happens.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from sfumato.errors import InvalidParameterError
from sfumato.integrations.lightning import loop_state
from sfumato.integrations.lightning.held_loggers import HeldLogger, held
from sfumato.integrations.lightning.refusals import refuse_monitors
from sfumato.integrations.lightning.rows import StepTokens, refuse_shared_rows
from sfumato.integrations.lightning.run import DrivenTrainer, StepOrder, require_in_step
from sfumato.integrations.lightning.seclusion import Seclusion
from sfumato.training.data.silence import silent
from sfumato.training.loop import TrainingLoop
from sfumato.training.record.run_loggers import facts_of
from sfumato.training.run import TrainingRun

__all__ = ["Session", "callbacks_of"]


class Session:
    """What a strategy knows of one run."""

    tokens: StepTokens | None = None
    rows: Any = None
    private: Any = None
    batch_size = 0
    seclusion: Seclusion
    driven: DrivenTrainer | None = None
    loop: TrainingLoop | None = None

    def __init__(self, trainer: Trainer, module: LightningModule, *, each_step: bool) -> None:
        self.trainer, self.module, self.each_step = trainer, module, each_step
        self._resumed: Any = None  # the state of Lightning's loops in the checkpoint that is resumed
        self.shown: list[Any] = []
        self._order = StepOrder()
        self._watch = _Watch(self)
        self._loggers: list[HeldLogger] = []

    def take_over(self, train: Callable[["Session", Callable[[], None]], None]) -> None:
        """Put the paid run around Lightning's loop; come first of all callbacks; hold the loggers."""
        trainer: Any = self.trainer
        loop = trainer.fit_loop
        loop.run = partial(train, self, loop.run)  # an attribute of this loop alone: `give_back` removes it
        trainer.callbacks.insert(0, self._watch)
        self._loggers = held(trainer.loggers)
        trainer.loggers = list(self._loggers)

    def give_back(self, run: TrainingRun | None) -> None:
        """Undo `take_over`, and let the loggers have what was held."""
        trainer: Any = self.trainer
        vars(trainer.fit_loop).pop("run", None)
        if self._watch in trainer.callbacks:
            trainer.callbacks.remove(self._watch)
        facts = {} if run is None else facts_of(run)
        for logger in self._loggers:
            for row in () if run is None else run.history:
                logger.log_metrics({"privacy_epsilon": row.epsilon}, row.step)
            logger.release(facts)

    def require_apart(self) -> None:
        """Raise if private rows are among those that are shown."""
        if self.private is not None:
            for data in self.shown:
                refuse_shared_rows(self.private, data)

    def rehearsed(self) -> None:
        """See that nothing waits for what `training_step` logs: synthetic rows have shown its names."""
        refuse_monitors(self.trainer, callbacks_of(self.trainer), self.seclusion.close_rehearsal())

    def drive(self, run_loop: Callable[[], None], loop: TrainingLoop, state: Any) -> None:
        """Run Lightning's loop: each of its batches is a step of ours."""
        assert self.driven is not None and self.tokens is not None
        self.seclusion.close_rehearsal()
        if loop.step < self.driven.mechanism.steps and self.driven.over(loop):  # it ended early, and is whole
            return
        limits: Any = self.trainer.fit_loop.epoch_loop
        before = limits.max_steps
        if state:
            loop_state.put_back(self.trainer, state)
            self.tokens.begin = loop.step % len(self.tokens)
            self._resumed = state["loops"]
        self.loop, limits.max_steps = loop, self.driven.mechanism.steps
        try:
            with self.seclusion.left():
                (self._run_end if self.driven.over(loop) else run_loop)()
        finally:
            self.loop, limits.max_steps = None, before

    def _run_end(self) -> None:
        """Do what follows the last step: it was taken, and committed, before the run died."""
        fit: Any = self.trainer.fit_loop
        fit.reset()
        fit.on_run_start()
        fit.restarting = False
        fit.on_run_end()

    def begin_loop(self) -> None:
        """Finish the batch that was at work when the run died: callbacks know now that training begins."""
        state, self._resumed = self._resumed, None
        if state is None:
            return
        self._watch.asleep = True  # the checkpoint holds this batch already
        try:
            loop_state.finish_batch(self.trainer, state)
        finally:
            self._watch.asleep = False

    def begin_step(self, batch_idx: int) -> None:
        """A batch of Lightning's is at hand."""
        loop = self._at_work()
        self._order.begin()
        fit: Any = self.trainer.fit_loop
        fit._restarting = False  # from here on a resumed run is like any other
        require_in_step(self.trainer.global_step, loop.step)
        self.seclusion.batch_idx = batch_idx

    def compute_gradients(self) -> None:
        """Set the private gradient of the step."""
        loop = self._at_work()
        self._order.computing()
        with self.seclusion.entered(), silent():
            loop.compute_gradients()

    def complete_step(self) -> None:
        """Count the step: the optimizer has moved the weights."""
        self._order.moved()
        self._at_work().complete_step()

    def publish(self) -> None:
        """Make a checkpoint of the weights, unless the last one holds them: then they may be seen."""
        if self.driven is None or self.loop is None:  # before the run, or after it was undone
            return
        if not self._order.between_steps:
            raise InvalidParameterError("weights cannot be saved in the middle of a step. Save after it.")
        self.driven.publish(self.loop)

    def stepped(self, batch_idx: int) -> None:
        """Do what is due after a step."""
        assert self.driven is not None
        shown = self.each_step or self.trainer.is_last_batch or self._validates_next(batch_idx)
        self.driven.stepped(self._at_work(), shown=shown)

    def _validates_next(self, batch_idx: int) -> bool:
        trainer: Any = self.trainer
        every = trainer.val_check_batch
        if trainer.should_stop or not trainer.enable_validation or not every or every == float("inf"):
            return bool(trainer.should_stop)
        return not (batch_idx + 1) % every or not self._at_work().step % every

    def validating(self) -> None:
        """The weights are about to be measured."""
        if self.driven is not None and self.loop is not None:
            self.driven.evaluated = True
            self.publish()

    def _at_work(self) -> TrainingLoop:
        if self.loop is None:
            raise InvalidParameterError("a step was asked for outside of Trainer.fit.")
        return self.loop


class _Watch(Callback):
    """Comes before all other callbacks: what these see was kept before."""

    asleep = False

    def __init__(self, session: Session) -> None:
        self._session = session

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        _hide_batch(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        _hide_batch(trainer)
        if not self.asleep:
            self._session.stepped(batch_idx)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._session.publish()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._session.validating()


def _hide_batch(trainer: Any) -> None:
    """Let `self.log` in a hook weigh a figure by 1, in place of looking for the size of the batch."""
    trainer._results.batch = None


def callbacks_of(trainer: Trainer) -> Sequence[Callback]:
    """Return the callbacks of a trainer, without our own."""
    found: list[Callback] = list(trainer.callbacks)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    return [part for part in found if not isinstance(part, _Watch)]
