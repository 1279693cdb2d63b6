# SPDX-License-Identifier: Apache-2.0
"""Loggers of a run: they get the figures that may be seen, and cannot stop the run.

Guarantee  A logger gets what the history of a run holds (steps, epsilon so far, learning rate, loss and score
           on evaluation data), public settings, and in the end the guarantee and the statement. It gets them
           only after a checkpoint holds the weights, and never a time.
Failure    A logger that raises is told of in one warning. The run goes on, and what the logger missed is
           given to it again at the next measurement. `run.history` has all of it in any case.
"""

import warnings
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from sfumato.training import distributed
from sfumato.training.loop import TrainingLoop
from sfumato.training.record import run_settings
from sfumato.training.record.metrics import Metrics, RunLogger, Settings
from sfumato.training.run import TrainingRun

__all__ = ["RunLoggers", "facts_of"]


class RunLoggers:
    """The loggers of one run. As a context it ends them, whatever happens to the run.

    >>> with RunLoggers([]) as loggers:
    ...     loggers.catch_up([Metrics(step=1, epsilon=0.5, learning_rate=0.1)])
    """

    def __init__(self, loggers: Sequence[RunLogger]) -> None:
        self._told = [_Told(logger) for logger in loggers]
        self._settings: Settings = {}
        self._history: Sequence[Metrics] = ()
        self._run: TrainingRun | None = None
        self._tried = -1  # how many rows there were when the loggers were called last

    def __enter__(self) -> "RunLoggers":
        for told in self._told:
            told.forget()
        self._run, self._history = None, ()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for told in self._told:
            told.end(self._history, self._run)

    def begin(self, loop: TrainingLoop, **others: str | float) -> None:
        """Let the loggers know what is run: its public settings, and the `others`."""
        self._settings = run_settings.for_loggers(loop, **others)
        self._tried = -1
        self.catch_up(loop.history)

    def catch_up(self, history: Sequence[Metrics]) -> None:
        """Give each logger the rows that it has not got yet."""
        self._history = history
        if len(history) != self._tried and distributed.is_first():
            self._tried = len(history)
            for told in self._told:
                told.catch_up(self._settings, history)

    def finish(self, run: TrainingRun) -> None:
        """Keep what the loggers get in the end: the run is finished."""
        self._run = run if distributed.is_first() else None


class _Told:
    """A logger, and what it has got."""

    def __init__(self, logger: RunLogger) -> None:
        self._logger = logger
        self.forget()

    def forget(self) -> None:
        """Begin anew, with another run."""
        self._begun, self._sent, self._warned = False, 0, False
        self._settings: Settings = {}

    def catch_up(self, settings: Settings, history: Sequence[Metrics]) -> None:
        """Give the logger what it has not got yet."""
        self._settings = settings
        self._guarded(lambda: self._send(history))

    def _send(self, history: Sequence[Metrics]) -> None:
        if not self._begun:
            self._logger.begin(self._settings)
            self._begun = True
        while self._sent < len(history):
            row = history[self._sent]
            self._logger.figures(row.step, _values(row))
            self._sent += 1

    def end(self, history: Sequence[Metrics], run: TrainingRun | None) -> None:
        """Give the logger the rest."""
        if not self._settings:  # the run did not begin
            return

        def work() -> None:
            self._send(history if run is None else run.history)
            self._logger.end(None if run is None else facts_of(run))

        self._warned = False  # what is missing now is missing for good, and that is said
        self._guarded(work)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # whatever a logger raises: it has seen nothing private
            if not self._warned:
                warnings.warn(
                    f"the logger {type(self._logger).__name__} failed ({type(error).__name__}: {error}). The "
                    "run goes on without it; what it missed is in run.history, and is given to it again.",
                    stacklevel=3,
                )
            self._warned = True


def _values(row: Metrics) -> dict[str, float]:
    return {name: value for name, value in row.to_dict().items() if value is not None and name != "step"}


def facts_of(run: TrainingRun) -> dict[str, Any]:
    """Return what a logger gets of a finished run: the guarantee, and the paragraph about it."""
    guarantee = run.guarantee
    return {
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "relation": guarantee.relation.value,
        "privacy_unit": guarantee.privacy_unit,
        "guarantee": str(guarantee),
        "statement": run.statement(),
    }
