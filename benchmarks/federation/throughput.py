# SPDX-License-Identifier: Apache-2.0
"""How many clients a second a simulated round trains: at once, one after another, and by Flower on Ray.

MNIST is divided among 1000 clients, 60 rows each, and the first 100 of them are in the round. All ways take
the same local steps (`local_training.batch_order`), and their models after a round are compared. Flower's
clients are plain torch: SGD over tensors in memory, without a data loader, and each worker keeps the data and
a model between clients. A round is timed from the first message to the averaged model. Starting Ray and the
first round, in which workers load the data, are a row of their own.

Two figures are given for each way: clients for each second on the wall, and CPU seconds of a round, in all
processes. Ways take turns, so that what else the machine does slows all of them; on a busy machine the share
of the CPU that a way gets decides the first figure, and the second one is the more reliable.
"""

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import psutil
import torch
from models.results import Row
from torch import Tensor, nn

from sfumato.datasets import load
from sfumato.federated.clients.client_rows import AssignedRows
from sfumato.federated.clients.local_training import LocalTraining, batch_order, local_update
from sfumato.federated.clients.partitions import iid
from sfumato.federated.clients.vectorized import VectorizedClients
from sfumato.training.models.networks import model_for

CLIENTS: Final = 1000
COHORT: Final = 100
LEAST_RATIO: Final = 3.0  # times the throughput of Flower's simulation
MOST_DIFFERENCE: Final = 100.0  # millionths, of a parameter after a round: float32
BACKEND: Final[Any] = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}}
ROUNDS: Final = 3  # of a simulation, after the first one

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Cost:
    """What a round took: seconds on the wall, and of the CPU in all processes."""

    wall: float
    cpu: float


def now() -> Cost:
    """Return the time on the wall, and what this process and all below it have used of the CPU."""
    used = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):  # it ended meanwhile
            times = process.cpu_times()
            used += times.user + times.system
    return Cost(time.perf_counter(), used)


def since(start: Cost) -> Cost:
    """Return what was taken since then."""
    end = now()
    return Cost(end.wall - start.wall, end.cpu - start.cpu)


def throughput(
    *, models: tuple[str, ...] = ("mlp", "cnn"), turns: int = 3, batch_size: int = 10
) -> Iterator[Row]:
    """Yield for each model how many clients a second each way trains, and how far results are apart."""
    for name in models:
        yield from _of_model(name, turns, LocalTraining(batch_size=batch_size))


def _of_model(name: str, turns: int, training: LocalTraining) -> Iterator[Row]:
    subject = f"MNIST, {name}, {COHORT} clients of {60000 // CLIENTS} rows, batches of {training.batch_size}"
    here, loop = Vectorized(name, training), Loop(name, training)
    flower: list[FlowerRun] = []
    for way in (here, loop):
        way.round(0)
    for _ in range(turns):
        for way in (here, loop, here):
            way.timed()
        flower.append(flower_rounds(name, training, rounds=ROUNDS))
        here.timed()
    there = [cost for run in flower for cost in run.costs]
    yield from _costs(subject, "Flower on Ray", there)
    yield from _costs(subject, "one after another", loop.costs)
    yield from _costs(subject, "vectorized", here.costs)
    yield from _ratios(subject, here.costs, there, loop.costs)
    starts = [run.start for run in flower]
    yield Row(subject=subject, name="seconds until Flower's first round ends", **_spread(starts))
    far = _distance(here.round(0), flower[0].first) * 1e6
    named = "largest difference of a parameter to Flower's, in millionths"
    yield Row(subject=subject, name=named, value=far, bar=MOST_DIFFERENCE)


def _costs(subject: str, way: str, costs: list[Cost]) -> Iterator[Row]:
    speeds = [COHORT / cost.wall for cost in costs]
    yield Row(subject=subject, name=f"{way}, clients a second", **_spread(speeds))
    yield Row(subject=subject, name=f"{way}, CPU seconds a round", **_spread([cost.cpu for cost in costs]))


def _ratios(subject: str, here: list[Cost], there: list[Cost], loop: list[Cost]) -> Iterator[Row]:
    wall = [statistics.median(cost.wall for cost in costs) for costs in (here, there, loop)]
    cpu = [statistics.median(cost.cpu for cost in costs) for costs in (here, there, loop)]
    name = "throughput, times Flower's"
    yield Row(subject=subject, name=name, value=wall[1] / wall[0], bar=LEAST_RATIO, at_least=True)
    yield Row(subject=subject, name="Flower's CPU seconds, times ours", value=cpu[1] / cpu[0])
    yield Row(subject=subject, name="throughput, times one after another", value=wall[2] / wall[0])


