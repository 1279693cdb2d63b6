# SPDX-License-Identifier: Apache-2.0
"""Forks: a process with a ledger can fork, whatever its other threads are doing at that moment.

A thread does not live on in the child, but the locks it held do. SQLite also remembers in the process which
file locks its connections hold: a child that inherits an open transaction would treat its parent's locks as
its own.

Guarantee  No fork cuts through a transaction: it waits for those under way, which take milliseconds. The
           child has no lock that a thread of its parent held, and no state that was read by half.
Failure    A transaction that waits for another process could delay a fork for a minute. After `PATIENCE` the
           fork goes ahead: the child may then be refused on that ledger, but is never given a wrong answer.
"""

import os
import threading
import weakref
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

__all__ = ["renewed_in_child", "uncut"]

PATIENCE = 5.0  # seconds


class Renewable(Protocol):
    """What holds locks and state that must not be taken over by a child."""

    def renew(self) -> None:
        """Begin anew, as after birth."""
        ...


class _Gate:
    """Lets transactions through, and holds them back while a thread wants to fork."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self._condition = threading.Condition()
        self._inside = 0
        self._forks = 0

    @contextmanager
    def passing(self) -> Generator[None]:
        with self._condition:
            self._condition.wait_for(lambda: self._forks == 0)
            self._inside += 1
        try:
            yield
        finally:
            with self._condition:
                self._inside -= 1
                self._condition.notify_all()

    def close(self) -> None:
        self._condition.acquire()
        self._forks += 1
        self._condition.wait_for(lambda: self._inside == 0, timeout=PATIENCE)

    def reopen(self) -> None:
        self._forks -= 1
        self._condition.notify_all()
        self._condition.release()


_gate = _Gate()
_renewables: "weakref.WeakSet[Renewable]" = weakref.WeakSet()


def uncut() -> AbstractContextManager[None]:
    """Return a context that no fork cuts through."""
    return _gate.passing()


def renewed_in_child(what: Renewable) -> None:
    """Have `what` renewed in every child of this process."""
    _renewables.add(what)


def _renew() -> None:
    _gate.renew()
    for what in list(_renewables):
        what.renew()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_gate.close, after_in_parent=_gate.reopen, after_in_child=_renew)
