# SPDX-License-Identifier: Apache-2.0
"""Settings that are known to work: features, network and method for a public data set, by name.

Fixed      Settings were chosen by accuracy on 10,000 rows held out of the training rows of MNIST (clusters)
           and of MNIST and Fashion-MNIST (noisy gradients), before any test row was looked at, and are the
           same for other data. The search is not charged: these sets are public. On labels that must be
           protected, searching costs budget.
Features   Are public, so what is computed from all of them costs nothing: gradients of images, neighbors,
           clusters.
Start      Noisy gradients start from a network that has learned to tell clusters of public features apart:
           self-supervision, for nothing. A fresh last layer is all that learns labels. `first_model` makes
           it, once for as many runs as you like. Or they start from random weights, as published: then
           features are standardized, and the network (`published_cnn`) and all settings are others. Either
           way inputs of layers that learn are whitened by half (`whitening`): once, before the run.
Search     benchmarks/label_settings.py, at epsilon 0.1 from public features, at 0.1 and 0.2 from random
           weights. How settings grow with epsilon was tried on a few values only, and SelfConv and SelfSpan
           from random weights were not searched.
"""

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato.datasets import Dataset
from sfumato.errors import InvalidParameterError
from sfumato.labels.features import (
    Spectrum,
    k_means,
    nearest_neighbors,
    oriented_gradients,
    principal_components,
    spectrum,
)
from sfumato.labels.learning import learn
from sfumato.labels.methods.clusters import ClusterLabels, cluster_count
from sfumato.labels.methods.noisy_gradients import Denoising, NoisyGradients
from sfumato.labels.methods.randomized_response import Correction
from sfumato.labels.methods.released_labels import Alibi, MultiStage, RandomizedLabels
from sfumato.labels.train import Learner, Method
from sfumato.labels.whitening import whitened
from sfumato.training.random_state import same_draws

__all__ = [
    "METHODS",
    "LabelRecipe",
    "Start",
    "clustered",
    "first_model",
    "points_of",
    "published_cnn",
    "recipe",
    "standardized",
    "tiny_cnn",
]

_COMPONENTS, _NEIGHBORS, _DIMENSIONS = 50, 10, 50
_START_CLUSTERS = 3  # for each class
_START_WIDTH = 256
_FIRST_SCORES = 0.1  # how large scores from random weights are


class Start(enum.Enum):
    """What noisy gradients start from."""

    PUBLIC_FEATURES = "public-features"  # weights that tell clusters of public features apart
    RANDOM = "random"  # random weights, as published


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tuned:
    """Settings of noisy gradients for 60,000 rows at epsilon 0.1."""

    learning_rate: float
    expected_batch_size: int = 1024
    steps: int = 50
    averaging: float = 0.0
    smoothing: float = 1.0
    clip_norm: float = 3.0
    clip_columns: bool = True
    alternative_batch_size: int = 128
    ema_decay: float = 0.9
    falling_rate: bool = False
    steps_power: float = 0.7  # of how much more can be afforded
    rate_power: float = 0.6


# SelfConv and SelfSpan pay for each use of a label, so they take few steps, of large batches.
_TUNED = {
    Start.PUBLIC_FEATURES: {
        Denoising.ALT_CONV: _Tuned(
            learning_rate=1.0,
            steps=140,
            averaging=0.8,
            clip_norm=4.0,
            alternative_batch_size=256,
            ema_decay=0.95,
            falling_rate=True,
            steps_power=0.3,
            rate_power=0.0,
        ),
        Denoising.NONE: _Tuned(learning_rate=0.2, steps=60, clip_norm=6.0, rate_power=0.0),
        Denoising.SELF_CONV: _Tuned(learning_rate=1.0, expected_batch_size=8192, steps=7, clip_norm=4.0),
        Denoising.SELF_SPAN: _Tuned(
            learning_rate=1.0, expected_batch_size=8192, steps=7, clip_norm=4.0, ema_decay=0.95
        ),
    },
    Start.RANDOM: {
        Denoising.ALT_CONV: _Tuned(
            learning_rate=1.5,
            steps=220,
            averaging=0.6,
            smoothing=0.85,
            clip_norm=4.0,
            alternative_batch_size=256,
            falling_rate=True,
            steps_power=0.0,
            rate_power=0.0,
        ),
        Denoising.NONE: _Tuned(learning_rate=0.4, steps=140, clip_norm=2.0, steps_power=0.0, rate_power=0.0),
        Denoising.SELF_CONV: _Tuned(
            learning_rate=1.0, expected_batch_size=4096, steps=14, smoothing=0.75, clip_norm=5.0
        ),
        Denoising.SELF_SPAN: _Tuned(learning_rate=0.5, expected_batch_size=4096, steps=14, clip_norm=5.0),
    },
}
_STUDY = Learner(epochs=12, batch_size=256, learning_rate=2e-3)


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelRecipe:
    """All that a run needs beside labels and an account."""

    features: Tensor  # of the rows to learn from
    test_features: Tensor
    model: nn.Module
    method: Method
    learner: Learner | None  # None for methods by noisy gradients


