# SPDX-License-Identifier: Apache-2.0
"""Weights & Biases: the figures of a run, written when it has ended.

Guarantee  Weights & Biases gets what `RunLogger` gets. It stamps figures with the clock, so nothing is given
           to it before the run has ended: it knows when the run was written, and not when it began, nor when
           a step was taken. System metrics, the console, code, git and the name of the machine are off.
Failure    The figures of a process that is killed are not written. A run with a folder has them in
           `metrics.jsonl`, and writes them when it is resumed.
"""

import os
from collections.abc import Mapping
from typing import Any

from sfumato.integrations.loggers.day import begin_of_day, missing

__all__ = ["WandbLog"]


class WandbLog:
    """Writes figures for Weights & Biases: `train(..., loggers=[WandbLog("wandb", project="digits")])`.

    Args:
        folder: Where the run is written.
        project: The name of the project.
        name: The name of the run.
        online: Whether to send the run to a server. Without it, send it later with `wandb sync`.

    Raises:
        MissingDependencyError: If the package wandb is missing.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        project: str = "sfumato",
        name: str = "private run",
        online: bool = False,
    ) -> None:
        try:
            import wandb
        except ModuleNotFoundError as error:
            raise missing("wandb", "WandbLog") from error
        self._wandb: Any = wandb
        self._folder, self._project, self._name = os.fspath(folder), project, name
        self._mode = "online" if online else "offline"
        self._settings: dict[str, Any] = {}
        self._rows: list[tuple[int, dict[str, float]]] = []

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Keep the settings until the run has ended.

        Args:
            settings: Public settings.
        """
        self._settings, self._rows = dict(settings), []

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the figures after a step until the run has ended.

        Args:
            step: How many steps were taken.
            values: The figures by name.
        """
        self._rows.append((step, dict(values)))

    def end(self, facts: Mapping[str, Any] | None) -> None:
        """Write all of it.

        Args:
            facts: What may be said of the run; None if it did not finish.
        """
        os.makedirs(self._folder, exist_ok=True)
        time = float(begin_of_day())
        quiet = self._wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            save_code=False,
            silent=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            host="",
            program="",
        )
        run = self._wandb.init(
            project=self._project,
            name=self._name,
            dir=self._folder,
            mode=self._mode,
            config=self._settings,
            settings=quiet,
            reinit="create_new",
        )
        try:
            for step, values in self._rows:
                run.log({**values, "_timestamp": time}, step=step)
            for name, value in (
                facts or {"state": "The run did not finish. It is charged as a whole."}
            ).items():
                run.summary[f"privacy/{name}"] = value
        finally:
            run.finish(exit_code=1 if facts is None else 0)
