# SPDX-License-Identifier: Apache-2.0
"""A secure sum under Flower's own simulation engine: real messages, client apps in other processes."""

import time

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from sfumato.federated.secure_sum.flower_mod import RECORD, secure_sum_mod
from sfumato.federated.secure_sum.flower_round import secure_round
from sfumato.federated.secure_sum.secure_sum import SecureSum

CLIENTS, SIZE = 6, 300
MECHANISM = SecureSum(
    dimension=SIZE, clip_norm=10.0, noise_multiplier=1e-3, cohort=CLIENTS, least_survivors=4, bits=20
)


def fails_to_answer(message, context, call_next):
    """A mod for a client whose answer to the third message is lost in the second round."""
    asked = message.content.config_records[RECORD]
    if asked["stage"] == "vector" and asked["seed"] == 1 and context.node_config["partition-id"] == 0:
        raise ConnectionError("lost")
    return call_next(message, context)


def make_client():
    app = ClientApp(mods=[fails_to_answer, secure_sum_mod(MECHANISM, rounds=2)])

    @app.train()
    def train(message, context):
        arrays = message.content["arrays"].to_numpy_ndarrays()
        by = 0.1 * (1 + context.node_config["partition-id"])
        return Message(RecordDict({"arrays": ArrayRecord([a - by for a in arrays])}), reply_to=message)

    return app


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_secure_sum_in_flowers_simulation_with_a_client_that_drops_out():
    from flwr.simulation import run_simulation

    results = []
    server = ServerApp()

    @server.main()
    def main(grid, context):
        nodes = []
        while len(nodes) < CLIENTS:
            nodes = list(grid.get_node_ids())
            time.sleep(0.1)
        for turn in range(2):
            content = RecordDict({"arrays": ArrayRecord([np.zeros(SIZE)])})
            results.append(secure_round(grid, nodes, MECHANISM, content=content, seed=turn, timeout=600))

    run_simulation(
        server, make_client(), num_supernodes=CLIENTS, backend_config={"client_resources": {"num_cpus": 1}}
    )
    whole, without = results
    assert whole.survivors == CLIENTS
    assert np.abs(whole.total - 2.1).max() < 0.1
    assert without.survivors == CLIENTS - 1
    assert np.abs(without.total - 2.0).max() < 0.1