def recipe(
    data: Dataset,
    method: str,
    *,
    epsilon: float,
    delta: float,
    seed: int | None = None,
    model: nn.Module | None = None,
    start: Start = Start.PUBLIC_FEATURES,
) -> LabelRecipe:
    """Return how to learn a public data set by a method of this name; a seed sets first weights and clusters.

    `model` replaces the recipe's own, where features are what it expects. `start` is for noisy gradients.

    >>> from sfumato.datasets import load
    >>> recipe(load("digits"), "altconv", epsilon=1.0, delta=1e-4).method.name
    'altconv'
    """
    _check.positive(epsilon=epsilon)
    _check.delta(delta=delta)
    if method not in METHODS:
        raise InvalidParameterError(f"unknown method {method!r}. Use one of: {', '.join(METHODS)}.")
    asked = _Asked(data, epsilon, delta, 0 if seed is None else seed, model, start)
    if seed is None:
        return METHODS[method](asked)
    with same_draws(seed=seed):
        return METHODS[method](asked)


@dataclass(frozen=True, eq=False, slots=True)
class _Asked:
    data: Dataset
    epsilon: float
    delta: float
    seed: int
    model: nn.Module | None
    start: Start


def tiny_cnn(shape: Sequence[int], num_classes: int) -> nn.Sequential:
    """Return two convolutions of 16 channels and a layer of 16 units, for images of 12 pixels a side or more.

    >>> tiny_cnn((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    channels, height, width = shape
    size = 16 * (height // 4) * (width // 4)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(size, 16),
        nn.Tanh(),
        nn.Linear(16, num_classes),
    )


def published_cnn(shape: Sequence[int], num_classes: int) -> nn.Sequential:
    """Return the network of the paper, with LeCun's normal weights: for images of 10 pixels a side or more.

    Two convolutions of 16 channels, each with ReLU and average pooling, and a layer of 16 units.

    >>> sum(p.numel() for p in published_cnn((1, 28, 28), 10).parameters())
    9066
    """
    channels, height, width = shape
    size = 16 * (((height - 2) // 2 - 2) // 2) * (((width - 2) // 2 - 2) // 2)
    model = nn.Sequential(
        nn.Conv2d(channels, 16, 3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 16, 3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(size, 16),
        nn.ReLU(),
        nn.Linear(16, num_classes),
    )
    return _with_lecun_weights(model)


def _with_lecun_weights(model: nn.Sequential) -> nn.Sequential:
    """Draw weights of variance 1 / inputs, and set biases to zero."""
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.normal_(layer.weight, std=layer.weight[0].numel() ** -0.5)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model


def standardized(features: Tensor, *, by: Tensor) -> Tensor:
    """Return features of mean 0 and variance 1 in the rows `by`: of each channel of images, else each column.

    >>> standardized(torch.tensor([[1.0, 7.0], [3.0, 7.0]]), by=torch.tensor([[1.0, 7.0], [3.0, 7.0]]))
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """
    over = (0, 2, 3) if by.dim() == 4 else (0,)
    mean, spread = by.mean(over, keepdim=True), by.std(over, correction=0, keepdim=True)
    return (features - mean) / torch.where(spread > 0, spread, 1.0)


def first_model(data: Dataset, *, seed: int = 0, groups: Tensor | None = None) -> nn.Module:
    """Return a network that tells clusters of public features apart, for rows as `points_of` makes them.

    Its last layer knows nothing yet, and alone has weights to learn: the fewer, the less noise. `groups` are
    the clusters of the rows, where they are at hand.
    """
    points = points_of(data.train.features)
    if groups is None:
        groups, _ = clustered(points, clusters=min(_START_CLUSTERS * data.num_classes, len(points)))
    with same_draws(seed=seed):
        body = nn.Sequential(nn.Linear(points.shape[1], _START_WIDTH), nn.Tanh())
        told = nn.Sequential(body, nn.Linear(_START_WIDTH, int(groups.max()) + 1))
        learn(told, points, groups, epochs=4, batch_size=128, learning_rate=1e-3, seed=seed)
        body.requires_grad_(False)
        last = nn.Linear(_START_WIDTH, data.num_classes)
    for weights in last.parameters():
        nn.init.zeros_(weights)
    return nn.Sequential(*body, *whitened(nn.Sequential(last), body(points))).train()


def clustered(points: Tensor, *, clusters: int, seed: int = 0) -> tuple[Tensor, Spectrum]:
    """Return the cluster of each row along the neighbor graph of its features, and the graph's spectrum."""
    components = min(_COMPONENTS, points.shape[1], len(points) - 1)
    reduced = principal_components(points, components=components).of(points)
    graph = nearest_neighbors(reduced, neighbors=min(_NEIGHBORS, len(points) - 1))
    found = spectrum(graph, dimensions=min(_DIMENSIONS, len(points) // 4))
    return k_means(found.points(), clusters=clusters, seed=seed), found


def _affordable(epsilon: float, size: int) -> float:
    """Return how much a data set and a budget afford, as a multiple of 60,000 rows at epsilon 0.1."""
    return epsilon * size / 6000


def _by_gradients(denoising: Denoising) -> Callable[[_Asked], LabelRecipe]:
    def made(asked: _Asked) -> LabelRecipe:
        data, size = asked.data, asked.data.public_size
        wealth, tuned = _affordable(asked.epsilon, size), _TUNED[asked.start][denoising]
        method = NoisyGradients(
            epsilon=asked.epsilon,
            delta=asked.delta,
            classes=data.num_classes,
            public_size=size,
            steps=round(tuned.steps * min(max(wealth**tuned.steps_power, 0.4), 8.0)),
            denoising=denoising,
            clip_norm=tuned.clip_norm,
            learning_rate=tuned.learning_rate * min(max(wealth, 0.1), 10.0) ** tuned.rate_power,
            averaging=tuned.averaging,
            smoothing=tuned.smoothing,
            clip_columns=tuned.clip_columns,
            expected_batch_size=min(tuned.expected_batch_size, max(1, size // 4)),
            alternative_batch_size=min(tuned.alternative_batch_size, size),
            ema_decay=tuned.ema_decay,
            falling_rate=tuned.falling_rate,
        )
        features, test_features, model = _STARTS[asked.start](asked)
        return LabelRecipe(
            features=features, test_features=test_features, model=model, method=method, learner=None
        )

    return made


def _from_public_features(asked: _Asked) -> tuple[Tensor, Tensor, nn.Module]:
    data = asked.data
    model = first_model(data, seed=asked.seed) if asked.model is None else asked.model
    return points_of(data.train.features), points_of(data.test.features), model


def _from_random_weights(asked: _Asked) -> tuple[Tensor, Tensor, nn.Module]:
    train, test, classes = asked.data.train.features, asked.data.test.features, asked.data.num_classes
    points = standardized(train, by=train)
    model = whitened(_fresh_network(train.shape[1:], classes), points) if asked.model is None else asked.model
    return points, standardized(test, by=train), model


_STARTS = {Start.PUBLIC_FEATURES: _from_public_features, Start.RANDOM: _from_random_weights}


def _by_release(make: Callable[[float, int], Method]) -> Callable[[_Asked], LabelRecipe]:
    def made(asked: _Asked) -> LabelRecipe:
        data, own = asked.data, asked.model
        return LabelRecipe(
            features=data.train.features,
            test_features=data.test.features,
            model=_network(data.train.features.shape[1:], data.num_classes) if own is None else own,
            method=make(asked.epsilon, data.num_classes),
            learner=_STUDY,
        )

    return made


def _by_clusters(asked: _Asked) -> LabelRecipe:
    data, epsilon = asked.data, asked.epsilon
    points, test = points_of(data.train.features), points_of(data.test.features)
    count = cluster_count(len(points), classes=data.num_classes, epsilon=epsilon)
    groups, found = clustered(points, clusters=count, seed=asked.seed)
    method = ClusterLabels(epsilon=epsilon, classes=data.num_classes, clusters=groups, spectrum=found)
    own = nn.Sequential(
        nn.Linear(points.shape[1], 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, data.num_classes)
    )
    model = own if asked.model is None else asked.model
    return LabelRecipe(features=points, test_features=test, model=model, method=method, learner=_STUDY)


def points_of(features: Tensor) -> Tensor:
    """Return rows of about unit variance: gradients of images, else the features as they are."""
    if features.dim() != 4 or min(features.shape[2:]) < 8:
        return features.flatten(1)
    found = oriented_gradients(features)
    return found * math.sqrt(found.shape[1])


def _network(shape: Sequence[int], num_classes: int) -> nn.Sequential:
    if len(shape) == 3 and min(shape[1:]) >= 12:
        return tiny_cnn(shape, num_classes)
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 64), nn.Tanh(), nn.Linear(64, num_classes))


def _fresh_network(shape: Sequence[int], num_classes: int) -> nn.Sequential:
    """Return a network whose first predictions are almost even."""
    if len(shape) == 3 and min(shape[1:]) >= 12:
        model = published_cnn(shape, num_classes)
    else:
        layers = nn.Flatten(), nn.Linear(prod(shape), 32), nn.ReLU(), nn.Linear(32, num_classes)
        model = _with_lecun_weights(nn.Sequential(*layers))
    with torch.no_grad():
        for weights in model[-1].parameters():
            weights.mul_(_FIRST_SCORES)
    return model


METHODS: Mapping[str, Callable[[_Asked], LabelRecipe]] = {
    "clusters": _by_clusters,
    "altconv": _by_gradients(Denoising.ALT_CONV),
    "selfconv": _by_gradients(Denoising.SELF_CONV),
    "selfspan": _by_gradients(Denoising.SELF_SPAN),
    "dp-sgd": _by_gradients(Denoising.NONE),
    "randomized-response": _by_release(
        lambda epsilon, classes: RandomizedLabels(
            epsilon=epsilon, classes=classes, correction=Correction.FORWARD
        )
    ),
    "multi-stage": _by_release(lambda epsilon, classes: MultiStage(epsilon=epsilon, classes=classes)),
    "alibi": _by_release(lambda epsilon, classes: Alibi(epsilon=epsilon, classes=classes)),
}
