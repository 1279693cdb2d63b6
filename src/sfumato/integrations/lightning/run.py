# SPDX-License-Identifier: Apache-2.0
"""A run of `sfumato.training.Trainer` whose steps are started by another loop, Lightning's.

Guarantee  The charge, the rehearsal on synthetic rows, checkpoints and their claims, the undoing of a run
           that fails, and the commit are those of `Trainer`. The other loop decides when a step is taken, and
           may end the run early; the charge is that of all steps.
Failure    A step that is begun twice, or not finished, raises: every batch of the other loop is one step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.training.loop import TrainingLoop
from sfumato.training.record.evaluation import Reports
from sfumato.training.record.progress import ProgressBar
from sfumato.training.run import TrainingRun
from sfumato.training.trainer import Trainer

__all__ = ["DrivenTrainer", "StepOrder", "require_in_step"]


class DrivenTrainer(Trainer):
    """A trainer that hands its loop to `drive(loop, state)` instead of running it.

    `state` is what `keep` returned for the checkpoint that the run is resumed from; None at the start.
    `keep` is asked for each checkpoint. `rehearsed` is called once synthetic rows have gone through the
    model: what it raises ends the run before it is paid for.
    """

    drive: Callable[[TrainingLoop, Any], None]
    keep: Callable[[], Any]
    rehearsed: Callable[[], None]
    _resuming = "PrivateStrategy(resume=True, ...)"
    evaluated = False  # whether figures on evaluation data were shown

    schedules: Sequence[Any] = ()  # of the other loop, which no row may change

    _found: Any = None
    _published_step = -1
    _bar: ProgressBar

    def _loop(self) -> TrainingLoop:
        loop = super()._loop()
        loop.updating.include(*self.schedules)
        return loop

    def _take_steps(self, loop: TrainingLoop) -> None:
        self._bar = ProgressBar(steps=self.mechanism.steps, done=loop.step, shown=False)
        if loop.step == self.mechanism.steps:
            self._settle(loop)
        if self._reports.due(loop):  # the run died between a checkpoint and its measurement
            self._reports.make(loop, self._bar)
        self.drive(loop, self._found)
        if not self._over(loop):
            self._stop()
            self._published_step = -1  # the last checkpoint says that no step follows
            self._save(loop)

    def _stop(self) -> None:
        assert isinstance(self._reports, Reports)
        self._reports.stopped = True

    def over(self, loop: TrainingLoop) -> bool:
        """Return whether no step is left to take."""
        return self._over(loop)

    def stepped(self, loop: TrainingLoop, *, shown: bool) -> None:
        """Do what is due after a step; `shown`: the weights may be seen before the next one."""
        if shown:
            self._save(loop)
        self._after_step(loop, self._bar)
        self._loggers.catch_up(loop.history)

    def publish(self, loop: TrainingLoop) -> None:
        """Make a checkpoint that holds the weights of now, unless the last one does."""
        self._save(loop)

    def _save(self, loop: TrainingLoop) -> None:
        if loop.step != self._published_step:
            super()._save(loop)
            self._published_step = loop.step

    def _state(self, loop: TrainingLoop) -> dict[str, Any]:
        return {**super()._state(loop), "driver": self.keep()}

    def _claimed(self, ownership: Any, state: dict[str, Any]) -> dict[str, Any]:
        found = super()._claimed(ownership, state)
        self._found, self._published_step = found.get("driver"), int(found["step"])
        if found["over"] and found["step"] < self.mechanism.steps:
            self._stop()
        return found

    def _prepare(self, loop: TrainingLoop, state: Mapping[str, Any]) -> None:
        super()._prepare(loop, state)
        try:
            self.rehearsed()
        except BaseException:
            if self._folder is not None:
                self._folder.clear()
            self._payment.refund()
            raise

    def _run(self, loop: TrainingLoop, weights: Mapping[str, Any]) -> TrainingRun:
        return replace(super()._run(loop, weights), evaluated=self.evaluated)


class StepOrder:
    """Sees to it that each batch of the other loop is one gradient, and each gradient one move of weights.

    >>> order = StepOrder()
    >>> order.begin(), order.computing(), order.moved(), order.between_steps
    (None, None, None, True)
    """

    def __init__(self) -> None:
        self._expected, self._computed = False, False

    @property
    def between_steps(self) -> bool:
        """Whether no step is half taken."""
        return not self._computed

    def begin(self) -> None:
        """A batch is handed over."""
        if self._expected or self._computed:
            raise InvalidParameterError(
                "a batch was not followed by a step. Every batch is one noisy step, whether or not it has "
                "rows: optimizer_step must call optimizer.step(closure=optimizer_closure) once, and "
                "on_train_batch_start must not return -1."
            )
        self._expected = True

    def computing(self) -> None:
        """Its gradient is about to be computed."""
        if not self._expected:
            raise InvalidParameterError(
                "the gradient of one batch was asked for twice. Each would be a release of its own: call the "
                "closure of optimizer_step once for each batch."
            )
        self._expected, self._computed = False, True

    def moved(self) -> None:
        """The optimizer has used it."""
        if not self._computed:
            raise InvalidParameterError(
                "the optimizer took a step without a new gradient. optimizer_step must call "
                "optimizer.step(closure=optimizer_closure) once for each batch."
            )
        self._computed = False


def require_in_step(counted: int, taken: int) -> None:
    """Raise unless the other loop has counted the steps that were taken.

    >>> require_in_step(3, 3)
    """
    if counted != taken:
        raise SfumatoError(
            f"the trainer has counted {counted} steps, but {taken} were taken. Use a new lightning Trainer "
            "for each run, and resume with the module and the callbacks that the run began with."
        )
