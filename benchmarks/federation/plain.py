# SPDX-License-Identifier: Apache-2.0
"""What privacy without noise costs: the recipe of MNIST beside Flower's own federated averaging, on Ray.

Both train the same clients from the same first weights, with the same local steps and as many rounds. Flower
asks half of all clients in each round and averages their models; we ask each client with probability one half
and average clipped updates. Only the cohorts are drawn apart.
"""

import argparse
import os
from collections.abc import Iterator
from typing import Any, Final

import torch
from federation.throughput import BACKEND, CLIENTS, clients, flower_client, initial
from models.results import Row
from torch import nn

from sfumato.datasets import load
from sfumato.federated.federate import federate
from sfumato.federated.recipes import FederationRecipe, federation_recipe
from sfumato.training import Clipping, Runtime

MOST_LOST: Final = 0.01  # of accuracy, against Flower's federated averaging
NO_NOISE: Final = 1e-6  # noise multiplier


def plain(options: argparse.Namespace) -> Iterator[Row]:
    """Train the recipe of MNIST without noise, and by Flower; yield both accuracies on test rows."""
    recipe = federation_recipe("mnist")
    rounds = 2 if options.quick else recipe.rounds
    ours, theirs = _ours(recipe, rounds, options), _flower(recipe, rounds)
    subject = f"mnist, {CLIENTS} clients, IID, {rounds} rounds"
    yield Row(subject=subject, name="accuracy of Flower's federated averaging on Ray", value=theirs)
    yield Row(
        subject=subject,
        name="accuracy of our run without noise",
        value=ours,
        bar=None if options.quick else theirs - MOST_LOST,
        at_least=True,
    )


def _ours(recipe: FederationRecipe, rounds: int, options: argparse.Namespace) -> float:
    run = federate(
        initial(recipe.model),
        clients(),
        rounds=rounds,
        expected_cohort_size=recipe.cohort_share * CLIENTS,
        local=recipe.local,
        clipping=Clipping(clip_norm=recipe.clip_norm),
        noise_multiplier=NO_NOISE,
        delta=1e-3,
        evaluation=load("mnist").test,
        evaluate_every=rounds,
        progress=False,
        runtime=Runtime(device=options.device),
    )
    assert run.accuracy is not None
    return run.accuracy


def _flower(recipe: FederationRecipe, rounds: int) -> float:
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from flwr.simulation import run_simulation

    model = initial(recipe.model)
    run_simulation(
        _server(model, rounds, recipe.cohort_share),
        flower_client(recipe.model, recipe.local),
        num_supernodes=CLIENTS,
        backend_config=BACKEND,
    )
    test = load("mnist").test
    with torch.no_grad():
        return float((model(test.features).argmax(1) == test.labels).float().mean())


def _server(model: nn.Module, rounds: int, share: float) -> Any:
    from flwr.app import ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg

    class Counted(FedAvg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            config["step"] = server_round - 1
            return super().configure_train(server_round, arrays, config, grid)

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        strategy = Counted(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        found = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds)
        model.load_state_dict(found.arrays.to_torch_state_dict())

    return app
