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
from itertools import chain
from operator import attrgetter
from typing import Any, BinaryIO, Final

import torch

__all__ = ["often_silent", "silent"]

_filters: Final = attrgetter("filters")
_STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")


class _Sink(io.TextIOBase):
    """A text stream that drops what one thread writes, until it is opened."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread = stream, 0
        self._nowhere: BinaryIO | None = None

    def stands_for(self, stream: Any) -> bool:
        """Whether it takes the place of a stream."""
        return self._stream is stream

    def shut(self, thread: int) -> None:
        """From now on drop what a thread writes."""
        self._thread = thread

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
    """Lets log lines through; while it is on, those alone that another thread writes."""

    thread = 0  # whose lines are dropped; no thread has this number

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is shown."""
        return threading.get_ident() != self.thread


class _Silencer:
    """Takes the place of streams, and filters log lines, for one thread; it may do so many times."""

    def __init__(self, *, lasts: bool = False) -> None:
        self.busy, self._lasts = False, lasts
        self._thread, self._others = threading.get_ident(), _OfOthers()
        self._sinks: dict[str, _Sink] = {}
        self._attach()

    def _attach(self) -> None:
        self._listed: list[Any] = list(_listed())
        self._handlers = _handlers()
        for handler in self._handlers:
            handler.addFilter(self._others)
        self._filters = [list(handler.filters) for handler in self._handlers if self._lasts]

    def detach(self) -> None:
        """Leave nothing at the handlers."""
        for handler in self._handlers:
            handler.removeFilter(self._others)

    def _is_attached(self) -> bool:
        if not self._lasts:  # it was just made
            return True
        return self._listed == _listed() and list(map(_filters, self._handlers)) == self._filters

    def begin(self) -> None:
        """Drop what the thread says from here on."""
        if not self._is_attached():  # there is a new handler, or something took a filter away
            self.detach()
            self._attach()
        self.busy, self._others.thread = True, self._thread
        self._shown = {name: stream for name in _STREAMS if (stream := getattr(sys, name)) is not None}
        _put({name: self._sink(name, stream) for name, stream in self._shown.items()})

    def _sink(self, name: str, stream: Any) -> _Sink:
        sink = self._sinks.get(name)
        if sink is None or not sink.stands_for(stream):
            sink = self._sinks[name] = _Sink(stream)
        sink.shut(self._thread)
        return sink

    def end(self) -> None:
        """Show again what it says."""
        _put(self._shown)
        for sink in self._sinks.values():
            sink.open()
        self.busy, self._others.thread = False, 0


_lasting: Final[dict[int, _Silencer]] = {}  # one for a thread


@contextmanager
def often_silent() -> Generator[None]:
    """Return a context in which `silent` takes less time: its filters stay at the handlers, switched off.

    >>> with often_silent(), silent():
    ...     print("row 5 is a strange one")
    """
    thread = threading.get_ident()
    if thread in _lasting:
        yield
        return
    silencer = _lasting[thread] = _Silencer(lasts=True)
    try:
        yield
    finally:
        del _lasting[thread]
        silencer.detach()


@contextmanager
def silent() -> Generator[None]:
    """Return a context in which what this thread prints, warns of or logs is dropped.

    >>> with silent():
    ...     print("row 5 is a strange one")
    """
    lasting = _lasting.get(threading.get_ident())
    if lasting is None or lasting.busy:
        silencer = _Silencer()
        try:
            with _silenced_by(silencer):
                yield
        finally:
            silencer.detach()
    else:
        with _silenced_by(lasting):
            yield


@contextmanager
def _silenced_by(silencer: _Silencer) -> Generator[None]:
    always = torch.is_warn_always_enabled()
    silencer.begin()
    torch.set_warn_always(True)  # else torch would note that it has warned, and never do so again
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_warn_always(always)
        silencer.end()


def _put(streams: Mapping[str, Any]) -> None:
    for name, stream in streams.items():
        setattr(sys, name, stream)


def _listed() -> list[Any]:
    """Return logging's own references to handlers. (`logging.disable` tells all loggers: 0.1 ms.)"""
    return vars(logging)["_handlerList"]


def _handlers() -> list[logging.Handler]:
    """Return all that log lines go to. `logging.config` forgets handlers that loggers go on using."""
    listed = [handler for reference in _listed() if (handler := reference()) is not None]
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    used = chain.from_iterable(own for one in loggers if (own := getattr(one, "handlers", ())))
    return list({id(handler): handler for handler in (*listed, *used)}.values())
