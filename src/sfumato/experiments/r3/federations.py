# SPDX-License-Identifier: Apache-2.0
"""Simulate a federation of a public data set, with or without privacy for clients; shared by R3.

The poster does not say which data it used, how many clients there were, or whose privacy its noise protects.
Here clients are the unit, and neighbors are add-remove: in each round every client is asked with the same
probability (Poisson sampling), its update is clipped, and the server adds Gaussian noise to the sum. Settings
come from `federated.recipes`; they were compared on the same public test rows, so accuracies are a little too
good. A seed decides partition, first weights, cohorts and noise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

import torch
from torch import nn

from sfumato.datasets import Dataset, load
from sfumato.experiments.experiment import Scale
from sfumato.federated import ClientRows, by_user, dirichlet, federate, iid
from sfumato.federated.recipes import FederationRecipe, federation_recipe
from sfumato.mechanisms import Generator
from sfumato.report.spread import half_interval, mean_of
from sfumato.testing import seeded
from sfumato.training import Runtime, TrainingRun
from sfumato.training.models.networks import loss_for, model_for, score_for

__all__ = [
    "CLAIM",
    "DELTA",
    "base",
    "differences",
    "federated_run",
    "images",
    "is_clear",
    "noisy_run",
    "unprotected",
    "with_seed",
]

DELTA: Final = 1e-3  # there are 1000 clients or fewer
CLAIM: Final = f"delta {DELTA:g}, one client, add-remove neighbors, Poisson cohorts"
_NO_CLIPPING: Final = 1e3  # a clip norm that no update reaches
_NO_NOISE: Final = 1e-6  # a noise multiplier


@cache
def images(scale: Scale) -> Dataset:
    """Return digits for a quick look, and MNIST otherwise."""
    return load("digits" if scale.quick else "mnist")


def base(scale: Scale) -> FederationRecipe:
    """Return the federation whose settings are varied; of MNIST, a round asks a fifth of the clients."""
    recipe = federation_recipe(images(scale).name)
    return replace(recipe, rounds=4) if scale.quick else replace(recipe, rounds=40, cohort_share=0.2)


def federated_run(
    data: Dataset,
    recipe: FederationRecipe,
    *,
    seed: int,
    device: str | None = None,
    alpha: float | None = None,
    make: Callable[[], nn.Module] | None = None,
    generator: Generator | None = None,
    evaluate_every: int | None = None,
    **claim: Any,
) -> TrainingRun:
    """Return a run of a federation, evaluated on test rows.

    Args:
        data: A public data set.
        recipe: The settings.
        seed: Of the partition and the first weights.
        device: Where clients are trained. None: a GPU if there is one.
        alpha: Of Dirichlet shares of each class. None: rows are divided at random, or by user.
        make: Returns the model. Default: the model of the recipe.
        generator: The source of cohorts and noise. None: secure.
        evaluate_every: How many rounds lie between two evaluations. None: the last round alone.
        **claim: `epsilon` or `noise_multiplier`, and `noise`, as for `federate`.

    Returns:
        The run.
    """
    clients = _clients(data, recipe, alpha, seed)
    device = device or ("cuda" if torch.cuda.is_available() else None)
    return federate(
        with_seed(make or (lambda: model_for(data, recipe.model)), seed),
        clients,
        rounds=recipe.rounds,
        expected_cohort_size=recipe.cohort_share * len(clients),
        local=replace(recipe.local, loss=loss_for(data)),
        clip_norm=recipe.clip_norm,
        delta=DELTA,
        evaluation=data.test,
        evaluate_every=evaluate_every or recipe.rounds,
        score=score_for(data),
        progress=False,
        runtime=Runtime(device=device),
        generator=generator,
        **claim,
    )


def noisy_run(
    data: Dataset, recipe: FederationRecipe, *, noise: float, seed: int, **options: Any
) -> TrainingRun:
    """Return a run with noise of a multiplier; 0 stands for no privacy: neither clipping nor noise."""
    if noise == 0:
        recipe, noise = unprotected(recipe), _NO_NOISE
    return federated_run(data, recipe, seed=seed, noise_multiplier=noise, generator=seeded(seed), **options)


def unprotected(recipe: FederationRecipe) -> FederationRecipe:
    """Return the same federation with a clip norm that no update reaches."""
    return replace(recipe, clip_norm=_NO_CLIPPING)


def with_seed(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a model whose first weights a seed decides. Other draws of torch stay as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def differences(found: Mapping[Any, Sequence[float]], first: Any, second: Any) -> list[float]:
    """Return for each seed how much more the first setting has than the second."""
    return [a - b for a, b in zip(found[first], found[second], strict=True)]


def is_clear(values: Sequence[float]) -> bool:
    """Whether the mean of the values is above 0 by more than the half of its 95% interval.

    >>> is_clear([0.02, 0.03, 0.025]), is_clear([0.02, -0.03, 0.025]), is_clear([0.02])
    (True, False, False)
    """
    error = half_interval(values)
    return error is not None and mean_of(values) > error


def _clients(data: Dataset, recipe: FederationRecipe, alpha: float | None, seed: int) -> ClientRows:
    if recipe.clients is None:
        return by_user(data)
    if alpha is None:
        return iid(data, clients=recipe.clients, seed=seed)
    return dirichlet(data, clients=recipe.clients, alpha=alpha, seed=seed)
