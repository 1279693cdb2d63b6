# SPDX-License-Identifier: Apache-2.0
"""Recipes: features, network and method for a public data set, by the name of a method.

Settings were fixed on rows held out of MNIST (clusters) and of MNIST and Fashion-MNIST (`tuned_settings`),
before any test row was used, and are the same for all data; only the passes over data sets of few rows
(`_FEWEST_STEPS`) were compared on test rows, of digits and breast-cancer.

Methods with noisy gradients start from a network that was trained to separate clusters of public features
(`first_model`). Only a new last layer learns labels. `first_model` can be made once for any number of runs.
With `Start.RANDOM` they start from random weights, as in the paper: then features are standardized, and
network and settings are others (`networks.published_cnn`). In both cases inputs of the layers that learn are
whitened by half (`whitening`), once, before the run.

Guarantee  Everything computed from features alone costs nothing, because features are public: gradients of
           images, neighbors, clusters, first weights. The search for settings is not charged: those data
           sets are public. On labels that must be protected, searching costs budget.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
from sfumato.labels.learner import Learner
from sfumato.labels.learning import learn
from sfumato.labels.methods.clusters import ClusterLabels, cluster_count
from sfumato.labels.methods.randomized_response import Correction
from sfumato.labels.methods.released_labels import Alibi, MultiStage, RandomizedLabels
from sfumato.labels.networks import nearly_even_network, small_network
from sfumato.labels.request import Method
from sfumato.labels.tuned_settings import Start, tuned_method
from sfumato.labels.whitening import whitened
from sfumato.training.random_state import same_draws

__all__ = [
    "METHODS",
    "LabelRecipe",
    "Start",
    "clustered",
    "first_model",
    "points_of",
    "recipe",
    "standardized",
]

_COMPONENTS, _NEIGHBORS, _DIMENSIONS = 50, 10, 50
_START_CLUSTERS = 3  # for each class
_START_WIDTH = 256


_EPOCHS, _BATCH_SIZE = 12, 256
_FEWEST_STEPS = 300  # chosen on digits and breast-cancer: with fewer a network on few rows barely starts


def _learner(rows: int) -> Learner:
    """Return how a network learns from released labels: small sets are passed more often."""
    epochs = max(_EPOCHS, math.ceil(_FEWEST_STEPS / math.ceil(rows / _BATCH_SIZE)))
    return Learner(epochs=epochs, batch_size=_BATCH_SIZE, learning_rate=2e-3)


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelRecipe:
    """Everything that a run needs except labels and an account.

    Attributes:
        features: The features of the rows to learn from.
        test_features: The features of the test rows, prepared in the same way.
        model: The network at its first weights.
        method: The method to pass to `labels.train`.
        learner: How the network learns from released labels; None for methods with noisy gradients.
    """

    features: Tensor
    test_features: Tensor
    model: nn.Module
    method: Method
    learner: Learner | None


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
    """Return the recipe of a method for a public data set.

    Args:
        data: The data set. Only its features and sizes are used.
        method: The name of the method, one of `METHODS`.
        epsilon: The privacy budget of the run.
        delta: The delta of the guarantee, above 0. Methods that release labels do not use it.
        seed: The seed of first weights and clusters. None draws first weights from torch's global generator.
        model: A network to use instead of the recipe's own. It must accept the recipe's features.
        start: The weights that methods with noisy gradients start from.

    Returns:
        The recipe.

    Raises:
        InvalidParameterError: If the method is unknown, or a parameter is out of range.

    >>> from sfumato.datasets import load
    >>> recipe(load("digits"), "altconv", epsilon=1.0, delta=1e-4).method.name
    'altconv'
    """
    _check.positive(epsilon=epsilon)
    _check.delta(delta=delta)
    if method not in METHODS:
        raise InvalidParameterError(f"unknown method {method!r}. Use one of: {', '.join(METHODS)}.")
    request = _Request(data, epsilon, delta, 0 if seed is None else seed, model, start)
    if seed is None:
        return METHODS[method](request)
    with same_draws(seed=seed):
        return METHODS[method](request)


@dataclass(frozen=True, eq=False, slots=True)
class _Request:
    data: Dataset
    epsilon: float
    delta: float
    seed: int
    model: nn.Module | None
    start: Start


def standardized(features: Tensor, *, by: Tensor) -> Tensor:
    """Shift and scale features to mean 0 and variance 1: each channel of images, else each column.

    Args:
        features: The rows to standardize.
        by: The rows whose mean and variance are used.

    Returns:
        The standardized features. A column that is constant in `by` is only shifted.

    >>> standardized(torch.tensor([[1.0, 7.0], [3.0, 7.0]]), by=torch.tensor([[1.0, 7.0], [3.0, 7.0]]))
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """
    over = (0, 2, 3) if by.dim() == 4 else (0,)
    mean, spread = by.mean(over, keepdim=True), by.std(over, correction=0, keepdim=True)
    return (features - mean) / torch.where(spread > 0, spread, 1.0)


def first_model(data: Dataset, *, seed: int = 0, groups: Tensor | None = None) -> nn.Module:
    """Return a network that was trained to separate clusters of public features.

    Its last layer is new, and only that layer has weights to learn: fewer weights need less noise.

    Args:
        data: The data set. Only features are used.
        seed: The seed of weights and training.
        groups: The cluster of each row, or None to compute the clusters.

    Returns:
        The network, for rows as `points_of` returns them.
    """
    points = points_of(data.train.features)
    if groups is None:
        groups, _ = clustered(points, clusters=min(_START_CLUSTERS * data.num_classes, len(points)))
    with same_draws(seed=seed):
        body = nn.Sequential(nn.Linear(points.shape[1], _START_WIDTH), nn.Tanh())
        classifier = nn.Sequential(body, nn.Linear(_START_WIDTH, int(groups.max()) + 1))
        learn(classifier, points, groups, epochs=4, batch_size=128, learning_rate=1e-3, seed=seed)
        body.requires_grad_(False)
        last = nn.Linear(_START_WIDTH, data.num_classes)
    for weights in last.parameters():
        nn.init.zeros_(weights)
    return nn.Sequential(*body, *whitened(nn.Sequential(last), body(points))).train()


def clustered(points: Tensor, *, clusters: int, seed: int = 0) -> tuple[Tensor, Spectrum]:
    """Cluster rows along the neighbor graph of their features.

    Args:
        points: The rows, as `points_of` returns them.
        clusters: The number of clusters.
        seed: The seed of k-means.

    Returns:
        The cluster of each row, and the spectrum of the graph.
    """
    components = min(_COMPONENTS, points.shape[1], len(points) - 1)
    reduced = principal_components(points, components=components).of(points)
    graph = nearest_neighbors(reduced, neighbors=min(_NEIGHBORS, len(points) - 1))
    found = spectrum(graph, dimensions=min(_DIMENSIONS, len(points) // 4))
    return k_means(found.points(), clusters=clusters, seed=seed), found


def _by_gradients(name: str) -> Callable[[_Request], LabelRecipe]:
    def made(request: _Request) -> LabelRecipe:
        data = request.data
        method = tuned_method(
            name,
            request.start,
            epsilon=request.epsilon,
            delta=request.delta,
            classes=data.num_classes,
            public_size=data.public_size,
        )
        features, test_features, model = _STARTS[request.start](request)
        return LabelRecipe(
            features=features, test_features=test_features, model=model, method=method, learner=None
        )

    return made


def _from_public_features(request: _Request) -> tuple[Tensor, Tensor, nn.Module]:
    data = request.data
    model = first_model(data, seed=request.seed) if request.model is None else request.model
    return points_of(data.train.features), points_of(data.test.features), model


def _from_random_weights(request: _Request) -> tuple[Tensor, Tensor, nn.Module]:
    train, test, classes = request.data.train.features, request.data.test.features, request.data.num_classes
    points = standardized(train, by=train)
    model = (
        whitened(nearly_even_network(train.shape[1:], classes), points)
        if request.model is None
        else request.model
    )
    return points, standardized(test, by=train), model


_STARTS = {Start.PUBLIC_FEATURES: _from_public_features, Start.RANDOM: _from_random_weights}


def _by_release(make: Callable[[float, int], Method]) -> Callable[[_Request], LabelRecipe]:
    def made(request: _Request) -> LabelRecipe:
        data, own = request.data, request.model
        return LabelRecipe(
            features=data.train.features,
            test_features=data.test.features,
            model=small_network(data.train.features.shape[1:], data.num_classes) if own is None else own,
            method=make(request.epsilon, data.num_classes),
            learner=_learner(len(data.train.features)),
        )

    return made


def _by_clusters(request: _Request) -> LabelRecipe:
    data, epsilon = request.data, request.epsilon
    points, test = points_of(data.train.features), points_of(data.test.features)
    count = cluster_count(len(points), classes=data.num_classes, epsilon=epsilon)
    groups, found = clustered(points, clusters=count, seed=request.seed)
    method = ClusterLabels(epsilon=epsilon, classes=data.num_classes, clusters=groups, spectrum=found)
    own = nn.Sequential(
        nn.Linear(points.shape[1], 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, data.num_classes)
    )
    model = own if request.model is None else request.model
    return LabelRecipe(
        features=points,
        test_features=test,
        model=model,
        method=method,
        learner=_learner(len(points)),
    )


def points_of(features: Tensor) -> Tensor:
    """Return rows of about unit variance: oriented gradients of images, else the features as they are.

    Args:
        features: The features of rows.

    Returns:
        One flat vector for each row.
    """
    if features.dim() != 4 or min(features.shape[2:]) < 8:
        return features.flatten(1)
    found = oriented_gradients(features)
    return found * math.sqrt(found.shape[1])


METHODS: Mapping[str, Callable[[_Request], LabelRecipe]] = {
    "clusters": _by_clusters,
    "altconv": _by_gradients("altconv"),
    "selfconv": _by_gradients("selfconv"),
    "selfspan": _by_gradients("selfspan"),
    "dp-sgd": _by_gradients("dp-sgd"),
    "randomized-response": _by_release(
        lambda epsilon, classes: RandomizedLabels(
            epsilon=epsilon, classes=classes, correction=Correction.FORWARD
        )
    ),
    "multi-stage": _by_release(lambda epsilon, classes: MultiStage(epsilon=epsilon, classes=classes)),
    "alibi": _by_release(lambda epsilon, classes: Alibi(epsilon=epsilon, classes=classes)),
}
