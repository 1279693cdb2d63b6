# SPDX-License-Identifier: Apache-2.0
"""Rows that several experiments of R2 use: credit default, or breast cancer for a quick run.

R2 calls the set "credit card fraud"; the one that it cites is on credit card default (errata, R2-18).
"""

from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression

from sfumato.datasets import load

__all__ = ["CREDIT", "Floats", "Labels", "Part", "classified", "nonprivate_scores", "parts", "subset"]

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

CREDIT = "credit-default"
_QUICK = "breast-cancer"
# Weak enough to change nothing (0.01 beside a sum over rows), and it lets few rows have a minimum.
_NEXT_TO_NO_REGULARIZATION = 0.01


class Part(NamedTuple):
    """Rows with features from 0 to 1, and their labels, 0 or 1."""

    features: Floats
    labels: Labels


@cache
def parts(*, quick: bool) -> tuple[Part, Part]:
    """Return the rows to learn from and those to test with.

    Args:
        quick: Whether the run is a quick one.

    Returns:
        The two parts.
    """
    data = load(_QUICK if quick else CREDIT)
    train, test = (
        Part(part.features.double().numpy(), part.labels.numpy()) for part in (data.train, data.test)
    )
    return train, test


def subset(train: Part, size: int | None, seed: int) -> Part:
    """Return some of the rows, drawn by a seed; all of them if no size is given.

    >>> subset(Part(np.zeros((9, 2)), np.zeros(9, np.int64)), 4, seed=0).features.shape
    (4, 2)
    """
    if size is None:
        return train
    chosen = np.random.default_rng(seed).permutation(len(train.labels))[:size]
    return Part(train.features[chosen], train.labels[chosen])


def nonprivate_scores(train: Part, test: Part) -> Floats:
    """Return the scores of a logistic regression without privacy, for the rows to test with."""
    model: Any = LogisticRegression(C=1 / _NEXT_TO_NO_REGULARIZATION, max_iter=5000)
    model.fit(train.features, train.labels)
    return cast(Floats, model.decision_function(test.features))


def classified(scores: Floats, test: Part) -> dict[str, float]:
    """Return the mean log loss of scores, and how many rows are on the right side of 0.

    >>> classified(np.array([2.0, -2.0]), Part(np.zeros((2, 1)), np.array([1, 1])))
    {'loss': 1.12693, 'accuracy': 0.5}
    """
    signed = np.where(test.labels == 1, scores, -scores)
    loss = float(np.logaddexp(0.0, -signed).mean())
    return {"loss": round(loss, 5), "accuracy": round(float((signed > 0).mean()), 5)}
