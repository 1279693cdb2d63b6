# SPDX-License-Identifier: Apache-2.0
"""A bar that shows how many of the most possible rounds are done. It shows nothing else about them."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

__all__ = ["rounds_bar"]


@contextmanager
def rounds_bar(total: int, *, shown: bool, console: Console | None = None) -> Generator[Callable[[], None]]:
    """Return a context with a function to call after each round.

    The bar is on the terminal's error stream, and absent if there is no terminal.

    Args:
        total: The most rounds.
        shown: Whether to show it.
        console: Where to show it, or None for the error stream.

    Yields:
        The function.

    >>> with rounds_bar(2, shown=False) as advance:
    ...     advance()
    """
    console = console if console is not None else Console(stderr=True)
    show = shown and (console.is_terminal or console.is_jupyter)
    columns = (TextColumn("marginals"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not show) as progress:
        task = progress.add_task("marginals", total=total)
        yield lambda: progress.advance(task)
