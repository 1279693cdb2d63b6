# SPDX-License-Identifier: Apache-2.0
"""What Lightning knows of a run besides weights and optimizer: its counters, callbacks and schedules.

It goes into the checkpoint of the run, so that a resumed run has the epochs, the schedules and the callbacks
of one that was not interrupted. All of it is public: it is computed from numbers of steps and from figures on
evaluation data.
"""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, Trainer

__all__ = ["kept", "put_back"]


def kept(trainer: Trainer) -> dict[str, Any]:
    """Return the state of loops, callbacks and schedules."""
    configs: list[Any] = list(trainer.strategy.lr_scheduler_configs)
    return {
        "loops": trainer.fit_loop.state_dict(),
        "callbacks": {name: state for name, part in _named(trainer) if (state := part.state_dict())},
        "schedules": [config.scheduler.state_dict() for config in configs],
    }


def put_back(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Give loops, callbacks and schedules the state that `kept` returned."""
    trainer.fit_loop.load_state_dict(state["loops"])
    for name, part in _named(trainer):
        if name in state["callbacks"]:
            part.load_state_dict(state["callbacks"][name])
    configs: list[Any] = list(trainer.strategy.lr_scheduler_configs)
    for config, own in zip(configs, state["schedules"], strict=True):
        config.scheduler.load_state_dict(own)


def _named(trainer: Trainer) -> list[tuple[str, Callback]]:
    callbacks: list[Callback] = list(trainer.callbacks)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    return [(part.state_key, part) for part in callbacks]