def _spread(values: list[float]) -> dict[str, Any]:
    if len(values) < 4:
        return {"value": statistics.median(values)}
    first, middle, third = statistics.quantiles(values, n=4)
    return {"value": middle, "quartiles": (first, third)}


def _distance(first: Weights, second: Weights) -> float:
    return max(float((first[name] - second[name]).abs().max()) for name in first)


@cache
def clients(seed: int = 0) -> AssignedRows:
    """Return the rows of all clients; once a process."""
    return iid(load("mnist"), clients=CLIENTS, seed=seed)


def initial(name: str, seed: int = 0) -> nn.Module:
    """Return the model that every way begins with."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return model_for(load("mnist"), name)


# --- in one process --------------------------------------------------------------------------------------


class InProcess:
    """A way to run a round in this process."""

    def __init__(self, name: str, training: LocalTraining) -> None:
        self.model, self.training = initial(name), training
        self.costs: list[Cost] = []

    def updates(self, step: int) -> Weights:
        """Return the mean update of the cohort."""
        raise NotImplementedError

    def round(self, step: int) -> Weights:
        """Return the averaged model after a round from the initial one."""
        found = self.updates(step)
        return {name: p.detach() - found[name] for name, p in self.model.named_parameters()}

    def timed(self) -> None:
        """Run a round and note what it took."""
        start = now()
        self.round(len(self.costs))
        self.costs.append(since(start))


class Vectorized(InProcess):
    """All clients at once."""

    def __init__(self, name: str, training: LocalTraining) -> None:
        super().__init__(name, training)
        self._clients = VectorizedClients(clients(), training)

    def updates(self, step: int) -> Weights:
        found = self._clients.contributions(self.model, (torch.arange(COHORT),), step=step)
        return {name: update.mean(0) for name, update in found.items()}


class Loop(InProcess):
    """One client after another."""

    def updates(self, step: int) -> Weights:
        total: Weights = {}
        for client in range(COHORT):
            found = local_update(self.model, clients().rows(client), self.training, client=client, step=step)
            total = {name: total.get(name, 0) + update / COHORT for name, update in found.items()}
        return total


# --- Flower ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FlowerRun:
    """What a simulation took: its start with the first round, later rounds, and the model after the first."""

    start: float
    costs: list[Cost]
    first: Weights


def flower_rounds(name: str, training: LocalTraining, *, rounds: int) -> FlowerRun:
    """Run federated averaging in Flower's simulation engine; every round begins with the initial model."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from flwr.simulation import run_simulation

    begun, watch = time.perf_counter(), _Watch()
    run_simulation(
        _server(name, rounds + 1, watch),
        flower_client(name, training),
        num_supernodes=COHORT,
        backend_config=BACKEND,
    )
    return FlowerRun(watch.first_end - begun, watch.costs[1:], watch.first)


class _Watch:
    """What the rounds of a simulation took, and the model after the first one."""

    def __init__(self) -> None:
        self.begin = now()
        self.costs: list[Cost] = []
        self.first_end = 0.0
        self.first: Weights = {}


def _server(name: str, rounds: int, watch: _Watch) -> Any:
    from flwr.app import ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg

    class Timed(FedAvg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            watch.begin = now()
            config["step"] = server_round - 1
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            found, metrics = super().aggregate_train(server_round, replies)
            assert found is not None  # no client failed
            watch.costs.append(since(watch.begin))
            if server_round == 1:
                watch.first_end, watch.first = time.perf_counter(), dict(found.to_torch_state_dict())
            return ArrayRecord(initial(name).state_dict()), metrics

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=COHORT)
        strategy.start(grid, ArrayRecord(initial(name).state_dict()), num_rounds=rounds)

    return app


def flower_client(name: str, training: LocalTraining, seed: int = 0) -> Any:
    """Return a ClientApp that trains in plain torch and replies with its model. The seed divides the rows."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        model = initial_here(name)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        client = int(context.node_config["partition-id"])
        x, y = clients(seed).rows(client)
        train_plainly(model, x, y, training, client=client, step=int(message.content["config"]["step"]))
        content: dict[str, Any] = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(y)}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


@cache
def initial_here(name: str) -> nn.Module:
    """Return a model that a worker keeps between clients."""
    return initial(name)


def train_plainly(
    model: nn.Module, x: Tensor, y: Tensor, training: LocalTraining, *, client: int, step: int
) -> None:
    """Train a model on the rows of a client, in plain torch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=training.learning_rate)
    for chosen in batch_order(len(y), training, client=client, step=step):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
