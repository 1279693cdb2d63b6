# SPDX-License-Identifier: Apache-2.0
import math

import torch
from torch import nn

from sfumato.accounting.price import price
from sfumato.federated.decentralized.gossip_run import GossipRun, Observer
from sfumato.federated.decentralized.graph import Graph
from sfumato.federated.decentralized.protection import ClippedUpdates
from sfumato.federated.messages.clipped_noise import ClippedNoise

PROTECTION = ClippedUpdates(noise=ClippedNoise(noise_multiplier=10.0))
EVALUATION = torch.eye(2), torch.tensor([0, 1])


def states():
    """Return a model that is right on both rows, and one that is wrong on both."""
    right, wrong = torch.tensor([1.0, 0, 0, 1]), torch.tensor([0.0, 1, 1, 0])
    return right, wrong


def observer(**changes):
    model = nn.Linear(2, 2, bias=False)
    return Observer(model, **{"nodes": 2, "rounds": 2, "evaluation": EVALUATION} | changes)


def test_a_round_has_the_accuracy_of_each_node_and_their_distance():
    seen, (right, wrong) = observer(), states()
    for step in range(2):
        seen.report(1, step, wrong)
        seen.report(0, step, right)
    last = seen.history()[-1]
    assert last.accuracies == (1.0, 0.0) and last.nodes == (0, 1)
    assert math.isclose(last.consensus_distance, 1.0)  # each is (1, 1, 1, 1) / 2 in size from the average
    assert torch.equal(seen.models()[1].weight.flatten(), wrong)


def test_a_node_that_stops_has_no_model_and_leaves_the_later_rounds_to_others():
    seen, (right, wrong) = observer(evaluation=None), states()
    seen.report(0, 0, right)
    seen.report(1, 0, wrong)
    seen.report(0, 1, right)
    assert [entry.nodes for entry in seen.history()] == [(0, 1), (0,)]
    assert seen.models()[1] is None and seen.history()[0].accuracies is None


def test_a_statement_says_what_was_sent_and_who_is_protected():
    run = GossipRun(
        models=(nn.Linear(2, 2), None),
        protection=PROTECTION,
        rounds=3,
        graph=Graph.ring(2),
        price=price(PROTECTION.event(3), delta=1e-5, relation=PROTECTION.relation),
        history=(),
        study_note=None,
    )
    said = run.statement()
    assert "without a server" in said and "1 node(s) did not finish" in said
    assert str(run.guarantee) in said and run.accuracy is None
