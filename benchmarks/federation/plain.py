# SPDX-License-Identifier: Apache-2.0
"""What privacy without noise costs: the recipe of MNIST beside Flower's own federated averaging.

Flower's side is its strategy `FedAvg` with a ClientApp of plain torch. Messages are handed over in one
process (`OneProcess`), because 40,000 clients on Ray take much longer and learn the same.

Both train the same clients from the same first weights, with the same local steps and as many rounds. Flower
asks half of all clients in each round and averages their models; we ask each client with probability one half
and average clipped updates. Only the cohorts are drawn apart. A seed decides the partition and the first
weights.
"""

import argparse
import statistics
from collections.abc import Iterator
from typing import Any, Final

import torch
from federation.throughput import CLIENTS, clients, flower_client, initial
from models.results import Row

from sfumato.datasets import load
from sfumato.federated.federate import federate
from sfumato.federated.recipes import FederationRecipe, federation_recipe
from sfumato.training import Clipping, Runtime

MOST_LOST: Final = 0.01  # of accuracy, against Flower's federated averaging
NO_NOISE: Final = 1e-6  # noise multiplier


def plain(options: argparse.Namespace) -> Iterator[Row]:
    """Train the recipe of MNIST with each seed, without noise and by Flower; yield both accuracies."""
    recipe = federation_recipe("mnist")
    rounds = 2 if options.quick else recipe.rounds
    ours = [_ours(recipe, rounds, seed, options) for seed in options.seeds]
    theirs = [_flower(recipe, rounds, seed) for seed in options.seeds]
    subject = f"mnist, {CLIENTS} clients, IID, {rounds} rounds"
    name = "accuracy of Flower's federated averaging"
    yield Row(subject=subject, name=name, value=statistics.mean(theirs), note=_each(theirs))
    yield Row(
        subject=subject,
        name="accuracy of our run without noise",
        value=statistics.mean(ours),
        bar=None if options.quick else statistics.mean(theirs) - MOST_LOST,
        at_least=True,
        note=_each(ours),
    )


def _each(values: list[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)


def _ours(recipe: FederationRecipe, rounds: int, seed: int, options: argparse.Namespace) -> float:
    run = federate(
        initial(recipe.model, seed),
        clients(seed),
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


def _flower(recipe: FederationRecipe, rounds: int, seed: int) -> float:
    from federation.one_process import OneProcess
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    class Counted(FedAvg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            config["step"] = server_round - 1
            return super().configure_train(server_round, arrays, config, grid)

    model, grid = (
        initial(recipe.model, seed),
        OneProcess(flower_client(recipe.model, recipe.local, seed), CLIENTS),
    )
    strategy = Counted(fraction_train=recipe.cohort_share, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    found = strategy.start(
        grid, ArrayRecord(model.state_dict()), num_rounds=rounds, train_config=ConfigRecord()
    )
    model.load_state_dict(found.arrays.to_torch_state_dict())
    test = load("mnist").test
    with torch.no_grad():
        return float((model(test.features).argmax(1) == test.labels).float().mean())
