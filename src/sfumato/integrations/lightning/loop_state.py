# SPDX-License-Identifier: Apache-2.0
"""What Lightning knows of a run besides weights and optimizer: counters, callbacks, schedules, figures.

It goes into the checkpoint of the run, so that a resumed run has the epochs, the schedules, the callbacks and
the figures of one that was not interrupted. All of it is public: it is computed from numbers of steps and
from figures on evaluation data.

A checkpoint is made in the middle of Lightning's work on a batch: after the weights have moved, and before
callbacks see them. What follows in that batch (callbacks, validation, the end of the epoch) is done again
where the run is resumed (`finish_batch`), as it may have been interrupted. It sees the weights of before.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.trainer import call

from sfumato.integrations.lightning.held_loggers import HeldLogger
from sfumato.integrations.lightning.rows import PrivateBatch

__all__ = ["finish_batch", "kept", "put_back"]


def kept(trainer: Trainer) -> dict[str, Any]:
    """Return the state of loops, callbacks and schedules, and the figures that loggers will get."""
    configs: list[Any] = list(trainer.strategy.lr_scheduler_configs)
    return {
        "loops": trainer.fit_loop.state_dict(),
        "callbacks": {name: state for name, part in _named(trainer) if (state := part.state_dict())},
        "schedules": [config.scheduler.state_dict() for config in configs],
        "metrics": {name: {n: float(v) for n, v in shown.items()} for name, shown in _shown(trainer).items()},
        "figures": [list(logger.figures) for logger in _held(trainer)],
    }


def put_back(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Give loops, callbacks, schedules and loggers what `kept` returned."""
    trainer.fit_loop.load_state_dict(state["loops"])
    for name, part in _named(trainer):
        if name in state["callbacks"]:
            part.load_state_dict(state["callbacks"][name])
    configs: list[Any] = list(trainer.strategy.lr_scheduler_configs)
    for config, own in zip(configs, state["schedules"], strict=True):
        config.scheduler.load_state_dict(own)
    for name, shown in _shown(trainer).items():  # which schedules and callbacks may wait for
        shown.update({n: torch.tensor(v) for n, v in state["metrics"][name].items()})
    for logger, figures in zip(_held(trainer), state["figures"], strict=False):  # which may be others now
        logger.figures = [(step, dict(metrics)) for step, metrics in figures]


def _named(trainer: Trainer) -> list[tuple[str, Callback]]:
    callbacks: list[Callback] = list(trainer.callbacks)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    return [(part.state_key, part) for part in callbacks]


def _shown(trainer: Any) -> dict[str, dict[str, Any]]:
    """Return the dicts in which the trainer keeps the latest figures."""
    connector = trainer._logger_connector
    return {name: getattr(connector, name) for name in ("_callback_metrics", "_logged_metrics")}


def _held(trainer: Trainer) -> Sequence[HeldLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, HeldLogger)]


# --- what an interrupted batch still needs ----------------------------------------------------------------


def finish_batch(trainer: Trainer, loops: Mapping[str, Any]) -> None:
    """Do what follows a move of the weights in a batch, from the counters that a checkpoint holds.

    Afterwards the counters of batches are those of the checkpoint again: Lightning itself takes the batch for
    finished when it goes on. Those of an epoch that ended are counted.

    Args:
        trainer: The trainer, after `on_train_start`.
        loops: The state of its loops, as `kept` returned it.
    """
    fit: Any = trainer.fit_loop
    epoch: Any = fit.epoch_loop
    if epoch.batch_progress.total.processed == epoch.batch_progress.total.completed:
        return  # no batch was at work
    counted = epoch.batch_progress.state_dict(), epoch.val_loop.batch_progress.state_dict()
    stepped = epoch._batches_that_stepped
    fit.epoch_progress.load_state_dict(loops["epoch_progress"])
    _set_restarting(fit, False)
    _end_batch(trainer)
    epoch.on_advance_end(fit._data_fetcher)
    if epoch.batch_progress.is_last_batch:
        fit.on_advance_end()
        fit.reset_restart_stage()  # so that the next epoch begins like any other
    _set_restarting(fit, True)
    epoch.batch_progress.load_state_dict(counted[0])
    epoch.val_loop.batch_progress.load_state_dict(counted[1])
    epoch._batches_that_stepped = stepped


def _set_restarting(fit: Any, restarting: bool) -> None:
    """Say whether Lightning has to restart; its own property decides for itself where steps are counted."""
    for loop in (fit, fit.epoch_loop, fit.epoch_loop.val_loop):
        loop._restarting = restarting


def _end_batch(trainer: Any) -> None:
    """Do what `_TrainingEpochLoop.advance` does after the step."""
    epoch, batch = trainer.fit_loop.epoch_loop, PrivateBatch()
    trainer._logger_connector.on_batch_start(batch)
    given = {"loss": torch.tensor(float("nan"))}, batch, epoch.batch_idx
    hooks: Any = call
    hooks._call_callback_hooks(trainer, "on_train_batch_end", *given)
    hooks._call_lightning_module_hook(trainer, "on_train_batch_end", *given)
    trainer._logger_connector.on_batch_end()
    epoch.batch_progress.increment_completed()
    trainer._logger_connector.update_train_step_metrics()
