# SPDX-License-Identifier: Apache-2.0
"""Processes that spend at the same time, and processes that are killed while they spend.

Run as a program (also by benchmarks/ledger.py): it imports once and forks from there, so that 16 processes
meet within milliseconds and 200 kills take seconds. What it prints is JSON.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from sfumato.accounting.events import PureDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import BudgetExceededError, LedgerError
from sfumato.ledger import Account, Budget, Ledger, backends, store

ADD_REMOVE = Relation.ADD_REMOVE
FORGET = os._exit  # a fork must not run its parent's cleanup


def contend(location: str, epsilon: float, processes: int) -> dict[str, object]:
    """Let `processes` spend `epsilon` after `epsilon` until refused; return how many each was admitted."""
    gate_read, gate_write = os.pipe()
    pipes: list[int] = []
    for _ in range(processes):
        read, write = os.pipe()
        if os.fork() == 0:
            os.close(gate_write)
            os.read(gate_read, 1)  # ends for everybody at once, when the parent closes its side
            os.write(write, json.dumps(_spend_until_refused(location, epsilon)).encode())
            FORGET(0)
        os.close(write)
        pipes.append(read)
    started = time.perf_counter()
    os.close(gate_write)
    admitted = [json.loads(os.read(pipe, 100) or b"null") for pipe in pipes]
    return {"admitted": admitted, "seconds": time.perf_counter() - started}


def _spend_until_refused(location: str, epsilon: float) -> int:
    account = Ledger(location, create=False).account("credit")
    admitted = 0
    while True:
        try:
            with account.spend(PureDpEvent(epsilon), purpose="contended", relation=ADD_REMOVE):
                admitted += 1
        except BudgetExceededError:
            return admitted


def kill(location: str, side_log: str, kills: int, seed: int) -> dict[str, object]:
    """Kill -9 one spending process after another, each at a random moment."""
    Ledger(location, create=False)  # imports the driver before the forks, which would spend their lives on it
    return _kill_each(lambda tell: _spend_until_killed(location, side_log, tell), kills, seed, most_steps=8)


def kill_creators(folder: str, kills: int, seed: int) -> dict[str, object]:
    """Kill -9 processes that make a new ledger each, at a random moment of the making."""

    def create(tell: int) -> None:
        os.write(tell, b".")
        ledger = Ledger(os.path.join(folder, f"{os.getpid()}.db"))
        ledger.open("credit", privacy_unit="client_id", budget=Budget(epsilon=1, delta=0))
        os.write(tell, b".")
        time.sleep(60)

    return _kill_each(create, kills, seed, most_steps=2)


def fork_in_mid_work(location: str, moment: str) -> list[str]:
    """Fork at a bad moment of another thread; return how the children fared, who spend once each."""
    backends.BUSY_SECONDS = 20  # a busy machine may starve a child for seconds; a deadlock lasts
    account = Ledger(location, create=False).account("credit")
    reached, stop = threading.Event(), threading.Event()

    def spend() -> None:
        while not stop.is_set():
            account.reserve(PureDpEvent(0.001), purpose="parent", relation=ADD_REMOVE)

    def ask() -> None:
        account._book.ask("credit", lambda _: (reached.set(), stop.wait()))  # pyright: ignore[reportPrivateUsage]

    if moment == "in a transaction":
        _slow_down(reached)
    thread = threading.Thread(target=ask if moment == "with its lock" else spend)
    thread.start()
    if moment != "anywhere":
        reached.wait()
    if moment == "in a transaction":
        stop.set()  # this one is enough
    fared = [_forked(account) for _ in range(10 if moment == "anywhere" else 1)]
    stop.set()
    thread.join()
    return fared


def _slow_down(reached: threading.Event) -> None:
    """Let every transaction take a while after its row was written and before it commits."""
    append = store.Store.append

    def slow(*given: Any) -> None:
        append(*given)
        reached.set()
        time.sleep(0.3)

    store.Store.append = slow


def _forked(account: Account) -> str:
    """Let a child spend once, with a handle that its parent is using."""
    pid = os.fork()
    if pid == 0:
        try:
            account.reserve(PureDpEvent(0.001), purpose="child", relation=ADD_REMOVE)
        except LedgerError:
            FORGET(3)
        FORGET(0)
    for _ in range(12_000):  # two minutes: only what hangs for good is called so
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return {0: "fine", 3: "refused"}.get(os.waitstatus_to_exitcode(status), "failed")
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hung"


def _kill_each(victim: Callable[[int], None], kills: int, seed: int, most_steps: int) -> dict[str, object]:
    """Let each victim tell a random number of steps, wait a random part of one more, and kill it.

    Moments are counted in steps, not in seconds, so that a busy machine kills in mid-work just the same.
    """
    moments = random.Random(seed)
    step = 0.01  # seconds: the longest one seen of late
    for _ in range(kills):
        listen, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            victim(tell)
            FORGET(0)
        os.close(tell)
        for _ in range(moments.randint(0, most_steps)):
            started = time.perf_counter()
            os.read(listen, 1)
            step = max(0.9 * step, time.perf_counter() - started)
        time.sleep(moments.uniform(0, step))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(listen)
    return {"kills": kills}


def _spend_until_killed(location: str, side_log: str, tell: int) -> None:
    """Spend for ever; after every step that came back, say so durably in an independent file."""
    log = os.open(side_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, number: int) -> None:
        os.write(log, f"{what} {number}\n".encode())
        os.fsync(log)
        os.write(tell, b".")

    account = Ledger(location, create=False).account("credit")
    while True:
        reservation = account.reserve(PureDpEvent(2**-20), purpose="doomed", relation=ADD_REMOVE)
        note("reserved", reservation.number)
        reservation.begin()
        note("touched", reservation.number)  # from here on the data counts as seen
        reservation.commit()
        note("committed", reservation.number)


if __name__ == "__main__":
    _, action, *given = sys.argv
    if action == "contend":
        answer = contend(given[0], float(given[1]), int(given[2]))
    elif action == "kill":
        answer = kill(given[0], given[1], int(given[2]), int(given[3]))
    elif action == "fork":
        answer = fork_in_mid_work(given[0], given[1])
    else:
        answer = kill_creators(given[0], int(given[1]), int(given[2]))
    sys.stdout.write(json.dumps(answer) + "\n")
