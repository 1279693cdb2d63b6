# SPDX-License-Identifier: Apache-2.0
"""The cases of the estimators that release noisy sums over cells: trees, boosting, naive Bayes and k-means.

Each releases all that a fit stores. The other rows are all alike, so that the row in question is the only one
of its class, or the only one in its cell.
"""

from typing import Any

import numpy as np
from sklearn.base import clone

from attacks.releases import DELTA, Case
from sfumato import estimators as e
from sfumato.mechanisms.random import Generator

__all__ = ["cell_cases"]

_DOMAINS: dict[str, Any] = {"classes": (0, 1), "bounds": (0.0, 1.0)}
_BINS: dict[str, Any] = {**_DOMAINS, "max_bins": 2}
_FIRST = np.full((20, 1), 0.25), np.zeros(20)
_SECOND = np.array([[0.25]] * 20 + [[0.75]]), np.array([0.0] * 20 + [1.0])


def cell_cases(epsilon: float) -> tuple[Case, ...]:
    """Return the cases.

    Args:
        epsilon: What each claims.

    Returns:
        The cases.
    """
    pure: dict[str, Any] = {"epsilon": epsilon, **_BINS}
    gaussian: dict[str, Any] = {**pure, "delta": DELTA}
    clusters: dict[str, Any] = {"epsilon": epsilon, "n_clusters": 1, "bounds": (0.0, 1.0), "max_iter": 1}
    one: dict[str, Any] = {"n_estimators": 1, "max_depth": 1}
    return (
        _fitted(e.HistGradientBoostingClassifier(**pure, max_iter=1)),
        _fitted(e.HistGradientBoostingClassifier(**gaussian, max_iter=2), ", Gaussian"),
        _fitted(e.DecisionTreeClassifier(**pure, max_depth=1)),
        _fitted(e.DecisionTreeClassifier(**gaussian, max_depth=1), ", Gaussian"),
        _fitted(e.RandomForestClassifier(**pure, **one)),
        _fitted(e.GaussianNB(epsilon=epsilon, **_DOMAINS)),
        _fitted(e.GaussianNB(epsilon=epsilon, delta=DELTA, **_DOMAINS), ", Gaussian"),
        _fitted(e.KMeans(**clusters)),
        _fitted(e.KMeans(**clusters, delta=DELTA), ", Gaussian"),
    )


def _fitted(estimator: e.PrivateEstimator, note: str = "") -> Case:
    """Return the case of an estimator that is fitted to rows of one class, and to one row more."""

    def run(data: tuple[Any, ...], generator: Generator) -> object:
        fresh: Any = clone(estimator)
        return stored(fresh.set_params(random_state=generator).fit(*data))

    name = type(estimator).__name__
    return Case(
        subject=f"{name}{note}",
        audits=name,
        run=run,
        first=_FIRST,
        second=_SECOND,
        claim=e.cost(estimator),
    )


def stored(model: Any) -> tuple[float, ...]:
    """Return all numbers that a fitted model stores of the data, as many whatever the noise was."""
    if isinstance(model, e.HistGradientBoostingClassifier):
        return tuple(np.concatenate([scores.ravel() for scores in model.scores_]))
    if isinstance(model, e.GaussianNB):
        return (*model.class_prior_, *model.theta_.ravel(), *model.var_.ravel())
    if isinstance(model, e.KMeans):
        return tuple(model.cluster_centers_.ravel())
    grown = model.trees_[0]
    leaves = grown.leaves(np.arange(3)[:, None])  # of each bin
    return (float(grown.feature[0]), *grown.value[leaves].ravel())
