# SPDX-License-Identifier: Apache-2.0
"""Accuracy of simulated federations with privacy for clients, by the recipes of `sfumato federate`."""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from models.results import Row

from sfumato.datasets import load
from sfumato.experiments.r3.federations import DELTA, federated_run
from sfumato.federated.recipes import federation_recipe

EPSILON = 8.0
SHARED, NEAR = (
    "discrete-gaussian",
    0.005,
)  # noise of the clients, and how near to noise of the server it must be


@dataclass(frozen=True, kw_only=True)
class Case:
    """One federation with the accuracy it must reach."""

    data: str
    alpha: float | None  # of Dirichlet shares; None: IID
    bar: float


CASES = {
    "mnist": Case(data="mnist", alpha=None, bar=0.90),
    "fashion": Case(data="fashion-mnist", alpha=0.3, bar=0.72),
}


def accuracy(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """Train with each seed, with noise and without; yield the accuracy on test rows."""
    case = CASES[name]
    data = load("digits" if options.quick else case.data)
    with_noise, seconds = [], []
    for seed in options.seeds:
        began = time.perf_counter()
        with_noise.append(trained(data, case.alpha, seed, options, epsilon=EPSILON))
        seconds.append(time.perf_counter() - began)
    shared = [trained(data, case.alpha, s, options, epsilon=EPSILON, noise=SHARED) for s in options.seeds]
    without = trained(data, case.alpha, options.seeds[0], options, noise_multiplier=1e-6)
    division = "IID" if case.alpha is None else f"Dirichlet {case.alpha:g}"
    subject = f"{data.name}, {_recipe(options, data).clients} clients, {division}"
    yield Row(
        subject=subject,
        name=f"accuracy at ({EPSILON:g}, {DELTA:g}) for one client",
        value=statistics.mean(with_noise),
        bar=None if options.quick else case.bar,
        at_least=True,
        note=", ".join(f"{value:.4f}" for value in with_noise),
    )
    yield Row(
        subject=subject,
        name="accuracy with discrete Gaussian noise of the clients, 16 bits",
        value=statistics.mean(shared),
        bar=None if options.quick else statistics.mean(with_noise) - NEAR,
        at_least=True,
        note=", ".join(f"{value:.4f}" for value in shared),
    )
    yield Row(subject=subject, name="accuracy of the same run without noise", value=without)
    yield Row(subject=subject, name="seconds a run", value=statistics.mean(seconds))


def trained(data: Any, alpha: float | None, seed: int, options: argparse.Namespace, **claim: Any) -> float:
    """Return the accuracy of one federation. The seed sets the first weights and the partition alone."""
    recipe = _recipe(options, data)
    recipe = replace(recipe, rounds=3) if options.quick else recipe
    run = federated_run(data, recipe, seed=seed, device=options.device, alpha=alpha, **claim)
    assert run.accuracy is not None
    return run.accuracy


def _recipe(options: argparse.Namespace, data: Any) -> Any:
    return federation_recipe("digits" if options.quick else data.name)
