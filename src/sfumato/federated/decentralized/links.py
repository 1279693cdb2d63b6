# SPDX-License-Identifier: Apache-2.0
"""Connections of one node to its neighbors, over TCP on the loopback address.

Of two neighbors, the one with the larger number connects to the other, and says who it is: the token of the
run and its number. Each connection has two threads, so that no neighbor can hold up a node: one sends what
waits in a queue, one receives. A frame is the number of a round, the number of bytes, and the bytes.

Guarantee  Only what is passed to `send` leaves. What is received is kept by round: a late message of an old
           round is dropped, and a message that came early is used in its round.
Failure    A neighbor whose connection is closed, or that did not send the message of a round in time, is left
           out from then on. A frame of another length than expected counts as no message. A stranger without
           the token is disconnected.
Not here   Other machines: nothing is encrypted. All nodes know the token: one can claim to be another.
"""

import hmac
import queue
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import torch
from torch import Tensor

__all__ = ["LOOPBACK", "Links"]

LOOPBACK: Final = "127.0.0.1"
_HELLO: Final = struct.Struct(">32sQ")  # token and number of a node
_HEAD: Final = struct.Struct(">QQ")  # number of a round, and bytes that follow
_PART: Final = 1 << 20  # bytes read at once
_POLL: Final = 0.2  # seconds between two attempts to connect


class Links:
    """The connections of one node.

    Args:
        number: The number of the node.
        neighbors: The numbers of its neighbors.
        size: How many numbers a message has.
        token: 32 secret bytes that all nodes of a run share.
        timeout: How many seconds to wait for a message.
    """

    def __init__(
        self, number: int, neighbors: Sequence[int], *, size: int, token: bytes, timeout: float
    ) -> None:
        self._number, self._bytes, self._token, self._timeout = number, 4 * size, token, timeout
        self._queues: dict[int, queue.Queue[bytes | None]] = {n: queue.Queue() for n in neighbors}
        self._taken: set[int] = set()  # neighbors that have connected here
        self._open = set(neighbors)  # neighbors that messages are awaited from
        self._inbox: dict[tuple[int, int], bytes | None] = {}  # by round and sender
        self._round, self._changed = 0, threading.Condition()
        self._threads: list[threading.Thread] = []  # of connections to neighbors
        self._connections: list[socket.socket] = []
        self._server = socket.create_server((LOOPBACK, 0))
        self.port: int = self._server.getsockname()[1]
        self._start(self._accept)

    def connect(self, ports: Mapping[int, int]) -> None:
        """Begin to connect to neighbors with smaller numbers.

        Args:
            ports: The port of each node that is there. Other neighbors are left out.
        """
        for neighbor in list(self._queues):
            if neighbor not in ports:
                self._leave_out(neighbor)
            elif neighbor < self._number:
                self._start(self._reach, neighbor, ports[neighbor])

    def send(self, step: int, message: Tensor) -> None:
        """Send a message to all neighbors, without waiting.

        Args:
            step: The number of the round.
            message: The message, of float32.
        """
        payload = message.numpy().astype("<f4").tobytes()
        for waiting in self._queues.values():
            waiting.put(_HEAD.pack(step, len(payload)) + payload)

    def receive(self, step: int) -> dict[int, Tensor]:
        """Wait for the messages of a round.

        Args:
            step: The number of the round. Rounds come in order.

        Returns:
            The messages that came in time, by sender. Their numbers are not checked.
        """
        deadline = time.monotonic() + self._timeout
        with self._changed:
            self._round = step
            while missing := [n for n in self._open if (step, n) not in self._inbox]:
                if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    self._open -= set(missing)
            found = {n: self._inbox.get((step, n)) for n in self._queues}
            self._inbox = {key: frame for key, frame in self._inbox.items() if key[0] > step}
        return {n: _tensor(frame) for n, frame in found.items() if frame is not None}

    def close(self) -> None:
        """Send what waits, wait until neighbors have done so, for at most the timeout, and close all."""
        for waiting in self._queues.values():
            waiting.put(None)
        deadline = time.monotonic() + self._timeout
        with self._changed:
            threads, connections = list(self._threads), list(self._connections)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for connection in (*connections, self._server):
            with suppress(OSError):  # its other end may be closed already
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
            connection.close()

    # --- threads -----------------------------------------------------------------------------------------

    def _start(self, work: object, *args: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=args, daemon=True)  # pyright: ignore[reportArgumentType]
        thread.start()
        return thread

    def _accept(self) -> None:
        """Take in connections until the node ends."""
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:  # closed
                return
            self._start(self._welcome, connection)

    def _welcome(self, connection: socket.socket) -> None:
        """Find out who connected, and disconnect strangers."""
        hello = _read(connection, _HELLO.size)
        token, number = (b"", -1) if hello is None else _HELLO.unpack(hello)
        with self._changed:
            known = hmac.compare_digest(token, self._token) and number in self._queues
            welcome = known and number not in self._taken and number > self._number
            self._taken |= {number} if welcome else set()
        if not welcome:
            connection.close()
            return
        self._serve(number, connection)

    def _reach(self, neighbor: int, port: int) -> None:
        """Connect to a neighbor."""
        deadline = time.monotonic() + self._timeout
        while time.monotonic() < deadline:
            try:
                connection = socket.create_connection((LOOPBACK, port), timeout=self._timeout)
                connection.settimeout(None)
                connection.sendall(_HELLO.pack(self._token, self._number))
            except OSError:
                time.sleep(_POLL)
                continue
            self._serve(neighbor, connection)
            return
        self._leave_out(neighbor)

    def _serve(self, neighbor: int, connection: socket.socket) -> None:
        """Receive from a neighbor until it is gone; another thread sends."""
        with self._changed:
            self._connections.append(connection)
            sender = self._start(self._send_all, connection, self._queues[neighbor])
            self._threads += [sender, threading.current_thread()]
        while (head := _read(connection, _HEAD.size)) is not None:
            step, count = _HEAD.unpack(head)
            payload = _read(connection, count, keep=count == self._bytes)
            if payload is None:
                break
            with self._changed:
                if step >= self._round:
                    self._inbox[step, neighbor] = payload if count == self._bytes else None
                self._changed.notify_all()
        self._leave_out(neighbor)

    def _send_all(self, connection: socket.socket, waiting: "queue.Queue[bytes | None]") -> None:
        """Send what waits for a neighbor, until there is no more or the neighbor is gone."""
        try:
            while (frame := waiting.get()) is not None:
                connection.sendall(frame)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            return  # `_serve` sees the end of the connection

    def _leave_out(self, neighbor: int) -> None:
        with self._changed:
            self._open.discard(neighbor)
            self._changed.notify_all()


def _read(connection: socket.socket, count: int, *, keep: bool = True) -> bytes | None:
    """Return so many bytes, or None if the connection ends before; bytes that are not kept are dropped."""
    found = bytearray()
    try:
        while count:
            part = connection.recv(min(count, _PART))
            if not part:
                return None
            count -= len(part)
            if keep:
                found += part
    except OSError:
        return None
    return bytes(found)


def _tensor(frame: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(frame, dtype="<f4").astype(np.float32))
