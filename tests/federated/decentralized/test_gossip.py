# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest
import torch
from torch import nn

from sfumato.accounting.price import price
from sfumato.datasets.embedded import digits
from sfumato.errors import BudgetExceededError, InvalidParameterError
from sfumato.federated.clients.client_rows import LazyRows
from sfumato.federated.clients.partitions import iid
from sfumato.federated.decentralized.gossip import gossip
from sfumato.federated.decentralized.graph import Graph
from sfumato.federated.decentralized.protection import ClippedUpdates, NoisySteps
from sfumato.federated.messages.clipped_noise import ClippedNoise
from sfumato.ledger import Budget, Ledger

GRAPH, DELTA = Graph.ring(4), 1e-5
QUIET = ClippedUpdates(noise=ClippedNoise(noise_multiplier=1e-4, clip_norm=2.0))
LOUD = ClippedUpdates(noise=ClippedNoise(noise_multiplier=10.0))


def rows(labels=2):
    features = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    return features, torch.arange(40) % labels


def run_of(**changes):
    settings = {"graph": GRAPH, "protection": LOUD, "rounds": 2, "delta": DELTA, "seed": 1}
    return gossip(nn.Linear(3, 2), iid(rows(), clients=4), **settings | changes)


def test_nodes_learn_digits_together_and_come_close():
    data = digits()
    clients = iid((data.train.features.flatten(1), data.train.labels), clients=4)
    evaluation = data.test.features.flatten(1), data.test.labels
    run = gossip(
        nn.Linear(64, 10),
        clients,
        graph=GRAPH,
        protection=QUIET,
        rounds=6,
        delta=DELTA,
        evaluation=evaluation,
        seed=1,
    )
    assert run.accuracy > 0.88
    assert len(run.history) == 6 and run.history[-1].nodes == (0, 1, 2, 3)
    apart = [a - b for a, b in zip(run.models[0].parameters(), run.models[2].parameters(), strict=True)]
    assert sum(float(a.detach().norm()) for a in apart) < 1.0


def test_the_guarantee_is_the_price_of_all_rounds_for_each_node():
    run = run_of(rounds=5)
    assert run.price == price(LOUD.event(5), delta=DELTA, relation=LOUD.relation)
    assert str(run.guarantee).endswith("for one client, replace-one neighbors")


def test_examples_are_protected_by_noisy_steps():
    steps = NoisySteps(noise_multiplier=3.0, public_size=10, expected_batch_size=2)
    assert str(run_of(protection=steps).guarantee).endswith("for one example, add-remove neighbors")


def test_the_model_that_is_passed_stays_and_seeds_repeat_a_run():
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    first, again, other = (
        gossip(model, iid(rows(), clients=4), graph=GRAPH, protection=LOUD, rounds=2, delta=DELTA, seed=seed)
        for seed in (1, 1, None)
    )
    assert torch.equal(model.weight, before)
    assert torch.equal(first.models[0].weight, again.models[0].weight)
    assert not torch.equal(first.models[0].weight, other.models[0].weight)
    assert "seeded" in first.statement() and "seeded" not in other.statement()


@pytest.mark.parametrize(
    "changes", [{"graph": Graph.ring(5)}, {"rounds": 0}, {"delta": 0.5}, {"timeout": 0}, {"purpose": "alone"}]
)
def test_settings_that_do_not_fit_are_refused(changes):
    with pytest.raises(InvalidParameterError):
        run_of(**changes)


def accounts(budgets, relation="replace-one"):
    ledger = Ledger.temporary()
    return [
        ledger.open(
            f"node {n}",
            privacy_unit="client",
            relation=relation,
            budget=Budget(epsilon=epsilon, delta=DELTA),
        )
        for n, epsilon in enumerate(budgets)
    ]


def test_every_node_is_charged_before_a_row_is_read():
    paying = accounts([5.0] * 4)
    seen = []

    def read(node):
        seen.append([len(account.releases()) for account in paying])
        return rows()

    clients = LazyRows(read, clients=4, like=rows())
    run = gossip(
        nn.Linear(3, 2),
        clients,
        graph=GRAPH,
        protection=LOUD,
        rounds=2,
        delta=DELTA,
        accounts=paying,
        purpose="study",
    )
    assert seen and all(counts == [1, 1, 1, 1] for counts in seen)
    assert run.accounts == ("node 0", "node 1", "node 2", "node 3")
    assert all(account.spent().epsilon > 0.9 * run.price.epsilon for account in paying)


def test_a_run_that_protects_rows_is_not_charged_to_accounts_of_clients():
    paying = accounts([5.0] * 4, "add-remove")
    steps = NoisySteps(noise_multiplier=9.0, public_size=6, expected_batch_size=2, steps=1, learning_rate=0.1)
    given = {"graph": GRAPH, "rounds": 2, "delta": DELTA, "accounts": paying, "purpose": "study"}
    clients = LazyRows(lambda node: rows(), clients=4, like=rows())
    for unit, said in (
        ("example", "protects one 'client', but this run"),
        ("patient", "'patient' was given"),
    ):
        with pytest.raises(InvalidParameterError, match=said):
            gossip(nn.Linear(3, 2), clients, protection=replace(steps, privacy_unit=unit), **given)
    assert [account.spent().epsilon for account in paying] == [0.0] * 4
    run = gossip(nn.Linear(3, 2), clients, protection=replace(steps, privacy_unit="client"), **given)
    assert run.guarantee.privacy_unit == "client"  # the caller says that each row is another client


def test_if_one_node_cannot_pay_none_is_charged_and_no_row_is_read():
    paying = accounts([5.0, 5.0, 0.01, 5.0])

    def read(node):
        raise AssertionError("a row was read")

    with pytest.raises(BudgetExceededError):
        gossip(
            nn.Linear(3, 2),
            LazyRows(read, clients=4, like=rows()),
            graph=GRAPH,
            protection=LOUD,
            rounds=2,
            delta=DELTA,
            accounts=paying,
            purpose="study",
        )
    assert [account.spent().epsilon for account in paying] == [0.0] * 4


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_rows_that_cannot_be_read_do_not_stop_other_processes(error, monkeypatch):
    def read(number):
        if number == 1:
            raise error("row 7 is not a number")
        return torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)

    seen = []
    monkeypatch.setattr("sfumato.federated.decentralized.gossip.play", lambda _f, rows, _r: seen.extend(rows))
    like = torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)
    updates = ClippedUpdates(noise=ClippedNoise(noise_multiplier=1.0))
    settings = {"graph": Graph.ring(3), "protection": updates, "rounds": 1, "delta": 1e-5}
    gossip(nn.Linear(3, 2), LazyRows(read, clients=3, like=like), simulate=False, **settings)
    assert [rows is None for rows in seen] == [False, True, False]
