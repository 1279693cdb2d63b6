# SPDX-License-Identifier: Apache-2.0
"""Keep back what code says while private rows go through it.

Guarantee  In `silent`, nothing that the calling thread writes to `sys.stdout`, `sys.stderr` or the streams
           that Python began with is shown, as text or as bytes, no warning and no line of `logging`: each may
           quote a row, or tell that it is there. No warning counts as shown afterwards, either, not even one
           that torch gives once.
Edge cases What other threads print or log is shown; what they warn of meanwhile is not.
Not here   Files, and handlers of logs that the code makes itself. A stream that the code took hold of before.
           What is written to the numbers of open files (`os.write`, other processes, C and Rust code, such as
           the report of a Rust panic). What threads say that the code starts.
"""

import io
import logging
import os
import sys
import threading
import warnings
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import torch

__all__ = ["silent"]

_STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")


class _Sink(io.TextIOBase):
    """A text stream that drops what one thread writes, until it is opened."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread = stream, threading.get_ident()
        self._nowhere: BinaryIO | None = None

    def open(self) -> None:
        """From now on pass everything on: a handler of logs may have kept this stream."""
        self._thread = 0
        if self._nowhere is not None:
            self._nowhere.close()

    def _drops(self) -> bool:
        return threading.get_ident() == self._thread

    def _bytes(self) -> BinaryIO:
        if self._nowhere is None or self._nowhere.closed:
            self._nowhere = open(os.devnull, "wb", buffering=0)  # noqa: SIM115 - closed by `open`
        return self._nowhere

    def write(self, text: str) -> int:
        """Drop a text, or pass it on if another thread writes it."""
        return len(text) if self._drops() else self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Drop texts, or pass them on."""
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> Any:
        """The same stream for bytes."""
        return self._bytes() if self._drops() else self._stream.buffer

    def fileno(self) -> int:
        """Return the number of a file that drops what is written, too."""
        return (self._bytes() if self._drops() else self._stream).fileno()

    def flush(self) -> None:
        """Do nothing, or flush for another thread."""
        if not self._drops():
            self._stream.flush()

    def close(self) -> None:
        """Do nothing: the stream behind this one stays open."""

    def reconfigure(self, **options: Any) -> None:
        """Do nothing, or change the stream for another thread."""
        if not self._drops():
            self._stream.reconfigure(**options)

    def writable(self) -> bool:
        """Return that it can be written to."""
        return True

    def isatty(self) -> bool:
        """Return what the stream says."""
        return self._stream.isatty()

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The encoding of the stream."""
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the stream does with texts that it cannot encode."""
        return self._stream.errors

    def __getattr__(self, name: str) -> Any:
        if self._drops():
            raise AttributeError(name)
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
    shown = {name: stream for name in _STREAMS if (stream := getattr(sys, name)) is not None}
    sinks, others, always = (
        {name: _Sink(stream) for name, stream in shown.items()},
        _OfOthers(),
        torch.is_warn_always_enabled(),
    )
    handlers = _handlers()
    for handler in handlers:
        handler.addFilter(others)
    _put(sinks)
    torch.set_warn_always(True)  # else torch would note that it has warned, and never do so again
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_warn_always(always)
        _put(shown)
        for sink in sinks.values():
            sink.open()
        for handler in handlers:
            handler.removeFilter(others)


def _put(streams: Mapping[str, Any]) -> None:
    for name, stream in streams.items():
        setattr(sys, name, stream)


def _handlers() -> list[logging.Handler]:
    """Return all that log lines go to. (`logging.disable` takes 0.1 ms, as it tells hundreds of loggers.)"""
    references: list[Any] = vars(logging)["_handlerList"]
    return [handler for reference in references if (handler := reference()) is not None]
