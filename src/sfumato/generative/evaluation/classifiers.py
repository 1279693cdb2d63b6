# SPDX-License-Identifier: Apache-2.0
"""Classifiers that learn from synthetic rows: which ones, and how a setting of each is chosen.

Each classifier is a list of settings. The setting with the highest accuracy on a split of the SYNTHETIC rows
is fitted again on all synthetic rows. Neither the holdout nor private rows take part in that choice.

Edge cases With a single class among the rows nothing is fitted, and every row is predicted to be of it. A
           class of a single row, or a class without a row in the first part of the split, is allowed. A
           classifier that does not know a class gives it probability 0.
Not here   Protection: what is fitted to synthetic rows is as private as these are.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from sfumato import _check
from sfumato._torch import require_torch
from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.rows import Floats, LabeledRows

__all__ = [
    "Classifier",
    "Classifiers",
    "FittedClassifier",
    "fit_classifier",
    "image_classifiers",
    "image_network",
    "table_classifiers",
]

_WIDTH = 100  # hidden units of the MLP
_TREES = 100
_BATCH = 128  # rows of a step of the convolutional network
_FEWEST_STEPS = 100  # of that network: few rows are passed over more often
_VALIDATION_SHARE = 0.2


class Classifier(Protocol):
    """A classifier of scikit-learn, or one like it. Rows are flat, [rows, numbers]; images too."""

    def fit(self, X: Any, y: Any) -> Any:
        """Learn from rows.

        Args:
            X: The rows, [rows, numbers].
            y: The class number of each row.

        Returns:
            This classifier.
        """
        ...

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each class that it knows.

        Args:
            X: The rows, [rows, numbers].

        Returns:
            [rows, classes], in the order of `classes_`.
        """
        ...


Classifiers = Mapping[str, Sequence[Classifier]]  # settings to choose from, by name


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class FittedClassifier:
    """A classifier that was fitted to synthetic rows.

    Attributes:
        name: The name of the classifier.
        model: The fitted model; None if the rows had a single class.
        only_class: The single class of the rows; None if there were several.
        classes: The number of classes.
        setting: The chosen setting, from 0.
        validation_accuracy: The accuracy of that setting on synthetic rows it had not seen; None if there
            was nothing to choose.
    """

    name: str
    model: Any
    only_class: int | None
    classes: int
    setting: int
    validation_accuracy: float | None

    def probabilities(self, rows: LabeledRows) -> Floats:
        """Return the probability of every class; 0 for a class that the synthetic rows lacked.

        Args:
            rows: The rows.

        Returns:
            [rows, classes].
        """
        found = np.zeros((len(rows), self.classes))
        if self.only_class is not None:
            found[:, self.only_class] = 1.0
            return found
        known = np.nan_to_num(np.asarray(self.model.predict_proba(rows.flat), dtype=np.float64))
        found[:, np.asarray(self.model.classes_, dtype=np.int64)] = known
        return found


def table_classifiers(*, seed: int = 0) -> dict[str, list[Classifier]]:
    """Return the classifiers for rows of numbers.

    Args:
        seed: The seed of their own randomness.

    Returns:
        Logistic regression, an MLP, a random forest and gradient boosting, each with its settings.

    >>> list(table_classifiers())
    ['logistic regression', 'MLP', 'random forest', 'gradient boosting']
    """
    boosting = [HistGradientBoostingClassifier(learning_rate=rate, random_state=seed) for rate in (0.03, 0.1)]
    return {**_linear_and_mlp(seed), **_forest(seed), "gradient boosting": [*boosting]}


