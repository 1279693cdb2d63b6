# SPDX-License-Identifier: Apache-2.0
"""The study of report R3, repeated: how noise, clients, local passes and rounds change accuracy, and what
epsilon a standard deviation of the noise means.

R3 calls rounds "generations", and adds noise of a standard deviation without saying what it protects. Here
the noise is added to sums of clipped updates, and epsilon is that of one client.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from models.results import Row

from sfumato.accounting import dp_sgd, price
from sfumato.datasets import load
from sfumato.federated.clients.local_training import LocalTraining
from sfumato.federated.clients.partitions import iid
from sfumato.federated.federate import federate
from sfumato.report import Series, line_chart
from sfumato.training.models.networks import model_for

DELTA = 1e-3
BASE: Mapping[str, Any] = {"noise": 1.0, "clients": 200, "local epochs": 3, "rounds": 30}
STUDIED: Mapping[str, tuple[float, ...]] = {
    "noise": (0.1, 0.5, 1.0, 2.0, 4.0, 8.0),
    "clients": (50, 100, 200, 400, 700),
    "local epochs": (1, 2, 3, 5, 10),
    "rounds": (5, 10, 20, 30, 60),
}
NOISES = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
SHORT = 2  # values of each, for a quick look


def study(options: argparse.Namespace) -> Iterator[Row]:
    """Yield accuracy for each value of each setting, and epsilon for each noise; draw both."""
    data = load("digits")
    for name, values in STUDIED.items():
        found = {}
        for value in values[:SHORT] if options.quick else values:
            settings = {**BASE, name: value}
            found[float(value)] = _accuracy(data, settings)
            cost = _epsilon(settings)
            yield Row(
                subject=f"digits, accuracy against {name}",
                name=f"{name} {value:g}",
                value=found[float(value)],
                note=f"epsilon {cost:.3g} for one client",
            )
        _draw(options, f"federated-{name.replace(' ', '-')}", name, found, "accuracy")
    costs = {noise: _epsilon({**BASE, "noise": noise}) for noise in NOISES}
    for noise, epsilon in costs.items():
        yield Row(subject="epsilon against noise", name=f"noise multiplier {noise:g}", value=epsilon)
    _draw(options, "federated-epsilon", "noise: standard deviation over clip norm", costs, "epsilon")


def _accuracy(data: Any, settings: Mapping[str, Any]) -> float:
    """Return the accuracy after a run; half of the clients are asked in each round."""
    torch.manual_seed(0)
    run = federate(
        model_for(data, "linear"),
        iid(data, clients=int(settings["clients"])),
        rounds=int(settings["rounds"]),
        expected_cohort_size=settings["clients"] / 2,
        local=LocalTraining(epochs=int(settings["local epochs"]), batch_size=8, learning_rate=0.3),
        noise_multiplier=settings["noise"],
        clip_norm=1.0,
        delta=DELTA,
        evaluation=data.test,
        evaluate_every=int(settings["rounds"]),
        progress=False,
    )
    assert run.accuracy is not None
    return run.accuracy


def _epsilon(settings: Mapping[str, Any]) -> float:
    event = dp_sgd(noise_multiplier=settings["noise"], sampling_rate=0.5, steps=int(settings["rounds"]))
    return price(event, delta=DELTA).epsilon


def _draw(
    options: argparse.Namespace, file: str, x_label: str, found: Mapping[float, float], y_label: str
) -> None:
    if options.figures is None:
        return
    line = Series(name=y_label, points=list(found.items()))
    chart = line_chart(line, title=f"{y_label} against {x_label}", x_label=x_label, y_label=y_label)
    Path(options.figures, f"{file}.svg").write_text(chart + "\n", encoding="utf-8")
