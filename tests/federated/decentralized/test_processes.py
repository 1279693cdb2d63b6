# SPDX-License-Identifier: Apache-2.0
import multiprocessing
import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.federated.clients.partitions import iid
from sfumato.federated.decentralized import processes
from sfumato.federated.decentralized.gossip import gossip
from sfumato.federated.decentralized.graph import Graph
from sfumato.federated.decentralized.processes import Federation, node_generator, play
from sfumato.federated.decentralized.protection import ClippedUpdates, NoisySteps
from sfumato.federated.messages.clipped_noise import ClippedNoise

ROUNDS = 3
UPDATES = ClippedUpdates(noise=ClippedNoise(noise_multiplier=1.0))
STEPS = NoisySteps(noise_multiplier=1.0, public_size=10, expected_batch_size=5)


class Deadly:
    """Ends the process that it is sent to."""

    def __reduce__(self):
        return os._exit, (1,)


def clients(nodes):
    features = torch.randn(30, 3, generator=torch.Generator().manual_seed(1))
    return iid((features, torch.arange(30) % 2), clients=nodes)


def federation(graph, **changes):
    torch.manual_seed(0)
    settings = {"protection": UPDATES, "rounds": ROUNDS, "seed": 3, "timeout": 60.0}
    like = clients(graph.nodes).like
    threads = torch.get_num_threads()
    return Federation(model=nn.Linear(3, 2), graph=graph, like=like, threads=threads, **settings | changes)


def test_processes_compute_what_a_simulation_computes_bit_by_bit():
    model, evaluation = nn.Linear(3, 2), clients(1).rows(0)
    settings = {"graph": Graph.ring(3), "protection": UPDATES, "rounds": ROUNDS, "delta": 1e-5, "seed": 3}
    simulated, real = (
        gossip(model, clients(3), simulate=simulate, evaluation=evaluation, **settings)
        for simulate in (True, False)
    )
    assert simulated.history == real.history
    for a, b in zip(simulated.models, real.models, strict=True):
        assert torch.equal(a.weight, b.weight) and torch.equal(a.bias, b.bias)


SCRIPT = """
import torch
from torch import nn
from sfumato.federated import ClippedUpdates, Graph, gossip, iid
from sfumato.federated.messages.clipped_noise import ClippedNoise
from sfumato.ledger import Budget, Ledger

ledger = Ledger("ledger.db")
budget = Budget(epsilon=99, delta=1e-3)
accounts = [
    ledger.open(f"node {n}", privacy_unit="client", relation="replace-one", budget=budget) for n in range(2)
]
gossip(
    nn.Linear(3, 2),
    iid((torch.zeros(10, 3), torch.zeros(10, dtype=torch.int64)), clients=2),
    graph=Graph.complete(2),
    protection=ClippedUpdates(noise=ClippedNoise(noise_multiplier=9.0)),
    rounds=1, delta=1e-5, accounts=accounts, purpose="test", simulate=False,
)
"""


def test_a_script_without_a_guard_is_told_so_and_charges_nothing(tmp_path):
    from sfumato.ledger import Ledger

    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    ran = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode != 0
    assert 'under `if __name__ == "__main__":`' in ran.stderr.splitlines()[-1]
    ledger = Ledger(tmp_path / "ledger.db")
    assert [len(ledger.account(f"node {n}").releases()) for n in range(2)] == [0, 0]


def test_what_cannot_be_sent_to_a_process_is_refused_before_the_charge():
    class Local(nn.Linear):
        pass

    shared = federation(Graph.complete(2))
    with pytest.raises(InvalidParameterError, match=r"picklable.*Nothing was charged"):
        processes.require_processes(replace(shared, model=Local(3, 2)))
    processes.require_processes(shared)


def test_a_node_without_readable_rows_says_noise():
    shared = federation(Graph.complete(3))
    node = shared.node(1, lambda _: processes._held(None))
    said = node.message(0)
    assert said.isfinite().all() and not torch.equal(said, node.state)


@pytest.mark.slow
def test_noisy_steps_in_processes_are_those_of_a_simulation():
    settings = {"graph": Graph.complete(3), "protection": STEPS, "rounds": ROUNDS, "delta": 1e-5, "seed": 3}
    model = nn.Linear(3, 2)
    simulated, real = (gossip(model, clients(3), simulate=simulate, **settings) for simulate in (True, False))
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(simulated.models, real.models, strict=True))


@pytest.mark.slow
def test_others_go_on_when_a_node_dies_at_the_start():
    shared, found = federation(Graph.complete(3)), {}
    rows = [clients(3).rows(n) for n in range(2)] + [Deadly()]
    play(shared, rows, lambda node, step, state: found.update({(node, step): state}))
    assert sorted(found) == [(node, step) for node in range(2) for step in range(ROUNDS)]
    assert all(state.isfinite().all() for state in found.values())


@pytest.mark.slow
def test_others_go_on_when_a_node_is_killed_in_the_middle():
    shared, found = federation(Graph.complete(3), rounds=300), set()

    def report(node, step, state):
        found.add((node, step))
        if (node, step) == (2, 0):
            [process] = [p for p in multiprocessing.active_children() if p.name == "gossip node 2"]
            process.kill()

    play(shared, [clients(3).rows(n) for n in range(3)], report)
    assert {(0, 299), (1, 299)} <= found and (2, 299) not in found


def test_each_node_has_noise_of_its_own():
    from sfumato.mechanisms.random import words

    drawn = {int(words(1, node_generator(3, number))[0]) for number in range(4)}
    assert len(drawn) == 4 and int(words(1, node_generator(4, 0))[0]) not in drawn
    assert node_generator(None, 0).secure