def image_classifiers(
    *, shape: Sequence[int], classes: int, rows: int, device: Any = None, seed: int = 0
) -> dict[str, list[Classifier]]:
    """Return the classifiers for images.

    Args:
        shape: Channels, height and width of an image.
        classes: The number of classes.
        rows: The number of synthetic rows. The convolutional network passes over them 10 times, or more
            often if they are few.
        device: The device of that network, such as "cuda". None means the CPU.
        seed: The seed of their own randomness.

    Returns:
        Logistic regression, an MLP, a random forest and a convolutional network, each with its settings.

    Raises:
        InvalidParameterError: If a number is out of range.
        MissingDependencyError: If torch is not installed.
    """
    _check.count(rows=rows)
    epochs = max(10, -(-_FEWEST_STEPS * _BATCH // rows))
    network = image_network(shape=shape, classes=classes, epochs=epochs, device=device, seed=seed)
    return {**_linear_and_mlp(seed), **_forest(seed), "CNN": [network]}


def image_network(
    *, shape: Sequence[int], classes: int, epochs: int = 10, device: Any = None, seed: int = 0
) -> Classifier:
    """Return a convolutional network of four layers with batch normalization, as a classifier.

    It reaches over 99% on MNIST when it learns from the real training images.

    Args:
        shape: Channels, height and width of an image.
        classes: The number of classes.
        epochs: The number of passes over the rows.
        device: The device to train and predict on, such as "cuda". None means the CPU.
        seed: The seed of its weights and of the order of rows.

    Returns:
        The classifier, not fitted.

    Raises:
        InvalidParameterError: If a number is out of range.
        MissingDependencyError: If torch is not installed.
    """
    _check.count(classes=classes, epochs=epochs)
    if len(shape) != 3:
        raise InvalidParameterError(f"shape must be channels, height and width, but {list(shape)} was given.")
    require_torch()  # and imported here: tables are evaluated without it
    from sfumato.generative.evaluation.image_networks import convolutional
    from sfumato.pate.teaching.torch_classifier import TorchClassifier

    network = TorchClassifier(
        convolutional(shape, classes, seed=seed),
        epochs=epochs,
        batch_size=_BATCH,
        learning_rate=2e-3,
        weight_decay=1e-4,
        device=device,
        seed=seed,
    )
    return _joined(FunctionTransformer(_as_images, kw_args={"shape": tuple(shape)}), network)


def fit_classifier(
    name: str, settings: Sequence[Classifier], rows: LabeledRows, *, seed: int = 0
) -> FittedClassifier:
    """Choose a setting on a split of rows, and fit it to all of them.

    Args:
        name: The name of the classifier.
        settings: The settings to choose from. With a single one nothing is split.
        rows: The rows to learn from: synthetic ones, or public ones.
        seed: The seed of the split.

    Returns:
        The fitted classifier.

    Raises:
        InvalidParameterError: If there is no setting, or a value is not finite.
    """
    rows.require_finite("training")
    if not settings:
        raise InvalidParameterError(f"classifier {name!r} has no setting: give at least one.")
    present = rows.present
    if len(present) == 1:
        return FittedClassifier(
            name=name,
            model=None,
            only_class=present[0],
            classes=rows.classes,
            setting=0,
            validation_accuracy=None,
        )
    chosen, reached = _choose(settings, rows, seed)
    return FittedClassifier(
        name=name,
        model=_fitted(settings[chosen], rows),
        only_class=None,
        classes=rows.classes,
        setting=chosen,
        validation_accuracy=reached,
    )


def _choose(settings: Sequence[Classifier], synthetic: LabeledRows, seed: int) -> tuple[int, float | None]:
    """Return the best setting on synthetic rows, and its accuracy there."""
    order = np.random.default_rng(seed).permutation(len(synthetic))
    held = round(_VALIDATION_SHARE * len(synthetic))
    if len(settings) == 1 or held == 0:
        return 0, None
    learned, checked = synthetic.take(order[held:]), synthetic.take(order[:held])
    if len(learned.present) == 1:
        return 0, None
    accuracies = [_accuracy(_fitted(setting, learned), checked) for setting in settings]
    best = int(np.argmax(accuracies))
    return best, accuracies[best]


def _accuracy(model: Any, rows: LabeledRows) -> float:
    probabilities = np.nan_to_num(np.asarray(model.predict_proba(rows.flat)))
    predicted = np.asarray(model.classes_)[probabilities.argmax(axis=1)]
    return float((predicted == rows.labels).mean())


def _fitted(setting: Classifier, rows: LabeledRows) -> Any:
    model: Any = clone(setting)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of passes is fixed on purpose
        return model.fit(rows.flat, rows.labels)


def _as_images(rows: Floats, *, shape: Sequence[int]) -> Floats:
    return rows.reshape(len(rows), *shape)


def _joined(*steps: Any) -> Classifier:
    pipeline: Any = make_pipeline(*steps)  # its stub has no predict_proba
    return pipeline


def _linear_and_mlp(seed: int) -> dict[str, list[Classifier]]:
    return {
        "logistic regression": [
            _joined(StandardScaler(), LogisticRegression(C=strength, max_iter=200))
            for strength in (0.01, 1.0)
        ],
        "MLP": [
            _joined(StandardScaler(), MLPClassifier((_WIDTH,), alpha=decay, max_iter=60, random_state=seed))
            for decay in (1e-4, 1e-1)
        ],
    }


def _forest(seed: int) -> dict[str, list[Classifier]]:
    return {
        "random forest": [
            RandomForestClassifier(_TREES, min_samples_leaf=least, random_state=seed) for least in (1, 5)
        ]
    }
