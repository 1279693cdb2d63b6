# SPDX-License-Identifier: Apache-2.0
"""Settings that are known to work: features, network and method for a public data set, by name.

Fixed      Clusters were chosen by accuracy on 10,000 rows held out of the training rows of MNIST, before any
           test row was looked at, and are the same for other data; the settings of noisy gradients are not
           tuned yet. The search is not charged: these sets are public. On labels that must be protected,
           searching costs budget.
Features   Are public, so what is computed from all of them costs nothing: gradients of images, neighbors,
           clusters.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from sfumato.datasets import Dataset
from sfumato.errors import InvalidParameterError
from sfumato.labels.clusters import ClusterLabels, cluster_count
from sfumato.labels.features import (
    Spectrum,
    k_means,
    nearest_neighbors,
    oriented_gradients,
    principal_components,
    spectrum,
)
from sfumato.labels.gradients import Denoising, NoisyGradients
from sfumato.labels.methods import Alibi, MultiStage, RandomizedLabels
from sfumato.labels.randomized import Correction
from sfumato.labels.train import Method, Study

__all__ = ["METHODS", "LabelRecipe", "clustered", "recipe", "tiny_cnn"]

_COMPONENTS, _NEIGHBORS, _DIMENSIONS = 50, 10, 50
_STUDY = Study(epochs=12, batch_size=256, learning_rate=2e-3)


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelRecipe:
    """All that a run needs beside labels and an account."""

    features: Tensor  # of the rows to learn from
    test_features: Tensor
    model: nn.Module
    method: Method
    study: Study | None  # None for methods by noisy gradients


def recipe(
    data: Dataset, method: str, *, epsilon: float, delta: float, seed: int | None = None
) -> LabelRecipe:
    """Return how to learn a public data set by a method of this name; a seed sets first weights and clusters.

    >>> from sfumato.datasets import load
    >>> recipe(load("digits"), "altconv", epsilon=1.0, delta=1e-4).method.name
    'altconv'
    """
    if method not in METHODS:
        raise InvalidParameterError(f"unknown method {method!r}. Use one of: {', '.join(METHODS)}.")
    if seed is None:
        return METHODS[method](data, epsilon, delta, 0)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return METHODS[method](data, epsilon, delta, seed)


def tiny_cnn(shape: Sequence[int], num_classes: int) -> nn.Module:
    """Return two convolutions of 16 channels and a layer of 16 units, for images of 12 pixels a side or more.

    >>> tiny_cnn((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    channels = shape[0]
    body = nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 16, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
    )
    with torch.no_grad():
        size = body(torch.zeros(1, *shape)).numel()
    return nn.Sequential(*body, nn.Linear(size, 16), nn.Tanh(), nn.Linear(16, num_classes))


def clustered(points: Tensor, *, clusters: int, seed: int = 0) -> tuple[Tensor, Spectrum]:
    """Return the cluster of each row along the neighbor graph of its features, and the graph's spectrum."""
    components = min(_COMPONENTS, points.shape[1], len(points) - 1)
    reduced = principal_components(points, components=components).of(points)
    graph = nearest_neighbors(reduced, neighbors=min(_NEIGHBORS, len(points) - 1))
    found = spectrum(graph, dimensions=min(_DIMENSIONS, len(points) // 4))
    return k_means(found.points(), clusters=clusters, seed=seed), found


def _gradient_steps(epsilon: float, size: int) -> int:
    """Return how many steps to take: less noise and more rows pay for more of them.

    >>> [_gradient_steps(epsilon, 60_000) for epsilon in (0.1, 0.5, 1.0)]
    [100, 224, 316]
    """
    return min(max(round(100 * math.sqrt(epsilon * size / 6000)), 20), 500)


def _by_gradients(denoising: Denoising) -> Callable[[Dataset, float, float, int], LabelRecipe]:
    def made(data: Dataset, epsilon: float, delta: float, seed: int) -> LabelRecipe:
        size = data.public_size
        method = NoisyGradients(
            epsilon=epsilon,
            delta=delta,
            classes=data.num_classes,
            public_size=size,
            steps=_gradient_steps(epsilon, size),
            denoising=denoising,
            expected_batch_size=min(1024, max(1, size // 4)),
            alternative_batch_size=min(128, size),
        )
        return _images(data, method, None)

    return made


def _by_release(make: Callable[[float, int], Method]) -> Callable[[Dataset, float, float, int], LabelRecipe]:
    def made(data: Dataset, epsilon: float, delta: float, seed: int) -> LabelRecipe:
        return _images(data, make(epsilon, data.num_classes), _STUDY)

    return made


def _by_clusters(data: Dataset, epsilon: float, delta: float, seed: int) -> LabelRecipe:
    points, test = _points(data.train.features), _points(data.test.features)
    count = cluster_count(len(points), classes=data.num_classes, epsilon=epsilon)
    groups, found = clustered(points, clusters=count, seed=seed)
    method = ClusterLabels(epsilon=epsilon, classes=data.num_classes, clusters=groups, spectrum=found)
    model = nn.Sequential(
        nn.Linear(points.shape[1], 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, data.num_classes)
    )
    return LabelRecipe(features=points, test_features=test, model=model, method=method, study=_STUDY)


def _points(features: Tensor) -> Tensor:
    """Return rows of about unit variance: gradients of images, else the features as they are."""
    if features.dim() != 4 or min(features.shape[2:]) < 8:
        return features.flatten(1)
    found = oriented_gradients(features)
    return found * math.sqrt(found.shape[1])


def _images(data: Dataset, method: Method, study: Study | None) -> LabelRecipe:
    shape = data.train.features.shape[1:]
    large = len(shape) == 3 and min(shape[1:]) >= 12
    model = (
        tiny_cnn(shape, data.num_classes)
        if large
        else nn.Sequential(
            nn.Flatten(), nn.Linear(prod(shape), 64), nn.Tanh(), nn.Linear(64, data.num_classes)
        )
    )
    return LabelRecipe(
        features=data.train.features,
        test_features=data.test.features,
        model=model,
        method=method,
        study=study,
    )


METHODS: Mapping[str, Callable[[Dataset, float, float, int], LabelRecipe]] = {
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
