# SPDX-License-Identifier: Apache-2.0
"""Boosting over histograms: an additive model of bins, as Explainable Boosting Machines are.

First the number of rows in each bin of each feature is released. Then features take turns for `max_iter`
rounds. At its turn, the sums of the gradients of the log loss over the bins of that feature are released, and
every bin makes a shrunken Newton step. So the score of a row is the sum of one number for each of its
features, which `scores_` lists, and can be read and drawn.

There are no trees over several features: at small epsilon their cells hold too few rows (docs/estimators.md).

Guarantee  (epsilon, delta) for one row with its label. A row is in one bin of each feature, and its gradient
           p - y is in [-1, 1] for two classes; for more it is a vector of L1 norm at most 2 and L2 norm at
           most sqrt(2). So it moves the counts of all features by sqrt(features), and each turn by that
           bound. Everything else is computed from noisy sums (`cell_noise`).
Edge cases A row with a missing value counts in the bin for these. A row whose label is not one of the classes
           contributes nothing.
Source     Nori, Caruana, Bu, Shen, Kulkarni 2021, arXiv:2106.09680 (boosting of bins with Gaussian noise);
           Maddock et al. 2022, arXiv:2210.02910 (Newton steps).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax
from sklearn.utils.validation import check_is_fitted

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.estimators.base import Floats
from sfumato.estimators.cell_noise import CellNoise, Part, counts, signed
from sfumato.estimators.classes import PublicClassifier
from sfumato.estimators.trees.bins import Bins, Places, check_domains
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator

__all__ = ["HistGradientBoostingClassifier"]

_COUNT_SHARE = 0.1  # of the budget, for the number of rows in each bin
_CURVATURE = 0.25  # of the log loss, at most
_L1, _L2 = 2.0, math.sqrt(2) * (1 + 1e-12)  # of a gradient of several classes, rounding included
# Rounds and learning rate, chosen on Adult, which is public. Laplace noise grows with the number of rounds.
_ROUNDS = {"pure": (4, 0.7), "gaussian": (30, 0.25)}
_RIDGE = 8.0  # in standard deviations of the noise that all rounds leave in a bin


class HistGradientBoostingClassifier(PublicClassifier):
    """Boosting over noisy histograms: a score for each bin of each feature, added up.

    Args:
        epsilon: The privacy budget of a fit, from 1e-9 to 1e9; at most 500 with a delta.
        classes: The labels, in the order of `classes_`. They are never read from y.
        bounds: Lower and upper bound of all features, or a list with one pair for each; public.
        categories: Maps features that hold codes 0, 1, ..., by place or by name, to how many codes there are.
            Bounds of these features are not used.
        delta: The delta of the guarantee; 0 for pure differential privacy, with much more noise.
        max_iter: How many rounds there are. In each, every feature makes one step. None: 30, or 4 with
            delta 0.
        learning_rate: The share of a Newton step that is made, at most 1. None: 0.25, or 0.7 with delta 0.
        max_bins: How many bins of equal width the bounds of a feature are divided into, from 2 to 1024.
        l2_regularization: What is added to the curvature of each bin, in rows. None: by the noise.
        relation: Which data sets are neighbors: a `Relation` or its name.
        privacy_unit: What one row stands for. An account must protect the same unit.
        account: The account that is charged. None records nothing, and `notes_` says so.
        purpose: What the release is for, as the ledger shows it. None uses a description of the estimator.
        random_state: None for secure noise, a whole number for seeded noise (for study only), or a sfumato
            generator.

    >>> x = np.linspace(0, 1, 4000)[:, None]
    >>> y = ((x[:, 0] > 0.3) & (x[:, 0] < 0.7)).astype(int)
    >>> model = HistGradientBoostingClassifier(epsilon=1.0, delta=1e-6, classes=(0, 1), bounds=(0, 1))
    >>> model.fit(x, y).predict([[0.1], [0.5], [0.9]]).tolist()
    [0, 1, 0]
    >>> print(model.guarantee_)
    (1, 1e-06)-differential privacy for one row, add-remove neighbors
    """

    def __init__(
        self,
        *,
        epsilon: float,
        classes: Any,
        bounds: Any,
        categories: Any = None,
        delta: float = 0.0,
        max_iter: int | None = None,
        learning_rate: float | None = None,
        max_bins: int = 32,
        l2_regularization: float | None = None,
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
        self.categories = categories
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.max_bins = max_bins
        self.l2_regularization = l2_regularization

    def event(self) -> DpEvent:
        """Return the event of one fit, from the parameters alone, for any number of features.

        Returns:
            The event.

        Raises:
            InvalidParameterError: If a parameter is out of range.
        """
        self._check_common()
        self.public_classes()
        check_domains(self)
        rounds, rate = self._schedule()
        _check.count(max_iter=rounds)
        _check.positive(learning_rate=rate)
        _check.in_range(0, 1, learning_rate=rate)  # scores stay finite: a NaN would have no bound
        if self.l2_regularization is not None:
            _check.non_negative(l2_regularization=self.l2_regularization)
        return self._noise().event()

    def _schedule(self) -> tuple[int, float]:
        rounds, rate = _ROUNDS["pure" if self.delta == 0 else "gaussian"]
        return (
            rounds if self.max_iter is None else self.max_iter,
            rate if self.learning_rate is None else self.learning_rate,
        )

    def _noise(self) -> CellNoise:
        return CellNoise(epsilon=self.epsilon, delta=self.delta, relation=self._relation())

    def _check_features(self, features: int, names: tuple[str, ...] | None) -> None:
        Bins.of(self, features, names)
        self._parts(features)

    def _parts(self, features: int) -> tuple[Part, Part]:
        """Return the noise of the counts, and of one turn of a feature."""
        noise, relation = self._noise(), self._relation()
        counted = noise.part(_COUNT_SHARE, counts(features + 1, relation))  # and once by its class
        norms = (1.0, 1.0) if len(self.public_classes()) == 2 else (_L1, _L2)
        share = (1 - _COUNT_SHARE) / (self._schedule()[0] * features)
        return counted, noise.part(share, signed(*norms, relation))

    def _learn(self, X: Any, y: Any, *, generator: Generator) -> None:
        rows, labels = self._labelled(X, y)
        classes = self.public_classes()
        bins = Bins.of(self, rows.shape[1], getattr(self, "feature_names_in_", None))
        sums = _Sums.of(bins.places(rows), bins, labels, len(classes))
        rounds, rate = self._schedule()
        counted, turn = self._parts(sums.features)
        ridge = _RIDGE * turn.stddev / math.sqrt(rounds)
        ridge = ridge if self.l2_regularization is None else self.l2_regularization
        held, of_classes = sums.rows_in_bins(counted, generator)
        self.start_ = sums.begin(np.maximum(of_classes, max(1.0, counted.stddev)))
        weight = np.maximum(held, turn.stddev) * _CURVATURE + ridge  # no bin is believed to be emptier
        scores = [np.zeros((size, sums.outputs)) for size in bins.sizes.tolist()]
        for _ in range(rounds):
            for j, size in enumerate(bins.sizes.tolist()):
                noisy = sums.gradients(j, size, turn, generator)
                step = rate * noisy / weight[j, :size, None]
                scores[j] -= step
                sums.move(j, step)
        self.classes_, self.n_iter_ = classes, rounds
        self.scores_: list[Floats] = scores
        self.bins_ = bins

    def decision_function(self, X: Any) -> Floats:
        """Return the score of each row.

        Args:
            X: The rows, [rows, features]. An entry that is not a number counts as missing.

        Returns:
            One score for each row if there are two classes, else one for each row and class.
        """
        check_is_fitted(self, "classes_")
        with np.errstate(all="ignore"):  # a warning would tell of a row
            scores = self._scored(self._matrix(X, reset=False))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def _scored(self, rows: Floats) -> Floats:
        places = self.bins_.places(rows)
        total = np.tile(self.start_, (len(rows), 1))
        for j, scores in enumerate(self.scores_):
            total += scores[places[:, j]]
        return total

    def _probabilities(self, rows: Floats) -> Floats:
        scores = self._scored(rows)
        if scores.shape[1] == 1:
            return np.hstack([expit(-scores), expit(scores)])
        return softmax(scores, axis=1)


@dataclass(kw_only=True, slots=True)
class _Sums:
    """The rows, their labels and their scores so far: private."""

    places: Places
    sizes: npt.NDArray[np.intp]
    labels: npt.NDArray[np.int64]
    targets: Floats  # [rows, outputs]: 1 for the class of the row
    scores: Floats  # [rows, outputs]

    @classmethod
    def of(cls, places: Places, bins: Bins, labels: npt.NDArray[np.int64], classes: int) -> "_Sums":
        targets = np.eye(classes)[labels]
        targets = targets[:, 1:] if classes == 2 else targets
        scores = np.zeros(targets.shape)
        return cls(places=places, sizes=bins.sizes, labels=labels, targets=targets, scores=scores)

    @property
    def features(self) -> int:
        return len(self.sizes)

    @property
    def outputs(self) -> int:
        """One score for two classes, else one for each."""
        return self.targets.shape[1]

    def rows_in_bins(self, part: Part, generator: Generator) -> tuple[Floats, Floats]:
        """Return the noisy number of rows in each bin, [features, the most bins], and of each class."""
        classes = max(2, self.outputs)
        width = max(int(self.sizes.max()), classes)
        places = np.column_stack([self.places, self.labels]) + width * np.arange(self.features + 1)
        found = part.count(places, (self.features + 1, width), generator)
        return found[:-1], found[-1, :classes]

    def begin(self, of_classes: Floats) -> Floats:
        """Start all scores from the noisy shares of the classes, and return the start: [outputs]."""
        logs = np.log(of_classes / of_classes.sum())
        start = logs[1:] - logs[0] if self.outputs == 1 else logs
        self.scores += start
        return start

    def gradients(self, feature: int, size: int, part: Part, generator: Generator) -> Floats:
        """Return the noisy sums of gradients over the bins of a feature: [bins, outputs]."""
        told = expit(self.scores) if self.outputs == 1 else softmax(self.scores, axis=1)
        slopes = part.whole(told - self.targets)
        held = np.zeros((size, self.outputs))
        for output, slope in enumerate(slopes.T):
            held[:, output] = np.bincount(self.places[:, feature], weights=slope, minlength=size)
        return part.add(held, generator=generator)

    def move(self, feature: int, step: Floats) -> None:
        """Take a step of a feature from the scores of the rows."""
        self.scores -= step[self.places[:, feature]]
