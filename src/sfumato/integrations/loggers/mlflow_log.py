# SPDX-License-Identifier: Apache-2.0
"""MLflow: the figures of a run as one run of an experiment.

Guarantee  The store holds what `RunLogger` gets. All times of the run in it are the beginning of the day on
           which it began: that of each figure, and those at which it began and ended. No name of a user, a
           machine or a script is written, and no system metric.
Edge cases A run that is resumed is written as another run of the experiment, from its first figure on. Files
           and tables have times of their own, those of the system.
"""

from collections.abc import Mapping
from typing import Any

from sfumato.integrations.loggers.day import begin_of_day, missing

__all__ = ["MlflowLog"]


class MlflowLog:
    """Writes figures to an MLflow store: `train(..., loggers=[MlflowLog("sqlite:///mlflow.db")])`.

    The guarantee and the statement are tags of the run.

    Args:
        tracking_uri: The store: a database such as "sqlite:///mlflow.db", a folder, or a server.
        experiment: The name of the experiment, which is made if it does not exist.
        run_name: The name of the run.

    Raises:
        MissingDependencyError: If the package mlflow is missing.
    """

    def __init__(
        self, tracking_uri: str, *, experiment: str = "sfumato", run_name: str = "private run"
    ) -> None:
        try:
            from mlflow.entities import Metric, Param, RunTag
            from mlflow.tracking import MlflowClient
        except ModuleNotFoundError as error:
            raise missing("mlflow-skinny", "MlflowLog") from error
        self._metric: Any = Metric
        self._param: Any = Param
        self._tag: Any = RunTag
        self._open: Any = lambda: MlflowClient(tracking_uri=tracking_uri)
        self._client: Any = None
        self._experiment, self._run_name = experiment, run_name
        self._time = 0  # milliseconds
        self._run_id: str | None = None

    @property
    def run_id(self) -> str | None:
        """The number that MLflow gave the run; None before it began."""
        return self._run_id

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Begin a run, with its settings as parameters.

        Args:
            settings: Public settings.
        """
        self._time = begin_of_day() * 1000
        self._client = self._open()
        found = self._client.get_experiment_by_name(self._experiment)
        number = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        made = self._client.create_run(number, start_time=self._time, run_name=self._run_name)
        self._run_id = made.info.run_id
        params = [self._param(name, str(value)) for name, value in settings.items()]
        self._client.log_batch(self._run_id, params=params)

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        """Write the figures after a step.

        Args:
            step: How many steps were taken.
            values: The figures by name.
        """
        metrics = [self._metric(name, float(value), self._time, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def end(self, facts: Mapping[str, Any] | None) -> None:
        """Write the guarantee and the statement, and end the run.

        Args:
            facts: What may be said of the run; None if it did not finish.
        """
        tags = [self._tag(f"privacy.{name}", str(value)) for name, value in (facts or {}).items()]
        if tags:
            self._client.log_batch(self._run_id, tags=tags)
        status = "FAILED" if facts is None else "FINISHED"
        self._client.set_terminated(self._run_id, status=status, end_time=self._time)
