# SPDX-License-Identifier: Apache-2.0
"""Run each node in a process of its own.

The process that starts the nodes hands each of them its own rows, tells them the ports of their neighbors,
and gets the state of each node after each round, which is public. It takes no part in the averages. A node
that dies is left out by its neighbors (`links`).

Processes come from a server that imports this module once, where the system has one, and else are started
anew. Each imports the script that started it again, so a script needs `if __name__ == "__main__":`. Without
it every process would start a run, and charge for it: one process is tried before the charge.

Seeded noise is drawn from the same seeds as in a simulation, with the same results, bit by bit.
"""

import copy
import multiprocessing
import pickle
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Final

import torch
from torch import Tensor, nn

from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.federated.clients.client_rows import LazyRows
from sfumato.federated.decentralized.graph import Graph
from sfumato.federated.decentralized.links import Links
from sfumato.federated.decentralized.node import Node
from sfumato.federated.decentralized.protection import Protection, state_of
from sfumato.mechanisms.random import Generator, SeededGenerator, resolve

__all__ = ["Federation", "Report", "Started", "node_generator", "play", "require_processes"]

Report = Callable[[int, int, Tensor], None]  # (node, round, state)
_TOKEN: Final = 32  # bytes
_NAME: Final = "gossip node"  # how a process is named, also while it imports the script again
_GUARD: Final = (
    "gossip(simulate=False) starts processes, and each of them imports your script again. Put what the "
    'script does under `if __name__ == "__main__":`, and what it defines (networks, losses) above it. Or '
    "leave simulate=False out. Nothing was charged."
)
_METHOD: Final = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


@dataclass(frozen=True, kw_only=True)
class Federation:
    """What all nodes know: public settings."""

    model: nn.Module
    graph: Graph
    protection: Protection
    rounds: int
    like: Sequence[Any]
    seed: int | None
    timeout: float
    threads: int

    def node(self, number: int, read: Callable[[int], Sequence[Any]]) -> Node:
        """Return a node that holds the rows that `read` returns."""
        weights = self.graph.weights()[number]
        peers = (number, *self.graph.neighbors(number))
        own = copy.deepcopy(self.model)
        rows = LazyRows(read, clients=self.graph.nodes, like=self.like)
        speak = self.protection.open(own, rows, node=number, generator=node_generator(self.seed, number))
        return Node(number, {n: float(weights[n]) for n in peers}, state_of(self.model), speak)


@dataclass(frozen=True, kw_only=True)
class Started:
    """A process that runs one node, and the pipe to it."""

    process: Any
    pipe: "Connection[Any, Any]"


def node_generator(seed: int | None, number: int) -> Generator:
    """Return the source of noise of one node: secure, or for study its own part of a seed.

    >>> node_generator(None, 0).secure
    True
    """
    return resolve(None) if seed is None else SeededGenerator(seed).fork("gossip node", number)


def require_processes(federation: Federation) -> None:
    """Raise unless a process for a node can start: nothing is charged yet, and no row is read.

    Args:
        federation: What all nodes know.

    Raises:
        InvalidParameterError: If this is such a process itself, as a script without a guard starts it again;
            if none can start; or if the model or the protection cannot be pickled.
    """
    if multiprocessing.current_process().name.startswith(_NAME):
        raise InvalidParameterError(_GUARD)
    process = _context().Process(target=_nothing, args=(federation,), name=f"{_NAME}, tried", daemon=True)
    try:
        process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidParameterError(
            f"the model or the protection cannot be sent to a process ({type(error).__name__}): with "
            "simulate=False both must be picklable, so define networks and losses in a module, and not "
            "within a function. Nothing was charged."
        ) from error
    process.join()
    if process.exitcode != 0:
        raise InvalidParameterError(_GUARD)


def _context() -> Any:
    context = multiprocessing.get_context(_METHOD)
    if _METHOD == "forkserver":
        context.set_forkserver_preload([__name__])
    return context


def _nothing(_: Federation) -> None:
    """The work of a process that is only tried."""


def play(federation: Federation, rows: Sequence[Any], report: Report) -> None:
    """Run all nodes to their end, each in a process of its own.

    Args:
        federation: What all nodes know.
        rows: The rows of each node; None if they could not be read.
        report: Called with the number of a node, the number of a round and the state after it. A node that
            died reports no more.
    """
    context = _context()
    token = secrets.token_bytes(_TOKEN)
    started: dict[int, Started] = {}
    try:
        for number in range(federation.graph.nodes):
            here, there = context.Pipe()
            process = context.Process(
                target=_work,
                args=(federation, number, rows[number], token, there),
                name=f"{_NAME} {number}",
                daemon=True,
            )
            process.start()
            there.close()  # so that the pipe ends with the process
            started[number] = Started(process=process, pipe=here)
        _introduce(started)
        _listen(started, report)
    finally:
        for node in started.values():
            node.process.terminate()
            node.process.join()
            node.pipe.close()


def _introduce(started: dict[int, Started]) -> None:
    """Tell all nodes that are there the ports of all nodes that are there."""
    ports: dict[int, int] = {}
    for number, node in started.items():
        try:
            ports[number] = node.pipe.recv()
        except (EOFError, OSError):
            continue
    for number in ports:
        try:
            started[number].pipe.send(ports)
        except OSError:
            continue


def _listen(started: dict[int, Started], report: Report) -> None:
    """Pass on what nodes report, until all have ended."""
    pipes: dict[int, Any] = {number: node.pipe for number, node in started.items()}
    while pipes:
        ready = wait(list(pipes.values()))
        for number in [n for n, pipe in pipes.items() if pipe in ready]:
            try:
                step, state = pipes[number].recv()
            except (EOFError, OSError):
                del pipes[number]
                continue
            report(number, step, torch.from_numpy(state))


def _held(rows: Sequence[Any] | None) -> Sequence[Any]:
    if rows is None:
        raise SfumatoError("the rows of this node could not be read.")
    return rows


def _work(
    federation: Federation,
    number: int,
    rows: Sequence[Any] | None,
    token: bytes,
    pipe: "Connection[Any, Any]",
) -> None:
    """Run one node. This is the whole life of its process."""
    torch.set_num_threads(federation.threads)  # sums depend on it in the last bits
    node = federation.node(number, lambda _: _held(rows))
    links = Links(
        number,
        federation.graph.neighbors(number),
        size=len(node.state),
        token=token,
        timeout=federation.timeout,
    )
    pipe.send(links.port)
    links.connect(pipe.recv())
    for step in range(federation.rounds):
        message = node.message(step)
        links.send(step, message)
        node.mix({number: message} | links.receive(step))
        pipe.send((step, node.state.numpy()))
    links.close()
    pipe.close()
