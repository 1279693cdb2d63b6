# SPDX-License-Identifier: Apache-2.0
"""Writers come one after the other, as they asked; a killed one holds nobody up."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sfumato.ledger import _queue
from sfumato.ledger._queue import turn

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
LONG = 60.0  # seconds that no test waits for: only a fault would


def _child(work: Callable[[Callable[[bytes], None]], None]) -> tuple[int, int]:
    """Fork a process that does `work` and tells by a pipe; return its id and the pipe."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work(lambda said: os.write(write, said) and None)
        finally:
            os._exit(0)
    os.close(write)
    return pid, read


def _hold(path: Path) -> tuple[int, int]:
    """Fork a process that takes the turn and keeps it until it is killed; return once it has it."""

    def work(tell: Callable[[bytes], None]) -> None:
        with turn(path, seconds=LONG):
            tell(b"h")
            time.sleep(LONG)

    pid, read = _child(work)
    assert os.read(read, 1) == b"h"
    return pid, read


def _numbers_taken(path: Path) -> int:
    file = _queue._open(path)  # pyright: ignore[reportPrivateUsage]
    assert file is not None
    try:
        return _queue._read(file)[0]  # pyright: ignore[reportPrivateUsage]
    finally:
        os.close(file)


def _queue_up(path: Path, name: bytes, log: int) -> int:
    """Fork a process that waits for its turn and writes its name; return once it has its number."""
    before = _numbers_taken(path)

    def work(tell: Callable[[bytes], None]) -> None:
        with turn(path, seconds=LONG):
            os.write(log, name)

    pid, _ = _child(work)
    while _numbers_taken(path) == before:
        time.sleep(0.001)
    return pid


def _end(*processes: int) -> None:
    for process in processes:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def test_who_asked_first_is_served_first(path: Path) -> None:
    holder, _ = _hold(path)
    read, log = os.pipe()
    waiting = [_queue_up(path, name.encode(), log) for name in "abcdefgh"]
    _end(holder)
    for process in waiting:
        os.waitpid(process, 0)
    assert os.read(read, 100) == b"abcdefgh"


def test_a_killed_holder_gives_the_turn_on_and_a_killed_waiter_loses_its_place(path: Path) -> None:
    holder, _ = _hold(path)
    read, log = os.pipe()
    first, second, third = (_queue_up(path, name.encode(), log) for name in "abc")
    _end(second)
    _end(holder)
    os.waitpid(first, 0)
    os.waitpid(third, 0)
    assert os.read(read, 100) == b"ac"


def test_waiting_ends_and_says_so(path: Path) -> None:
    holder, _ = _hold(path)
    with turn(path, seconds=0.05) as came:
        assert not came
    _end(holder)
    with turn(path, seconds=LONG) as came:
        assert came


def test_an_exception_gives_the_turn_on(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), turn(path, seconds=LONG):
        raise ZeroDivisionError
    with turn(path, seconds=LONG) as came:
        assert came


def test_threads_of_one_process_take_turns_too(path: Path) -> None:
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(20):
            with turn(path, seconds=LONG) as came:
                assert came
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_ledgers_do_not_wait_for_each_other(path: Path, tmp_path: Path) -> None:
    holder, _ = _hold(path)
    with turn(tmp_path / "other.db", seconds=LONG) as came:
        assert came
    _end(holder)


def test_without_a_place_for_the_queue_one_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_queue.tempfile, "gettempdir", lambda: str(path / "no such folder"))
    with turn(path, seconds=LONG) as came:
        assert came


def test_a_queue_file_with_nonsense_in_it_begins_anew(path: Path) -> None:
    file = _queue._open(path)  # pyright: ignore[reportPrivateUsage]
    assert file is not None
    os.pwrite(file, b"\xff" * 16, 0)
    os.close(file)
    with turn(path, seconds=LONG) as came:
        assert came
    assert _numbers_taken(path) == 1
