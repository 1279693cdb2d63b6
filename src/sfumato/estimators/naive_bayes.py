# SPDX-License-Identifier: Apache-2.0
"""Gaussian naive Bayes from noisy counts, sums and sums of squares of each class.

A value v is counted from the middle of its bounds, over half of their width, so it is in [-1, 1]. Squares are
counted from 1/2: v^2 - 1/2 is within 1/2 of 0, which halves the noise, and the count gives the rest.

Classes with few rows are pulled to the mean and the variance of all rows, by as many rows as the noise is
worth, and a variance is larger by what noise may have moved the mean and the variance. So noise does not
become a confident class; with little noise this is what scikit-learn computes.

Guarantee  (epsilon, delta) for one row with its label. A row moves one of the counts by 1, the sums of its
           class by at most 1 for each feature, and the sums of squares by at most 1/2. These are three parts
           of the budget (`cell_noise`), and everything else is computed from them.
Edge cases A row with a NaN or an infinity, or whose label is not one of the classes, contributes nothing. In
           prediction, values are moved into the bounds, and a missing one is left out.
Source     Vaidya, Shafiq, Basu, Hong 2013 (naive Bayes from noisy moments).
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.estimators.base import Floats
from sfumato.estimators.cell_noise import CellNoise, Part, counts, signed
from sfumato.estimators.classes import PublicClassifier
from sfumato.estimators.linear import finite_rows
from sfumato.estimators.trees.bins import pairs_of
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator

__all__ = ["GaussianNB"]

_SHARES = (0.1, 0.7, 0.2)  # of the budget: counts, sums, squares
_LEAST_SPREAD = 0.01  # of half the width of the bounds: no standard deviation is smaller
_MOST_VARIANCE = 1.0  # of values in [-1, 1]


class GaussianNB(PublicClassifier):
    """Gaussian naive Bayes with differential privacy.

    Args:
        epsilon: The privacy budget of a fit, from 1e-9 to 1e9; at most 500 with a delta.
        classes: The labels, in the order of `classes_`. They are never read from y.
        bounds: Lower and upper bound of all features, or a list with one pair for each; public. Values
            outside are moved to the nearer end.
        delta: The delta of the guarantee; 0 for pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name.
        privacy_unit: What one row stands for. An account must protect the same unit.
        account: The account that is charged. None records nothing, and `notes_` says so.
        purpose: What the release is for, as the ledger shows it. None uses a description of the estimator.
        random_state: None for secure noise, a whole number for seeded noise (for study only), or a sfumato
            generator.

    >>> X, y = np.array([[0.2], [0.8]] * 1000), np.array(["low", "high"] * 1000)
    >>> model = GaussianNB(epsilon=1.0, classes=("low", "high"), bounds=(0, 1)).fit(X, y)
    >>> model.predict([[0.1], [0.9]]).tolist()
    ['low', 'high']
    >>> print(model.guarantee_)
    (1, 0)-differential privacy for one row, add-remove neighbors
    """

    def __init__(
        self,
        *,
        epsilon: float,
        classes: Any,
        bounds: Any,
        delta: float = 0.0,
        relation: Relation | str = "add-remove",
        privacy_unit: str = "row",
        account: Account | None = None,
        purpose: str | None = None,
        random_state: int | Generator | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            privacy_unit=privacy_unit,
            account=account,
            purpose=purpose,
            random_state=random_state,
        )
        self.classes = classes
        self.bounds = bounds

    def event(self) -> DpEvent:
        """Return the event of one fit, from the parameters alone, for any number of features.

        Returns:
            The event.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        self._check_common()
        self.public_classes()
        pairs_of(self.bounds, None)
        return self._noise().event()

    def _noise(self) -> CellNoise:
        return CellNoise(epsilon=self.epsilon, delta=self.delta, relation=self._relation())

    def _check_features(self, features: int, names: tuple[str, ...] | None) -> None:
        self._ends(features)
        self._parts(features)

    def _parts(self, features: int) -> tuple[Part, Part, Part]:
        """Return the noise of counts, sums and squares."""
        noise, relation = self._noise(), self._relation()
        return (
            noise.part(_SHARES[0], counts(1, relation)),
            noise.part(_SHARES[1], signed(features, math.sqrt(features), relation)),
            noise.part(_SHARES[2], signed(features / 2, math.sqrt(features) / 2, relation)),
        )

    def _learn(self, X: Any, y: Any, *, generator: Generator) -> None:
        rows, labels = self._labelled(X, y)
        known = finite_rows(rows)
        values, labels = self._scaled(rows[known]), labels[known]
        classes = len(self.public_classes())
        counting, adding, squaring = self._parts(rows.shape[1])
        held = counting.count(labels, (classes,), generator)
        sums = _of_classes(values, labels, classes, adding, generator)
        squares = _of_classes(values**2 - 0.5, labels, classes, squaring, generator) + held[:, None] / 2
        self._keep(np.maximum(held, 0.0), sums, squares, (adding.stddev, squaring.stddev))

    def _scaled(self, rows: Floats) -> Floats:
        """Return values from the middle of their bounds, over half of the width: in [-1, 1], or NaN."""
        lower, upper = self._ends(rows.shape[1])
        with np.errstate(all="ignore"):
            inside = np.clip(rows, lower, upper)
            return np.clip((inside - (lower / 2 + upper / 2)) / (upper / 2 - lower / 2), -1.0, 1.0)

    def _ends(self, features: int) -> tuple[Floats, Floats]:
        lower, upper = np.array(pairs_of(self.bounds, features), dtype=np.float64).T
        return lower, upper

    def _keep(self, held: Floats, sums: Floats, squares: Floats, noise: tuple[float, float]) -> None:
        """Keep what follows from noisy sums. Every class has some rows more that are like the average row."""
        prior = noise[0]
        lower, upper = self._ends(sums.shape[1])
        half = upper / 2 - lower / 2
        total = held.sum() + prior
        mean = np.clip(sums.sum(axis=0) / total, -1.0, 1.0)
        square = np.clip((squares.sum(axis=0) + prior) / total, mean**2, 1.0)
        weight = (held + prior)[:, None]
        means = np.clip((sums + prior * mean) / weight, -1.0, 1.0)
        spread = (squares + prior * square) / weight - means**2
        self.classes_ = self.public_classes()
        self.class_prior_ = (held + 1) / (held + 1).sum()
        self.theta_: Floats = lower / 2 + upper / 2 + half * means
        doubt = (noise[0] / weight) ** 2 + noise[1] / weight  # how far off a mean, and a variance, may be
        self.var_: Floats = half**2 * (np.clip(spread, _LEAST_SPREAD**2, _MOST_VARIANCE) + doubt)

    def _probabilities(self, rows: Floats) -> Floats:
        lower, upper = self._ends(rows.shape[1])
        half = upper / 2 - lower / 2
        values, means = self._scaled(rows), (self.theta_ - (lower / 2 + upper / 2)) / half
        scores = np.tile(np.log(self.class_prior_), (len(rows), 1))
        for place, (mean, variance) in enumerate(zip(means, self.var_ / half**2, strict=True)):
            fit = (values - mean) ** 2 / variance + np.log(variance)
            scores[:, place] -= np.nan_to_num(fit, nan=0.0).sum(axis=1) / 2
        return softmax(scores, axis=1)


def _of_classes(
    values: Floats, labels: npt.NDArray[np.int64], classes: int, part: Part, generator: Generator
) -> Floats:
    """Return the noisy sums of values in each class: [classes, features]."""
    whole = part.whole(values)
    sums = np.zeros((classes, values.shape[1]))
    for feature, column in enumerate(whole.T):
        sums[:, feature] = np.bincount(labels, weights=column, minlength=classes)
    return part.add(sums, generator=generator)
