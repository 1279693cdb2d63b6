# SPDX-License-Identifier: Apache-2.0
"""Keep back what code says while private rows go through it.

Guarantee  In `silent`, nothing that the calling thread prints is shown, no warning and no line of `logging`:
           each may quote a row, or tell that it is there. No warning counts as shown afterwards, either.
Edge cases What other threads print or log is shown; what they warn of meanwhile is not.
Not here   Files and handlers of logs that the code makes itself, other loggers, and what C code writes.
"""

import logging
import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

__all__ = ["silent"]


class _Sink:
    """A text stream that drops what one thread writes."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        """Drop a text, or pass it on if another thread writes it."""
        if threading.get_ident() != self._thread:
            self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _OfOthers(logging.Filter):
    """Lets log lines through that another thread writes."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is shown."""
        return threading.get_ident() != self._thread


@contextmanager
def silent() -> Generator[None]:
    """Return a context in which what this thread prints, warns of or logs is dropped.

    >>> with silent():
    ...     print("row 5 is a strange one")
    """
    shown, others = (sys.stdout, sys.stderr), _OfOthers()
    handlers = _handlers()
    for handler in handlers:
        handler.addFilter(others)
    sys.stdout, sys.stderr = _Sink(shown[0]), _Sink(shown[1])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stdout, sys.stderr = shown
        for handler in handlers:
            handler.removeFilter(others)


def _handlers() -> list[logging.Handler]:
    """Return all that log lines go to. (`logging.disable` takes 0.1 ms, as it tells hundreds of loggers.)"""
    references: list[Any] = vars(logging)["_handlerList"]
    return [handler for reference in references if (handler := reference()) is not None]
