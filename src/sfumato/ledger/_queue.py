# SPDX-License-Identifier: Apache-2.0
"""A fair queue before a file: processes that want to write are served in order of arrival.

Guarantee  The first to arrive is served first, among the processes of one user on one machine. A process
           that is killed loses its place and its turn at once: both are locks that the operating system
           releases.
           Waiting ends after the given time, with `False`.
Edge cases The queue is optional. A process that cannot use it (another user or machine, no `fcntl`, no folder
           for temporary files) goes on without, and the database's own lock decides as it did before. So a
           fault in the queue can cost time, and never lets two write at once.
Source     SQLite has no queue: a connection that finds the file locked sleeps and tries again, up to 100 ms
           each time, and among many writers some never wake at the right moment
           (https://www.sqlite.org/c3ref/busy_timeout.html).
Not here   Who may write at all: `backends`.

A process takes a number, and locks the byte of that number in a file of its own beside the temporary files.
It is its turn when no lower byte is locked.
"""

import hashlib
import os
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from sfumato.ledger import _forks

if sys.platform != "win32":
    import fcntl

__all__ = ["turn"]

_NUMBERS = struct.Struct("<qq")  # the next number to take, the number that was served last
_FIRST = 1024  # the byte of number 0; those before it hold the numbers and the lock around them
_POLL = 0.001  # seconds, for each place in the queue
_SLOWEST_POLL = 0.05


class _Turns:
    """The queues of this process: locks of `fcntl` do not tell threads apart, so threads take turns here."""

    def __init__(self) -> None:
        self.renew()
        _forks.renewed_in_child(self)

    def renew(self) -> None:
        """Forget who was waiting: in a child of a fork they are not there."""
        self._guard = threading.Lock()
        self._threads: dict[Path, threading.Lock] = {}

    def of(self, path: Path) -> threading.Lock:
        """Return the lock between the threads that want one file."""
        with self._guard:
            return self._threads.setdefault(path, threading.Lock())


_turns = _Turns()


@contextmanager
def turn(path: Path, *, seconds: float) -> Generator[bool]:
    """Wait for the turn to write `path`, at most so many seconds; give whether it came."""
    end = time.monotonic() + seconds
    between_threads = _turns.of(path)
    if not between_threads.acquire(timeout=seconds):
        yield False
        return
    try:
        file = _open(path)
        try:
            number = None if file is None else _take_number(file, end)
            came = file is None or number is None or _wait(file, number, end)
            yield came
            if file is not None and number is not None and came:
                _served(file, number)
        finally:
            if file is not None:
                os.close(file)  # releases every lock on it
    finally:
        between_threads.release()


def _open(path: Path) -> int | None:
    if sys.platform == "win32":
        return None
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    folder = Path(tempfile.gettempdir()) / f"sfumato-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid() or folder.is_symlink():
            return None
        return os.open(folder / f"{name}.queue", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None


def _take_number(file: int, end: float) -> int | None:
    """Return a number that no other process has, its byte locked; None if the numbers cannot be used."""
    if not _within(end, _POLL, lambda: _lock(file, 0, 1)):
        return None
    try:
        number, served = _read(file)
        os.pwrite(file, _NUMBERS.pack(number + 1, served), 0)
        return number if _lock(file, _FIRST + number, 1) else None
    except OSError:
        return None
    finally:
        _unlock(file, 0, 1)


def _wait(file: int, number: int, end: float) -> bool:
    """Wait until no lower number is locked."""
    if number == 0:
        return True
    while not _lock(file, _FIRST, number):
        if time.monotonic() > end:
            return False
        ahead = number - _read(file)[1]
        time.sleep(min(max(ahead, 1) * _POLL, _SLOWEST_POLL))
    _unlock(file, _FIRST, number)
    return True


def _served(file: int, number: int) -> None:
    if _lock(file, 0, 1):  # if not, the next one only waits a little longer
        following, served = _read(file)
        os.pwrite(file, _NUMBERS.pack(following, max(served, number)), 0)
        _unlock(file, 0, 1)


def _read(file: int) -> tuple[int, int]:
    content = os.pread(file, _NUMBERS.size, 0)
    if len(content) < _NUMBERS.size:
        return 0, -1
    number, served = _NUMBERS.unpack(content)
    # A file that something else wrote to: begin anew rather than lock bytes that do not exist.
    return (number, served) if 0 <= number < 1 << 60 else (0, -1)


def _within(end: float, poll: float, attempt: Callable[[], bool]) -> bool:
    while not attempt():
        if time.monotonic() > end:
            return False
        time.sleep(poll)
    return True


def _lock(file: int, start: int, length: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
    except OSError:
        return False
    return True


def _unlock(file: int, start: int, length: int) -> None:
    fcntl.lockf(file, fcntl.LOCK_UN, length, start)
