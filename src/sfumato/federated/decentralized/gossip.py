# SPDX-License-Identifier: Apache-2.0
"""Train models on the nodes of a graph, without a server.

All nodes begin with the same public model. In each round a node learns from its own rows, adds noise, sends
the result to its neighbors, and averages what it received (`node`). Nobody sees all messages who does not
listen to all connections; the guarantee holds for somebody who does.

Guarantee  For each node on its own: all messages of all nodes, and so all models, satisfy `run.guarantee` for
           the rows of that node (`protection`, proof in `node`). Someone with rows at k nodes has k times the
           event.
Failure    Accounts are charged before a row is read. If one of them cannot pay, none is charged. A failure
           from there on leaves the runs spent. Nodes that die: see `node` and `links`.
Source     Lian et al. 2017, arXiv:1705.09056 (decentralized SGD); Cyffers and Bellet 2022, arXiv:2012.05326
           (what neighbors see; we claim no amplification by the distance in the graph).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato._failures import ordinary
from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError
from sfumato.federated.clients.client_rows import ClientRows, require_clients
from sfumato.federated.decentralized.gossip_run import GossipRun, Observer
from sfumato.federated.decentralized.graph import Graph
from sfumato.federated.decentralized.processes import (
    Federation,
    Report,
    node_generator,
    play,
    require_processes,
)
from sfumato.federated.decentralized.protection import NoisySteps, Protection, state_of
from sfumato.federated.messages.charges import all_charged, first_record_note, require_purpose, unit_of_rows
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import study_note
from sfumato.training.privacy.terms import ROW_UNITS

__all__ = ["gossip"]


def gossip(
    model: nn.Module,
    clients: ClientRows,
    *,
    graph: Graph,
    protection: Protection,
    rounds: int,
    delta: float,
    evaluation: tuple[Tensor, Tensor] | None = None,
    accounts: Sequence[Account] | None = None,
    purpose: str | None = None,
    seed: int | None = None,
    simulate: bool = True,
    timeout: float = 60.0,
) -> GossipRun:
    """Train one model on each node of a graph by gossip averaging with differential privacy.

    Args:
        model: The public model that all nodes begin with, float32 on the CPU. It is not changed.
        clients: What nodes hold: one client for each node of the graph.
        graph: Who talks to whom.
        protection: Who is protected, and how: `ClippedUpdates` or `NoisySteps`.
        rounds: How many rounds there are.
        delta: The delta of the guarantee.
        evaluation: Features and labels that are NOT protected, for the accuracy of each round.
        accounts: One account for each node, which pays for its rows. Needs `purpose`.
        purpose: What the run is for, in one line.
        seed: None for secure noise. A number makes the noise repeatable, and protects nobody.
        simulate: Whether all nodes run in this process. Otherwise each node is a process of its own, and
            nodes talk over TCP on the loopback address; the model and the loss must be picklable, and a
            script that calls this needs `if __name__ == "__main__":`, because each process imports it again.
        timeout: How many seconds a process waits for the message of a neighbor.

    Returns:
        The run: the model of each node, the guarantee of each node, its history and its statement.

    Raises:
        InvalidParameterError: If a setting is out of range, graph, clients and accounts do not have the
            same number, accounts protect more than rows and the run does not, or processes cannot start (a
            script without that line). Nothing is spent.
        BudgetExceededError: If an account cannot pay. Nothing is spent.

    >>> from sfumato.federated.clients.partitions import iid
    >>> from sfumato.federated.decentralized.protection import ClippedUpdates
    >>> from sfumato.federated.messages.clipped_noise import ClippedNoise
    >>> clients = iid((torch.zeros(40, 2), torch.zeros(40, dtype=torch.int64)), clients=4)
    >>> noise = ClippedNoise.calibrated(epsilon=8, delta=1e-5, releases=3)
    >>> run = gossip(nn.Linear(2, 2), clients, graph=Graph.ring(4), rounds=3, delta=1e-5,
    ...              protection=ClippedUpdates(noise=noise))
    >>> print(run.guarantee)
    (8, 1e-05)-differential privacy for one client, replace-one neighbors
    """
    _check.count(rounds=rounds)
    _check.delta(delta=delta)
    _check.positive(timeout=timeout)
    require_clients(clients)
    _same_number(graph, clients, accounts, purpose)
    _require_unit(protection, accounts or ())
    cost = price(protection.event(rounds), delta=delta, relation=protection.relation)
    federation = Federation(
        model=model,
        graph=graph,
        protection=protection,
        rounds=rounds,
        like=tuple(clients.like),
        seed=seed,
        timeout=timeout,
        threads=torch.get_num_threads(),
    )
    observer = Observer(model, nodes=graph.nodes, rounds=rounds, evaluation=evaluation)
    note = study_note(node_generator(seed, 0))
    state_of(model)  # refuses what cannot be sent, before anything is spent
    protection.rehearse(model, clients)
    if not simulate:
        require_processes(federation)
    paid = protection.event(rounds), protection.relation
    charges = [(account, *paid) for account in accounts or ()]
    with all_charged(charges, purpose=purpose, seeded=note is not None):
        if simulate:
            _simulate(federation, clients, observer.report)
        else:
            play(federation, [_read(clients, number) for number in range(graph.nodes)], observer.report)
    return GossipRun(
        models=observer.models(),
        protection=protection,
        rounds=rounds,
        graph=graph,
        price=cost,
        history=observer.history(),
        study_note=note,
        accounts=None if accounts is None else tuple(account.name for account in accounts),
        record_note=first_record_note(accounts or [None]),
    )


def _same_number(
    graph: Graph, clients: ClientRows, accounts: Sequence[Account] | None, purpose: str | None
) -> None:
    if len(clients) != graph.nodes:
        raise InvalidParameterError(
            f"the graph has {graph.nodes} nodes, but there are {len(clients)} clients. Use one for each node."
        )
    require_purpose(accounts or (), purpose)
    if accounts is not None and len(accounts) != graph.nodes:
        raise InvalidParameterError(
            f"there are {len(accounts)} accounts for {graph.nodes} nodes. Pass one account for each node."
        )


def _require_unit(protection: Protection, accounts: Sequence[Account]) -> None:
    """Raise if an account protects more than rows and the run does not; all rows of a node are enough."""
    if isinstance(protection, NoisySteps):
        unit = protection.privacy_unit
        unit_of_rows(accounts, None if unit in ROW_UNITS else unit, known=unit)


def _read(clients: ClientRows, number: int) -> Sequence[Any] | None:
    """Return the rows of a node; None if they cannot be read, which must not stop the others."""
    try:
        return ordinary(lambda: clients.rows(number))
    except Exception:  # its text may quote a row
        return None


def _simulate(federation: Federation, clients: ClientRows, report: Report) -> None:
    """Run all nodes in this process: the same nodes, with the same messages."""
    graph = federation.graph
    nodes = [federation.node(number, clients.rows) for number in range(graph.nodes)]
    for step in range(federation.rounds):
        messages = [node.message(step) for node in nodes]
        for node in nodes:
            heard = (node.number, *graph.neighbors(node.number))
            node.mix({number: messages[number] for number in heard})
            report(node.number, step, node.state)
