# SPDX-License-Identifier: Apache-2.0
"""Runs in Flower's simulation engine (Ray), in a process of their own: `python simulated.py RESULTS`."""

import sys

import torch
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from sfumato.federated.clients.local_training import LocalTraining
from sfumato.federated.flower import ExampleLevel, LocalNoise, PrivateStrategy, client_app

NODES = 4
TRAINING = LocalTraining(epochs=2, batch_size=4)


def rows_of(context):
    draws = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    return torch.randn(8, 3, generator=draws), torch.randint(2, (8,), generator=draws)


def model_of():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def simulated(app, start):
    """Run a client's app with a function of the grid as ServerApp; return what the function returned."""
    results, server = [], ServerApp()

    @server.main()
    def started(grid, context):
        results.append(start(grid))

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server, app, num_supernodes=NODES, backend_config=resources)
    (result,) = results
    return result


def private(grid):
    model = model_of()
    strategy = PrivateStrategy(
        model, noise_multiplier=1e-7, delta=1e-3, cohort=NODES, clip_norm=100.0, least_clients=NODES
    )
    return strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=2)


def averaged(grid):
    """Average as Flower does, for one round more than clients have agreed to."""
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=NODES, min_train_nodes=NODES)
    return strategy.start(grid=grid, initial_arrays=ArrayRecord(model_of().state_dict()), num_rounds=2)


def facts(result):
    return {
        "weight": result.arrays.to_torch_state_dict()["weight"],
        "rounds": sorted(result.train_metrics_clientapp),
        "metrics": [dict(record) for record in result.train_metrics_clientapp.values()],
    }


def main(path):
    local = LocalNoise(clip_norm=1.0, rounds=1, noise_multiplier=1e-7, delta=1e-5)
    examples = ClientApp()
    size = {"public_size": 8, "expected_batch_size": 4, "noise_multiplier": 1.0, "delta": 1e-3}
    examples.train()(ExampleLevel(model_of(), rows_of, rounds=1, local_steps=2, **size))
    found = {
        "private": facts(simulated(client_app(model_of(), rows_of, TRAINING), private)),
        "local": facts(simulated(client_app(model_of(), rows_of, mods=[local]), averaged)),
        "examples": facts(simulated(examples, averaged)),
    }
    torch.save(found, path)


if __name__ == "__main__":
    main(sys.argv[1])
