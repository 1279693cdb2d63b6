# SPDX-License-Identifier: Apache-2.0
"""TensorBoard: the figures of a run in an event file.

Guarantee  The file holds what `RunLogger` gets, and one time, the beginning of the day on which the run
           began. Its name holds neither a time nor the name of the machine.
Failure    A run that is resumed writes the file anew, from its first figure on.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sfumato.integrations.loggers.day import begin_of_day, missing

__all__ = ["TensorBoardLog"]

_FILE: Final = "events.out.tfevents.0.sfumato"


class TensorBoardLog:
    """Writes figures for TensorBoard: `train(..., loggers=[TensorBoardLog("runs/a")])`.

    The guarantee and the statement are among the texts. Look at it with `tensorboard --logdir runs`.

    Args:
        folder: Where the event file is written; one folder for each run.

    Raises:
        MissingDependencyError: If the package tensorboard is missing.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from tensorboard.compat.proto import event_pb2
            from tensorboard.plugins.text import metadata
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ModuleNotFoundError as error:
            raise missing("tensorboard", "TensorBoardLog") from error
        proto: Any = event_pb2
        self._event: Any = proto.Event
        self._writer: Any = RecordWriter
        self._text: Any = metadata
        self._path = Path(folder) / _FILE
        self._file: Any = None
        self._time = 0.0

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Begin the file, with the settings of the run.

        Args:
            settings: Public settings.
        """
        self._close()
        self._time = float(begin_of_day())
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._writer(self._path.open("wb"))
        self._add(file_version="brain.Event:2")
        rows = [f"| {name} | {value} |" for name, value in settings.items()]
        self._write_text("settings", "\n".join(["| setting | value |", "| --- | --- |", *rows]), step=0)

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        """Write the figures after a step.

        Args:
            step: How many steps were taken.
            values: The figures by name.
        """
        for name, value in values.items():
            self._add(step=step, summary={"value": [{"tag": name, "simple_value": float(value)}]})

    def end(self, facts: Mapping[str, Any] | None) -> None:
        """Write the guarantee and the statement, and close the file.

        Args:
            facts: What may be said of the run; None if it did not finish.
        """
        for name, value in (facts or {"state": "The run did not finish. It is charged as a whole."}).items():
            self._write_text(name, str(value), step=0)
        self._close()

    def _write_text(self, name: str, text: str, *, step: int) -> None:
        value = {
            "tag": f"{name}/text_summary",
            "metadata": self._text.create_summary_metadata(display_name="", description=""),
            "tensor": {
                "dtype": "DT_STRING",
                "string_val": [text.encode()],
                "tensor_shape": {"dim": [{"size": 1}]},
            },
        }
        self._add(step=step, summary={"value": [value]})

    def _add(self, **content: Any) -> None:
        self._file.write(self._event(wall_time=self._time, **content).SerializeToString())
        self._file.flush()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
