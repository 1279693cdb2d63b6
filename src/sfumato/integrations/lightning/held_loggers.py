# SPDX-License-Identifier: Apache-2.0
"""Loggers of Lightning that get their figures at the end of a run.

Guarantee  TensorBoard, MLflow and Weights & Biases stamp every figure with the time, so they would keep how
           long steps take, which depends on private rows. Figures are held in memory until the run ends, and
           are then given to the logger at once. Checkpoints of the run hold them, too.
Failure    A logger that raises does not stop the run: one warning says so, and `figures` keeps what it was
           given.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lightning.pytorch.loggers import Logger

from sfumato.errors import InvalidParameterError

__all__ = ["HeldLogger", "held"]


class HeldLogger(Logger):
    """Takes the place of a logger during a run; afterwards it hands everything through."""

    def __init__(self, logger: Logger) -> None:
        super().__init__()
        self.logger = logger
        self.figures: list[tuple[int | None, dict[str, float]]] = []
        self._settings: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        self._calls: list[Callable[[], object]] = []  # of methods that only this kind of logger has
        self._holding, self._status = True, ""

    @property
    def name(self) -> str | None:
        """The name of the logger, as far as it is known without starting it."""
        return self.logger.name if self._named else type(self.logger).__name__

    @property
    def version(self) -> int | str | None:
        """The version of the logger, as far as it is known without starting it."""
        return self.logger.version if self._named else None

    @property
    def save_dir(self) -> str | None:
        """Where the logger writes."""
        return self.logger.save_dir

    @property
    def log_dir(self) -> str | None:
        """Where the logger writes this run."""
        return self.logger.log_dir if self._named else None

    @property
    def _named(self) -> bool:
        """Whether asking the logger for its name starts nothing: others open a run, with its time."""
        return not self._holding or type(self.logger).__name__ in ("TensorBoardLogger", "CSVLogger")

    @property
    def experiment(self) -> Any:
        """The writer behind the logger; only after the run."""
        if self._holding:
            return _Unreachable(type(self.logger).__name__)
        return self.logger.experiment  # pyright: ignore[reportAttributeAccessIssue] - most loggers have one

    def __getattr__(self, name: str) -> Any:
        """Return what only this kind of logger has; during the run, what it logs is kept for later."""
        if name.startswith("_") or name == "logger" or not hasattr(type(self.logger), name):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        if not self._holding:
            return getattr(self.logger, name)
        if name.startswith("log_"):
            return partial(self._hold, name)
        raise _during_run(type(self.logger).__name__, name)

    def _hold(self, name: str, *args: Any, **options: Any) -> None:
        self._calls.append(lambda: getattr(self.logger, name)(*args, **options))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep figures until the run has ended."""
        self.figures.append((step, {name: _plain(value) for name, value in metrics.items()}))

    def log_hyperparams(self, params: Any, *args: Any, **options: Any) -> None:
        """Keep settings until the run has ended."""
        self._settings.append((params, args, options))

    def finalize(self, status: str) -> None:
        """Note how the run ended; hand it on if the figures are out."""
        self._status = status
        if not self._holding:
            self._guarded(lambda: self.logger.finalize(status))

    def release(self, facts: Mapping[str, Any]) -> None:
        """Give the logger all that was held, and what may be said of the run."""
        if not self._holding:
            return
        self._holding = False

        def send() -> None:
            for params, args, options in self._settings:
                self.logger.log_hyperparams(params, *args, **options)
            for step, metrics in self.figures:
                self.logger.log_metrics(metrics, step)
            for call in self._calls:
                call()
            if facts:
                self.logger.log_hyperparams(dict(facts))
            self.logger.save()
            if self._status:
                self.logger.finalize(self._status)

        self._guarded(send)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # whatever a logger raises: it saw nothing private
            warnings.warn(
                f"the logger {type(self.logger).__name__} failed ({type(error).__name__}: {error}). The run "
                "is not affected. The figures it was given are in trainer.logger.figures.",
                stacklevel=2,
            )


class _Unreachable:
    """In place of a writer while figures are held."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise _during_run(self._name, "experiment")


def _during_run(logger: str, name: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"{logger}.{name} is used during a private run. It would keep the time of each step, which depends "
        "on private rows. Use self.log, or the logger after the run."
    )


def _plain(value: Any) -> Any:
    """Return a figure as a plain number, so that a checkpoint can hold it."""
    return value.item() if hasattr(value, "item") else value


def held(loggers: list[Logger]) -> list[HeldLogger]:
    """Return loggers that hold what they are given, in place of these."""
    return [HeldLogger(one.logger if isinstance(one, HeldLogger) else one) for one in loggers]
