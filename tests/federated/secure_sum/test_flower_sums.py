# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.flower_mod import RECORD, secure_sum_mod
from sfumato.federated.secure_sum.flower_sums import GridSums
from sfumato.federated.secure_sum.secure_sum import SecureSum
from sfumato.training.engine.contributions import NoisySummer

NODES = [100, 200, 300, 400, 500]


def mechanism(**options):
    facts = {"dimension": 6, "clip_norm": 10.0, "noise_multiplier": 1e-3, "cohort": 4, "least_survivors": 3}
    return SecureSum(**{**facts, **options})


def moving(by):
    app = ClientApp(mods=[secure_sum_mod()])

    @app.train()
    def train(message, context):
        assert message.content["config"]["server-round"] == 3
        state = message.content["arrays"].to_torch_state_dict()
        moved = {name: value - by for name, value in state.items()}
        return Message(RecordDict({"arrays": ArrayRecord(moved)}), reply_to=message)

    return app


class Buffered(nn.Linear):
    """A layer with a buffer, which is sent but not trained."""

    def __init__(self):
        super().__init__(2, 2)
        self.register_buffer("count", torch.zeros(3))


def sums(grid, **options):
    nodes = grid({})
    nodes.apps.update({node: moving(0.1 * i) for i, node in enumerate(NODES)})
    from flwr.app import Context

    nodes.contexts.update({node: Context(1, node, {}, RecordDict(), {}) for node in NODES})
    return nodes, GridSums(nodes, NODES, mechanism(**options))


def test_the_sum_of_a_batch_comes_back_by_parameter(grid):
    nodes, found = sums(grid)
    assert isinstance(found, NoisySummer) and found.summation == mechanism()
    total = found.noisy_sum(Buffered(), (torch.tensor([1, 3]),), step=2, noise_multiplier=1e-3)
    assert set(total) == {"weight", "bias"} and total["weight"].shape == (2, 2)
    assert np.abs(total["weight"].numpy() - 0.4).max() < 0.2
    invited = [m for m in nodes.received if "keys" in m.content[RECORD]]
    assert len(invited) == 4  # two of them add noise alone


def test_a_batch_without_clients_is_noise_alone(grid):
    _, found = sums(grid)
    total = found.noisy_sum(Buffered(), (), step=2, noise_multiplier=1e-3)
    assert total is not None and np.abs(total["bias"].numpy()).max() < 0.2


def test_a_batch_larger_than_the_cohort_and_too_many_drop_outs_give_no_sum(grid):
    nodes, found = sums(grid)
    assert found.noisy_sum(Buffered(), (torch.arange(5),), step=2, noise_multiplier=1e-3) is None
    assert not nodes.received  # nobody was asked
    nodes.lost = {"vector": NODES}
    assert found.noisy_sum(Buffered(), (torch.arange(2),), step=2, noise_multiplier=1e-3) is None


def test_fewer_nodes_than_the_cohort_are_refused(grid):
    for nodes in ([1, 2, 3], [1, 1, 2, 3, 4]):
        with pytest.raises(InvalidParameterError, match="cohort=4"):
            GridSums(grid({}), nodes, mechanism())


def test_the_statement_tells_what_the_server_knows():
    mechanism = SecureSum(dimension=2, clip_norm=1.0, noise_multiplier=1.0, cohort=2, least_survivors=2)
    assert "not against the server" in GridSums(None, [1, 2], mechanism).statement()
