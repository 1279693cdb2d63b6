# SPDX-License-Identifier: Apache-2.0
"""A bar that shows how many of the teachers are done, and nothing else about them.

Not here   Protection of time: when a teacher is done depends on its rows, and the bar shows it.
"""

import io
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["bar"]


@contextmanager
def bar(total: int, *, shown: bool, console: Console | None = None) -> Generator[Callable[[], None]]:
    """Return a context with a function to call after each teacher.

    The bar is on the terminal's error stream, and absent if there is no terminal.

    Args:
        total: The number of teachers.
        shown: Whether to show it.
        console: Where to show it, or None for the error stream.

    Yields:
        The function.

    >>> with bar(2, shown=False) as advance:
    ...     advance()
    """
    with _error_stream() as stream:
        console = console if console is not None else Console(file=stream)
        show = shown and (console.is_terminal or console.is_jupyter)
        columns = (TextColumn("teachers"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, disable=not show) as progress:
            task = progress.add_task("teachers", total=total)
            yield lambda: progress.advance(task)


@contextmanager
def _error_stream() -> Generator[TextIO]:
    """Yield the error stream by a descriptor of its own, which stays open while teachers are silenced."""
    try:
        copy = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8")
    except (OSError, AttributeError, io.UnsupportedOperation):  # a notebook or a test has no descriptor
        yield sys.stderr
        return
    with copy:
        yield copy
