# SPDX-License-Identifier: Apache-2.0
"""A bar that shows how far a run is: steps, epsilon so far, loss and accuracy on evaluation data.

Nothing private is shown: no training loss, no norm, no size of a batch.
"""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sfumato.accounting.guarantee import round_up
from sfumato.training.record.metrics import Metrics

__all__ = ["ProgressBar"]


class ProgressBar:
    """Shows itself on the terminal's error stream; does nothing if there is no terminal.

    >>> with ProgressBar(steps=10, done=0, shown=False) as bar:
    ...     bar.advance()
    """

    def __init__(
        self,
        *,
        steps: int,
        done: int,
        shown: bool,
        title: str = "training",
        console: Console | None = None,
    ) -> None:
        console = console if console is not None else Console(stderr=True)
        self._bar = Progress(
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not (shown and (console.is_terminal or console.is_jupyter)),
        )
        self._task = self._bar.add_task(title, total=steps, completed=done, note="")
        self._said: str | None = None

    def __enter__(self) -> "ProgressBar":
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def advance(self) -> None:
        """One step more."""
        self._bar.advance(self._task)

    def say(self, line: str) -> None:
        """Show a line above the bar, if it is another one than before; the first is not shown."""
        if self._said not in (None, line) and not self._bar.disable:
            self._bar.console.print(line, highlight=False, markup=False)
        self._said = line

    def note(self, row: Metrics) -> None:
        """Show the latest measurements."""
        self._bar.update(self._task, note=note(row))


def note(row: Metrics) -> str:
    """Return a row in few words.

    >>> note(Metrics(step=5, epsilon=1.23456, learning_rate=0.1, loss=0.5, accuracy=0.912))
    'epsilon 1.235  loss 0.500  accuracy 91.2%'
    """
    parts = [f"epsilon {round_up(row.epsilon):g}"]
    if row.loss is not None:
        parts.append(f"loss {row.loss:.3f}")
    if row.accuracy is not None:
        parts.append(f"accuracy {row.accuracy:.1%}")
    return "  ".join(parts)
